/*-------------------------------------------------------------------------
 *
 * await.h
 *	  Waiting: for the turn to get a lock, and for a key to change.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_AWAIT_H
#define DLOCK_AWAIT_H

#include "lock.h"

extern void dlock_await_check_policy(const DlockRequest *request);
extern void dlock_await_acquire(const DlockRequest *request, DlockResult *result);
extern bool dlock_await_change(const char *key, int keylen, bool is_held,
							   int64 *version, int64 timeout);

#endif							/* DLOCK_AWAIT_H */
