/*-------------------------------------------------------------------------
 *
 * acquire.h
 *	  Acquire a key, or several, and wait if the request may.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_ACQUIRE_H
#define DLOCK_LOCK_ACQUIRE_H

#include "lock/lock.h"

extern void dlock_acquire_check_granted(const DlockRequest *request,
										const DlockResult *result);
extern void dlock_acquire_key(const DlockRequest *request, DlockResult *result);
extern int	dlock_acquire_keys(const DlockRequest *requests, int n,
							   DlockResult *results);

#endif							/* DLOCK_LOCK_ACQUIRE_H */
