/*-------------------------------------------------------------------------
 *
 * roster.h
 *	  The locks of a handle.  All but the last need the mutex of the handle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROSTER_H
#define DLOCK_ROSTER_H

#include "handle.h"

extern void dlock_roster_add(dlock_lock *lock);
extern void dlock_roster_remove(dlock_lock *lock);
extern void dlock_roster_wake(dlock_handle *handle);
extern bool dlock_roster_wait(dlock_handle *handle, int64_t until);
extern bool dlock_roster_hold_off(dlock_lock *lock, int64_t until);
extern void dlock_lock_destroy(dlock_lock *lock);

#endif							/* DLOCK_ROSTER_H */
