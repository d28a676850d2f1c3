/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Finds processes and tickets that wait for each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_DEADLOCK_H
#define DLOCK_QUEUE_DEADLOCK_H

/*
 * When to check next.  A suspicion is checked again soon, against what has been
 * published since then.  Otherwise the checks become rarer, because a deadlock
 * becomes less likely the longer a wait lasts.
 */
typedef struct DlockDeadlockWatch
{
	int64		next;			/* lease time */
	int64		pause;
	int64		suspected_at;	/* 0: not suspected */
	int			doubts;			/* how often it was not confirmed */
} DlockDeadlockWatch;

extern Size dlock_deadlock_shmem_size(void);
extern void dlock_deadlock_shmem_init(void);

extern void dlock_deadlock_begin(DlockDeadlockWatch *watch, int64 since);
extern void dlock_deadlock_watch(DlockDeadlockWatch *watch, int64 now);
extern int64 dlock_deadlock_watch_tickets(DlockDeadlockWatch *watch, int64 now);

#endif							/* DLOCK_QUEUE_DEADLOCK_H */
