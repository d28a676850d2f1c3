/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  The engine: every change of a lock goes through dlock_lock_try().
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "grant.h"

extern void dlock_lock_try(const DlockKey *key, const DlockRequest *request,
						   const DlockTurn *turn, DlockRows *found,
						   DlockResult *result);
extern void dlock_lock_execute(const DlockRequest *request, DlockResult *result);
extern void dlock_lock_require_served(const DlockRequest *request);
extern void dlock_lock_foresee(const DlockRequest *request, DlockResult *result);
extern int64 *dlock_lock_versions(const DlockRequest *request, int *n);

#endif							/* DLOCK_LOCK_H */
