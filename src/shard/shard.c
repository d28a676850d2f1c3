/*-------------------------------------------------------------------------
 *
 * shard.c
 *	  The shards of keys, and which of them this database serves.
 *
 * Locks can be spread over several servers by the shard of their keys.  What
 * must never happen is that two servers grant the same key, so each of them
 * refuses keys of shards that are not its own.  That does not depend on a
 * router, a client or a configuration file that may be out of date.
 *
 * The shards that a database serves are a row of the table dlock.served; if
 * there is no row, it serves all.  A row is durable, is replicated to standbys,
 * rolls back and is dumped.  Each backend keeps it as a set of bits.  To know
 * whether that is up to date, it compares a counter in shared memory, which
 * every commit of a change increments.  The counter is read before the row, and
 * incremented after the row has become visible.  Relation-cache invalidation
 * would not do: its messages are sent after the callbacks of a commit, and a
 * waiter that is woken by such a callback would find nothing new.
 *
 * A transaction that has passed the check may commit its grant after the change.
 * It holds a lock on dlock.locks, because dlock_table_open() precedes the check.
 * A process that has to know that the last grant of a shard is there waits, after
 * the commit of the change, for all transactions that hold such a lock
 * (dlock_settle).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/lsyscache.h"
#include "utils/rangetypes.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

#include "compat.h"
#include "database.h"
#include "errors.h"
#include "lock/xact.h"
#include "queue/queue.h"
#include "shard/shard.h"
#include "shard/shard_of.h"
#include "shmem.h"

#define WORDS	(DLOCK_SHARDS / 64)

typedef struct Served
{
	bool		all;
	uint64		bits[WORDS];
} Served;

/* What is served, as of a number of changes. */
static struct
{
	Oid			heap;			/* the table of locks, or InvalidOid: not
								 * known */
	uint64		changes;
	Served		served;
}			cache;

/* Has the current transaction changed it?  Then it is read each time. */
static bool changed = false;

/*
 * The set
 */

static bool
has_shard(const Served *served, int shard)
{
	return served->all || (served->bits[shard / 64] & (UINT64CONST(1) << (shard % 64))) != 0;
}

/* Read a multirange of shards, all of which must exist. */
static void
read_shards(const MultirangeType *shards, Served *served)
{
	TypeCacheEntry *type = lookup_type_cache(MultirangeTypeGetOid(shards),
											 TYPECACHE_MULTIRANGE_INFO);
	RangeType **ranges;
	int			nranges;

	memset(served, 0, sizeof(*served));
	multirange_deserialize(type->rngtype, shards, &nranges, &ranges);
	for (int i = 0; i < nranges; i++)
	{
		RangeBound	lower;
		RangeBound	upper;
		bool		empty;

		range_deserialize(type->rngtype, ranges[i], &lower, &upper, &empty);
		if (lower.infinite || upper.infinite || DatumGetInt32(lower.val) < 0 ||
			DatumGetInt32(upper.val) > DLOCK_SHARDS)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("shards must be between 0 and %d", DLOCK_SHARDS - 1),
					 errhint("Pass NULL for all shards, or ranges such as '{[0,512)}'.")));

		/* ranges of integers include their lower bound only */
		for (int shard = DatumGetInt32(lower.val); shard < DatumGetInt32(upper.val); shard++)
			served->bits[shard / 64] |= UINT64CONST(1) << (shard % 64);
	}
}

/*
 * The table
 */

static Oid
locate(void)
{
	Oid			nsp = get_namespace_oid("dlock", true);
	Oid			ext = get_extension_oid("dlock", true);
	Oid			relid = OidIsValid(nsp) ? get_relname_relid("served", nsp) : InvalidOid;

	if (!OidIsValid(ext) || !OidIsValid(relid) ||
		getExtensionOfObject(RelationRelationId, relid) != ext)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"dlock.served\" of extension \"dlock\" is missing"),
				 errhint("If it was renamed, rename it back. Otherwise drop and create the extension again.")));
	return relid;
}

static Relation
open_table(LOCKMODE lockmode)
{
	Relation	rel = table_open(locate(), lockmode);
	TupleDesc	desc = RelationGetDescr(rel);

	if (desc->natts != 1 || TupleDescAttr(desc, 0)->attisdropped ||
		TupleDescAttr(desc, 0)->atttypid != INT4MULTIRANGEOID ||
		rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"dlock.served\" is not as this version of dlock created it"),
				 errhint("Undo the change, or drop and create the extension again.")));
	return rel;
}

typedef void (*EachRow) (Relation rel, HeapTuple tuple, void *arg);

/*
 * Call a function for the rows that are committed by now or written by us.  The
 * scan itself uses no MVCC snapshot: in a SERIALIZABLE transaction that would
 * leave a predicate lock, and the change of a shard could make it fail.
 */
static void
for_each_row(Relation rel, EachRow each, void *arg)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = dlock_table_beginscan(rel, SnapshotAny);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Buffer		buffer = ((HeapScanDesc) scan)->rs_cbuf;
		bool		visible;

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		visible = HeapTupleSatisfiesVisibility(tuple, snapshot, buffer);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		if (visible)
			each(rel, tuple, arg);
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
}

/* If somebody has added another row, only what both say is served. */
static void
add_row(Relation rel, HeapTuple tuple, void *arg)
{
	Served	   *served = arg;
	Served		row;
	bool		isnull;
	Datum		shards = heap_getattr(tuple, 1, RelationGetDescr(rel), &isnull);

	if (isnull)
		return;
	read_shards(DatumGetMultirangeTypeP(shards), &row);
	if (served->all)
		*served = row;
	else
		for (int i = 0; i < WORDS; i++)
			served->bits[i] &= row.bits[i];
}

static void
read_served(Served *served)
{
	Relation	rel = open_table(AccessShareLock);

	memset(served, 0, sizeof(*served));
	served->all = true;
	for_each_row(rel, add_row, served);
	table_close(rel, AccessShareLock);
}

static void
delete_row(Relation rel, HeapTuple tuple, void *arg)
{
	simple_heap_delete(rel, &tuple->t_self);
}

/* Serve these shards; NULL means all. */
void
dlock_shard_serve(const MultirangeType *shards)
{
	Relation	rel;

	if (shards != NULL)
	{
		Served		served;

		read_shards(shards, &served);
	}

	dlock_shard_changed();

	/* one at a time, so that no row is deleted that another one has replaced */
	rel = open_table(ShareRowExclusiveLock);
	for_each_row(rel, delete_row, NULL);
	if (shards != NULL)
	{
		Datum		value = PointerGetDatum(shards);
		bool		isnull = false;
		HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), &value, &isnull);

		simple_heap_insert(rel, tuple);
		heap_freetuple(tuple);
	}
	CommandCounterIncrement();
	table_close(rel, NoLock);
}

/*
 * The check
 */

static bool
is_known(const DlockTable *store, DlockDatabase *db)
{
	return !changed && db != NULL && cache.heap == RelationGetRelid(store->heap) &&
		cache.changes == pg_atomic_read_u64(&db->served_changes);
}

static void
refuse(const DlockKey *key, int shard)
{
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_NOT_SERVED),
			 errmsg("lock \"%s\" is not served by this database",
					pnstrdup(key->data, key->len)),
			 errdetail("Shard %d is not served here.", shard),
			 errhint("Acquire it from the server that serves this shard.")));
}

/* Raise an error unless the shard of the key is served. */
void
dlock_shard_check(const DlockTable *store, const DlockKey *key)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	int			shard;

	if (unlikely(!is_known(store, db)))
	{
		uint64		changes = db != NULL ? pg_atomic_read_u64(&db->served_changes) : 0;

		cache.heap = InvalidOid;
		read_served(&cache.served);
		cache.changes = changes;
		cache.heap = RelationGetRelid(store->heap);
	}
	if (likely(cache.served.all))
		return;
	shard = dlock_shard_of(key->data, key->len);
	if (!has_shard(&cache.served, shard))
		refuse(key, shard);
}

/*
 * A change
 */

/*
 * Note that this transaction changes what is served.  That must be durable, like
 * a grant.  All backends must learn of it, so there must be a slot in shared
 * memory.
 */
void
dlock_shard_changed(void)
{
	if (!dlock_shmem_is_attached())
		return;
	if (dlock_database(MyDatabaseId) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases use dlock"),
				 errdetail("The limit for databases that serve some shards only is %d.",
						   DLOCK_MAX_DATABASES)));
	dlock_xact_enter();
	dlock_xact_leave(DLOCK_WROTE_GRANT);
	changed = true;
}

bool
dlock_shard_is_changed(void)
{
	return changed;
}

/*
 * The row is visible to all now.  Waiters look again, and find that their shard
 * has left.  Must not fail.
 */
static void
xact_callback(XactEvent event, void *arg)
{
	if (!changed)
		return;

	switch (event)
	{
		case XACT_EVENT_COMMIT:
			if (dlock_database(MyDatabaseId) != NULL)
				pg_atomic_fetch_add_u64(&dlock_database(MyDatabaseId)->served_changes, 1);
			dlock_queue_wake_all();
			break;
		case XACT_EVENT_ABORT:
			break;
		default:
			return;
	}
	changed = false;
	cache.heap = InvalidOid;
}

void
dlock_shard_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
}
