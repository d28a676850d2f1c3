/*-------------------------------------------------------------------------
 *
 * backend_wait.h
 *	  A backend in the queue.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_BACKEND_WAIT_H
#define DLOCK_QUEUE_BACKEND_WAIT_H

#include "queue/queue.h"

extern Size dlock_backend_wait_shmem_size(void);
extern void dlock_backend_wait_shmem_init(void);

extern bool dlock_backend_wait_enter(const DlockKey *key, const DlockEntrant *entrant);
extern void dlock_backend_wait_leave(bool wake_next);
extern bool dlock_backend_wait_rearm(void);
extern bool dlock_backend_wait_upgrades(void);
extern bool dlock_backend_wait_upgrade(void);
extern void dlock_backend_wait_step_back(void);
extern void dlock_backend_wait_publish(const DlockWaitReport *report);
extern int64 dlock_backend_wait_blocked_since(void);
extern bool dlock_backend_wait_in_circle(void);
extern void dlock_backend_wait_sleep(int64 until);

#endif							/* DLOCK_QUEUE_BACKEND_WAIT_H */
