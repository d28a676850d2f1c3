/*-------------------------------------------------------------------------
 *
 * places.c
 *	  Which keys may have places, and how exclusive and shared requests meet.
 *
 * An exclusive request claims the head: it locks the row, or adds it under the
 * partition lock.  Then it looks at the places.  A shared request looks at the
 * head, and for a semaphore at the places, and then claims a place: it adds the
 * row under the partition lock.  Neither sees the other if each of them looks
 * before the other one's claim.  Two counters prevent that.
 *
 *	exclusive					shared
 *	---------					------
 *	claim the head				mark the key, read the counters
 *	count the claim				look at the rows
 *	under the partition lock,	under the partition lock: if the counters are
 *	look at the places			the same, claim a place and count the claim;
 *								else look again
 *
 * If the claim of the head is counted before the shared request compares, that
 * request looks again and finds the head claimed.  Otherwise its place is there
 * before the exclusive request gets the partition lock, and that request finds
 * the place.
 *
 * The counter of places does the same for two semaphore requests, so that only
 * one of them gets the last place.  What was counted is not less than what
 * there is: until the counter moves, places can only end.
 *
 * Marks.  An exclusive request must not pay for what others do with other keys,
 * so it looks at the places only if the key is marked.  A shared request sets
 * the mark before it looks at the head, and an exclusive request reads the mark
 * after it has claimed the head.  So either the one sees the mark, or the other
 * sees the claim.  A key may be marked for nothing, if another one has the same
 * bit.
 *
 * Marks are never taken back while the server runs.  After a start there are
 * none, and all keys count as marked until the reaper has read the whole table
 * once and marked what has places (DlockDatabase.places_known).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"

#include "database.h"
#include "places.h"

#define MARKS		(1 << 20)	/* bits */
#define COUNTERS	(1 << 12)

typedef struct DlockCounter
{
	pg_atomic_uint32 heads;
	pg_atomic_uint32 places;
} DlockCounter;

typedef struct DlockPlaces
{
	pg_atomic_uint32 marks[MARKS / 32];
	DlockCounter counters[COUNTERS];
} DlockPlaces;

static DlockPlaces *shared = NULL;

Size
dlock_places_shmem_size(void)
{
	return sizeof(DlockPlaces);
}

void
dlock_places_shmem_init(void)
{
	bool		found;

	shared = ShmemInitStruct("dlock places", sizeof(DlockPlaces), &found);
	if (found)
		return;

	for (int i = 0; i < MARKS / 32; i++)
		pg_atomic_init_u32(&shared->marks[i], 0);
	for (int i = 0; i < COUNTERS; i++)
	{
		pg_atomic_init_u32(&shared->counters[i].heads, 0);
		pg_atomic_init_u32(&shared->counters[i].places, 0);
	}
}

static pg_atomic_uint32 *
word_of(const DlockKey *key)
{
	return &shared->marks[key->hash % MARKS / 32];
}

static uint32
bit_of(const DlockKey *key)
{
	return UINT32_C(1) << (key->hash % 32);
}

static DlockCounter *
counter_of(const DlockKey *key)
{
	return &shared->counters[(key->hash >> 32) % COUNTERS];
}

/* The key has places, or is about to get one. */
void
dlock_places_mark(const DlockKey *key)
{
	/* restoring a dump marks keys, too, also in a server without us */
	if (shared == NULL)
		return;
	if (pg_atomic_read_u32(word_of(key)) & bit_of(key))
		pg_memory_barrier();
	else
		(void) pg_atomic_fetch_or_u32(word_of(key), bit_of(key));
}

/* May the key have places? */
bool
dlock_places_marked(const DlockKey *key)
{
	DlockDatabase *db;

	pg_memory_barrier();
	if (pg_atomic_read_u32(word_of(key)) & bit_of(key))
		return true;
	db = dlock_database(MyDatabaseId);
	return db == NULL || pg_atomic_read_u32(&db->places_known) == 0;
}

void
dlock_places_read(const DlockKey *key, DlockClaims *claims)
{
	DlockCounter *counter = counter_of(key);

	claims->heads = pg_atomic_read_u32(&counter->heads);
	claims->places = pg_atomic_read_u32(&counter->places);
	pg_memory_barrier();
}

/* The partition lock must be held exclusively. */
bool
dlock_places_unchanged(const DlockKey *key, const DlockClaims *claims,
					   bool places_count)
{
	DlockCounter *counter = counter_of(key);

	return claims->heads == pg_atomic_read_u32(&counter->heads) &&
		(!places_count || claims->places == pg_atomic_read_u32(&counter->places));
}

/* A full barrier. */
void
dlock_places_claim_head(const DlockKey *key)
{
	(void) pg_atomic_fetch_add_u32(&counter_of(key)->heads, 1);
}

void
dlock_places_claim_place(const DlockKey *key)
{
	(void) pg_atomic_fetch_add_u32(&counter_of(key)->places, 1);
}
