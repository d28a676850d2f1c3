/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  What all.c, lock.c and keys.c share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "handle.h"

extern dlock_status dlock_lock_stop(dlock_lock *lock, int64_t until,
									int64_t *deadline, bool *is_last,
									dlock_error *err);
extern dlock_status dlock_lock_released(dlock_lock *lock, const char *answer,
										bool in_doubt, int64_t deadline,
										dlock_error *err);
extern dlock_status dlock_checked(const char *state);

#endif							/* DLOCK_LOCK_H */
