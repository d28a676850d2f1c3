/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Finds processes that wait for each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DEADLOCK_H
#define DLOCK_DEADLOCK_H

/*
 * When to look for a deadlock next.  A suspicion is checked again soon, against
 * what has been seen since then.  Otherwise we look less and less often, because
 * the longer nobody waits for us elsewhere, the less likely a deadlock becomes.
 */
typedef struct DlockDeadlockWatch
{
	int64		next;			/* lease time */
	int64		pause;
	int64		suspected_at;	/* 0: not suspected */
	int			doubts;			/* how often it was not confirmed */
} DlockDeadlockWatch;

extern void dlock_deadlock_begin(DlockDeadlockWatch *watch, int64 since);
extern void dlock_deadlock_watch(DlockDeadlockWatch *watch, int64 now);
extern int64 dlock_deadlock_watch_tickets(DlockDeadlockWatch *watch, int64 now);

#endif							/* DLOCK_DEADLOCK_H */
