/*-------------------------------------------------------------------------
 *
 * grant.h
 *	  A try, and the part of it that makes a grant.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRANT_H
#define DLOCK_GRANT_H

#include "find.h"
#include "fsm.h"
#include "places.h"
#include "row.h"
#include "xact.h"

typedef struct DlockResult
{
	DlockAnswer answer;
	int64		version;		/* of the grant that the answer is about */
	int64		expires;		/* its expiry, lease time */
	bool		upgrades;		/* busy: the request has a place already */
	bool		renewed;		/* granted, and it was ours before */
} DlockResult;

/* One try of an operation, under way. */
typedef struct DlockTry
{
	const DlockKey *key;
	const DlockRequest *request;
	const DlockTurn *turn;
	DlockStore	store;
	DlockRows  *found;
	bool		is_marked;		/* the key may have places */
	int64		before;			/* lease time just before they were read */
	DlockClaims claims;			/* as of that moment */
	bool		guesses;		/* that the owner has no place, by its count */
	bool		counted;		/* all places have been read */
	int			looks;
	DlockResult *result;
	DlockWrite	wrote;
} DlockTry;

static inline DlockVerdict
dlock_grant_decide(const DlockTry *try, int64 now)
{
	return dlock_fsm_decide(try->found->states, try->found->n, try->request,
							try->turn, now);
}

extern bool dlock_grant_pending_ended(const DlockRow *row);
extern bool dlock_grant_add_head(DlockTry *try, DlockVerdict verdict);
extern bool dlock_grant_head(DlockTry *try, DlockVerdict verdict);
extern bool dlock_grant_place(DlockTry *try, DlockVerdict verdict);
extern bool dlock_grant_move(DlockTry *try, DlockVerdict verdict, int change);
extern void dlock_grant_renew(DlockTry *try, DlockRow *row, int64 slot, int64 now,
							  int change);

#endif							/* DLOCK_GRANT_H */
