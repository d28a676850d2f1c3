/*-------------------------------------------------------------------------
 *
 * write.c
 *	  Adding and changing rows of dlock.locks.
 *
 * A row is added under the partition lock, which is held from the lookup that
 * finds nothing to the insertion of the index entry.  That is what makes a key
 * unique here; nobody ever waits in a unique check for another transaction.
 *
 * A row is changed only after dlock_find_lock() has made us its locker, so a
 * change cannot fail.  Entries go to every index of the table, so that REINDEX
 * CONCURRENTLY can replace the primary key under load.
 *
 * Every write ends with CommandCounterIncrement(), so that the next call in the
 * same statement sees it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/xact.h"
#include "storage/sinval.h"
#include "utils/rel.h"

#include "compat.h"
#include "hint.h"
#include "lwlocks.h"
#include "write.h"

/*
 * Adding a row
 *
 * This takes several steps, because of the partition lock.  It is an LWLock: a
 * process that waits for one cannot be cancelled, so under it nothing may wait
 * for a heavyweight lock, or read a catalog, which may do the same.
 *
 * 1. dlock_write_prepare_insert() opens the indexes and forms the row.
 * 2. dlock_write_load_insert() loads what the next steps need into the caches
 *	  of this backend.  It stays there until an invalidation message is
 *	  processed, which happens only when a heavyweight lock is taken.
 * 3. dlock_write_begin_insert() takes the partition lock and looks again.
 * 4. dlock_write_end_insert() adds the row and releases the lock.
 *
 * A row so long that parts of it go to the toast table is not added as such,
 * because writing there takes a lock on the toast table and on its index.  A
 * free row is added in its place.  The caller finds it when it looks again and
 * updates it like any other; nobody else can have it meanwhile.
 *
 * What remains is the lock for extending a relation, which PostgreSQL holds no
 * longer than it takes to write a block, and the lock on a transaction id that
 * is new.
 */
void
dlock_write_prepare_insert(DlockInsertion *insertion, const DlockStore *store,
						   const DlockKey *key, const DlockGrant *grant)
{
	insertion->store = store;
	insertion->key = key;
	insertion->index = index_open(store->index, store->lockmode);
	insertion->tuple = dlock_row_form(store->heap, key, DLOCK_EXCLUSIVE_SLOT, grant);
	insertion->is_grant = insertion->tuple->t_len <= TOAST_TUPLE_THRESHOLD;
	if (!insertion->is_grant)
		insertion->tuple = dlock_row_form_free(store->heap, key, DLOCK_EXCLUSIVE_SLOT,
											   grant, grant->acquired_at);
	dlock_indexes_open(&insertion->indexes, store, insertion->tuple);
}

void
dlock_write_load_insert(const DlockInsertion *insertion)
{
	dlock_indexes_load(&insertion->indexes);
}

/*
 * True means that the key has no row and that the partition lock is held: draw
 * the version and call dlock_write_end_insert().  False means that there is a
 * row after all: look again.
 */
bool
dlock_write_begin_insert(DlockInsertion *insertion)
{
	LWLock	   *partition = dlock_lwlock_partition(insertion->key->hash);

	LWLockAcquire(partition, LW_EXCLUSIVE);
	if (!dlock_find_any(insertion->store, insertion->index, insertion->key))
		return true;

	LWLockRelease(partition);
	index_close(insertion->index, insertion->store->lockmode);
	dlock_indexes_close(&insertion->indexes);
	return false;
}

void
dlock_write_end_insert(DlockInsertion *insertion, int64 version, int64 now)
{
	const DlockStore *store = insertion->store;
	const DlockKey *key = insertion->key;
	HeapTuple	tuple = insertion->tuple;

	dlock_row_stamp(tuple, version, now);
	heap_insert(store->heap, tuple, GetCurrentCommandId(true), 0, NULL);
	dlock_indexes_insert(&insertion->indexes, store, tuple, false);
	LWLockRelease(dlock_lwlock_partition(key->hash));
	index_close(insertion->index, store->lockmode);
	dlock_indexes_close(&insertion->indexes);

	dlock_hint_set(dlock_key_place(key, DLOCK_EXCLUSIVE_SLOT), &tuple->t_self);
	CommandCounterIncrement();
}

/*
 * Changing a row
 */

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
		LWLock	   *partition = dlock_lwlock_partition(key->hash);
		DlockIndexes indexes;
		uint64		seen;

		dlock_indexes_open(&indexes, store, tuple);
		do
		{
			seen = SharedInvalidMessageCounter;
			dlock_indexes_load(&indexes);
		} while (seen != SharedInvalidMessageCounter);
		LWLockAcquire(partition, LW_EXCLUSIVE);
		dlock_indexes_insert(&indexes, store, tuple, true);
		LWLockRelease(partition);
		dlock_indexes_close(&indexes);
	}
	dlock_hint_set(dlock_key_place(key, DLOCK_EXCLUSIVE_SLOT), &tuple->t_self);
	CommandCounterIncrement();
}

/* A new grant in place of a free row or of another grant. */
void
dlock_write_grant(const DlockStore *store, const DlockKey *key, DlockRow *row,
				  const DlockGrant *grant)
{
	replace(store, key, row,
			dlock_row_form(store->heap, key, DLOCK_EXCLUSIVE_SLOT, grant));
}

/* The same grant for another TTL. */
void
dlock_write_renewal(const DlockStore *store, const DlockKey *key, DlockRow *row,
					int64 ttl, int64 now)
{
	replace(store, key, row, dlock_row_form_renewed(row->tuple, ttl, now));
}

/* The row stays, so that the next grant of this key adds no index entry. */
void
dlock_write_free(const DlockStore *store, const DlockKey *key, DlockRow *row,
				 int64 now)
{
	replace(store, key, row,
			dlock_row_form_freed(store->heap, key, row->tuple, now));
}

void
dlock_write_remove(const DlockStore *store, DlockRow *row)
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
