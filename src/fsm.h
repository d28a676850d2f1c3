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
	bool		is_lost;		/* DLOCK_RELEASE: its session has ended */
	bool		exclusive_only; /* DLOCK_FENCE: not a place of several */

	/* DLOCK_ACQUIRE: the grant; a renewal takes the TTL */
	int64		ttl;			/* us; 0 = the grant's own */
	const char *value;
	int64		cleanup;		/* us */
	int32		priority;
	bool		session;		/* ends with our connection */
	int32		slots;			/* how many may hold the key at once */
	int64		at_least;		/* us */
	int64		delay;			/* us */
	bool		lazy;

	/* DLOCK_ACQUIRE: how to wait for it */
	int64		wait;			/* us; DLOCK_NEVER = without limit */
	bool		force;			/* take it when the holder's time is up */
	bool		without_snapshot;	/* the caller is a procedure */
	bool		by_granter;		/* for a ticket, which has no connection */

	/* the holder's own operations: give up rather than wait for the row */
	bool		skip_used;

	/*
	 * DLOCK_REAP: the row.  DLOCK_ACQUIRE: the place that this owner has in
	 * any case, or 0.
	 */
	int64		slot;

	/* DLOCK_REAP */
	int64		linger;			/* how long a free row is kept */
	int64		lapse;			/* how long a lapsed grant is kept */

	/*
	 * DLOCK_REFRESH of a grant that our own transaction has made: the TTL
	 * counts from this lease time; 0: from now, and any grant
	 */
	int64		stamp;
} DlockRequest;

/* What an acquire has found out about its turn since it was called. */
typedef struct DlockTurn
{
	bool		behind;			/* another request comes first */
	int64		until;			/* how long we wait, lease time */
	DlockAsking asking;
} DlockTurn;

/* Nothing is known yet.  A list of nobody need not be cleared. */
static inline void
dlock_turn_begin(DlockTurn *turn)
{
	turn->behind = false;
	turn->until = 0;
	turn->asking.all = false;
	turn->asking.since = 0;
	turn->asking.n = 0;
}

/* What time has made of a row. */
typedef enum DlockPhase
{
	DLOCK_PHASE_FREE,			/* not held; also if there is no row */
	DLOCK_PHASE_EXPIRED,		/* held, but its time is up */
	DLOCK_PHASE_COOLING,		/* nobody's, but not to be had yet */
	DLOCK_PHASE_LAPSED,			/* past its TTL, and its holder's until
								 * somebody else wants it */
	DLOCK_PHASE_LIVE
} DlockPhase;

/* What has to be done to the row. */
typedef enum DlockAction
{
	DLOCK_DO_NOTHING,
	DLOCK_DO_GRANT,				/* a new grant, with a new version */
	DLOCK_DO_RENEW,				/* the same grant, for another TTL */
	DLOCK_DO_MOVE,				/* the same, from the head to a place */
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
	int			row;			/* the row that it is about, or DLOCK_NO_ROW */
	int			nends;			/* rows that end when it is granted */
	bool		upgrades;		/* the request has a place of the key */
	int64		cools_until;	/* DLOCK_DO_CLEAR: busy until then; 0: no
								 * longer */
} DlockVerdict;

extern DlockPhase dlock_fsm_phase(const DlockState *row, int64 now);
extern bool dlock_fsm_is_held(const DlockState *row, int64 now);
extern int64 dlock_fsm_busy_until(const DlockState *row);
extern int64 dlock_fsm_asked_since(const DlockState *row,
								   const DlockAsking *asking, int64 now);
extern int64 dlock_fsm_yield_by(const DlockState *row, const DlockAsking *asking,
								int64 until, int64 now);
extern bool dlock_fsm_blocks(const DlockState *row, const DlockRequest *request,
							 int64 now);
extern int	dlock_fsm_must_end(const DlockState *rows, int nrows,
							   const DlockRequest *request, int64 now);
extern DlockVerdict dlock_fsm_end(const DlockState *row, int i, bool is_lost,
								  int64 now);
extern DlockVerdict dlock_fsm_decide(DlockState *rows, int nrows,
									 const DlockRequest *request,
									 const DlockTurn *turn, int64 now);

#endif							/* DLOCK_FSM_H */
