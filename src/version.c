/*-------------------------------------------------------------------------
 *
 * version.c
 *	  The versions of grants, which are the fencing tokens.
 *
 * A version is drawn from a sequence while the row is exclusively ours (its
 * tuple lock, or the partition lock for a new row), so the versions of one
 * key rise in the order in which its grants were won.  The record of the
 * sequence precedes that of the commit in WAL: a grant that survives a crash
 * takes its version with it.
 *
 * What does not survive is another matter.  A standby that missed the last
 * commits, a restored dump or a point-in-time recovery would give out again
 * what the old primary has given out already.  So the database remembers, in
 * a second sequence, the incarnation that last drew a version, and in any
 * other incarnation the versions leap ahead by 2^32 first.  A sequence rather
 * than a row, because it is not transactional: nobody waits for anybody.
 *
 * Two standbys that were both promoted, by mistake, are on timelines with the
 * same number, and leap from the same version.  So that a token of the one is
 * none of the other's, the leap is longer by a random number of 32 bits.
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

#include "shmem.h"
#include "version.h"

#define LEAP	(INT64CONST(1) << 32)

static uint64
current_incarnation(const DlockStore *store)
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

	/* a positive bigint, for the sequence's sake */
	hash = hash_bytes_extended((unsigned char *) &id, sizeof(id), 0) >> 1;
	return hash == 0 ? 1 : hash;
}

/*
 * Runs as the sequences' owner, whose rights it needs, and who is the one
 * that installed the extension: a superuser.  So every name in the queries is
 * qualified, operators too: the search_path is the caller's.
 */
static void
leap_if_new(const DlockStore *store, uint64 incarnation)
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
	 * A sequence that was never used belongs to a fresh installation.  The
	 * leap comes first: a crash in between makes us leap twice, and that is
	 * harmless.
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
 * To be called before the row is made ours: makes sure that the versions are
 * this incarnation's, and takes the lock on the sequence, so that drawing
 * under an LWLock does not wait for a heavyweight one.
 */
void
dlock_version_prepare(const DlockStore *store)
{
	DlockDatabase *db = dlock_shmem_database(MyDatabaseId);
	uint64		incarnation = current_incarnation(store);

	LockRelationOid(store->versions, RowExclusiveLock);

	if (db != NULL && pg_atomic_read_u64(&db->incarnation) == incarnation)
		return;

	/*
	 * One at a time, and not until the end of the transaction: what is done
	 * here is not undone by a rollback.
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
 * Load what drawing a version needs to know of the sequence, so that it reads
 * no catalog under an LWLock.  What is loaded stays until the next heavyweight
 * lock is taken.
 */
void
dlock_version_load(const DlockStore *store)
{
	HeapTuple	tuple;

	relation_close(relation_open(store->versions, NoLock), NoLock);
	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(store->versions));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", store->versions);
	ReleaseSysCache(tuple);
}

/*
 * The one row of a sequence, which belongs to no transaction.  Without a
 * snapshot and its predicate locks, and without a right to the sequence.
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

/* Where the versions stand.  A standby always leaps when it is promoted. */
void
dlock_version_look(const DlockStore *store, bool in_recovery,
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
dlock_version_next(const DlockStore *store)
{
	return nextval_internal(store->versions, false);
}
