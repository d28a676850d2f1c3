/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  The queue of those that wait for a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_H
#define DLOCK_QUEUE_H

#include "storage/lwlock.h"

#include "waiter.h"

/* What the end of a transaction means to those that wait for a key. */
typedef struct DlockChange
{
	uint64		hash;
	bool		wakes_turn;		/* it may be free now */
	bool		wakes_change;	/* it has another version now */
	int64		expires;		/* if it is held: until when */
} DlockChange;

/* One of those that wait. */
typedef struct DlockInLine
{
	int			pid;
	int64		ticket;			/* 0: a backend */
} DlockInLine;

/* Returns whether to go on. */
typedef bool (*DlockQueueVisitor) (DlockWaiter *waiter, void *arg);

extern Size dlock_queue_shmem_size(void);
extern void dlock_queue_shmem_init(void);

/* for those that own an entry */
extern void dlock_queue_lock(uint64 hash, LWLockMode mode);
extern void dlock_queue_unlock(uint64 hash);
extern bool dlock_queue_upgrades(const DlockWaiter *waiter);
extern void dlock_queue_insert(DlockWaiter *waiter);
extern void dlock_queue_remove(DlockWaiter *waiter, bool wake_next);
extern int	dlock_queue_position(const DlockWaiter *waiter);
extern bool dlock_queue_rearm(DlockWaiter *waiter);
extern void dlock_queue_set_upgrades(DlockWaiter *waiter, bool upgrades);
extern void dlock_queue_wake(DlockWaiter *waiter);

/* for everybody */
extern bool dlock_queue_any(void);
extern bool dlock_queue_others_first(const DlockKey *key, int32 priority);
extern void dlock_queue_changed(const DlockChange *change);
extern bool dlock_queue_asked(const DlockKey *key, const DlockState *grant,
							  DlockNamedWaiter *requestor);
extern int	dlock_queue_count(void);
extern int	dlock_queue_line(const DlockKey *key, DlockInLine *line, int max);
extern DlockWaiter *dlock_queue_copy_all(int *n);
extern void dlock_queue_visit(LWLockMode mode, DlockQueueVisitor visitor, void *arg);
extern void dlock_queue_wake_id(uint64 hash, uint64 id);
extern void dlock_queue_wake_all(void);

#endif							/* DLOCK_QUEUE_H */
