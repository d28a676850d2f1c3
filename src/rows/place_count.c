/*-------------------------------------------------------------------------
 *
 * place_count.c
 *	  What is known of the rows of a key: how many places it has at most, and that
 *	  it has no head.
 *
 * A request for one of N places has to know that fewer than N are taken, and every
 * shared request has to know that there is no exclusive grant.  Reading the places
 * takes long if there are many, and a key that is only ever shared has no head,
 * which only the index can tell.  So what a request has found stays here, in an
 * entry of the key, for all backends.
 *
 * The number of places.  Whatever adds a place moves the counter of places
 * (places.c).  So the bound is
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
 *	  their number.
 *	- A removal is subtracted when it has committed, and only if the entry has not
 *	  been set since before the row was deleted.  So the row was among those that
 *	  were found, or has moved the counter since, and is gone for everybody.  If the
 *	  entry has been set meanwhile, nobody knows whether the row was found.
 *
 * No head.  A head that is added moves the counter of heads before its transaction
 * can end.  So if there was no head, and the counter has not moved since, there is
 * none.  This is noted under the same conditions as the number of places.  A head
 * that our own transaction has deleted does not show either, and other backends
 * still count on it; so such a transaction notes nothing.
 *
 * A request reads the counters, then the entry, and compares the counters under the
 * partition lock before it claims a place, as every shared request does.
 *
 * What adds rows without moving the counters makes all entries of a database void:
 * SQL while no trigger counts, and another table that replaces this one.  For the
 * first there is the epoch of the database, for the second the file of the table.
 *
 * There is room for some thousand keys, if they are not very long.  One that is pushed
 * out is read again.
 *
 * What a transaction has removed is in the journal until it commits or rolls back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/shmem.h"

#include "database.h"
#include "journal.h"
#include "rows/place_count.h"
#include "shmem.h"

#define SETS	8				/* of a partition */
#define WAYS	8				/* keys of a set */
#define MAX_LEN	104				/* bytes of a key; what is longer is not noted */

/* Protected by the partition lock of its keys. */
typedef struct Entry
{
	uint64		generation;		/* moves when the places are counted, and when
								 * the entry is given to another key */
	uint64		hash;
	uint64		epoch;			/* 0: it is void */
	Oid			file;
	bool		is_counted;
	bool		is_headless;
	uint64		gone;			/* if counted: claims that have left no place */
	uint64		heads;			/* if headless: the counter of heads then */
	int			len;
	char		data[MAX_LEN];
} Entry;

typedef struct Partition
{
	int			next[SETS];		/* the entry to be given up next */
	Entry		entries[SETS * WAYS];
} Partition;

static Partition *partitions = NULL;

/* A row that the open transaction has removed: a note in the journal. */
typedef struct Removal
{
	uint64		hash;			/* of the key */
	uint64		generation;
	int			entry;			/* the count that the place is part of, or -1 */
	bool		is_marked;		/* the place is part of the mark of its key */
	bool		is_head;
} Removal;

/* the last transaction of this backend in which SQL has written to the table */
static FullTransactionId by_sql;

Size
dlock_place_count_shmem_size(void)
{
	return mul_size(DLOCK_PARTITIONS, sizeof(Partition));
}

void
dlock_place_count_shmem_init(void)
{
	bool		found;

	partitions = ShmemInitStruct("dlock place counts",
								 dlock_place_count_shmem_size(), &found);
	if (!found)
		memset(partitions, 0, dlock_place_count_shmem_size());
}

/*
 * Entries
 */

/* The epoch of this database, or 0 if SQL may be adding rows that nobody counts. */
static uint64
current_epoch(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);

	return db != NULL && dlock_places_known(db) ?
		pg_atomic_read_u64(&db->epoch) : 0;
}

static Partition *
partition_of(uint64 hash)
{
	return &partitions[dlock_lwlock_partition_number(hash)];
}

static int
set_of(uint64 hash)
{
	return (hash >> 40) % SETS;
}

/* The entry of the key, valid or not, or NULL.  The partition lock is held. */
static Entry *
find(const DlockKey *key)
{
	Entry	   *set = &partition_of(key->hash)->entries[set_of(key->hash) * WAYS];

	for (int i = 0; i < WAYS; i++)
	{
		Entry	   *entry = &set[i];

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

/* A valid entry of the key.  The partition lock is held exclusively. */
static Entry *
find_or_add(const DlockKey *key, Oid file, uint64 epoch)
{
	Partition  *partition = partition_of(key->hash);
	Entry	   *entry = find(key);

	if (entry == NULL)
	{
		int			set = set_of(key->hash);

		entry = &partition->entries[set * WAYS + partition->next[set]];
		partition->next[set] = (partition->next[set] + 1) % WAYS;
		entry->hash = key->hash;
		entry->len = key->len;
		memcpy(entry->data, key->data, key->len);
		entry->epoch = 0;
	}
	if (entry->epoch != epoch || entry->file != file)
	{
		entry->generation++;
		entry->epoch = epoch;
		entry->file = file;
		entry->is_counted = false;
		entry->is_headless = false;
	}
	return entry;
}

/*
 * What is known of the key?  It is so until the counters move, which the caller
 * has read before.  find_rows() calls this, without a lock.
 */
DlockPlaceCount
dlock_place_count_get(const DlockKey *key, Oid file, const DlockClaims *claims)
{
	LWLock	   *lock = dlock_lwlock_partition(key->hash);
	uint64		epoch = current_epoch();
	DlockPlaceCount count = {UINT64_MAX, false};
	const Entry *entry;

	if (epoch == 0)
		return count;
	LWLockAcquire(lock, LW_SHARED);
	entry = find_valid(key, file, epoch);
	if (entry != NULL && entry->is_counted)
		count.at_most = claims->places - entry->gone;
	if (entry != NULL)
		count.no_head = entry->is_headless && entry->heads == claims->heads;
	LWLockRelease(lock);
	return count;
}

/*
 * A request has read the head of the key, and all of its places unless their number
 * is DLOCK_NOT_COUNTED.  The number includes those that our own transaction has
 * deleted (dlock_place_count_removals()).  The partition lock is held exclusively,
 * and the counters have not moved since before the rows were read.
 */
void
dlock_place_count_set(const DlockKey *key, Oid file, const DlockClaims *claims,
					  bool has_head, int places)
{
	uint64		epoch = current_epoch();
	Entry	   *entry;

	Assert(LWLockHeldByMeInMode(dlock_lwlock_partition(key->hash), LW_EXCLUSIVE));
	if (epoch == 0 || key->len > MAX_LEN || (has_head && places == DLOCK_NOT_COUNTED))
		return;
	entry = find_or_add(key, file, epoch);
	if (!has_head)
	{
		entry->is_headless = true;
		entry->heads = claims->heads;
	}
	if (places != DLOCK_NOT_COUNTED)
	{
		entry->generation++;
		entry->is_counted = true;
		entry->gone = claims->places - (uint64) places;
	}
}

/*
 * What a transaction removes
 */

/* We are about to delete a row that we have locked.  write.c calls this. */
void
dlock_place_count_removed(const DlockKey *key, int64 slot, Oid file)
{
	uint64		epoch = current_epoch();
	Removal		removal = {.hash = key->hash,.entry = -1,.is_head = slot == DLOCK_HEAD};

	/* nothing can make it unknown until we end, see current_epoch() */
	removal.is_marked = epoch != 0 && !removal.is_head;
	if (removal.is_marked)
	{
		LWLock	   *lock = dlock_lwlock_partition(key->hash);
		const Entry *entry;

		LWLockAcquire(lock, LW_SHARED);
		entry = find_valid(key, file, epoch);
		if (entry != NULL && entry->is_counted)
		{
			removal.entry = entry - partition_of(key->hash)->entries;
			removal.generation = entry->generation;
		}
		LWLockRelease(lock);
	}
	(void) dlock_journal_add(DLOCK_NOTE_REMOVED, &removal, sizeof(removal));
}

/* SQL is about to write to the table.  direct_writes.c calls this. */
void
dlock_place_count_by_sql(void)
{
	by_sql = GetTopFullTransactionId();
}

/*
 * How many places of the key come back at most if this transaction, or a part of
 * it, rolls back?  DLOCK_NOT_COUNTED if nobody knows, because SQL may have deleted
 * some, or if the head would come back: then nothing may be noted.
 */
int
dlock_place_count_removals(const DlockKey *key)
{
	int			n = 0;

	if (FullTransactionIdIsValid(by_sql) &&
		FullTransactionIdEquals(by_sql, GetTopFullTransactionIdIfAny()))
		return DLOCK_NOT_COUNTED;
	for (int i = dlock_journal_next(DLOCK_NOTE_REMOVED, 0); i >= 0;
		 i = dlock_journal_next(DLOCK_NOTE_REMOVED, i + 1))
	{
		const Removal *removal = dlock_journal_at(i);

		if (removal->hash != key->hash)
			continue;
		if (removal->is_head)
			return DLOCK_NOT_COUNTED;
		n++;
	}
	return n;
}

/*
 * If the removal has committed, the place is gone for everybody.  If it is rolled
 * back, it is there again.  Must not fail.
 */
static void
end_removal(const void *what, bool committed)
{
	const Removal *removal = what;
	LWLock	   *lock = dlock_lwlock_partition(removal->hash);
	Entry	   *entry;

	if (committed && removal->is_marked)
		dlock_places_unmark(removal->hash);
	if (removal->entry < 0 || !committed)
		return;
	entry = &partition_of(removal->hash)->entries[removal->entry];
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (entry->generation == removal->generation)
		entry->gone++;
	LWLockRelease(lock);
}

/* At load time. */
void
dlock_place_count_init(void)
{
	dlock_journal_register(DLOCK_NOTE_REMOVED, end_removal);
}
