/*-------------------------------------------------------------------------
 *
 * lock_rules.h
 *	  The rules of the lock as a pure function.
 *
 * The input is what the table says about a key, what is asked, what the caller
 * has found out while it waited, and one reading of the clock.  The output is
 * what to do and what to answer.  Nothing here reads a clock, allocates, locks
 * or throws, so the whole transition table can be tested without a server
 * (test/unit/lock_rules_test.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RULES_LOCK_RULES_H
#define DLOCK_RULES_LOCK_RULES_H

#include "rules/key.h"

/* How many may hold a key at once, as a request says and a row keeps it. */
#define DLOCK_SHARED		0	/* any number */
#define DLOCK_EXCLUSIVE		1

/*
 * What an acquire asks for.  A request, a ticket and an entry of the queue carry
 * it, and a row keeps what concerns the grant.  A text belongs to the struct
 * around it: a copy of the terms that outlives that has to bring its own.
 */
typedef struct DlockTerms
{
	Oid			role;			/* that the grant belongs to */
	int32		capacity;		/* how many may hold the key at once; in SQL:
								 * slots */
	const char *owner;			/* NULL: none */
	const char *value;			/* NULL: none */
	int64		ttl;			/* us, as are the others */
	int64		cleanup;		/* how long the holder needs to yield */
	int64		at_least;		/* how long the key is busy, at the least */
	int64		delay;			/* ... after an end without a release */
	int32		priority;
	bool		lazy;			/* it outlives its TTL until somebody wants it */
	bool		spent;			/* a permit of dlock_limit(): it ends at once,
								 * and the key is busy for the TTL */

	/* how to ask and to wait for it; a row does not keep these */
	bool		anew;			/* not the grant that the owner has already */
	bool		force;			/* take it when the holder's time is up */
	int64		wait;			/* DLOCK_NEVER = without limit */
} DlockTerms;

/* Are they of the same role and owner?  Without an owner they are not. */
static inline bool
dlock_terms_same_owner(const DlockTerms *a, const DlockTerms *b)
{
	return a->role == b->role && a->owner != NULL && b->owner != NULL &&
		strcmp(a->owner, b->owner) == 0;
}

typedef enum DlockOp
{
	DLOCK_ACQUIRE,
	DLOCK_REFRESH,
	DLOCK_RELEASE,
	DLOCK_CHECK,
	DLOCK_FENCE,
	DLOCK_HANDOVER,				/* to another owner of the same role */
	DLOCK_FORCE,				/* take it away from its holder */
	DLOCK_REAP					/* remove the row if nobody needs it */
} DlockOp;

/*
 * What is asked.  It does not change while the request is under way.
 *
 * An acquire takes all of the terms.  The other operations take the role, the
 * owner, which may name the grant, and a renewal the TTL (0: the grant's own),
 * the value and at_least.  A handover takes the TTL, too, and its owner is the next one.
 */
typedef struct DlockRequest
{
	DlockOp		op;
	DlockKey	key;
	DlockTerms	terms;

	/* which grant, besides its role and owner */
	bool		by_version;		/* does "version" count? */
	int64		version;
	int32		pid;			/* DLOCK_RELEASE: only if it ends with this
								 * session; 0: in any case */
	bool		is_lost;		/* DLOCK_RELEASE: its session has ended */
	bool		exclusive_only; /* DLOCK_FENCE: not a place of several */

	bool		new_at_least;	/* DLOCK_REFRESH: at_least counts, from now on */

	/* DLOCK_ACQUIRE: where it comes from */
	bool		session;		/* the grant ends with our connection */
	bool		without_snapshot;	/* the caller is a procedure */
	bool		by_granter;		/* for a ticket, which has no connection */

	/*
	 * By the policies: how long a grant may be held, however often it is
	 * renewed; 0: without limit.  lock.c sets it
	 */
	int64		max_hold;

	/* the holder's own operations: give up rather than wait for the row */
	bool		skip_used;

	/*
	 * DLOCK_REAP: the row.  DLOCK_ACQUIRE: the place that this owner has in
	 * any case, or 0.  DLOCK_HANDOVER: the place of the next owner.
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
	bool		renewed;		/* ... and which was there before that */
} DlockRequest;

/* How a row stands in the way of an acquire. */
typedef enum DlockObstacle
{
	DLOCK_NO_OBSTACLE,
	DLOCK_IS_OVER,				/* it has expired; the next grant ends it */
	DLOCK_GIVES_WAY,			/* it has lapsed; the next grant ends it */
	DLOCK_HOLDS,				/* it can be asked to yield */
	DLOCK_BLOCKS				/* nothing to do but wait */
} DlockObstacle;

/*
 * One row of a key, as last committed or as written by our own transaction.
 * A row that exists only in another open transaction is unsettled and does not
 * exist.  What the rules say of it is marked "out", the rest is their input.
 */
typedef struct DlockState
{
	bool		exists;			/* there is a row */
	bool		held;			/* it is a grant, expired or not */
	bool		unsettled;		/* another open transaction is changing it */
	bool		used;			/* another open transaction has it locked */
	bool		gone;			/* the session that it ends with has ended */
	bool		asked;			/* the holder has been asked to yield */
	DlockObstacle obstacle;		/* out: of an acquire */
	bool		yields;			/* out: the holder is to be asked to yield */
	bool		ends;			/* out: ends when the request is granted */
	int			order;			/* work space of the rules */
	int64		slot;			/* DLOCK_HEAD: the exclusive grant */
	int64		version;
	int32		pid;			/* the session that it ends with, or 0 */
	DlockTerms	terms;			/* the owner, if it was read; not the value */
	int64		acquired;		/* effective, lease time, as are the others */
	int64		expires;		/* of a row that is not held: end of cooling */
	int64		idle_since;		/* of a row that is not held: since when */
} DlockState;

/* how many holders of a semaphore are asked to yield at once, at most */
#define DLOCK_MAX_ASKED		16

/*
 * The holders that a request has asked to yield, and since when: all with a
 * lower priority if it wants the key for itself, else those that are listed.
 */
typedef struct DlockAsking
{
	bool		all;
	int64		since;			/* if all: lease time */
	int			n;
	struct
	{
		int64		version;
		int64		since;
	}			one[DLOCK_MAX_ASKED];
} DlockAsking;

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
	DLOCK_DO_HAND_OVER,			/* a new version for another owner */
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
	DLOCK_IS_NOT_HELD,			/* that grant is over */
	DLOCK_IS_HELD_BY_OTHER,
	DLOCK_IS_RELEASED,
	DLOCK_IS_EXPIRED,			/* DLOCK_REAP: a grant ended by its TTL */
	DLOCK_IS_IDLE				/* DLOCK_REAP: a free row was dropped */
} DlockAnswer;

/* How a try of an operation went. */
typedef struct DlockResult
{
	DlockAnswer answer;
	int64		version;		/* of the grant that the answer is about */
	Oid			role;			/* its role */
	int64		expires;		/* its expiry, lease time */
	bool		upgrades;		/* the request has, or had, a place of the key */
	bool		renewed;		/* granted, and it was ours before */
	int64		max_hold;		/* of the request, by the policies */
	int64		free_at;		/* a permit, busy: when one is to be had, if
								 * that is known; lease time */
} DlockResult;

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

extern DlockPhase dlock_rules_phase(const DlockState *row, int64 now);
extern bool dlock_rules_is_held(const DlockState *row, int64 now);
extern int64 dlock_rules_busy_until(const DlockState *row);
extern int64 dlock_rules_asked_since(const DlockState *row,
									 const DlockAsking *asking, int64 now);
extern int64 dlock_rules_yield_by(const DlockState *row, const DlockAsking *asking,
								  int64 until, int64 now);
extern bool dlock_rules_blocks(const DlockState *row, const DlockRequest *request,
							   int64 now);
extern int	dlock_rules_must_end(const DlockState *rows, int nrows,
								 const DlockRequest *request, int64 now);
extern DlockVerdict dlock_rules_decide(DlockState *rows, int nrows,
									   const DlockRequest *request,
									   const DlockTurn *turn, int64 now);

#endif							/* DLOCK_RULES_LOCK_RULES_H */
