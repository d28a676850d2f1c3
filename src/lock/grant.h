/*-------------------------------------------------------------------------
 *
 * grant.h
 *	  A try, and the part of it that makes a grant.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_GRANT_H
#define DLOCK_LOCK_GRANT_H

#include "lock/xact.h"
#include "rows/find.h"
#include "rows/places.h"
#include "rows/row.h"
#include "rules/lock_rules.h"

/* One try of an operation, under way. */
typedef struct DlockTry
{
	const DlockRequest *request;
	DlockRequest limited;		/* the request, if policies limit it */
	const DlockTurn *turn;
	DlockTable	store;
	DlockRows  *found;
	bool		is_marked;		/* the key may have places */
	int			pin;			/* our mark of the key (places.c), or -1 */
	bool		has_place;		/* a place was added */
	int64		before;			/* lease time just before they were read */
	DlockClaims claims;			/* as of that moment */
	bool		headless;		/* no head was looked for: there is none */
	bool		counted;		/* all places have been read */
	int			looks;
	DlockResult *result;
	DlockWrite	wrote;
} DlockTry;

static inline DlockVerdict
dlock_grant_decide(const DlockTry *try, int64 now)
{
	return dlock_rules_decide(try->found->states, try->found->n, try->request,
							  try->turn, now);
}

extern void dlock_grant_check_at_least(int64 at_least, int64 ttl);
extern bool dlock_grant_pending_ended(const DlockRow *row);
extern bool dlock_grant_add_head(DlockTry *try, DlockVerdict verdict);
extern bool dlock_grant_head(DlockTry *try, DlockVerdict verdict);
extern bool dlock_grant_place(DlockTry *try, DlockVerdict verdict);
extern bool dlock_grant_move(DlockTry *try, DlockVerdict verdict, int change);
extern bool dlock_grant_hand_over(DlockTry *try, DlockVerdict verdict, int64 now,
								  int change);
extern void dlock_grant_renew(DlockTry *try, DlockRow *row, int64 slot, int64 now,
							  int change);

#endif							/* DLOCK_LOCK_GRANT_H */
