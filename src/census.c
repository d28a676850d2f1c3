/*-------------------------------------------------------------------------
 *
 * census.c
 *	  How many places a key has at most.
 *
 * A request for one of N places has to know that fewer than N are taken.  To read
 * them all takes long if there are many.  So the number of rows that a request has
 * found stays here, and is kept up to date: it is never too low.
 *
 * Whatever adds a place moves the counter of places (places.c).  So the bound is
 *
 *		what was found
 *		+ what the counter has moved since
 *		- the removals that have committed since
 *
 * and an entry needs one number, "gone": the counter minus it is the bound.  A
 * claim changes no entry.  Neither a claim that is rolled back nor a row that SQL
 * deletes is ever subtracted.  So the bound may be too high, as it is when keys
 * share a counter.  Then the next request reads the places again, and sets the
 * entry anew.
 *
 * Why it is not too low.  It must be at least the number of rows that are there for
 * anybody: rows that are not committed yet and rows whose deletion is not committed
 * yet are included, because any of these may last.
 *
 *	- An entry is set under the exclusive partition lock, and only if the counter
 *	  has not moved since before the rows were read.  So no row was missed.  The
 *	  reader does not see the rows that its own transaction has deleted, so it adds
 *	  their number (tally.c).
 *	- A removal is subtracted when it has committed, and only if the entry has not
 *	  been set since before the row was deleted.  So the row was among those that
 *	  were found, or has moved the counter since, and is gone for everybody.  If the
 *	  entry has been set meanwhile, nobody knows whether the row was found.
 *
 * A request reads the counter, then the entry, and compares the counter under the
 * partition lock before it claims a place, as every request of a semaphore does.
 *
 * What adds rows without moving the counter makes all entries of a database void:
 * SQL while no trigger counts, and another table in the place of this one.  For the
 * first there is the epoch of the database, for the second the file of the table.
 *
 * There is room for a few keys of each partition.  One that is pushed out is read
 * again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"

#include "census.h"
#include "database.h"
#include "lwlocks.h"

#define WAYS	8				/* keys of a partition */

/* Protected by the partition lock of its keys. */
typedef struct Entry
{
	uint64		generation;		/* how often it was set; 0 = never */
	uint64		hash;
	uint64		epoch;
	Oid			file;
	uint64		gone;			/* claims that have left no place */
	int			len;
	char		data[DLOCK_MAX_KEY];
} Entry;

typedef struct Partition
{
	int			next;			/* the entry to be given up next */
	Entry		entries[WAYS];
} Partition;

static Partition *partitions = NULL;

Size
dlock_census_shmem_size(void)
{
	return mul_size(DLOCK_PARTITIONS, sizeof(Partition));
}

void
dlock_census_shmem_init(void)
{
	bool		found;

	partitions = ShmemInitStruct("dlock census", dlock_census_shmem_size(), &found);
	if (!found)
		memset(partitions, 0, dlock_census_shmem_size());
}

/* The epoch of this database, or 0 if SQL may be adding rows that nobody counts. */
static uint64
current_epoch(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);

	return db != NULL && dlock_places_known(db) ?
		pg_atomic_read_u64(&db->epoch) : 0;
}

/* The entry of the key, valid or not, or NULL. */
static Entry *
find(const DlockKey *key)
{
	Partition  *partition = &partitions[dlock_lwlock_partition_number(key->hash)];

	for (int i = 0; i < WAYS; i++)
	{
		Entry	   *entry = &partition->entries[i];

		if (entry->hash == key->hash && entry->generation != 0 &&
			entry->len == key->len && memcmp(entry->data, key->data, key->len) == 0)
			return entry;
	}
	return NULL;
}

static Entry *
find_valid(const DlockKey *key, Oid file, uint64 epoch)
{
	Entry	   *entry = find(key);

	return entry != NULL && entry->epoch == epoch && entry->file == file ? entry : NULL;
}

static Entry *
find_or_add(const DlockKey *key)
{
	Partition  *partition = &partitions[dlock_lwlock_partition_number(key->hash)];
	Entry	   *entry = find(key);

	if (entry != NULL)
		return entry;
	Assert(key->len <= DLOCK_MAX_KEY);
	entry = &partition->entries[partition->next];
	partition->next = (partition->next + 1) % WAYS;
	entry->hash = key->hash;
	entry->len = key->len;
	memcpy(entry->data, key->data, key->len);
	return entry;
}

/*
 * The key has that many places, those included that our own transaction has
 * deleted.  The partition lock is held exclusively, and the counter of places has
 * not moved since before they were read.
 */
void
dlock_census_set(const DlockKey *key, Oid file, const DlockClaims *claims, int places)
{
	uint64		epoch = current_epoch();
	Entry	   *entry;

	Assert(LWLockHeldByMeInMode(dlock_lwlock_partition(key->hash), LW_EXCLUSIVE));
	if (epoch == 0)
		return;
	entry = find_or_add(key);
	entry->generation++;
	entry->epoch = epoch;
	entry->file = file;
	entry->gone = claims->places - (uint64) places;
}

/*
 * Has the key fewer places than that for sure, whatever they are?  It is so until
 * the counter of places moves.
 */
bool
dlock_census_has_room(const DlockKey *key, Oid file, const DlockClaims *claims,
					  int slots)
{
	LWLock	   *lock = dlock_lwlock_partition(key->hash);
	uint64		epoch = current_epoch();
	const Entry *entry;
	bool		has_room;

	if (epoch == 0)
		return false;
	LWLockAcquire(lock, LW_SHARED);
	entry = find_valid(key, file, epoch);
	has_room = entry != NULL && claims->places - entry->gone < (uint64) slots;
	LWLockRelease(lock);
	return has_room;
}

/* The count that a place is part of which we have locked and are about to delete. */
DlockCensusPart
dlock_census_part(const DlockKey *key, Oid file)
{
	LWLock	   *lock = dlock_lwlock_partition(key->hash);
	uint64		epoch = current_epoch();
	DlockCensusPart part = {-1, 0};
	const Entry *entry;

	if (epoch == 0)
		return part;
	LWLockAcquire(lock, LW_SHARED);
	entry = find_valid(key, file, epoch);
	if (entry != NULL)
	{
		part.entry = entry - partitions[dlock_lwlock_partition_number(key->hash)].entries;
		part.generation = entry->generation;
	}
	LWLockRelease(lock);
	return part;
}

/* The place is gone for everybody.  Must not fail. */
void
dlock_census_ended(uint64 hash, DlockCensusPart part)
{
	LWLock	   *lock = dlock_lwlock_partition(hash);
	Entry	   *entry;

	if (part.entry < 0)
		return;
	entry = &partitions[dlock_lwlock_partition_number(hash)].entries[part.entry];
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (entry->generation == part.generation)
		entry->gone++;
	LWLockRelease(lock);
}
