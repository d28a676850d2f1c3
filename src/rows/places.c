/*-------------------------------------------------------------------------
 *
 * places.c
 *	  Which keys may have places, and how exclusive and shared requests meet.
 *
 * An exclusive request looks at all rows of the key, and then claims the head:
 * it locks the row, or adds it.  A shared request looks at the head, and for a
 * semaphore at the places, and then claims a place: it adds the row.  Neither
 * sees the other if each of them looks before the other one's claim.  Two
 * counters prevent that.  Every request
 *
 *	1. reads the counters
 *	2. looks at the rows, and decides
 *	3. takes the partition lock
 *	4. compares the counters; if they have changed, it starts over
 *	5. claims the head or a place, and counts the claim
 *	6. releases the partition lock
 *
 * An exclusive request compares the counter of places, a shared request that of
 * heads, and a semaphore both.  So of two requests that exclude each other the
 * second one finds the counter changed, looks again, and finds the claim.  What
 * a semaphore has counted in step 2 is never less than what there is in step 5:
 * until the counter moves, places can only end.
 *
 * An owner has one place of a key.  A third counter, by the hash of key and slot,
 * tells a request whether its own place may have been added since it looked.
 * Readers that come and go on the same key hardly ever move it.
 *
 * Marks.  A request for a key that nobody shares must not pay for that.  So an
 * exclusive request does all this only if the key is marked.  A shared request
 * sets the mark before it looks at the head, and an exclusive request reads the
 * mark once more after it has locked the head.  So either the one sees the mark,
 * or the other sees the lock.  To add a head it holds the partition lock anyway,
 * and reads the mark under it: a place that is there was marked before.  A key
 * may be marked for nothing, if another one has the same bit.
 *
 * A mark is a number: how many places the keys with this mark have, plus how many
 * requests for one are under way.  A request adds one before it looks, and takes it back
 * when it has failed, or when the transaction that has added the place is rolled back
 * (dlock_places_pin()).  The commit that removes a place subtracts one (place_count.c).
 * The number is never too low.  It may be too high, which costs time: what SQL deletes is
 * not subtracted, nor what is removed while it is not known which keys have places.
 *
 * After a start there are no marks, and all keys count as marked until the reaper has
 * read the whole table once and marked what has places (DlockDatabase.places_known).  It
 * does that even if it is turned off otherwise.  A place that is added or changed
 * meanwhile is counted by whoever does that, because the reaper may miss it, and may be
 * counted twice.
 *
 * Rows that come by SQL, when a dump is restored, are marked and counted by triggers
 * (direct_writes.c).  A superuser can drop or disable them, as pg_restore
 * --disable-triggers does.  Then all keys count as marked again, until the triggers are back and the
 * reaper has read the table once more.  ALTER TABLE waits for everybody who has
 * the table open for writing, so neither a request nor a batch of the reaper is
 * under way at that moment; a pass, which has several batches, does not count
 * then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "utils/rel.h"

#include "clock.h"
#include "database.h"
#include "journal.h"
#include "rows/places.h"

/* the triggers that mark and count what SQL writes */
#define MARKING_TRIGGER		"refuse_replicated_row"
#define COUNTING_TRIGGER	"count_restored_row"

#define MARKS		(1 << 18)
#define COUNTERS	(1 << 12)

typedef struct DlockCounter
{
	pg_atomic_uint64 heads;
	pg_atomic_uint64 places;
	pg_atomic_uint64 rows;		/* by key and slot */
} DlockCounter;

typedef struct DlockPlaces
{
	pg_atomic_uint32 marks[MARKS];
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

	for (int i = 0; i < MARKS; i++)
		pg_atomic_init_u32(&shared->marks[i], 0);
	for (int i = 0; i < COUNTERS; i++)
	{
		pg_atomic_init_u64(&shared->counters[i].heads, 0);
		pg_atomic_init_u64(&shared->counters[i].places, 0);
		pg_atomic_init_u64(&shared->counters[i].rows, 0);
	}
}

/*
 * The slot of an owner's place.  It is stored in the table, and has to be the same
 * after a restart and on every standby, so it follows from role and owner alone.
 * Two owners with the same slot would stand in each other's way.  With 62 bits
 * that does not happen by chance, and with these nobody can bring it about.
 *
 * This takes longer than the other hashes, so the last one is remembered: a client
 * names its owner several times, and in dlock_acquire_all() for many keys.
 */
int64
dlock_places_owner_slot(Oid role, const char *owner)
{
	static Oid	last_role = InvalidOid;
	static char last_owner[DLOCK_MAX_OWNER + 1];
	static int64 last_slot;
	uint64		words[PG_SHA256_DIGEST_LENGTH / sizeof(uint64)];
	pg_cryptohash_ctx *hash;

	if (role == last_role && strcmp(owner, last_owner) == 0)
		return last_slot;
	hash = pg_cryptohash_create(PG_SHA256);
	if (hash == NULL || pg_cryptohash_init(hash) < 0 ||
		pg_cryptohash_update(hash, (const uint8 *) &role, sizeof(role)) < 0 ||
		pg_cryptohash_update(hash, (const uint8 *) owner, strlen(owner)) < 0 ||
		pg_cryptohash_final(hash, (uint8 *) words, sizeof(words)) < 0)
		elog(ERROR, "could not compute %s hash: %s", "SHA256", pg_cryptohash_error(hash));
	pg_cryptohash_free(hash);

	last_role = role;
	strlcpy(last_owner, owner, sizeof(last_owner));
	last_slot = DLOCK_OWNED_SLOTS + (int64) (words[0] >> 2);
	return last_slot;
}

static pg_atomic_uint32 *
mark_of(uint64 hash)
{
	return &shared->marks[hash % MARKS];
}

static DlockCounter *
counter_of(const DlockKey *key)
{
	return &shared->counters[(key->hash >> 32) % COUNTERS];
}

static pg_atomic_uint64 *
row_counter_of(const DlockKey *key, int64 slot)
{
	return &shared->counters[(dlock_key_slot_hash(key, slot) >> 32) % COUNTERS].rows;
}

/* The key has one place more, or is about to get it. */
void
dlock_places_mark(const DlockKey *key)
{
	/* restoring a dump marks keys, too, also in a server without us */
	if (shared != NULL)
		(void) pg_atomic_fetch_add_u32(mark_of(key->hash), 1);
}

/* It has one less: the commit that removes it is visible.  Must not fail. */
void
dlock_places_unmark(uint64 hash)
{
	(void) pg_atomic_fetch_sub_u32(mark_of(hash), 1);
}

/* A request that has marked a key: a note in the journal. */
typedef struct Pin
{
	uint64		hash;			/* of the key */
	bool		has_place;		/* and has added a place */
} Pin;

/* Mark the key for a request, which calls dlock_places_unpin() unless it fails. */
int
dlock_places_pin(const DlockKey *key)
{
	Pin			pin = {.hash = key->hash};
	int			note = dlock_journal_add(DLOCK_NOTE_PIN, &pin, sizeof(pin));

	dlock_places_mark(key);
	return note;
}

/* The request is over.  The mark stays if it has added a place, unless that is rolled back. */
void
dlock_places_unpin(int note, bool has_place)
{
	Pin		   *pin = dlock_journal_at(note);

	pin->has_place = has_place;
	if (has_place || !dlock_journal_is_last(note))
		return;
	dlock_places_unmark(pin->hash);
	dlock_journal_take_back(note);
}

/* At the end of the transaction, or of a part of it.  Must not fail. */
static void
end_pin(const void *what, bool committed)
{
	const Pin  *pin = what;

	if (!pin->has_place || !committed)
		dlock_places_unmark(pin->hash);
}

/* At load time. */
void
dlock_places_init(void)
{
	dlock_journal_register(DLOCK_NOTE_PIN, end_pin);
}

/*
 * May the key have places?  The mark is read last: what the reaper has marked
 * before it said that all is known must be seen.  As long as it is not known, the
 * reaper is called, also for a key that is marked: without it, all places are read
 * again and again.
 */
bool
dlock_places_marked(const DlockKey *key)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	bool		is_known = db != NULL && dlock_places_known(db);

	pg_memory_barrier();
	if (unlikely(!is_known))
	{
		dlock_database_want_reaper(dlock_clock_now());
		return true;
	}
	return pg_atomic_read_u32(mark_of(key->hash)) != 0;
}

void
dlock_places_read(const DlockKey *key, int64 slot, DlockClaims *claims)
{
	DlockCounter *counter = counter_of(key);

	claims->heads = pg_atomic_read_u64(&counter->heads);
	claims->places = pg_atomic_read_u64(&counter->places);
	claims->own = slot == DLOCK_HEAD ? 0 :
		pg_atomic_read_u64(row_counter_of(key, slot));
	pg_memory_barrier();
}

/*
 * Has nothing been claimed since?  For a claim of our own, the partition lock
 * must be held exclusively.  For a lookup, it need not be: what was claimed and
 * committed while it was under way has been counted by now.
 */
bool
dlock_places_unchanged(const DlockKey *key, const DlockClaims *claims,
					   bool heads_count, bool places_count)
{
	DlockCounter *counter = counter_of(key);

	pg_read_barrier();
	return (!heads_count || claims->heads == pg_atomic_read_u64(&counter->heads)) &&
		(!places_count || claims->places == pg_atomic_read_u64(&counter->places));
}

/* The same for the request's own place. */
bool
dlock_places_own_unchanged(const DlockKey *key, int64 slot, const DlockClaims *claims)
{
	pg_read_barrier();
	return claims->own == pg_atomic_read_u64(row_counter_of(key, slot));
}

void
dlock_places_claim_head(const DlockKey *key)
{
	(void) pg_atomic_fetch_add_u64(&counter_of(key)->heads, 1);
}

void
dlock_places_claim_place(const DlockKey *key, int64 slot)
{
	(void) pg_atomic_fetch_add_u64(&counter_of(key)->places, 1);
	(void) pg_atomic_fetch_add_u64(row_counter_of(key, slot), 1);
}

/* A row has been added or changed by SQL, perhaps in a server without us. */
void
dlock_places_restored(const DlockKey *key, int64 slot)
{
	if (shared == NULL)
		return;
	if (slot == DLOCK_HEAD)
		dlock_places_claim_head(key);
	else
		dlock_places_claim_place(key, slot);
}

bool
dlock_places_known(DlockDatabase *db)
{
	return pg_atomic_read_u32(&db->places_known) == DLOCK_PLACES_KNOWN;
}

static bool
fires_always(Relation heap, const char *name)
{
	TriggerDesc *triggers = heap->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		if (strcmp(triggers->triggers[i].tgname, name) == 0)
			return triggers->triggers[i].tgenabled == TRIGGER_FIRES_ALWAYS;
	return false;
}

/*
 * Do the triggers mark and count whatever is written by SQL?  One that is merely
 * enabled does not if session_replication_role is "replica".
 */
bool
dlock_places_guarded(Relation heap)
{
	return fires_always(heap, MARKING_TRIGGER) && fires_always(heap, COUNTING_TRIGGER);
}

static void
forget(DlockDatabase *db)
{
	pg_atomic_write_u32(&db->places_known, DLOCK_PLACES_UNKNOWN);
	dlock_database_begin_epoch(db);
}

/* From now on there may be places that are neither marked nor counted. */
void
dlock_places_forget(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);

	if (db != NULL)
		forget(db);
}

/* A database is dropped.  Another one that gets its number has other places. */
void
dlock_places_forget_database(Oid dboid)
{
	if (shared == NULL)
		return;
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		if (dlock_database_at(i)->dboid == dboid)
			forget(dlock_database_at(i));
}

/*
 * The reaper begins a pass over the table, which it has opened for writing.  True: it has
 * to read all of it, because any row may have come unnoticed.
 */
bool
dlock_places_pass_begins(DlockDatabase *db, Relation heap)
{
	uint32		unknown = DLOCK_PLACES_UNKNOWN;

	if (!dlock_places_guarded(heap))
		return true;
	return pg_atomic_compare_exchange_u32(&db->places_known, &unknown,
										  DLOCK_PLACES_BEING_READ);
}

/* Is it reading the whole table, so that it is known which keys have places? */
bool
dlock_places_being_read(DlockDatabase *db)
{
	return pg_atomic_read_u32(&db->places_known) == DLOCK_PLACES_BEING_READ;
}

/* It has read the whole table.  That counts unless dlock_places_forget() came. */
void
dlock_places_pass_ends(DlockDatabase *db)
{
	uint32		being_read = DLOCK_PLACES_BEING_READ;

	(void) pg_atomic_compare_exchange_u32(&db->places_known, &being_read,
										  DLOCK_PLACES_KNOWN);
}
