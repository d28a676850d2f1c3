/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  How long a lock is ours, and when it is not any more.
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
 * A third of the TTL, with jitter: many clients that started together must
 * not stay together.  The locks of one handle shall.
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
 * The server says that it is not ours, but free or another's.  Before our
 * deadline it cannot have expired, so it was taken if another has it.  If
 * nobody has it, the server does not know why.  Only then do we go by what an
 * event said, if no answer of the server has refuted it since.
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

/* What the clock says of all locks. */
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
