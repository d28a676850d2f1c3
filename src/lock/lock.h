/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  The engine: every change of a lock goes through dlock_lock_try().
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_LOCK_H
#define DLOCK_LOCK_LOCK_H

#include "lock/grant.h"

extern void dlock_lock_try(const DlockRequest *request, const DlockTurn *turn,
						   DlockRows *found, DlockResult *result);
extern void dlock_lock_execute(const DlockRequest *request, DlockResult *result);
extern void dlock_lock_require_served(const DlockKey *key);
extern void dlock_lock_foresee(const DlockRequest *request, DlockResult *result);
extern int64 *dlock_lock_versions(const DlockKey *key, int *n);

#endif							/* DLOCK_LOCK_LOCK_H */
