/*-------------------------------------------------------------------------
 *
 * fsm.h
 *	  The rules of the lock as a pure function.
 *
 * The input is what the table says about a key, what is asked, what the caller
 * has found out while it waited, and one reading of the clock.  The output is
 * what to do and what to answer.  Nothing here reads a clock, allocates, locks
 * or throws, so the whole transition table can be tested without a server
 * (test/fsm_test.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FSM_H
#define DLOCK_FSM_H

#include "state.h"

typedef enum DlockOp
{
	DLOCK_ACQUIRE,
	DLOCK_REFRESH,
	DLOCK_RELEASE,
	DLOCK_CHECK,
	DLOCK_FENCE,
	DLOCK_FORCE,				/* take it away from its holder */
	DLOCK_REAP					/* remove the row if nobody needs it */
} DlockOp;

/* What is asked.  It does not change while the request is under way. */
typedef struct DlockRequest
{
	DlockOp		op;
	const char *key;
	int			keylen;

	/* who asks, and how the grant is named */
	Oid			role;
	bool		by_version;		/* does "version" count? */
	int64		version;
	const char *owner;			/* NULL: not named by owner */
	int32		pid;			/* DLOCK_RELEASE: only if it ends with this
								 * session; 0: in any case */

	/* DLOCK_ACQUIRE: the grant; a renewal takes the TTL */
	int64		ttl;			/* us; 0 = the grant's own */
	const char *value;
	int64		cleanup;		/* us */
	int32		priority;
	bool		session;		/* ends with our connection */

	/* DLOCK_ACQUIRE: how to wait for it */
	int64		wait;			/* us; DLOCK_NEVER = without limit */
	bool		force;			/* take it when the holder's time is up */
	bool		without_snapshot;	/* the caller is a procedure */

	/* the holder's own operations: give up rather than wait for the row */
	bool		skip_used;

	/* DLOCK_REAP */
	int64		linger;			/* how long a free row is kept */
} DlockRequest;

/* What an acquire has found out about its turn since it was called. */
typedef struct DlockTurn
{
	bool		behind;			/* another request comes first */
	int64		until;			/* how long we wait, lease time */
	int64		asked_version;	/* the grant that we asked to yield, or 0 */
	int64		asked_at;		/* when that was */
} DlockTurn;

/* What has to be done to the row. */
typedef enum DlockAction
{
	DLOCK_DO_NOTHING,
	DLOCK_DO_GRANT,				/* a new grant, with a new version */
	DLOCK_DO_RENEW,				/* the same grant, for another TTL */
	DLOCK_DO_PIN,				/* nobody may take it until we commit */
	DLOCK_DO_CLEAR,				/* end the grant, keep the row */
	DLOCK_DO_REMOVE				/* delete the row */
} DlockAction;

/* What the caller hears once it is done. */
typedef enum DlockAnswer
{
	DLOCK_IS_BUSY,
	DLOCK_IS_ASKED,				/* busy, and the holder is to yield to us */
	DLOCK_IS_REFUSED,			/* it was asked to yield, and did not */
	DLOCK_IS_GRANTED,
	DLOCK_IS_HELD,
	DLOCK_IS_PREEMPTING,		/* held, but we were asked to yield */
	DLOCK_IS_NOT_HELD,
	DLOCK_IS_HELD_BY_OTHER,
	DLOCK_IS_RELEASED,
	DLOCK_IS_EXPIRED,			/* DLOCK_REAP: a grant ended by its TTL */
	DLOCK_IS_IDLE				/* DLOCK_REAP: a free row was dropped */
} DlockAnswer;

#define DLOCK_NO_ROW	(-1)

typedef struct DlockVerdict
{
	DlockAction action;
	DlockAnswer answer;
	bool		preempts;		/* takes a live grant from its holder */
	int			row;			/* the row that it is about, or DLOCK_NO_ROW */
} DlockVerdict;

extern bool dlock_fsm_is_live(const DlockState *row, int64 now);
extern int64 dlock_fsm_yield_by(const DlockState *row, const DlockTurn *turn,
								int64 now);
extern DlockVerdict dlock_fsm_decide(const DlockState *rows, int nrows,
									 const DlockRequest *request,
									 const DlockTurn *turn, int64 now);

#endif							/* DLOCK_FSM_H */
