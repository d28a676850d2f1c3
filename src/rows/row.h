/*-------------------------------------------------------------------------
 *
 * row.h
 *	  The format of a row of dlock.locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_ROW_H
#define DLOCK_ROWS_ROW_H

#include "access/htup.h"
#include "utils/relcache.h"

#include "compat.h"
#include "rules/key.h"
#include "rules/lock_rules.h"

/* A text that has a short header in its row, and a terminating null. */
typedef struct DlockShortText
{
	char		data[VARATT_SHORT_MAX];
} DlockShortText;

/* Everything that a grant is made of, except its key. */
typedef struct DlockGrant
{
	DlockTerms	terms;
	int64		version;
	int32		pid;			/* the session that it ends with, or 0 */
	const char *origin;			/* who acquired it, if it has no owner */
	int64		acquired_at;	/* lease time, as are the next two */
	int64		refreshed_at;
	int64		expires_at;
} DlockGrant;

/* What a refresh changes. */
typedef struct DlockRenewal
{
	const char *value;			/* NULL: nothing */
	int64		ttl;
	int64		from;			/* lease time, as are the next two */
	int64		expires_at;
	int64		busy_until;		/* at the least; 0: as it was */
	bool		begins;			/* the grant itself counts from then */
} DlockRenewal;

extern void dlock_row_check_table(Relation heap, Oid index);

/* reading */
extern bool dlock_row_is(HeapTuple tuple, const DlockKey *key, int64 slot);
extern bool dlock_row_has_key(HeapTuple tuple, const DlockKey *key);
extern bool dlock_row_is_used(HeapTupleHeader header, TransactionId *by);
extern int64 dlock_row_slot(HeapTuple tuple);
extern void dlock_row_key(HeapTuple tuple, DlockKey *key);
extern void dlock_row_state(HeapTuple tuple, DlockState *state,
							bool with_owner, DlockShortText *buffer);
extern bool dlock_row_owner_in_toast(HeapTuple tuple);
extern char *dlock_row_owner(HeapTuple tuple);
extern int64 dlock_row_due(HeapTuple tuple);
extern void dlock_row_grant(Relation heap, HeapTuple tuple, DlockGrant *grant);
extern uint64 dlock_row_value_hash(Relation heap, HeapTuple tuple);
extern int64 dlock_row_version(HeapTuple tuple);
extern int64 dlock_row_ttl(HeapTuple tuple);
extern int64 dlock_row_acquired_at(HeapTuple tuple);
extern bool dlock_row_is_cut_short(HeapTuple tuple);

/* forming */
extern HeapTuple dlock_row_form(Relation heap, const DlockKey *key, int64 slot,
								const DlockGrant *grant);
extern HeapTuple dlock_row_form_free(Relation heap, const DlockKey *key,
									 int64 slot, const DlockGrant *was,
									 int64 now, int64 cools_until);
extern HeapTuple dlock_row_form_freed(Relation heap, const DlockKey *key,
									  HeapTuple tuple, int64 now,
									  int64 cools_until);
extern HeapTuple dlock_row_form_renewed(Relation heap, const DlockKey *key,
										HeapTuple tuple,
										const DlockRenewal *renewal);
extern void dlock_row_stamp(HeapTuple tuple, int64 slot, const DlockGrant *grant);

#endif							/* DLOCK_ROWS_ROW_H */
