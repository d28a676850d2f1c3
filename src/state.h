/*-------------------------------------------------------------------------
 *
 * state.h
 *	  What the rules need to know about a row: row.c reads it, fsm.c judges it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STATE_H
#define DLOCK_STATE_H

/* How many may hold a key at once, as a request says and a row keeps it. */
#define DLOCK_SHARED		0	/* any number */
#define DLOCK_EXCLUSIVE		1

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
	bool		lazy;			/* it outlives its TTL until somebody wants it */
	bool		asked;			/* the holder has been asked to yield */
	DlockObstacle obstacle;		/* out: of an acquire */
	bool		yields;			/* out: the holder is to be asked to yield */
	bool		ends;			/* out: ends when the request is granted */
	int			order;			/* work space of the rules */
	int64		slot;			/* DLOCK_HEAD: the exclusive grant */
	int32		slots;			/* what was asked for */
	Oid			role;			/* the role that the grant belongs to */
	int64		version;
	const char *owner;			/* NULL if the grant has none */
	int32		priority;
	int64		cleanup;		/* how long the holder needs to yield */
	int64		at_least;		/* how long the key is busy, at the least */
	int64		delay;			/* ... after an end without a release */
	int32		pid;			/* the session that it ends with, or 0 */
	int64		acquired;		/* effective, lease time, as are the others */
	int64		expires;		/* of a row that is not held: end of cooling */
	int64		idle_since;		/* of a row that is not held: since when */
} DlockState;

/* at most so many holders of a semaphore are asked to yield at once */
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

#endif							/* DLOCK_STATE_H */
