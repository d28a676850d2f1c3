/*-------------------------------------------------------------------------
 *
 * version.c
 *	  The versions of grants, which are the fencing tokens.
 *
 * A version is drawn from a sequence while the row is exclusively ours (by its
 * tuple lock, or the partition lock for a new row), so the versions of a key
 * rise in the order in which its grants were won.  In WAL the record of the
 * sequence precedes that of the commit, so a grant that survives a crash takes
 * its version with it.
 *
 * Versions that were drawn for lost grants must not be drawn again.  That could
 * happen on a standby that missed the last commits, in a restored dump, or after
 * a point-in-time recovery.  So the database records in a second sequence the
 * incarnation that last drew a version, and in any other incarnation the
 * versions first leap ahead by 2^32.  It uses a sequence rather than a row
 * because a sequence is not transactional: no process waits for another.
 *
 * Two standbys that were both promoted by mistake are on timelines with the
 * same number and leap from the same version.  A random number of 32 bits is
 * added to the leap, so that a token of one is not a token of the other.
 *
 * An incarnation is the system identifier, the timeline, the database and the
 * table.  The last two tell apart a database that was dropped and restored
 * from a dump in the same cluster.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "database.h"
#include "rows/version.h"

#define LEAP	(INT64CONST(1) << 32)

static uint64
current_incarnation(const DlockTable *store)
{
	struct
	{
		uint64		system;
		uint32		timeline;
		Oid			database;
		Oid			table;
		uint32		zero;
	}			id;
	uint64		hash;

	memset(&id, 0, sizeof(id));
	id.system = GetSystemIdentifier();
	id.timeline = GetWALInsertionTimeLine();
	id.database = MyDatabaseId;
	id.table = RelationGetRelid(store->heap);

	/* the sequence needs a positive bigint */
	hash = hash_bytes_extended((unsigned char *) &id, sizeof(id), 0) >> 1;
	return hash == 0 ? 1 : hash;
}

/*
 * This runs as the owner of the sequences, because it needs that role's
 * privileges.  The owner is a superuser, the one that installed the extension,
 * and the search_path is the caller's.  So every name in the queries is
 * qualified, including operators.
 */
static void
leap_if_new(const DlockTable *store, uint64 incarnation)
{
	Oid			save_userid;
	int			save_sec_context;
	Oid			argtypes[2] = {INT8OID, INT8OID};
	Datum		args[2];
	uint32		dice;

	if (!pg_strong_random(&dice, sizeof(dice)))
		elog(ERROR, "could not generate a random number for dlock");
	args[0] = Int64GetDatum((int64) incarnation);
	args[1] = Int64GetDatum(LEAP + dice);

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(store->heap->rd_rel->relowner,
						   save_sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	SPI_connect();

	/*
	 * If the sequence was never used, this is a new installation.  The leap
	 * comes first: a crash in between makes us leap twice, which is harmless.
	 */
	if (SPI_execute_with_args("SELECT pg_catalog.setval('dlock.versions',"
							  " v.last_value OPERATOR(pg_catalog.+) $2)"
							  " FROM dlock.versions v, dlock.incarnation i"
							  " WHERE i.is_called AND i.last_value OPERATOR(pg_catalog.<>) $1",
							  2, argtypes, args, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not advance the versions of dlock");
	if (SPI_execute_with_args("SELECT pg_catalog.setval('dlock.incarnation', $1)",
							  1, argtypes, args, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not record the incarnation of dlock");

	SPI_finish();
	SetUserIdAndSecContext(save_userid, save_sec_context);
}

/*
 * Call this before the row is made ours.  It makes sure that the versions are
 * those of this incarnation, and locks the sequence, so that drawing a version
 * under an LWLock does not wait for a heavyweight lock.
 */
void
dlock_version_prepare(const DlockTable *store)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	uint64		incarnation = current_incarnation(store);

	LockRelationOid(store->versions, RowExclusiveLock);

	if (db != NULL && pg_atomic_read_u64(&db->incarnation) == incarnation)
		return;

	/*
	 * One process at a time.  The lock is released at once rather than at the
	 * end of the transaction, because a rollback does not undo what is done
	 * here.
	 */
	LockRelationOid(store->incarnation, ShareUpdateExclusiveLock);
	if (db == NULL || pg_atomic_read_u64(&db->incarnation) != incarnation)
	{
		leap_if_new(store, incarnation);
		if (db != NULL)
			pg_atomic_write_u64(&db->incarnation, incarnation);
	}
	UnlockRelationOid(store->incarnation, ShareUpdateExclusiveLock);
}

/*
 * Load what drawing a version needs to know about the sequence, so that it
 * reads no catalog under an LWLock.  It stays loaded until the next heavyweight
 * lock is taken.
 */
void
dlock_version_load(const DlockTable *store)
{
	HeapTuple	tuple;

	relation_close(relation_open(store->versions, NoLock), NoLock);
	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(store->versions));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", store->versions);
	ReleaseSysCache(tuple);
}

/*
 * Read the one row of a sequence, which belongs to no transaction.  This needs
 * no snapshot, takes no predicate lock and checks no privilege.
 */
static bool
read_sequence(Oid relid, int64 *last)
{
	Relation	rel = relation_open(relid, AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);
	Page		page;
	HeapTupleData tuple;
	Form_pg_sequence_data form;
	bool		is_called;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	tuple.t_data = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, FirstOffsetNumber));
	form = (Form_pg_sequence_data) GETSTRUCT(&tuple);
	*last = form->last_value;
	is_called = form->is_called;
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);
	return is_called;
}

/* The current state of the versions.  A promoted standby always leaps. */
void
dlock_version_look(const DlockTable *store, bool in_recovery,
				   DlockVersions *versions)
{
	int64		incarnation = 0;
	bool		known = read_sequence(store->incarnation, &incarnation);

	versions->last = 0;
	versions->drawn = read_sequence(store->versions, &versions->last);
	versions->leaps = known &&
		(in_recovery || (uint64) incarnation != current_incarnation(store));
}

int64
dlock_version_next(const DlockTable *store)
{
	return nextval_internal(store->versions, false);
}

/*
 * Lift the versions above the given one, never down.  Returns a version that is
 * not above any that is drawn from now on.
 *
 * Others may draw versions between our look and our change, so we leave more
 * room above the given version than they could use up.
 */
int64
dlock_version_advance(const DlockTable *store, int64 above)
{
	Oid			save_userid;
	int			save_sec_context;
	int64		last = 0;

	dlock_version_prepare(store);
	LockRelationOid(store->incarnation, ShareUpdateExclusiveLock);
	if (!read_sequence(store->versions, &last))
		last = 0;
	if (last < above)
	{
		last = above + LEAP;
		GetUserIdAndSecContext(&save_userid, &save_sec_context);
		SetUserIdAndSecContext(store->heap->rd_rel->relowner,
							   save_sec_context | SECURITY_LOCAL_USERID_CHANGE);
		(void) DirectFunctionCall2(setval_oid, ObjectIdGetDatum(store->versions),
								   Int64GetDatum(last));
		SetUserIdAndSecContext(save_userid, save_sec_context);
	}
	UnlockRelationOid(store->incarnation, ShareUpdateExclusiveLock);
	return last;
}
