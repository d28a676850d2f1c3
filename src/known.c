/*-------------------------------------------------------------------------
 *
 * known.c
 *	  Which keys have no head, as far as this backend knows.
 *
 * A key that is only ever shared has no head.  A hint cannot say so, and every
 * shared request would have to ask the index.  But a head that is added is counted,
 * by the hash of its key, before its transaction can end (places.c).  So if there
 * was no head, and the counter of heads has not moved since, there is none.
 *
 * The counter is that from before the look, and the look counts only if it was the
 * same under the partition lock.  A request that relies on this compares it under
 * that lock, too, as every shared request does.
 *
 * A head that our own transaction has deleted does not show, so all is forgotten
 * when a transaction or a subtransaction rolls back.  It is forgotten as well when
 * the table changes (store.c).
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
	uint64		heads;			/* the counter when it had no head */
	int			len;
	char		data[DLOCK_MAX_KEY];
} Known;

static Known keys[KEYS];

/* what was noted in an earlier era does not count */
static uint64 era = 1;

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
	const Known *known = &keys[key->hash % KEYS];

	return known->era == era && known->heads == claims->heads &&
		known->len == key->len && memcmp(known->data, key->data, key->len) == 0 &&
		are_rows_counted();
}

void
dlock_known_note_headless(const DlockKey *key, const DlockClaims *claims)
{
	Known	   *known = &keys[key->hash % KEYS];

	Assert(key->len <= DLOCK_MAX_KEY);
	known->era = era;
	known->heads = claims->heads;
	known->len = key->len;
	memcpy(known->data, key->data, key->len);
}

void
dlock_known_forget(void)
{
	era++;
}
