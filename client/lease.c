/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  How long a lock is ours, and how it is lost.
 *
 * The caller of each of these has the mutex of the handle.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "clock.h"
#include "lease.h"
#include "roster.h"

/*
 * A third of the TTL, with jitter, so that many clients that started together
 * do not stay together.  The locks of one handle do, because they have the same
 * jitter.
 */
int64_t
dlock_lease_next_due(const dlock_lock *lock, int64_t from)
{
	return from + dlock_max(dlock_period_ms(lock->ttl_ms, lock->handle->jitter), 1);
}

void
dlock_lease_renewed(dlock_lock *lock, int64_t sent_at)
{
	lock->deadline = sent_at + dlock_lease_ms(lock->ttl_ms);
	lock->danger_at = sent_at + dlock_danger_ms(lock->ttl_ms);
	lock->due = dlock_lease_next_due(lock, sent_at);
	lock->tell_danger = false;
}

void
dlock_lease_lost(dlock_lock *lock, dlock_reason reason)
{
	if (lock->hold != DLOCK_HOLD_OURS)
		return;
	lock->hold = DLOCK_HOLD_LOST;
	lock->reason = reason;
	lock->tell_lost = true;
	lock->tell_danger = false;
	lock->tell_preempted = false;
	dlock_roster_wake(lock->handle);
}

/*
 * The server says that the lock is free, or held by another client.  Before our
 * deadline it cannot have expired, so if another client holds it, it was taken
 * away.  If it is free, the server does not know why.  Only then does the reason
 * come from an event, unless an answer of the server has refuted that since.
 */
void
dlock_lease_gone(dlock_lock *lock, const char *state)
{
	dlock_reason reason = DLOCK_REASON_EXPIRED;

	if (lock->asked)
		reason = DLOCK_REASON_PREEMPTED;
	else if (lock->forced)
		reason = DLOCK_REASON_FORCED;
	else if (state != NULL && strcmp(state, "held_by_other") == 0)
		reason = DLOCK_REASON_FORCED;
	dlock_lease_lost(lock, reason);
}

/* Has its deadline passed?  Then it is lost. */
bool
dlock_lease_overdue(dlock_lock *lock, int64_t now)
{
	if (lock->hold == DLOCK_HOLD_OURS && now >= lock->deadline)
		dlock_lease_lost(lock, DLOCK_REASON_DEADLINE);
	return lock->hold != DLOCK_HOLD_OURS;
}

/* Find the locks that are lost or in danger by now. */
void
dlock_lease_check_all(dlock_handle *handle, int64_t now)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		if (dlock_lease_overdue(lock, now))
			continue;
		if (lock->renew && lock->danger_at <= now)
		{
			lock->danger_at = DLOCK_NEVER;
			lock->tell_danger = true;
		}
	}
}
