/*-------------------------------------------------------------------------
 *
 * tally.c
 *	  The places that a transaction adds and removes.
 *
 * Two counts in shared memory have to learn when a place is gone for everybody: that
 * of the places of owners (owners.c), and that of the places of a key (census.c).
 * It is gone when the transaction that has removed it commits, or when the one that
 * has added it rolls back.  So what a transaction does is listed here, and its end,
 * or that of a subtransaction, tells the counts.
 *
 * Until then, what it has removed may come back.  A transaction does not see such
 * rows itself, but when it counts the places of a key, they count.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "utils/memutils.h"

#include "census.h"
#include "owners.h"
#include "tally.h"

#define KEEP_CHANGES	1024

typedef struct PlaceChange
{
	uint64		hash;			/* of the key */
	SubTransactionId subid;
	bool		added;			/* or removed */
	int			owner;			/* the count of its owner */
	DlockCensusPart part;		/* ... and that of its key, if it is removed */
} PlaceChange;

/*
 * The memory is kept for the next transaction: the end of one in which everything
 * was rolled back to a savepoint may pass us by (xact.c).
 */
static PlaceChange *changes = NULL;
static int	nchanges = 0;
static int	maxchanges = 0;
static int	nremovals = 0;

/* the last transaction of this backend in which SQL has written to the table */
static FullTransactionId by_sql;

static PlaceChange *
add_change(const DlockKey *key, bool added)
{
	PlaceChange *change;

	if (nchanges == maxchanges)
	{
		int			newmax = Max(maxchanges * 2, 16);
		Size		size = mul_size(newmax, sizeof(PlaceChange));

		changes = changes == NULL ?
			MemoryContextAllocHuge(TopMemoryContext, size) :
			repalloc_huge(changes, size);
		maxchanges = newmax;
	}
	change = &changes[nchanges++];
	change->hash = key->hash;
	change->subid = GetCurrentSubTransactionId();
	change->added = added;
	change->owner = DLOCK_NO_OWNER;
	change->part.entry = -1;
	nremovals += added ? 0 : 1;
	return change;
}

/* We are about to add a place, under the partition lock. */
void
dlock_tally_added(const DlockKey *key, int64 slot)
{
	PlaceChange *change;

	if (slot < DLOCK_OWNED_SLOTS)
		return;
	change = add_change(key, true);
	change->owner = dlock_owners_added(key, slot);
}

/* We are about to delete a place that we have locked. */
void
dlock_tally_removed(const DlockKey *key, int64 slot, Oid file)
{
	PlaceChange *change = add_change(key, false);

	change->owner = dlock_owners_removed(key, slot);
	change->part = dlock_census_part(key, file);
}

/*
 * We are about to delete a place that we have just added, because the slot has
 * another row.  A census that was taken meanwhile has counted the two as one.
 */
void
dlock_tally_taken_back(const DlockKey *key, int64 slot)
{
	PlaceChange *change = add_change(key, false);

	change->owner = dlock_owners_removed(key, slot);
}

/* SQL is about to write to the table. */
void
dlock_tally_by_sql(void)
{
	by_sql = GetTopFullTransactionId();
}

/*
 * How many places of the key come back at most if this transaction, or a part of
 * it, rolls back?  -1 if nobody knows, because SQL may have deleted some.
 */
int
dlock_tally_removals(const DlockKey *key)
{
	int			n = 0;

	if (FullTransactionIdIsValid(by_sql) &&
		FullTransactionIdEquals(by_sql, GetTopFullTransactionIdIfAny()))
		return -1;
	for (int i = 0; i < nchanges && nremovals > 0; i++)
		if (changes[i].hash == key->hash && !changes[i].added)
			n++;
	return n;
}

/* These changes stay, or are undone. */
static void
settle(int from, bool committed)
{
	for (int i = from; i < nchanges; i++)
	{
		const PlaceChange *change = &changes[i];

		if (change->added != committed)
			dlock_owners_subtract(change->owner);
		if (committed && !change->added)
			dlock_census_ended(change->hash, change->part);
		nremovals -= change->added ? 0 : 1;
	}
	nchanges = from;
}

/* Must not fail. */
void
dlock_tally_at_end(bool committed)
{
	if (nchanges > 0)
		settle(0, committed);
	if (maxchanges > KEEP_CHANGES)
	{
		pfree(changes);
		changes = NULL;
		maxchanges = 0;
	}
}

void
dlock_tally_at_abort_sub(SubTransactionId subid)
{
	int			first = nchanges;

	/* those of this subtransaction and its children come last */
	while (first > 0 && changes[first - 1].subid >= subid)
		first--;
	settle(first, false);
}
