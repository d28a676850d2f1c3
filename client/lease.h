/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  How long a lock is ours.  All need the mutex of the handle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LEASE_H
#define DLOCK_LEASE_H

#include "handle.h"

extern void dlock_lease_renewed(dlock_lock *lock, int64_t sent_at);
extern void dlock_lease_lost(dlock_lock *lock, dlock_reason reason);
extern void dlock_lease_gone(dlock_lock *lock, const char *state);
extern bool dlock_lease_overdue(dlock_lock *lock, int64_t now);
extern void dlock_lease_check_all(dlock_handle *handle, int64_t now);
extern int64_t dlock_lease_next_due(const dlock_lock *lock, int64_t from);

#endif							/* DLOCK_LEASE_H */
