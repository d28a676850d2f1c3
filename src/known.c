/*-------------------------------------------------------------------------
 *
 * known.c
 *	  What this backend knows of keys that it has looked at: that a key has no
 *	  head, and how many places it has at most.
 *
 * A key that is only ever shared has no head.  A hint cannot say so, and every
 * shared request would have to ask the index.  A semaphore would have to read all
 * places of the key in order to count them.  But whatever is added is counted, by
 * the hash of its key, before its transaction can end (places.c).  So
 *
 *	- if there was no head, and the counter of heads has not moved since, there is
 *	  none
 *	- there are no more places than there were, plus what the counter of places
 *	  has moved since
 *
 * The counters are those from before the look, and the look counts only if they
 * were the same under the partition lock.  A request that relies on this compares
 * them under that lock, too, as every shared request does.
 *
 * "Was" includes all that others have not committed yet, and all that has expired.
 * What our own transaction has deleted is not included, so all is forgotten when a
 * transaction or a subtransaction rolls back.  It is forgotten as well when the
 * table changes (store.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "database.h"
#include "known.h"

#define KEYS	64

typedef struct Known
{
	uint64		era;
	int			len;
	bool		headless;
	bool		counted;
	uint64		heads;			/* the counter when it had no head */
	uint64		places;			/* the counter when it had n places */
	int			n;
	char		data[DLOCK_MAX_KEY];
} Known;

static Known keys[KEYS];

/* what was noted in an earlier era does not count */
static uint64 era = 1;

/* What is known of the key, or NULL. */
static Known *
find(const DlockKey *key)
{
	Known	   *known = &keys[key->hash % KEYS];

	return known->era == era && known->len == key->len &&
		memcmp(known->data, key->data, key->len) == 0 ? known : NULL;
}

static Known *
find_or_add(const DlockKey *key)
{
	Known	   *known = find(key);

	if (known != NULL)
		return known;
	Assert(key->len <= DLOCK_MAX_KEY);
	known = &keys[key->hash % KEYS];
	known->era = era;
	known->len = key->len;
	known->headless = known->counted = false;
	memcpy(known->data, key->data, key->len);
	return known;
}

/* While its trigger is disabled, SQL may add rows that nobody counts. */
static bool
are_rows_counted(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);

	return db != NULL && dlock_places_known(db);
}

/* Has the key no head for sure? */
bool
dlock_known_headless(const DlockKey *key, const DlockClaims *claims)
{
	const Known *known = find(key);

	return known != NULL && known->headless && known->heads == claims->heads &&
		are_rows_counted();
}

/* Has the key fewer places than that for sure, whatever they are? */
bool
dlock_known_room(const DlockKey *key, const DlockClaims *claims, int slots)
{
	const Known *known = find(key);

	return known != NULL && known->counted && known->n < slots &&
		claims->places - known->places < (uint64) (slots - known->n) &&
		are_rows_counted();
}

void
dlock_known_note_headless(const DlockKey *key, const DlockClaims *claims)
{
	Known	   *known = find_or_add(key);

	known->headless = true;
	known->heads = claims->heads;
}

void
dlock_known_note_places(const DlockKey *key, const DlockClaims *claims, int n)
{
	Known	   *known = find_or_add(key);

	known->counted = true;
	known->places = claims->places;
	known->n = n;
}

void
dlock_known_forget(void)
{
	era++;
}
