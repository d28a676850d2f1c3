/*-------------------------------------------------------------------------
 *
 * find.c
 *	  Finding rows of a key, and locking one.
 *
 * Finding.  The newest state counts, whatever the caller's snapshot, so lookups
 * use a dirty snapshot: first at the place that the hint names, then through
 * the index.  A dirty snapshot shows the row versions that are live, those
 * that an open transaction has created or is about to end, and which
 * transaction that is.  At most one version of a row is committed and not
 * superseded.
 *
 * The index is read backwards.  Newer versions mostly have higher tuple ids,
 * so the live one comes first, however many dead ones there are.
 *
 * A lookup through the index may miss a key that exists: it may pass the place
 * of the new version before that is there, and reach the old one after the
 * change was committed.  So a miss is believed only if no index entry of that
 * key can have been added meanwhile.  A process that adds an index entry holds
 * the partition lock exclusively, and counts the entry (places.c) before its
 * transaction can end.  So a lookup that must not miss a row looks again with
 * the partition lock held.  One that must not miss any of the places of a key
 * compares the counter before and after; if that has changed, it looks again, in
 * the end with the partition lock held.  It does not hold that lock from the
 * start, because a key may have many places, and a process that waits for the
 * lock cannot be cancelled.  A change that keeps to its page (HOT) adds no entry,
 * and is seen whole under the buffer's lock.
 *
 * The places of a key are read through the index, all in one scan.  How many
 * dead ones that meets depends on VACUUM, and on old snapshots.
 *
 * The index is opened only when it is needed.  If the hint leads to the row
 * and the change keeps to its page, it is not.  Our lock on the table keeps an
 * index that we have looked up from being dropped.
 *
 * Locking.  dlock_find_lock() makes us the locker of a row.  What was read is
 * then what is there, because a row version never changes.  The line pointer
 * must still be that version's.  It is, because the caller has a snapshot that
 * is older than the lookup, so no version that was live since then can be
 * pruned away.  That is checked all the same.  With the lock held, a change
 * cannot fail.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "find.h"
#include "hint.h"
#include "lwlocks.h"
#include "pins.h"
#include "places.h"
#include "row.h"

/*
 * Is there such a block?  Ask the kernel only if we must: while we have a lock
 * on the table it can only grow, and truncating it makes every backend forget
 * its length before that backend gets its lock.
 */
static bool
block_exists(const DlockStore *store, BlockNumber block)
{
	BlockNumber seen = RelationGetSmgr(store->heap)->smgr_cached_nblocks[MAIN_FORKNUM];

	if (seen != InvalidBlockNumber && block < seen)
		return true;
	return block < RelationGetNumberOfBlocks(store->heap);
}

/* What a hint was asked for: a slot, or a place with a version. */
typedef struct Sought
{
	bool		by_version;
	int64		number;
} Sought;

static bool
is_sought(HeapTuple tuple, const DlockKey *key, const Sought *sought)
{
	if (!sought->by_version)
		return dlock_row_is(tuple, key, sought->number);
	return dlock_row_version(tuple) == sought->number &&
		dlock_row_slot(tuple) != DLOCK_HEAD && dlock_row_has_key(tuple, key);
}

/*
 * The header of a tuple that an index scan has returned.  Others may lock the
 * row at any time, so it is read under the buffer's lock, unless it says that
 * nobody ever did.
 */
static void
read_header(TupleTableSlot *slot, HeapTupleHeader header)
{
	Buffer		buffer = ((BufferHeapTupleTableSlot *) slot)->buffer;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
	bool		is_plain = (tuple->t_data->t_infomask & HEAP_XMAX_INVALID) != 0;

	if (!is_plain)
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(header, tuple->t_data, SizeofHeapTupleHeader);
	if (!is_plain)
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	else
		header->t_infomask |= HEAP_XMAX_INVALID;
}

/*
 * The same through the index.  *pending is the transaction that is changing
 * the row, or has added it.
 */
static HeapTuple
fetch_indexed(const DlockStore *store, Relation index, const DlockKey *key,
			  int64 number, DlockFind how, Snapshot dirty, TransactionId *pending)
{
	HeapTuple	result = NULL;
	TupleTableSlot *slot = table_slot_create(store->heap, NULL);
	IndexScanDesc scan;
	ScanKeyData skey[2];

	ScanKeyInit(&skey[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(key->data, key->len)));
	ScanKeyInit(&skey[1], 2, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(number));

	scan = dlock_index_beginscan(store->heap, index, dirty, 2);
	do
	{
		*pending = InvalidTransactionId;
		index_rescan(scan, skey, 2, NULL, 0);
		while (index_getnext_slot(scan, BackwardScanDirection, slot))
		{
			CHECK_FOR_INTERRUPTS();

			if (TransactionIdIsValid(dirty->xmin))
			{
				/* a version not yet committed; the one before may follow */
				*pending = dirty->xmin;
				if (how == DLOCK_FIND_NEWEST)
					break;
				continue;
			}
			*pending = dirty->xmax;
			result = ExecCopySlotHeapTuple(slot);
			result->t_self = slot->tts_tid;
			read_header(slot, result->t_data);
			break;
		}

		/*
		 * Only an uncommitted version was found.  If it was committed while
		 * we looked, we may have skipped the version before it as dead.
		 */
	} while (result == NULL && how != DLOCK_FIND_NEWEST &&
			 TransactionIdIsValid(*pending) &&
			 !TransactionIdIsInProgress(*pending));

	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/*
 * Is there any version of the row?  That there is none is certain only under the
 * partition lock.  Mostly there is none, so nothing is set up to read one.
 */
bool
dlock_find_any(const DlockStore *store, Relation index, const DlockKey *key,
			   int64 slot)
{
	bool		is_there = false;
	SnapshotData dirty;
	IndexScanDesc scan;
	ScanKeyData skey[2];
	ItemPointer tid;

	ScanKeyInit(&skey[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(key->data, key->len)));
	ScanKeyInit(&skey[1], 2, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(slot));

	InitDirtySnapshot(dirty);
	scan = dlock_index_beginscan(store->heap, index, &dirty, 2);
	index_rescan(scan, skey, 2, NULL, 0);
	while (!is_there &&
		   (tid = index_getnext_tid(scan, BackwardScanDirection)) != NULL)
	{
		Buffer		buffer = ReadBuffer(store->heap, ItemPointerGetBlockNumber(tid));
		ItemPointerData at = *tid;
		HeapTupleData tuple;
		bool		all_dead;

		CHECK_FOR_INTERRUPTS();
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		is_there = heap_hot_search_buffer(&at, store->heap, buffer, &dirty, &tuple,
										  &all_dead, true);
		UnlockReleaseBuffer(buffer);
		scan->kill_prior_tuple = !is_there && all_dead && !scan->xactStartedInRecovery;
	}
	index_endscan(scan);
	return is_there;
}

static HeapTuple
find_through_index(const DlockStore *store, const DlockKey *key, int64 slot,
				   DlockFind how, Snapshot dirty, TransactionId *pending)
{
	Relation	index = index_open(store->index, store->lockmode);
	HeapTuple	tuple = fetch_indexed(store, index, key, slot, how, dirty, pending);

	if (tuple == NULL && !TransactionIdIsValid(*pending) &&
		how != DLOCK_FIND_NEWEST)
	{
		LWLock	   *partition = dlock_lwlock_partition(key->hash);

		LWLockAcquire(partition, LW_SHARED);
		tuple = fetch_indexed(store, index, key, slot, how, dirty, pending);
		LWLockRelease(partition);
	}
	index_close(index, store->lockmode);
	if (tuple != NULL)
		dlock_hint_set(dlock_key_slot(key, slot), &tuple->t_self);
	return tuple;
}

/*
 * Add the row at the given tuple id, if it is a version of the row sought that
 * the dirty snapshot shows.  The tuple id is a hint and may be anything.  If the
 * version is not committed yet, *pending is set and nothing is added.
 */
static bool
find_hinted(const DlockStore *store, const DlockKey *key, const Sought *sought,
			ItemPointer tid, DlockFind how, DlockRows *found,
			TransactionId *pending)
{
	SnapshotData dirty;
	Buffer		buffer;
	Page		page;
	bool		is_there = false;

	*pending = InvalidTransactionId;
	if (!block_exists(store, ItemPointerGetBlockNumber(tid)))
		return false;

	InitDirtySnapshot(dirty);
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

			is_there = is_sought(&tuple, key, sought) &&
				HeapTupleSatisfiesVisibility(&tuple, &dirty, buffer);
			if (is_there && TransactionIdIsValid(dirty.xmin))
				*pending = dirty.xmin;
			else if (is_there)
			{
				int			i = dlock_found_add(found);

				dlock_found_set(found, i, &tuple, dirty.xmax, true);
				if (how == DLOCK_FIND_WHOLE)
					found->rows[i].tuple = heap_copytuple(&tuple);
			}
		}
	}
	UnlockReleaseBuffer(buffer);
	return is_there && !TransactionIdIsValid(*pending);
}

/* Add the row of one slot, if there is one. */
bool
dlock_find_slot(const DlockStore *store, const DlockKey *key, int64 slot,
				DlockFind how, DlockRows *found)
{
	Sought		sought = {false, slot};
	TransactionId pending = InvalidTransactionId;
	SnapshotData dirty;
	ItemPointerData tid;
	HeapTuple	tuple = NULL;
	int			i;

	Assert(ActiveSnapshotSet());

	if (dlock_hint_get(dlock_key_slot(key, slot), &tid) &&
		find_hinted(store, key, &sought, &tid, how, found, &pending))
		return true;

	/* if it is not committed, the version before it may be wanted */
	if (how >= DLOCK_FIND_COMMITTED ||
		(how == DLOCK_FIND_NEWEST && !TransactionIdIsValid(pending)))
	{
		InitDirtySnapshot(dirty);
		tuple = find_through_index(store, key, slot, how, &dirty, &pending);
	}
	if (tuple == NULL && !TransactionIdIsValid(pending))
		return false;

	i = dlock_found_add(found);
	if (tuple == NULL)
		dlock_found_set_pending(found, i, slot, pending);
	else
	{
		dlock_found_set(found, i, tuple, pending, true);
		found->rows[i].tuple = tuple;
	}
	return true;
}

/* Add the place with this version, if the hint leads to its committed row. */
bool
dlock_find_version(const DlockStore *store, const DlockKey *key, int64 version,
				   DlockRows *found)
{
	Sought		sought = {true, version};
	TransactionId pending;
	ItemPointerData tid;

	return dlock_hint_get(dlock_key_slot(key, version), &tid) &&
		find_hinted(store, key, &sought, &tid, DLOCK_FIND_COMMITTED, found, &pending);
}

/*
 * Add one row version of a place.  The versions of a place follow each other,
 * if there are several: an uncommitted one, and the one before it.
 */
static void
add_place(DlockRows *found, int first, HeapTuple tuple, const SnapshotData *dirty,
		  DlockFind how, int64 owners_of)
{
	bool		is_new = TransactionIdIsValid(dirty->xmin);
	int64		slot = dlock_row_slot(tuple);
	TransactionId pending = is_new ? dirty->xmin : dirty->xmax;
	int			i = found->n - 1;

	if (i < first || found->states[i].slot != slot)
		i = dlock_found_add(found);
	else if (is_new || found->states[i].exists)
	{
		found->states[i].unsettled = true;
		found->rows[i].pending = pending;
		return;
	}
	else
		pending = found->rows[i].pending;

	if (is_new)
		dlock_found_set_pending(found, i, slot, pending);
	else
	{
		dlock_found_set(found, i, tuple, pending,
						owners_of == DLOCK_ALL_SLOTS || owners_of == slot);
		if (how == DLOCK_FIND_WHOLE)
			found->rows[i].tuple = heap_copytuple(tuple);
	}
}

/*
 * Add what the dirty snapshot shows of the row that an index entry leads to.
 * True: nothing, and nobody else will see anything either.
 */
static bool
add_entry(const DlockStore *store, ItemPointerData tid, DlockPins *pins,
		  Snapshot dirty, DlockFind how, int64 owners_of,
		  DlockRows *found, int first)
{
	Buffer		buffer = dlock_pins_get(pins, store->heap, ItemPointerGetBlockNumber(&tid));
	HeapTupleData tuple;
	bool		all_dead = false;
	bool		is_first = true;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	while (heap_hot_search_buffer(&tid, store->heap, buffer, dirty, &tuple,
								  is_first ? &all_dead : NULL, is_first))
	{
		is_first = false;
		add_place(found, first, &tuple, dirty, how, owners_of);
		if (!HeapTupleIsHotUpdated(&tuple))
			break;
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return is_first && all_dead;
}

/*
 * Was a version of a place committed while we looked, so that we may have
 * skipped the one before it as dead?
 */
static bool
has_settled(const DlockRows *found, int first)
{
	for (int i = first; i < found->n; i++)
		if (!found->states[i].exists &&
			!TransactionIdIsInProgress(found->rows[i].pending))
			return true;
	return false;
}

/* After so many looks, a lookup of all places keeps others from adding more. */
#define FREE_LOOKS	3

/*
 * Add all places of the key, and with_head the head, too.  A request that looks
 * for the newest rows finds out later that there was a change (places.c).  A
 * lookup of what is committed must not miss a place; it goes through here only if
 * it did not find the place by its slot or version.
 *
 * Owners are read of one slot or of all (DLOCK_ALL_SLOTS).  At most "max" places are
 * added, those with the highest slots.
 */
void
dlock_find_places(const DlockStore *store, const DlockKey *key, DlockFind how,
				  bool with_head, int64 owners_of, int max, DlockRows *found)
{
	LWLock	   *partition = dlock_lwlock_partition(key->hash);
	Relation	index = index_open(store->index, store->lockmode);
	int			first = found->n;
	int			nkeys = with_head ? 1 : 2;
	DlockPins	pins;
	int			looks = 0;
	bool		is_locked;
	DlockClaims claims;
	SnapshotData dirty;
	IndexScanDesc scan;
	ScanKeyData skey[2];
	ItemPointer tid;

	ScanKeyInit(&skey[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(key->data, key->len)));
	ScanKeyInit(&skey[1], 2, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(DLOCK_HEAD));

	pins.n = pins.oldest = 0;
	InitDirtySnapshot(dirty);
	scan = dlock_index_beginscan(store->heap, index, &dirty, nkeys);
	do
	{
		CHECK_FOR_INTERRUPTS();
		found->n = first;
		is_locked = looks++ >= FREE_LOOKS;
		dlock_places_read(key, DLOCK_HEAD, &claims);
		if (is_locked)
			LWLockAcquire(partition, LW_SHARED);
		index_rescan(scan, skey, nkeys, NULL, 0);
		while (found->n - first < max &&
			   (tid = index_getnext_tid(scan, BackwardScanDirection)) != NULL)
		{
			CHECK_FOR_INTERRUPTS();
			scan->kill_prior_tuple = add_entry(store, *tid, &pins, &dirty, how,
											   owners_of, found, first) &&
				!scan->xactStartedInRecovery;
		}
		if (is_locked)
			LWLockRelease(partition);
	} while (how != DLOCK_FIND_NEWEST &&
			 (has_settled(found, first) ||
			  (!is_locked && !dlock_places_unchanged(key, &claims, false, true))));

	dlock_pins_release(&pins);
	index_endscan(scan);
	index_close(index, store->lockmode);

	/* backwards, so the head comes last */
	if (with_head && found->n > first && found->states[found->n - 1].exists &&
		found->states[found->n - 1].slot == DLOCK_HEAD)
		dlock_hint_set(dlock_key_slot(key, DLOCK_HEAD), &found->rows[found->n - 1].tid);
}

/* All rows of the key, as they are committed, with copies. */
void
dlock_find_committed(const DlockStore *store, const DlockKey *key, DlockRows *found)
{
	dlock_found_nothing(found);
	(void) dlock_find_slot(store, key, DLOCK_HEAD, DLOCK_FIND_WHOLE, found);
	if (dlock_places_marked(key))
		dlock_find_places(store, key, DLOCK_FIND_WHOLE, false, DLOCK_ALL_SLOTS,
						  INT_MAX, found);
}

/*
 * Remove dead versions, as a lookup through the index would have done, but only
 * when the page is short of room for new ones.  PostgreSQL goes by the
 * fillfactor, and ours is so low that it would prune for nearly every change.
 * Called only before a write: a lookup that changes nothing writes no WAL.
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
 * Lock a row that was found.
 *
 * An operation that ends or replaces a grant locks its row LockTupleExclusive,
 * one that prolongs it LockTupleNoKeyExclusive, and a fence LockTupleKeyShare.
 * The first conflicts with the other two, which do not conflict with each
 * other: that is the whole fence.  If it would have to wait and must not,
 * nothing is written and no transaction id is assigned.
 *
 * A fence goes for the next version of the row, too, if a refresh is writing one.
 * Nobody else may lock a later version than the one that was found.  If the row is
 * taken by another transaction, which commits while we look whether it has ended,
 * that would be the row of the new grant: its holder could not release it before we
 * end, and we might be waiting for it to do so.
 */
DlockLocked
dlock_find_lock(const DlockStore *store, const DlockKey *key, DlockState *state,
				DlockRow *row, LockTupleMode mode, LockWaitPolicy policy)
{
	HeapTupleData tuple;
	TM_FailureData tmfd;
	Buffer		buffer;
	TM_Result	result;
	bool		same = true;

	tuple.t_self = row->tid;
	result = heap_lock_tuple(store->heap, &tuple, GetCurrentCommandId(false),
							 mode, policy, mode == LockTupleKeyShare, &buffer, &tmfd);
	if (result == TM_Ok)
	{
		same = dlock_row_is(&tuple, key, state->slot) &&
			dlock_row_version(&tuple) == state->version;
		if (row->tuple == NULL)
			row->tuple = heap_copytuple(&tuple);
		prune_if_short(store, buffer);
	}
	else if (result == TM_WouldBlock)
	{
		/* which transaction blocks us; several at once are fences */
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		row->pending = (tuple.t_data->t_infomask & HEAP_XMAX_IS_MULTI) ?
			InvalidTransactionId : HeapTupleHeaderGetRawXmax(tuple.t_data);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(buffer);

	switch (result)
	{
		case TM_Ok:
			if (!same)
				elog(ERROR, "row of \"dlock.locks\" is not the one that was read");

			/*
			 * The row is ours, so it is settled: a transaction that was
			 * changing it has rolled back, or does only what our lock allows.
			 */
			state->unsettled = false;
			state->used = false;
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
