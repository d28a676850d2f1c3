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
#include "owners.h"
#include "places.h"
#include "tally.h"
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
 * 3. dlock_write_begin_insert() takes the partition lock.  Under it the caller
 *	  finds out whether it may add the row.
 * 4. dlock_write_end_insert() adds the row and releases the lock, or
 *	  dlock_write_cancel_insert() does without.
 *
 * A row so long that parts of it go to the toast table is not added as such,
 * because writing there takes a lock on the toast table and on its index.  A
 * shorter row is added, which the caller then updates; nobody else can have it
 * meanwhile.  For a head that is a free row, and the caller starts over.  For a
 * place it is the grant without its owner and value, because the place has to
 * be taken under the partition lock.
 *
 * What remains is the lock for extending a relation, which PostgreSQL holds no
 * longer than it takes to write a block, and the lock on a transaction id that
 * is new.
 */
void
dlock_write_prepare_insert(DlockInsertion *insertion, const DlockStore *store,
						   const DlockKey *key, int64 slot,
						   const DlockGrant *grant)
{
	insertion->store = store;
	insertion->key = key;
	insertion->slot = slot;
	insertion->checks = false;
	insertion->tuple = dlock_row_form(store->heap, key, slot, grant);
	insertion->is_whole = insertion->tuple->t_len <= TOAST_TUPLE_THRESHOLD;
	if (!insertion->is_whole && slot == DLOCK_HEAD)
		insertion->tuple = dlock_row_form_free(store->heap, key, slot, grant,
											   grant->acquired_at, 0);
	else if (!insertion->is_whole)
	{
		DlockGrant	shorter = *grant;

		shorter.owner = NULL;
		shorter.value = NULL;
		insertion->tuple = dlock_row_form(store->heap, key, slot, &shorter);
	}
	dlock_indexes_open(&insertion->indexes, store, insertion->tuple);
}

void
dlock_write_load_insert(const DlockInsertion *insertion)
{
	dlock_indexes_load(&insertion->indexes);
}

/* Is there any version of this row?  Under the partition lock. */
bool
dlock_write_is_there(const DlockInsertion *insertion)
{
	return dlock_find_any(insertion->store,
						  dlock_indexes_primary(&insertion->indexes),
						  insertion->key, insertion->slot);
}

void
dlock_write_begin_insert(const DlockInsertion *insertion)
{
	LWLockAcquire(dlock_lwlock_partition(insertion->key->hash), LW_EXCLUSIVE);
}

static void
leave_insert(DlockInsertion *insertion)
{
	LWLockRelease(dlock_lwlock_partition(insertion->key->hash));
	dlock_indexes_close(&insertion->indexes);
}

void
dlock_write_cancel_insert(DlockInsertion *insertion)
{
	leave_insert(insertion);
}

/* Where the newest version of a row is; a place is also sought by its version. */
static void
set_hints(const DlockKey *key, HeapTuple tuple)
{
	int64		slot = dlock_row_slot(tuple);

	dlock_hint_set(dlock_key_slot(key, slot), &tuple->t_self);
	if (slot >= DLOCK_OWNED_SLOTS)
		dlock_hint_set(dlock_key_slot(key, dlock_row_version(tuple)), &tuple->t_self);
}

/*
 * The version and the times are those of the grant.  "row" is what was added,
 * for a caller that has to update it.
 *
 * False, if that was to be checked: the slot has another row, and the caller has
 * to remove this one.
 */
bool
dlock_write_end_insert(DlockInsertion *insertion, const DlockGrant *grant,
					   DlockRow *row)
{
	const DlockStore *store = insertion->store;
	const DlockKey *key = insertion->key;
	HeapTuple	tuple = insertion->tuple;
	bool		is_only;

	dlock_row_stamp(tuple, insertion->slot, grant);
	dlock_tally_added(key, insertion->slot);
	heap_insert(store->heap, tuple, GetCurrentCommandId(true), 0, NULL);
	is_only = dlock_indexes_insert(&insertion->indexes, store, tuple, false,
								   insertion->checks);
	if (insertion->slot == DLOCK_HEAD)
		dlock_places_claim_head(key);
	else
		dlock_places_claim_place(key, insertion->slot);
	leave_insert(insertion);

	if (is_only)
		set_hints(key, tuple);
	CommandCounterIncrement();

	memset(row, 0, sizeof(*row));
	row->writer = HeapTupleHeaderGetXmin(tuple->t_data);
	row->tid = tuple->t_self;
	row->tuple = tuple;
	return is_only;
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
		(void) dlock_indexes_insert(&indexes, store, tuple, true, false);

		/* a lookup that is under way may miss the row */
		dlock_places_claim_head(key);
		dlock_places_claim_place(key, dlock_row_slot(tuple));
		LWLockRelease(partition);
		dlock_owners_met(key, dlock_row_slot(tuple));
		dlock_indexes_close(&indexes);
	}
	if (dlock_row_slot(tuple) != DLOCK_HEAD)
		dlock_places_mark(key);
	set_hints(key, tuple);
	CommandCounterIncrement();
}

/* A new grant in place of a free row or of another grant. */
void
dlock_write_grant(const DlockStore *store, const DlockKey *key, int64 slot,
				  DlockRow *row, const DlockGrant *grant)
{
	replace(store, key, row, dlock_row_form(store->heap, key, slot, grant));
}

/* The same grant for another TTL, and with another value if one is given. */
void
dlock_write_renewal(const DlockStore *store, const DlockKey *key, DlockRow *row,
					const char *value, int64 ttl, int64 now)
{
	replace(store, key, row,
			dlock_row_form_renewed(store->heap, key, row->tuple, value, ttl, now));
}

/* The row stays, so that the next grant of this key adds no index entry. */
void
dlock_write_free(const DlockStore *store, const DlockKey *key, DlockRow *row,
				 int64 now, int64 cools_until)
{
	replace(store, key, row,
			dlock_row_form_freed(store->heap, key, row->tuple, now, cools_until));
}

static void
delete(const DlockStore *store, DlockRow *row)
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

void
dlock_write_remove(const DlockStore *store, const DlockKey *key, DlockRow *row)
{
	int64		slot = dlock_row_slot(row->tuple);

	if (slot != DLOCK_HEAD)
		dlock_tally_removed(key, slot, dlock_store_file(store));
	delete(store, row);
}

/* Remove a place that was added in vain: its slot has another row. */
void
dlock_write_take_back(const DlockStore *store, const DlockKey *key, DlockRow *row)
{
	dlock_tally_taken_back(key, dlock_row_slot(row->tuple));
	delete(store, row);
}
