/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Reading all rows of dlock.locks, or those of a range of keys.
 *
 * Both ways read the rows that a snapshot shows, and those that another open
 * transaction has inserted.  Unlike an ordinary scan they take no predicate lock,
 * so a SERIALIZABLE reader makes nobody's lock call fail.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "rows/row.h"
#include "rows/scan.h"
#include "rules/key.h"

/*
 * What a reader sees of a row version, in a buffer that is locked.  The snapshot
 * shows committed rows and those of our own transaction.  A row that another
 * open transaction has inserted is pending.  One that it has updated is not: the
 * version before is there to show.  It is "later", as is one that was committed after
 * the snapshot; only the reaper counts these (expiry.c).
 */
static DlockSeen
see(HeapTuple tuple, Snapshot snapshot, Buffer buffer)
{
	SnapshotData dirty;

	if (HeapTupleSatisfiesVisibility(tuple, snapshot, buffer))
		return DLOCK_SEEN_COMMITTED;

	InitDirtySnapshot(dirty);
	if (!HeapTupleSatisfiesVisibility(tuple, &dirty, buffer))
		return DLOCK_SEEN_NOT;
	if (TransactionIdIsValid(dirty.xmin) &&
		!(tuple->t_data->t_infomask & HEAP_UPDATED))
		return DLOCK_SEEN_PENDING;
	return DLOCK_SEEN_LATER;
}

/* Copies of the rows of a block, and what was seen of them. */
static int
read_block(const DlockTable *store, BlockNumber block, Snapshot snapshot,
		   BufferAccessStrategy strategy, HeapTuple *tuples, DlockSeen *seen)
{
	Buffer		buffer;
	Page		page;
	int			ntuples = 0;

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
		seen[ntuples] = see(&tuple, snapshot, buffer);
		if (seen[ntuples] != DLOCK_SEEN_NOT)
			tuples[ntuples++] = heap_copytuple(&tuple);
	}
	UnlockReleaseBuffer(buffer);
	return ntuples;
}

/*
 * Visit every row that the snapshot shows, from the given block on, for at most
 * the given number of blocks or until the visitor has enough.  Return the block
 * to continue with, or InvalidBlockNumber at the end.  The visitor is called
 * without a buffer lock.  The tuples are copies in the current memory context,
 * which the caller resets.
 */
BlockNumber
dlock_scan_blocks(const DlockTable *store, Snapshot snapshot, BlockNumber start,
				  BlockNumber limit, DlockVisitor visit, void *arg)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(store->heap);
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	HeapTuple	tuples[MaxHeapTuplesPerPage];
	DlockSeen	seen[MaxHeapTuplesPerPage];
	BlockNumber next = InvalidBlockNumber;

	for (BlockNumber block = start; block < nblocks; block++)
	{
		int			ntuples;
		bool		enough = false;

		CHECK_FOR_INTERRUPTS();

		ntuples = read_block(store, block, snapshot, strategy, tuples, seen);
		for (int i = 0; i < ntuples; i++)
		{
			if (!visit(store, tuples[i], seen[i], arg))
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

static bool
starts_after(const DlockRange *range)
{
	return range->after != NULL &&
		dlock_key_compare(range->after, range->afterlen,
						  range->prefix, range->prefixlen) >= 0;
}

/* A copy of the row in the slot, and what was seen of it. */
static HeapTuple
copy_seen(TupleTableSlot *slot, Snapshot snapshot, DlockSeen *seen)
{
	BufferHeapTupleTableSlot *buffered = (BufferHeapTupleTableSlot *) slot;
	HeapTuple	tuple = buffered->base.tuple;
	HeapTuple	copy = NULL;

	LockBuffer(buffered->buffer, BUFFER_LOCK_SHARE);
	*seen = snapshot == NULL ? DLOCK_SEEN_COMMITTED :
		see(tuple, snapshot, buffered->buffer);
	if (*seen != DLOCK_SEEN_NOT && *seen != DLOCK_SEEN_LATER)
		copy = heap_copytuple(tuple);
	LockBuffer(buffered->buffer, BUFFER_LOCK_UNLOCK);
	return copy;
}

/*
 * Visit the rows of a range, in the order of their keys, until the visitor has
 * enough.  The tuples are copies.  listing.c and policy.c call this.
 *
 * Rows of other open transactions have to be looked for among all versions of a
 * row, so the index is read with SnapshotAny, and each version is judged by
 * itself.  Without a snapshot, this reads everything that is there, also what open
 * transactions have written.  A row that one of them is changing comes twice.
 */
void
dlock_scan_range(const DlockTable *store, const DlockRange *range, Snapshot snapshot,
				 DlockVisitor visit, void *arg)
{
	Relation	index = index_open(store->index, store->lockmode);
	TupleTableSlot *slot = table_slot_create(store->heap, NULL);
	IndexScanDesc scan;
	ScanKeyData skey;
	SnapshotData dirty;
	bool		more = true;

	if (starts_after(range))
		ScanKeyInit(&skey, 1, BTGreaterStrategyNumber, F_TEXT_GT,
					PointerGetDatum(cstring_to_text_with_len(range->after,
															 range->afterlen)));
	else
		ScanKeyInit(&skey, 1, BTGreaterEqualStrategyNumber, F_TEXT_GE,
					PointerGetDatum(cstring_to_text_with_len(range->prefix,
															 range->prefixlen)));

	InitDirtySnapshot(dirty);
	scan = dlock_index_beginscan(store->heap, index,
								 snapshot == NULL ? &dirty : SnapshotAny, 1);
	index_rescan(scan, &skey, 1, NULL, 0);
	while (more && index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		DlockKey	key;
		DlockSeen	seen;
		HeapTuple	tuple;

		CHECK_FOR_INTERRUPTS();

		dlock_row_key(((BufferHeapTupleTableSlot *) slot)->base.tuple, &key);
		if (key.len < range->prefixlen ||
			memcmp(key.data, range->prefix, range->prefixlen) != 0 ||
			(range->is_whole && key.len > range->prefixlen))
			break;
		tuple = copy_seen(slot, snapshot, &seen);
		if (tuple == NULL)
			continue;
		more = visit(store, tuple, seen, arg);
		heap_freetuple(tuple);
	}

	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, store->lockmode);
}
