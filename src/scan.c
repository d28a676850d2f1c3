/*-------------------------------------------------------------------------
 *
 * scan.c
 *	  Reading all rows of dlock.locks.
 *
 * Unlike an ordinary scan it takes no predicate lock, so a SERIALIZABLE reader
 * makes nobody's lock call fail.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "scan.h"

/*
 * What a reader sees of a row version, in a buffer that is locked.  The snapshot
 * shows committed rows and those of our own transaction.  A row that another
 * open transaction has inserted is pending.  One that it has updated is not: the
 * version before is there to show.
 */
DlockSeen
dlock_scan_see(HeapTuple tuple, Snapshot snapshot, Buffer buffer)
{
	SnapshotData dirty;

	if (HeapTupleSatisfiesVisibility(tuple, snapshot, buffer))
		return DLOCK_SEEN_COMMITTED;
	if (tuple->t_data->t_infomask & HEAP_UPDATED)
		return DLOCK_SEEN_NOT;

	InitDirtySnapshot(dirty);
	if (HeapTupleSatisfiesVisibility(tuple, &dirty, buffer) &&
		TransactionIdIsValid(dirty.xmin))
		return DLOCK_SEEN_PENDING;
	return DLOCK_SEEN_NOT;
}

/* Copies of the rows of a block, and what was seen of them. */
static int
read_block(const DlockStore *store, BlockNumber block, Snapshot snapshot,
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
		seen[ntuples] = dlock_scan_see(&tuple, snapshot, buffer);
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
dlock_scan(const DlockStore *store, Snapshot snapshot, BlockNumber start,
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
