/*-------------------------------------------------------------------------
 *
 * find.c
 *	  Finding rows of a key, and locking one.
 *
 * Finding.  The newest state counts, whatever the caller's snapshot, so lookups
 * use a dirty snapshot: first where the hint says that the row is, then through
 * the index.  A dirty snapshot shows the row versions that are live, those
 * that an open transaction has created or is about to end, and which
 * transaction that is.  At most one version of a row is committed and not
 * superseded.
 *
 * The index is read backwards.  Newer versions mostly have higher tuple ids,
 * so the live one comes first, however many dead ones there are.
 *
 * A lookup through the index may miss a row that exists: it may pass the position
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
 * How many dead rows a lookup through the index meets depends on VACUUM, and on
 * old snapshots.
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
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "rows/find.h"
#include "rows/places.h"
#include "rows/row.h"
#include "rows/row_hint.h"
#include "shmem.h"

/* A search that must not miss a place takes the partition lock after this many looks. */
#define FREE_LOOKS	3

/* A search through the index keeps at most this many pages pinned. */
#define MAX_PINS	32

/* What a hint is asked for: a slot, or a place with a version. */
typedef struct Sought
{
	bool		by_version;
	int64		number;
} Sought;

/* What the index is searched for. */
typedef struct Search
{
	int64		slot;			/* of one row, or DLOCK_ALL_SLOTS or _PLACES */
	DlockFind	how;
	int64		owners_of;		/* whose owner is read: one slot, all, or none */
	int			max;			/* at most this many places are added */
} Search;

/* The pages that a search keeps pinned. */
typedef struct Pins
{
	int			n;
	int			oldest;
	BlockNumber blocks[MAX_PINS];
	Buffer		buffers[MAX_PINS];
} Pins;

/*
 * The rows that were found
 */

/* Begin with no rows.  lock.c calls this before it looks for any. */
void
dlock_find_nothing(DlockRows *found)
{
	found->n = 0;
	found->max = 1;
	found->states = &found->one_state;
	found->rows = &found->one_row;
}

/* Room for one more row, all zeroes; returns its number. */
static int
add_row(DlockRows *found)
{
	if (found->n == found->max)
	{
		int			max = found->max * 8;
		DlockState *states = palloc(mul_size(max, sizeof(DlockState)));
		DlockRow   *rows = palloc(mul_size(max, sizeof(DlockRow)));

		memcpy(states, found->states, found->n * sizeof(DlockState));
		memcpy(rows, found->rows, found->n * sizeof(DlockRow));
		found->states = states;
		found->rows = rows;
		found->max = max;
	}
	memset(&found->states[found->n], 0, sizeof(DlockState));
	memset(&found->rows[found->n], 0, sizeof(DlockRow));
	return found->n++;
}

/* Row i is one that only another open transaction knows. */
static void
set_pending(DlockRows *found, int i, int64 slot, TransactionId pending)
{
	found->states[i].unsettled = true;
	found->states[i].slot = slot;
	found->rows[i].pending = pending;
}

/*
 * Row i is a committed row, or one of our own; "pending" is changing it.  The
 * buffer of the tuple is locked, so that nobody else can lock the row meanwhile.
 * An owner that is in the toast table is read later, from a copy of the row.
 */
static void
set_row(DlockRows *found, int i, HeapTuple tuple, TransactionId pending,
		bool with_owner, DlockFind how)
{
	DlockState *state = &found->states[i];
	DlockRow   *row = &found->rows[i];
	bool		in_toast = with_owner && dlock_row_owner_in_toast(tuple);

	row->tid = tuple->t_self;
	row->writer = HeapTupleHeaderGetXmin(tuple->t_data);
	row->pending = pending;
	dlock_row_state(tuple, state, with_owner && !in_toast,
					i == 0 ? &found->one_owner : NULL);
	state->unsettled = TransactionIdIsValid(pending);
	if (!state->unsettled && !(tuple->t_data->t_infomask & HEAP_XMAX_INVALID))
		state->used = dlock_row_is_used(tuple->t_data, &row->pending);
	if (how == DLOCK_FIND_WHOLE || in_toast)
		row->tuple = heap_copytuple(tuple);
}

/*
 * Read the owners that are in the toast table, of the rows from "first" on.  That
 * takes heavyweight locks, so neither a buffer nor a partition may be locked.
 */
static void
read_toasted_owners(DlockRows *found, int first)
{
	for (int i = first; i < found->n; i++)
		if (found->rows[i].tuple != NULL && found->states[i].held &&
			found->states[i].terms.owner == NULL)
			found->states[i].terms.owner = dlock_row_owner(found->rows[i].tuple);
}

/*
 * Finding by a hint
 */

/*
 * Is there such a block?  Ask the kernel only if we must: while we have a lock
 * on the table it can only grow, and truncating it makes every backend forget
 * its length before that backend gets its lock.
 */
static bool
block_exists(const DlockTable *store, BlockNumber block)
{
	BlockNumber seen = RelationGetSmgr(store->heap)->smgr_cached_nblocks[MAIN_FORKNUM];

	if (seen != InvalidBlockNumber && block < seen)
		return true;
	return block < RelationGetNumberOfBlocks(store->heap);
}

/* Does the tuple that a hint leads to have what is asked for?  Its buffer is locked. */
static bool
is_sought(HeapTuple tuple, const DlockKey *key, const Sought *sought)
{
	if (!sought->by_version)
		return dlock_row_is(tuple, key, sought->number);
	return dlock_row_version(tuple) == sought->number &&
		dlock_row_slot(tuple) != DLOCK_HEAD && dlock_row_has_key(tuple, key);
}

/*
 * Add the row at the given tuple id, if it is a version of the row sought that
 * the dirty snapshot shows.  The tuple id is a hint and may be anything.  If the
 * version is not committed yet, *pending is set and nothing is added.
 */
static bool
find_hinted(const DlockTable *store, const DlockKey *key, const Sought *sought,
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
				set_row(found, add_row(found), &tuple, dirty.xmax, true, how);
		}
	}
	UnlockReleaseBuffer(buffer);
	if (!is_there || TransactionIdIsValid(*pending))
		return false;
	read_toasted_owners(found, found->n - 1);
	return true;
}

/*
 * Finding through the index
 */

/*
 * The page, pinned until the search ends.  Places of a key that were taken at
 * about the same time are on the same page, but their slots are in another order.
 *
 * A search keeps no more pages than its share of all buffers, as PostgreSQL's own
 * scans do.  Otherwise many of them at the same time would leave none for others.
 */
static Buffer
pin(Pins *pins, Relation heap, BlockNumber block)
{
	int			max = Min(MAX_PINS, Max(NBuffers / MaxBackends, 1));
	int			i;

	for (i = 0; i < pins->n; i++)
		if (pins->blocks[i] == block)
			return pins->buffers[i];
	if (pins->n < max)
		pins->n++;
	else
	{
		i = pins->oldest;
		pins->oldest = (i + 1) % max;
		ReleaseBuffer(pins->buffers[i]);
	}
	pins->blocks[i] = block;
	pins->buffers[i] = ReadBuffer(heap, block);

	/* as any index scan does */
	dlock_heap_prune_opt(heap, pins->buffers[i]);
	return pins->buffers[i];
}

/* At the end of a search.  What an error leaves pinned, its resource owner releases. */
static void
unpin_all(Pins *pins)
{
	for (int i = 0; i < pins->n; i++)
		ReleaseBuffer(pins->buffers[i]);
	pins->n = 0;
}

/*
 * Add one version of a row.  The versions of a row follow each other, if there
 * are several: an uncommitted one, and the one before it.  "first" is the first
 * row of this search.
 */
static void
add_version(DlockRows *found, int first, HeapTuple tuple, const SnapshotData *dirty,
			const Search *search)
{
	bool		is_new = TransactionIdIsValid(dirty->xmin);
	int64		slot = dlock_row_slot(tuple);
	TransactionId pending = is_new ? dirty->xmin : dirty->xmax;
	int			i = found->n - 1;

	if (i < first || found->states[i].slot != slot)
		i = add_row(found);
	else if (is_new || found->states[i].exists)
	{
		found->states[i].unsettled = true;
		found->rows[i].pending = pending;
		return;
	}
	else
		pending = found->rows[i].pending;

	if (is_new)
		set_pending(found, i, slot, pending);
	else
		set_row(found, i, tuple, pending,
				search->owners_of == DLOCK_ALL_SLOTS || search->owners_of == slot ||
				(slot == DLOCK_HEAD && search->owners_of != DLOCK_NO_SLOT),
				search->how);
}

/*
 * Add what the dirty snapshot shows of the row that an index entry leads to.
 * True: nothing, and nobody else will see anything either.
 */
static bool
add_entry(const DlockTable *store, ItemPointerData tid, Pins *pins, Snapshot dirty,
		  const Search *search, DlockRows *found, int first)
{
	Buffer		buffer = pin(pins, store->heap, ItemPointerGetBlockNumber(&tid));
	HeapTupleData tuple;
	bool		all_dead = false;
	bool		is_first = true;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	while (heap_hot_search_buffer(&tid, store->heap, buffer, dirty, &tuple,
								  is_first ? &all_dead : NULL, is_first))
	{
		is_first = false;
		add_version(found, first, &tuple, dirty, search);
		if (!HeapTupleIsHotUpdated(&tuple))
			break;
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return is_first && all_dead;
}

/* Is one row sought, and not all places? */
static bool
is_for_one(const Search *search)
{
	return search->slot >= DLOCK_HEAD;
}

/* One row: its newest version will do, or else it must be a committed one. */
static bool
has_enough(const Search *search, const DlockRows *found, int first)
{
	if (is_for_one(search))
		return found->n > first &&
			(search->how == DLOCK_FIND_NEWEST || found->states[first].exists);
	return found->n - first >= search->max;
}

/* Read the index once, backwards. */
static void
read_index(const DlockTable *store, Relation index, const DlockKey *key,
		   const Search *search, DlockRows *found)
{
	int			first = found->n;
	int			nkeys = search->slot == DLOCK_ALL_SLOTS ? 1 : 2;
	Pins		pins;
	SnapshotData dirty;
	IndexScanDesc scan;
	ScanKeyData skey[2];
	ItemPointer tid;

	ScanKeyInit(&skey[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(key->data, key->len)));
	if (is_for_one(search))
		ScanKeyInit(&skey[1], 2, BTEqualStrategyNumber, F_INT8EQ,
					Int64GetDatum(search->slot));
	else
		ScanKeyInit(&skey[1], 2, BTGreaterStrategyNumber, F_INT8GT,
					Int64GetDatum(DLOCK_HEAD));

	pins.n = pins.oldest = 0;
	InitDirtySnapshot(dirty);
	scan = dlock_index_beginscan(store->heap, index, &dirty, nkeys);
	index_rescan(scan, skey, nkeys, NULL, 0);
	while (!has_enough(search, found, first) &&
		   (tid = index_getnext_tid(scan, BackwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		scan->kill_prior_tuple = add_entry(store, *tid, &pins, &dirty, search,
										   found, first) &&
			!scan->xactStartedInRecovery;
	}
	unpin_all(&pins);
	index_endscan(scan);
}

/*
 * Was a version of a row committed while we looked, so that we may have
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

/*
 * Add what the search finds.  A search for the newest rows may miss some; the
 * request finds that out later (places.c).  Any other one must not: it looks again
 * until it can be believed, in the end with the partition lock held.
 */
static void
find_through_index(const DlockTable *store, const DlockKey *key,
				   const Search *search, DlockRows *found)
{
	LWLock	   *partition = dlock_lwlock_partition(key->hash);
	Relation	index = index_open(store->index, store->lockmode);
	int			first = found->n;
	int			looks = 0;
	bool		is_locked;
	bool		may_miss;
	DlockClaims claims;

	do
	{
		CHECK_FOR_INTERRUPTS();
		found->n = first;
		is_locked = looks++ >= (is_for_one(search) ? 1 : FREE_LOOKS);
		dlock_places_read(key, DLOCK_HEAD, &claims);
		if (is_locked)
			LWLockAcquire(partition, LW_SHARED);
		read_index(store, index, key, search, found);
		if (is_locked)
			LWLockRelease(partition);
		may_miss = !is_locked &&
			(is_for_one(search) ? found->n == first :
			 !dlock_places_unchanged(key, &claims, false, true));
	} while (search->how != DLOCK_FIND_NEWEST &&
			 (may_miss || has_settled(found, first)));
	index_close(index, store->lockmode);
	read_toasted_owners(found, first);
}

/*
 * Is there any version of the row?  That there is none is certain only under the
 * partition lock, which the caller holds, and under which it cannot open the index.
 */
bool
dlock_find_any(const DlockTable *store, Relation index, const DlockKey *key,
			   int64 slot)
{
	Search		search = {slot, DLOCK_FIND_NEWEST, DLOCK_NO_SLOT, 1};
	DlockRows	found;

	dlock_find_nothing(&found);
	read_index(store, index, key, &search, &found);
	return found.n > 0;
}

/*
 * Finding, whichever way leads to the row
 */

/* Add the row of one slot, if there is one. */
bool
dlock_find_slot(const DlockTable *store, const DlockKey *key, int64 slot,
				DlockFind how, DlockRows *found)
{
	Sought		sought = {false, slot};
	Search		search = {slot, how, DLOCK_ALL_SLOTS, 1};
	TransactionId pending = InvalidTransactionId;
	int			first = found->n;
	ItemPointerData tid;

	Assert(ActiveSnapshotSet());

	if (dlock_row_hint_get(dlock_key_slot_hash(key, slot), &tid) &&
		find_hinted(store, key, &sought, &tid, how, found, &pending))
		return true;
	if (how < DLOCK_FIND_COMMITTED && TransactionIdIsValid(pending))
	{
		set_pending(found, add_row(found), slot, pending);
		return true;
	}
	if (how == DLOCK_FIND_HINTED)
		return false;

	find_through_index(store, key, &search, found);
	if (found->n > first && found->states[first].exists)
		dlock_row_hint_set(dlock_key_slot_hash(key, slot), &found->rows[first].tid);
	return found->n > first;
}

/* Add the place with this version, if the hint leads to its committed row. */
bool
dlock_find_version(const DlockTable *store, const DlockKey *key, int64 version,
				   DlockRows *found)
{
	Sought		sought = {true, version};
	TransactionId pending;
	ItemPointerData tid;

	return dlock_row_hint_get(dlock_key_slot_hash(key, version), &tid) &&
		find_hinted(store, key, &sought, &tid, DLOCK_FIND_COMMITTED, found, &pending);
}

/*
 * Add all places of the key, and with_head the head, too.  A lookup of what is
 * committed comes here only if it did not find the place by its slot or version.
 *
 * Owners are read of one slot or of all (DLOCK_ALL_SLOTS).  At most "max" places are
 * added, those with the highest slots.
 */
void
dlock_find_places(const DlockTable *store, const DlockKey *key, DlockFind how,
				  bool with_head, int64 owners_of, int max, DlockRows *found)
{
	Search		search = {with_head ? DLOCK_ALL_SLOTS : DLOCK_ALL_PLACES,
	how, owners_of, max};
	int			first = found->n;

	find_through_index(store, key, &search, found);

	/* backwards, so the head comes last */
	if (with_head && found->n > first && found->states[found->n - 1].exists &&
		found->states[found->n - 1].slot == DLOCK_HEAD)
		dlock_row_hint_set(dlock_key_slot_hash(key, DLOCK_HEAD), &found->rows[found->n - 1].tid);
}

/* All rows of the key, as they are committed, with copies. */
void
dlock_find_committed(const DlockTable *store, const DlockKey *key, DlockRows *found)
{
	dlock_find_nothing(found);
	(void) dlock_find_slot(store, key, DLOCK_HEAD, DLOCK_FIND_WHOLE, found);
	if (dlock_places_marked(key))
		dlock_find_places(store, key, DLOCK_FIND_WHOLE, false, DLOCK_ALL_SLOTS,
						  INT_MAX, found);
}

/*
 * Locking
 */

/*
 * Remove dead versions, as a lookup through the index would have done, but only
 * when the page is short of room for new ones.  PostgreSQL goes by the
 * fillfactor, and ours is so low that it would prune for nearly every change.
 * Called only before a write: a lookup that changes nothing writes no WAL.
 */
static void
prune_if_short(const DlockTable *store, Buffer buffer)
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
dlock_find_lock(const DlockTable *store, const DlockKey *key, DlockState *state,
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
