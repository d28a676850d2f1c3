/*-------------------------------------------------------------------------
 *
 * state.h
 *	  What the rules need to know about a row: row.c reads it, fsm.c judges it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STATE_H
#define DLOCK_STATE_H

/*
 * One row of a key, as last committed or as written by our own transaction.
 * A row that exists only in another open transaction is unsettled and does not
 * exist.
 */
typedef struct DlockState
{
	bool		exists;			/* there is a row */
	bool		held;			/* it is a grant, expired or not */
	bool		unsettled;		/* another open transaction is changing it */
	bool		gone;			/* the session that it ends with has ended */
	bool		asked;			/* the holder has been asked to yield */
	int16		slot;
	Oid			role;			/* the role that the grant belongs to */
	int64		version;
	const char *owner;			/* NULL if the grant has none */
	int32		priority;
	int64		cleanup;		/* how long the holder needs to yield */
	int32		pid;			/* the session that it ends with, or 0 */
	int64		expires;		/* effective expiry, lease time */
	int64		idle_since;		/* of a row that is not held: since when */
} DlockState;

#endif							/* DLOCK_STATE_H */
