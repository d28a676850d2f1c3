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
#include <time.h>

#include "internal.h"

/* how long a lock is held before we listen for it, a tenth of its TTL at most */
#define SHORT_MS 20

/*
 * A third of the TTL, with jitter: many clients that started together must
 * not stay together.  The locks of one handle shall.
 */
int64_t
dlock_lease_next_due(const dlock_lock *lock, int64_t from)
{
	return from + dlock_max(lock->ttl_ms * (900 + lock->handle->jitter) / 3000, 1);
}

void
dlock_lease_renewed(dlock_lock *lock, int64_t sent_at)
{
	lock->deadline = sent_at + dlock_lease_ms(lock->ttl_ms);
	lock->danger_at = sent_at + lock->ttl_ms * 6 / 10;
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
	dlock_keepalive_wake(lock->handle);
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

void
dlock_keepalive_add(dlock_lock *lock)
{
	dlock_handle *handle = lock->handle;

	lock->index = -1;
	lock->connect_at = dlock_now() + dlock_min(lock->ttl_ms / 10, SHORT_MS);
	lock->prev = NULL;
	lock->next = handle->locks;
	if (lock->next != NULL)
		lock->next->prev = lock;
	handle->locks = lock;
	dlock_keepalive_wake(handle);
}

void
dlock_keepalive_remove(dlock_lock *lock)
{
	if (lock->prev != NULL)
		lock->prev->next = lock->next;
	else
		lock->handle->locks = lock->next;
	if (lock->next != NULL)
		lock->next->prev = lock->prev;
}

/* Wait for the thread to get something done; false: the time is up. */
bool
dlock_keepalive_wait(dlock_handle *handle, int64_t until)
{
	struct timespec ts;
	int64_t		now = dlock_now();
	int64_t		left = dlock_min(until - now, 60000);

	if (now >= until)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_sec += left / 1000;
	ts.tv_nsec += left % 1000 * 1000000;
	if (ts.tv_nsec >= 1000000000)
	{
		ts.tv_sec++;
		ts.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(&handle->changed, &handle->mutex, &ts);
	return true;
}

/*
 * No renewal until held_off is taken back, and none is under way, nor an
 * event if there are to be no more: true.  False: the time is up.
 */
bool
dlock_keepalive_hold_off(dlock_lock *lock, int64_t until)
{
	lock->held_off++;
	while (lock->index >= 0 || (lock->in_callback && lock->silent))
		if (!dlock_keepalive_wait(lock->handle, until))
			return false;
	return true;
}
