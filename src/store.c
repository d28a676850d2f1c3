/*-------------------------------------------------------------------------
 *
 * store.c
 *	  The table dlock.locks, reached through its heap and its index.
 *
 * This is the only file that knows the columns.  It reads and writes rows; it
 * decides nothing.  SPI and the executor are left out because a lock costs
 * hardly more than its commit without them.
 *
 * Finding a row.  The newest state counts, whatever the caller's snapshot, so
 * lookups use a dirty snapshot: first at the place where the hint says, else
 * through the index.  A dirty snapshot shows the row versions that are live
 * and those that an open transaction has made or is about to end, and who
 * that is.  Of one key there is at most one version that is committed and not
 * superseded.
 *
 * The index is read backwards: newer versions mostly have the higher tuple
 * ids, so the live one comes first however many dead ones there are.
 *
 * A lookup through the index may miss a key that exists: when it passes the
 * place of the new version before that is there, and comes to the old one
 * after the change was committed.  So a miss is believed only when no index
 * entry of that key can have been added meanwhile, which is what the
 * partition lock is for: whoever adds an index entry holds it exclusively,
 * and whoever must not miss one looks while holding it.  A change that keeps
 * to its page (HOT) adds no entry, and is seen whole under the buffer's lock.
 *
 * Adding a row holds the partition lock from the lookup that finds nothing to
 * the insertion of the index entry; that is what makes a key unique here, and
 * nobody ever waits in a unique check for another's transaction.
 *
 * An index is opened only when it is needed: where the hint leads to the row
 * and the change keeps to its page, none is.  Entries go to every index of
 * the table, so that REINDEX CONCURRENTLY can replace the primary key's under
 * load.  Our lock on the table keeps an index that we have looked up there.
 *
 * Changing a row.  dlock_store_lock() makes us its locker; what was read is
 * then what is there, for a row version never changes.  That takes the line
 * pointer to be still that version's, which holds because the caller has a
 * snapshot that is older than the lookup: no version that was live since then
 * can be pruned away.  With the lock held, a change cannot fail.
 *
 * Every write ends with CommandCounterIncrement(), so that the next call in
 * the same statement sees it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heaptoast.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "clock.h"
#include "compat.h"
#include "hint.h"
#include "indexes.h"
#include "shmem.h"
#include "store.h"

/*
 * The columns.  Those of fixed width come first and are never null, so that
 * they can be reached as a struct, as PostgreSQL does with its catalogs.  The
 * key follows at a fixed place; its storage is PLAIN, so that it has an
 * ordinary header and is never compressed.
 *
 * What changes from one grant of a key to the next stands together in the
 * middle: WAL has only what lies between the first and the last change.
 */
typedef struct FormDlock
{
	int64		run;			/* the run of the server that wrote the times */
	int64		ttl;
	int64		cleanup;
	Oid			role;
	int32		priority;
	int64		version;
	int64		acquired_at;
	int64		refreshed_at;	/* of a row that is not held: freed at */
	int64		expires_at;
	int32		pid;			/* the session that the grant ends with, or 0 */
	bool		held;
	int16		slot;			/* 0: the exclusive grant */
	struct varlena key;
} FormDlock;

enum
{
	Anum_run = 1,
	Anum_ttl,
	Anum_cleanup,
	Anum_role,
	Anum_priority,
	Anum_version,
	Anum_acquired_at,
	Anum_refreshed_at,
	Anum_expires_at,
	Anum_pid,
	Anum_held,
	Anum_slot,
	Anum_key,
	Anum_owner,
	Anum_value,
	Natts_dlock = Anum_value
};

#define EXCLUSIVE_SLOT	0

#define FORM(tuple) ((FormDlock *) GETSTRUCT(tuple))

/* Where things are in this database; forgotten when the table changes. */
static struct
{
	bool		valid;
	bool		checked;		/* the table is as we expect it */
	Oid			heap;
	Oid			index;
	Oid			versions;
	Oid			incarnation;
}			cache;

struct DlockInsertion
{
	const DlockStore *store;
	const DlockKey *key;
	Relation	index;			/* the primary key's */
	HeapTuple	tuple;
	bool		is_grant;		/* or else a free row, to be updated */
	DlockIndexes indexes;
};

/*
 * Opening
 */

static void
forget(Datum arg, Oid relid)
{

	if (!OidIsValid(relid) || relid == cache.heap || relid == cache.index ||
		relid == cache.versions || relid == cache.incarnation)
		cache.valid = false;
}

void
dlock_store_init(void)
{
	CacheRegisterRelcacheCallback(forget, (Datum) 0);
}

/* Fill the cache.  A table of that name that is not ours does not count. */
static bool
locate(void)
{
	Oid			nsp = get_namespace_oid("dlock", true);
	Oid			ext = get_extension_oid("dlock", true);

	if (!OidIsValid(nsp) || !OidIsValid(ext))
		return false;

	/* an invalidation that comes in while we look makes it void again */
	cache.valid = true;
	cache.checked = false;
	cache.heap = get_relname_relid("locks", nsp);
	cache.index = get_relname_relid("locks_pkey", nsp);
	cache.versions = get_relname_relid("versions", nsp);
	cache.incarnation = get_relname_relid("incarnation", nsp);
	if (!OidIsValid(cache.heap) || !OidIsValid(cache.index) ||
		!OidIsValid(cache.versions) || !OidIsValid(cache.incarnation) ||
		getExtensionOfObject(RelationRelationId, cache.heap) != ext)
	{
		cache.valid = false;
		return false;
	}
	return true;
}

static void
table_changed(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"dlock.locks\" is not as this version of dlock created it"),
			 errdetail_internal("%s", detail),
			 errhint("Undo the change, or drop and create the extension again.")));
}

/*
 * We read and write rows as bytes, so a table that its owner has changed is
 * refused before that does harm.  A change empties the cache.
 */
static void
check_table(Relation heap)
{
	static const Oid types[Natts_dlock] = {
		INT8OID, INT8OID, INT8OID, REGROLEOID, INT4OID, INT8OID, TIMESTAMPTZOID,
		TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, BOOLOID, INT2OID, TEXTOID,
		TEXTOID, TEXTOID
	};
	TupleDesc	desc = RelationGetDescr(heap);

	if (heap->rd_rel->relam != HEAP_TABLE_AM_OID)
		table_changed(_("Its access method is not heap."));
	if (heap->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		table_changed(_("It is unlogged, so a crash would empty it."));
	if (desc->natts != Natts_dlock)
		table_changed(_("It has another number of columns."));
	for (int i = 0; i < Natts_dlock; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || att->atttypid != types[i] ||
			att->attnotnull != (i < Anum_owner - 1) ||
			(i == Anum_key - 1 && (att->attstorage != TYPSTORAGE_PLAIN ||
								   att->attcollation != C_COLLATION_OID)))
			table_changed(psprintf(_("Column %d has another definition."), i + 1));
	}
	cache.checked = true;
}

/* Open the table, to be closed by dlock_store_close(). */
bool
dlock_store_open(DlockStore *store, bool write, bool missing_ok)
{
	LOCKMODE	lockmode = write ? RowExclusiveLock : AccessShareLock;

	/* where the launcher could not be started, the first use starts the clock */
	(void) dlock_clock_started();

	for (;;)
	{
		Oid			heap;

		if (!cache.valid && !locate())
		{
			if (missing_ok)
				return false;
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("extension \"dlock\" is not installed in database \"%s\"",
							get_database_name(MyDatabaseId)),
					 errhint("Connect to this database as a superuser and run CREATE EXTENSION dlock.")));
		}

		/*
		 * Waits for whoever drops or rewrites the table, and takes note of
		 * what was done: if the cache is still valid, so is the table.
		 * Otherwise look again, and what is found now stays.
		 */
		heap = cache.heap;
		LockRelationOid(heap, lockmode);
		if (cache.valid || (locate() && cache.heap == heap))
		{
			store->heap = table_open(heap, NoLock);
			break;
		}
		UnlockRelationOid(heap, lockmode);
	}

	if (!cache.checked)
		check_table(store->heap);
	store->lockmode = lockmode;
	store->index = cache.index;
	store->versions = cache.versions;
	store->incarnation = cache.incarnation;
	return true;
}

/*
 * If something was changed, the locks on the relations stay until the end of
 * the transaction, as for any statement.  Otherwise they go, for who waits
 * may do so for hours: whoever then wants to alter or drop the table would
 * wait for him, and the holder's release behind that one.
 */
void
dlock_store_close(DlockStore *store, bool changed)
{
	table_close(store->heap, changed ? NoLock : store->lockmode);
}

/*
 * Reading
 */

void
dlock_store_key(DlockKey *key, const char *data, int len)
{
	key->data = data;
	key->len = len;
	key->hash = dlock_hint_hash(data, len);
}

static bool
row_has_key(HeapTuple tuple, const DlockKey *key)
{
	FormDlock  *form = FORM(tuple);

	return form->slot == EXCLUSIVE_SLOT &&
		VARSIZE(&form->key) - VARHDRSZ == (Size) key->len &&
		memcmp(VARDATA(&form->key), key->data, key->len) == 0;
}

/* The column after the key; heap_getattr() would walk all that are before. */
static char *
row_owner(HeapTuple tuple)
{
	FormDlock  *form = FORM(tuple);
	Size		at = offsetof(FormDlock, key) + VARSIZE(&form->key);

	if (heap_attisnull(tuple, Anum_owner, NULL))
		return NULL;
	at = att_align_pointer(at, TYPALIGN_INT, -1, (char *) form + at);
	return TextDatumGetCString(PointerGetDatum((char *) form + at));
}

static char *
row_value(const DlockStore *store, HeapTuple tuple)
{
	bool		isnull;
	Datum		datum = heap_getattr(tuple, Anum_value,
									 RelationGetDescr(store->heap), &isnull);

	return isnull ? NULL : TextDatumGetCString(datum);
}

static void
row_state(HeapTuple tuple, DlockState *state)
{
	FormDlock  *form = FORM(tuple);

	state->exists = true;
	state->held = form->held;
	state->role = form->role;
	state->version = form->version;
	state->owner = form->held ? row_owner(tuple) : NULL;
	state->priority = form->priority;
	state->cleanup = form->cleanup;
	state->pid = form->run == dlock_clock_run() ? form->pid : 0;
	state->gone = state->pid != 0 && BackendPidGetProc(state->pid) == NULL;
	state->expires = dlock_clock_effective(form->run, form->expires_at, form->ttl);
	state->idle_since = dlock_clock_effective(form->run, form->refreshed_at, 0);
}

/*
 * Is there such a block?  Spares the kernel the question where it can: while
 * we have a lock on the table it only grows, and whoever truncates it makes
 * every backend forget how long it was before they get their lock.
 */
static bool
block_exists(const DlockStore *store, BlockNumber block)
{
	BlockNumber seen = RelationGetSmgr(store->heap)->smgr_cached_nblocks[MAIN_FORKNUM];

	if (seen != InvalidBlockNumber && block < seen)
		return true;
	return block < RelationGetNumberOfBlocks(store->heap);
}

/*
 * A copy of the row at the given place, if that is a version of this key that
 * the dirty snapshot shows.  The place is a hint, and may be anything.
 */
static HeapTuple
fetch_hinted(const DlockStore *store, const DlockKey *key, ItemPointer tid,
			 Snapshot dirty)
{
	Buffer		buffer;
	Page		page;
	HeapTuple	result = NULL;

	if (!block_exists(store, ItemPointerGetBlockNumber(tid)))
		return NULL;

	buffer = ReadBuffer(store->heap, ItemPointerGetBlockNumber(tid));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	if (ItemPointerGetOffsetNumber(tid) <= PageGetMaxOffsetNumber(page))
	{
		ItemId		lp = PageGetItemId(page, ItemPointerGetOffsetNumber(tid));

		if (ItemIdIsNormal(lp))
		{
			HeapTupleData tuple;

			tuple.t_data = (HeapTupleHeader) PageGetItem(page, lp);
			tuple.t_len = ItemIdGetLength(lp);
			tuple.t_tableOid = RelationGetRelid(store->heap);
			tuple.t_self = *tid;

			if (row_has_key(&tuple, key) &&
				HeapTupleSatisfiesVisibility(&tuple, dirty, buffer))
				result = heap_copytuple(&tuple);
		}
	}
	UnlockReleaseBuffer(buffer);
	return result;
}

/* The same through the index; sets row->pending if there is only a newcomer. */
static HeapTuple
fetch_indexed(const DlockStore *store, Relation index, const DlockKey *key,
			  DlockFind how, Snapshot dirty, DlockRow *row)
{
	HeapTuple	result = NULL;
	TupleTableSlot *slot = table_slot_create(store->heap, NULL);
	IndexScanDesc scan;
	ScanKeyData skey[2];

	ScanKeyInit(&skey[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(key->data, key->len)));
	ScanKeyInit(&skey[1], 2, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(EXCLUSIVE_SLOT));

	scan = dlock_index_beginscan(store->heap, index, dirty, 2);
	do
	{
		row->pending = InvalidTransactionId;
		index_rescan(scan, skey, 2, NULL, 0);
		while (index_getnext_slot(scan, BackwardScanDirection, slot))
		{
			CHECK_FOR_INTERRUPTS();

			if (TransactionIdIsValid(dirty->xmin))
			{
				/* a version not yet committed; the one before may follow */
				row->pending = dirty->xmin;
				if (how == DLOCK_FIND_HINT)
					break;
				continue;
			}
			row->pending = dirty->xmax;
			result = ExecCopySlotHeapTuple(slot);
			result->t_self = slot->tts_tid;
			break;
		}

		/*
		 * Only a newcomer: if it was committed while we looked, then the
		 * version before it may have been passed over as dead.
		 */
	} while (result == NULL && how == DLOCK_FIND_COMMITTED &&
			 TransactionIdIsValid(row->pending) &&
			 !TransactionIdIsInProgress(row->pending));

	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

void
dlock_store_find(const DlockStore *store, const DlockKey *key, DlockFind how,
				 DlockRow *row)
{
	SnapshotData dirty;
	ItemPointerData tid;
	HeapTuple	tuple = NULL;

	Assert(ActiveSnapshotSet());

	memset(row, 0, sizeof(*row));
	InitDirtySnapshot(dirty);

	if (dlock_hint_get(key->hash, &tid))
	{
		tuple = fetch_hinted(store, key, &tid, &dirty);
		if (tuple != NULL)
		{
			if (!TransactionIdIsValid(dirty.xmin))
				row->pending = dirty.xmax;
			else if (how == DLOCK_FIND_HINT)
			{
				row->pending = dirty.xmin;
				row->state.unsettled = true;
				return;
			}
			else
				tuple = NULL;	/* the version before it is wanted */
		}
	}

	if (tuple == NULL)
	{
		Relation	index = index_open(store->index, store->lockmode);

		tuple = fetch_indexed(store, index, key, how, &dirty, row);
		if (tuple == NULL && !TransactionIdIsValid(row->pending) &&
			how == DLOCK_FIND_COMMITTED)
		{
			LWLock	   *partition = dlock_shmem_partition(key->hash);

			LWLockAcquire(partition, LW_SHARED);
			tuple = fetch_indexed(store, index, key, how, &dirty, row);
			LWLockRelease(partition);
		}
		index_close(index, store->lockmode);
		if (tuple != NULL)
			dlock_hint_set(key->hash, &tuple->t_self);
	}

	row->state.unsettled = TransactionIdIsValid(row->pending);
	if (tuple != NULL)
	{
		row->tuple = tuple;
		row->tid = tuple->t_self;
		row->ttl = FORM(tuple)->ttl;
		row->acquired_at = FORM(tuple)->acquired_at;
		row->is_ours =
			TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
		row_state(tuple, &row->state);
	}
}

/*
 * Remove dead versions, as a lookup through the index would have done, but
 * only when the page is short of room for the next ones: PostgreSQL takes the
 * fillfactor for its mark, and with a low one prunes for nearly every change.
 * Only for who is about to write: a lookup that changes nothing writes no WAL.
 */
static void
prune_if_short(const DlockStore *store, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);

	/* without a lock, as heap_page_prune_opt() does: a guess is enough */
	if (PageIsFull(page) || PageGetHeapFreeSpace(page) < BLCKSZ / 4)
		dlock_heap_prune_opt(store->heap, buffer);
}

/*
 * Locking
 *
 * Whoever ends or replaces a grant locks its row LockTupleExclusive, whoever
 * prolongs it LockTupleNoKeyExclusive, and a fence LockTupleKeyShare.  The
 * first conflicts with both others, and they do not with each other: that is
 * the whole fence.  Where it would have to wait and must not, nothing is
 * written and no transaction id assigned.
 */
DlockLocked
dlock_store_lock(const DlockStore *store, DlockRow *row, LockTupleMode mode,
				 LockWaitPolicy policy)
{
	HeapTupleData tuple;
	TM_FailureData tmfd;
	Buffer		buffer;
	TM_Result	result;

	tuple.t_self = row->tid;
	result = heap_lock_tuple(store->heap, &tuple, GetCurrentCommandId(false),
							 mode, policy, true, &buffer, &tmfd);
	if (result == TM_Ok)
		prune_if_short(store, buffer);
	else if (result == TM_WouldBlock)
	{
		/* who is in the way; several at once are fences, and nobody asks */
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		row->pending = (tuple.t_data->t_infomask & HEAP_XMAX_IS_MULTI) ?
			InvalidTransactionId : HeapTupleHeaderGetRawXmax(tuple.t_data);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(buffer);

	switch (result)
	{
		case TM_Ok:
			return DLOCK_LOCKED;
		case TM_WouldBlock:
			return DLOCK_LOCK_BUSY;
		case TM_Updated:
		case TM_Deleted:
			return DLOCK_LOCK_CHANGED;
		default:
			elog(ERROR, "unexpected result %d from locking a row of \"dlock.locks\"",
				 (int) result);
	}
}

/*
 * Writing
 */

static HeapTuple
form_row(const DlockStore *store, const DlockKey *key, const DlockGrant *grant)
{
	Datum		values[Natts_dlock];
	bool		isnull[Natts_dlock] = {false};

	values[Anum_version - 1] = Int64GetDatum(grant->version);
	values[Anum_run - 1] = Int64GetDatum(dlock_clock_run());
	values[Anum_ttl - 1] = Int64GetDatum(grant->ttl);
	values[Anum_acquired_at - 1] = Int64GetDatum(grant->acquired_at);
	values[Anum_refreshed_at - 1] = Int64GetDatum(grant->refreshed_at);
	values[Anum_expires_at - 1] = Int64GetDatum(grant->expires_at);
	values[Anum_cleanup - 1] = Int64GetDatum(grant->cleanup);
	values[Anum_role - 1] = ObjectIdGetDatum(grant->role);
	values[Anum_priority - 1] = Int32GetDatum(grant->priority);
	values[Anum_pid - 1] = Int32GetDatum(grant->pid);
	values[Anum_held - 1] = BoolGetDatum(true);
	values[Anum_slot - 1] = Int16GetDatum(EXCLUSIVE_SLOT);
	values[Anum_key - 1] =
		PointerGetDatum(cstring_to_text_with_len(key->data, key->len));
	values[Anum_owner - 1] = (Datum) 0;
	values[Anum_value - 1] = (Datum) 0;

	if (grant->owner != NULL)
		values[Anum_owner - 1] = CStringGetTextDatum(grant->owner);
	else
		isnull[Anum_owner - 1] = true;
	if (grant->value != NULL)
		values[Anum_value - 1] = CStringGetTextDatum(grant->value);
	else
		isnull[Anum_value - 1] = true;

	return heap_form_tuple(RelationGetDescr(store->heap), values, isnull);
}

/* A row that is not held; the next grant of its key updates it in place. */
static HeapTuple
form_free_row(const DlockStore *store, const DlockKey *key,
			  const DlockGrant *was, int64 now)
{
	DlockGrant	grant = {0};
	HeapTuple	tuple;

	grant.version = was->version;
	grant.role = was->role;
	grant.ttl = was->ttl;
	grant.acquired_at = was->acquired_at;
	grant.refreshed_at = now;
	grant.expires_at = now;
	tuple = form_row(store, key, &grant);
	FORM(tuple)->held = false;
	return tuple;
}

/*
 * Adding a row
 *
 * This takes several steps, because of the partition lock.  It is an LWLock:
 * a process that waits for one cannot be cancelled, so under it nothing may
 * wait for a heavyweight lock, or read a catalog, which may do the same.
 *
 * 1. dlock_store_prepare_insert() opens the indexes and forms the row.
 * 2. dlock_store_load_insert() loads what the next steps need into the caches
 *	  of this backend.  It stays there until an invalidation message is
 *	  processed, which happens only when a heavyweight lock is taken.
 * 3. dlock_store_begin_insert() takes the partition lock and looks again.
 * 4. dlock_store_end_insert() adds the row and releases the lock.
 *
 * A row that is so long that parts of it go to the toast table is not added
 * as such: writing there takes a lock on the toast table and on its index.  A
 * free row is added in its place, which the caller finds when it looks again,
 * and updates like any other; nobody else can have it then.
 *
 * What is left is the lock for extending a relation, which PostgreSQL holds
 * for no longer than it takes to write a block, and the lock on a transaction
 * id that is new.
 */
DlockInsertion *
dlock_store_prepare_insert(const DlockStore *store, const DlockKey *key,
						   const DlockGrant *grant)
{
	DlockInsertion *insertion = palloc(sizeof(DlockInsertion));

	insertion->store = store;
	insertion->key = key;
	insertion->index = index_open(store->index, store->lockmode);
	insertion->tuple = form_row(store, key, grant);
	insertion->is_grant = insertion->tuple->t_len <= TOAST_TUPLE_THRESHOLD;
	if (!insertion->is_grant)
		insertion->tuple = form_free_row(store, key, grant, grant->acquired_at);
	dlock_indexes_open(&insertion->indexes, store, insertion->tuple);
	return insertion;
}

void
dlock_store_load_insert(const DlockInsertion *insertion)
{
	dlock_indexes_load(&insertion->indexes);
}

/* Is it the grant that is added, or a free row, to be looked for again? */
bool
dlock_store_inserts_grant(const DlockInsertion *insertion)
{
	return insertion->is_grant;
}

/*
 * True means that the key has no row and that the partition lock is held:
 * draw the version and call dlock_store_end_insert().  False means that there
 * is one after all: look again.
 */
bool
dlock_store_begin_insert(DlockInsertion *insertion)
{
	const DlockKey *key = insertion->key;
	LWLock	   *partition = dlock_shmem_partition(key->hash);
	SnapshotData dirty;
	DlockRow	row;
	HeapTuple	tuple;

	InitDirtySnapshot(dirty);
	LWLockAcquire(partition, LW_EXCLUSIVE);
	tuple = fetch_indexed(insertion->store, insertion->index, key,
						  DLOCK_FIND_HINT, &dirty, &row);
	if (tuple == NULL && !TransactionIdIsValid(row.pending))
		return true;

	LWLockRelease(partition);
	index_close(insertion->index, insertion->store->lockmode);
	dlock_indexes_close(&insertion->indexes);
	if (tuple != NULL)
		dlock_hint_set(key->hash, &tuple->t_self);
	return false;
}

void
dlock_store_end_insert(DlockInsertion *insertion, int64 version, int64 now)
{
	const DlockStore *store = insertion->store;
	HeapTuple	tuple = insertion->tuple;
	FormDlock  *form = FORM(tuple);

	form->version = version;
	form->acquired_at = now;
	form->refreshed_at = now;
	form->expires_at = now + (insertion->is_grant ? form->ttl : 0);

	heap_insert(store->heap, tuple, GetCurrentCommandId(true), 0, NULL);
	dlock_indexes_insert(&insertion->indexes, store, tuple, false);
	LWLockRelease(dlock_shmem_partition(insertion->key->hash));
	index_close(insertion->index, store->lockmode);
	dlock_indexes_close(&insertion->indexes);

	dlock_hint_set(insertion->key->hash, &tuple->t_self);
	CommandCounterIncrement();
}

/* Put a new version in the place of a row that we have locked. */
static void
replace(const DlockStore *store, const DlockKey *key, DlockRow *row,
		HeapTuple tuple)
{
	TM_FailureData tmfd;
	TM_Result	result;

	result = dlock_heap_update(store->heap, &row->tid, tuple,
							   GetCurrentCommandId(true), &tmfd);
	if (result != TM_Ok)
		elog(ERROR, "unexpected result %d from updating a locked row of \"dlock.locks\"",
			 (int) result);

	if (!HeapTupleIsHeapOnly(tuple))
	{
		LWLock	   *partition = dlock_shmem_partition(key->hash);
		DlockIndexes indexes;

		dlock_indexes_open(&indexes, store, tuple);
		dlock_indexes_load(&indexes);
		LWLockAcquire(partition, LW_EXCLUSIVE);
		dlock_indexes_insert(&indexes, store, tuple, true);
		LWLockRelease(partition);
		dlock_indexes_close(&indexes);
	}
	dlock_hint_set(key->hash, &tuple->t_self);
	CommandCounterIncrement();
}

/* A new grant in the place of a free or expired one. */
void
dlock_store_grant(const DlockStore *store, const DlockKey *key, DlockRow *row,
				  const DlockGrant *grant)
{
	replace(store, key, row, form_row(store, key, grant));
}

/* The same grant for another TTL. */
void
dlock_store_renew(const DlockStore *store, const DlockKey *key, DlockRow *row,
				  int64 ttl, int64 now)
{
	HeapTuple	tuple = heap_copytuple(row->tuple);
	FormDlock  *form = FORM(tuple);

	form->ttl = ttl;
	form->refreshed_at = now;
	form->expires_at = now + ttl;

	/* the session of another run is none of this run's */
	if (form->run != dlock_clock_run())
		form->pid = 0;
	form->run = dlock_clock_run();
	replace(store, key, row, tuple);
}

/* The row stays, so that the next grant of this key adds no index entry. */
void
dlock_store_clear(const DlockStore *store, const DlockKey *key, DlockRow *row,
				  int64 now)
{
	FormDlock  *form = FORM(row->tuple);
	DlockGrant	was = {0};

	was.version = form->version;
	was.role = form->role;
	was.ttl = form->ttl;
	was.acquired_at = form->acquired_at;
	replace(store, key, row, form_free_row(store, key, &was, now));
}

void
dlock_store_remove(const DlockStore *store, DlockRow *row)
{
	TM_FailureData tmfd;
	TM_Result	result;

	result = dlock_heap_delete(store->heap, &row->tid,
							   GetCurrentCommandId(true), &tmfd);
	if (result != TM_Ok)
		elog(ERROR, "unexpected result %d from deleting a locked row of \"dlock.locks\"",
			 (int) result);
	CommandCounterIncrement();
}

/*
 * Scanning
 *
 * Visits every row that the snapshot shows, from the given block on, for so
 * many blocks or until the visitor has enough.  Returns the block to go on
 * with, or InvalidBlockNumber at the end.  Unlike an ordinary scan it takes no
 * predicate lock, so a SERIALIZABLE reader makes nobody's lock call fail.
 * The visitor is called without a buffer lock, with tuples of the block that
 * are copies in the current memory context, which is for the caller to reset.
 */
BlockNumber
dlock_store_scan(const DlockStore *store, Snapshot snapshot, BlockNumber start,
				 BlockNumber limit, DlockVisitor visit, void *arg)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(store->heap);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	HeapTuple	tuples[MaxHeapTuplesPerPage];
	BlockNumber next = InvalidBlockNumber;

	for (BlockNumber block = start; block < nblocks; block++)
	{
		Buffer		buffer;
		Page		page;
		int			ntuples = 0;
		bool		enough = false;

		CHECK_FOR_INTERRUPTS();

		buffer = ReadBufferExtended(store->heap, MAIN_FORKNUM, block, RBM_NORMAL,
									strategy);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		page = BufferGetPage(buffer);
		for (OffsetNumber off = FirstOffsetNumber;
			 off <= PageGetMaxOffsetNumber(page);
			 off = OffsetNumberNext(off))
		{
			ItemId		lp = PageGetItemId(page, off);
			HeapTupleData tuple;

			if (!ItemIdIsNormal(lp))
				continue;
			tuple.t_data = (HeapTupleHeader) PageGetItem(page, lp);
			tuple.t_len = ItemIdGetLength(lp);
			tuple.t_tableOid = RelationGetRelid(store->heap);
			ItemPointerSet(&tuple.t_self, block, off);
			if (HeapTupleSatisfiesVisibility(&tuple, snapshot, buffer))
				tuples[ntuples++] = heap_copytuple(&tuple);
		}
		UnlockReleaseBuffer(buffer);

		for (int i = 0; i < ntuples; i++)
		{
			if (!visit(store, tuples[i], arg))
				enough = true;
			heap_freetuple(tuples[i]);
		}

		if (enough || block - start + 1 >= limit)
		{
			next = block + 1 < nblocks ? block + 1 : InvalidBlockNumber;
			break;
		}
	}

	FreeAccessStrategy(strategy);
	return next;
}

/*
 * What a row says.  The key points into the tuple; owner and value are
 * allocated.  The grant may be NULL where the state is enough.
 */
void
dlock_store_decode(const DlockStore *store, HeapTuple tuple, DlockKey *key,
				   DlockGrant *grant, DlockState *state)
{
	FormDlock  *form = FORM(tuple);

	dlock_store_key(key, VARDATA(&form->key), VARSIZE(&form->key) - VARHDRSZ);

	memset(state, 0, sizeof(*state));
	row_state(tuple, state);
	if (grant == NULL)
		return;

	grant->version = form->version;
	grant->role = form->role;
	grant->owner = state->owner;
	grant->value = row_value(store, tuple);
	grant->ttl = form->ttl;
	grant->cleanup = form->cleanup;
	grant->priority = form->priority;
	grant->pid = state->pid;
	grant->acquired_at = form->acquired_at;
	grant->refreshed_at = form->refreshed_at;
	grant->expires_at = state->expires;
}
