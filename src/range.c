/*-------------------------------------------------------------------------
 *
 * range.c
 *	  Reading the rows of a range of keys, through the primary key index.
 *
 * This reads the rows that the snapshot shows, and those that another open
 * transaction has inserted, as dlock_scan() does.  Both have to be looked for
 * among all versions of a row, so the index is read with SnapshotAny, and each
 * version is judged by itself.  For the same reason no predicate lock is taken:
 * a SERIALIZABLE reader makes nobody's lock call fail.
 *
 * Without a snapshot, this reads everything that is there, also what open
 * transactions have written.  A row that one of them is changing comes twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "key.h"
#include "range.h"
#include "row.h"

/* The order of the index: by bytes. */
int
dlock_range_compare(const char *a, int alen, const char *b, int blen)
{
	int			order = memcmp(a, b, Min(alen, blen));

	return order != 0 ? order : alen - blen;
}

static bool
starts_after(const DlockRange *range)
{
	return range->after != NULL &&
		dlock_range_compare(range->after, range->afterlen,
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
		dlock_scan_see(tuple, snapshot, buffered->buffer);
	if (*seen != DLOCK_SEEN_NOT)
		copy = heap_copytuple(tuple);
	LockBuffer(buffered->buffer, BUFFER_LOCK_UNLOCK);
	return copy;
}

/*
 * Visit the rows of a range, in the order of their keys, until the visitor has
 * enough.  The tuples are copies.
 */
void
dlock_range(const DlockStore *store, const DlockRange *range, Snapshot snapshot,
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
			memcmp(key.data, range->prefix, range->prefixlen) != 0)
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
