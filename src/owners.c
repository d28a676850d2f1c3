/*-------------------------------------------------------------------------
 *
 * owners.c
 *	  Which owners may have a place.
 *
 * An owner has one place of a key, so a shared request has to find out whether its
 * owner has one.  Most owners that ask do not, and the index is slow to say so.
 * Here is a count of the places of owners, by the hash of key and slot.  If it is
 * zero, the owner has none.
 *
 * A place counts from before it is added until it is gone for everybody: until the
 * transaction that deletes it has committed, or the one that added it has rolled
 * back (tally.c).  Those that were there when the server started are counted by the
 * first pass of the reaper.  Until that is over (DlockDatabase.places_known) any
 * owner may have a place, and what is deleted is not subtracted, because it may not
 * have been counted.
 *
 * A count may be too high: that pass may count a place twice, and one that SQL
 * deletes stays counted.  That costs a lookup.  Nor would a count that is too low do
 * harm: the insertion checks, too (indexes.c).  But then a request might have written
 * something for nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"

#include "database.h"
#include "owners.h"
#include "places.h"

#define COUNTS	(1 << 16)

static pg_atomic_uint32 *counts = NULL;

Size
dlock_owners_shmem_size(void)
{
	return COUNTS * sizeof(pg_atomic_uint32);
}

void
dlock_owners_shmem_init(void)
{
	bool		found;

	counts = ShmemInitStruct("dlock owners", dlock_owners_shmem_size(), &found);
	if (!found)
		for (int i = 0; i < COUNTS; i++)
			pg_atomic_init_u32(&counts[i], 0);
}

static pg_atomic_uint32 *
count_of(const DlockKey *key, int64 slot)
{
	return &counts[dlock_key_slot(key, slot) % COUNTS];
}

static bool
is_known(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);

	return db != NULL && dlock_places_known(db);
}

/*
 * May the owner with this slot have a place?  If not, that is so until the counter
 * of the slot moves (places.c), which the caller has read before.
 */
bool
dlock_owners_may_have(const DlockKey *key, int64 slot)
{
	if (!is_known())
		return true;
	pg_read_barrier();
	return pg_atomic_read_u32(count_of(key, slot)) != 0;
}

/* SQL is about to add a place, perhaps in a server without us. */
void
dlock_owners_restored(const DlockKey *key, int64 slot)
{
	if (counts != NULL && slot >= DLOCK_OWNED_SLOTS)
		(void) pg_atomic_fetch_add_u32(count_of(key, slot), 1);
}

/* The reaper has read a place, or it may miss it because we have moved it. */
void
dlock_owners_met(const DlockKey *key, int64 slot)
{
	if (slot >= DLOCK_OWNED_SLOTS && !is_known())
		(void) pg_atomic_fetch_add_u32(count_of(key, slot), 1);
}

/* We are about to add a place, under the partition lock. */
int
dlock_owners_added(const DlockKey *key, int64 slot)
{
	if (slot < DLOCK_OWNED_SLOTS)
		return DLOCK_NO_OWNER;
	(void) pg_atomic_fetch_add_u32(count_of(key, slot), 1);
	return count_of(key, slot) - counts;
}

/* We are about to delete a place that we have locked. */
int
dlock_owners_removed(const DlockKey *key, int64 slot)
{
	if (slot < DLOCK_OWNED_SLOTS || !is_known())
		return DLOCK_NO_OWNER;
	return count_of(key, slot) - counts;
}

/* A place is gone for everybody.  Must not fail. */
void
dlock_owners_subtract(int owner)
{
	if (owner != DLOCK_NO_OWNER)
		(void) pg_atomic_fetch_sub_u32(&counts[owner], 1);
}

/*
 * For the tests only, without a declaration in the extension's script: all counts
 * are too low.
 */
PG_FUNCTION_INFO_V1(dlock_test_lose_owners);

Datum
dlock_test_lose_owners(PG_FUNCTION_ARGS)
{
	if (counts == NULL)
		elog(ERROR, "dlock is not loaded via \"shared_preload_libraries\"");
	for (int i = 0; i < COUNTS; i++)
		pg_atomic_write_u32(&counts[i], 0);
	PG_RETURN_VOID();
}
