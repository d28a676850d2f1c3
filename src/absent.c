/*-------------------------------------------------------------------------
 *
 * absent.c
 *	  Keys that are known to have no head.
 *
 * A key that is only ever shared has no head.  A hint cannot say so, and each
 * reader would have to ask the index.  But a head that is added is counted, by the
 * hash of its key, before its transaction can end (places.c).  So a backend that
 * has seen that there is none, and finds the counter as it was before it looked,
 * knows that there still is none.  The request that relies on this compares the
 * counter once more under the partition lock, as every shared request does.
 *
 * This is only known to be true for the transactions that wrote through dlock, or
 * fired the triggers of the table, and for the table as it was.  So all is
 * forgotten when the table changes (store.c), and when a transaction or a
 * subtransaction rolls back, because it may bring rows back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "absent.h"

#define KEYS	64

typedef struct Absence
{
	uint64		heads;			/* the counter of heads, before the look */
	uint64		era;
	int			len;
	char		data[DLOCK_MAX_KEY];
} Absence;

static Absence absences[KEYS];

/* entries of earlier eras, and those never used, do not count */
static uint64 era = 1;

static Absence *
absence_of(const DlockKey *key)
{
	return &absences[key->hash % KEYS];
}

/* Is it known that the key has no head, if this is the counter of heads? */
bool
dlock_absent_is(const DlockKey *key, uint64 heads)
{
	const Absence *absence = absence_of(key);

	return absence->era == era && absence->heads == heads &&
		absence->len == key->len &&
		memcmp(absence->data, key->data, key->len) == 0;
}

/*
 * There was no head, not even an uncommitted one, when the counter had this
 * value.
 */
void
dlock_absent_note(const DlockKey *key, uint64 heads)
{
	Absence    *absence = absence_of(key);

	Assert(key->len <= DLOCK_MAX_KEY);
	absence->heads = heads;
	absence->era = era;
	absence->len = key->len;
	memcpy(absence->data, key->data, key->len);
}

void
dlock_absent_forget(void)
{
	era++;
}
