/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  What acquire.c, lock.c and keys.c share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "call.h"
#include "handle.h"

extern dlock_status dlock_lock_ask_refresh(const dlock_lock *lock, int64_t ttl_ms,
										   int64_t timeout_ms, int64_t until,
										   DlockCall *call, dlock_error *err);
extern dlock_status dlock_checked(const char *state);

#endif							/* DLOCK_LOCK_H */
