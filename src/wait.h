/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  A backend in the queue.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAIT_H
#define DLOCK_WAIT_H

#include "queue.h"

extern Size dlock_wait_shmem_size(void);
extern void dlock_wait_shmem_init(void);

extern bool dlock_wait_enter(const DlockKey *key, const DlockEntrant *entrant);
extern void dlock_wait_leave(bool wake_next);
extern bool dlock_wait_rearm(void);
extern bool dlock_wait_upgrades(void);
extern void dlock_wait_step_back(void);
extern void dlock_wait_publish(const DlockOutlook *outlook);
extern void dlock_wait_withdraw(void);
extern void dlock_wait_sleep(int64 until);

#endif							/* DLOCK_WAIT_H */
