/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The locks of a handle: how long each is ours, and how it is lost.
 *
 * The deadline of a lock is nine tenths of its TTL, or of what the last answer says is
 * left, after the moment before the last successful request was sent.  The server counts
 * from when it received the request, so it cannot grant the lock to another client before
 * that.  A late answer does not bring the lock back, so deadlines are checked before
 * answers are read.
 *
 * The parts of the TTL, among them the period of renewals, are in base/constants.h.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/*
 * Locks
 */

/* A lock that has everything except its grant.  NULL: no memory. */
dlock_lock *
dlock_lock_make(dlock_handle *handle, const char *key, const char *owner,
				const dlock_options *options)
{
	dlock_lock *lock = calloc(1, sizeof(dlock_lock));

	if (lock == NULL)
		return NULL;
	lock->handle = handle;
	lock->key = strdup(key);
	lock->owner = owner != NULL ? strdup(owner) : NULL;
	lock->slots = options->slots;
	lock->ttl_ms = options->ttl_ms;
	lock->left_ms = DLOCK_NEVER;
	lock->renew = options->renew != 0;
	lock->max_hold_ms = options->max_hold_ms;
	lock->callback = options->callback != NULL ? options->callback : handle->callback;
	lock->callback_arg = options->callback != NULL ? options->callback_arg : handle->callback_arg;
	lock->holds = 1;
	lock->users = 1;
	lock->index = -1;
	if (lock->key == NULL || (owner != NULL && lock->owner == NULL))
	{
		dlock_lock_destroy(lock);
		return NULL;
	}
	return lock;
}

/* It is in no list any more.  NULL is allowed. */
void
dlock_lock_destroy(dlock_lock *lock)
{
	if (lock == NULL)
		return;
	dlock_conn_free(lock->conn);
	free(lock->key);
	free(lock->owner);
	free(lock);
}

/* It was granted, and its lease is set. */
void
dlock_lock_list_add(dlock_lock *lock)
{
	dlock_handle *handle = lock->handle;

	lock->index = -1;
	lock->connect_at = dlock_now() + dlock_short_ms(lock->ttl_ms);
	lock->prev = NULL;
	lock->next = handle->locks;
	if (lock->next != NULL)
		lock->next->prev = lock;
	handle->locks = lock;
	/* nothing of it is due before */
	dlock_loop_due(handle, &handle->background_at, lock->connect_at);
}

void
dlock_lock_list_remove(dlock_lock *lock)
{
	if (lock->prev != NULL)
		lock->prev->next = lock->next;
	else
		lock->handle->locks = lock->next;
	if (lock->next != NULL)
		lock->next->prev = lock->prev;
}

/* Is it ours, and to remain so? */
bool
dlock_lock_is_active(const dlock_lock *lock)
{
	return lock->hold == DLOCK_HOLD_OURS && !lock->silent;
}

/* The error for a lock that is not held any more. */
dlock_status
dlock_lock_lost(const dlock_lock *lock, dlock_error *err)
{
	if (lock->hold == DLOCK_HOLD_RELEASED)
		return dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" was released", lock->key);
	return dlock_fail(err, DLOCK_LOST, "lock \"%s\" is lost (%s)", lock->key,
					  dlock_reason_name(lock->reason));
}

/*
 * Leases
 */

/*
 * When to renew it, if it was renewed then: after a third of the TTL, with jitter, so
 * that many clients that started together do not stay together.  The locks of one handle
 * do, because they have the same jitter.
 */
int64_t
dlock_lease_next_due(const dlock_lock *lock, int64_t from)
{
	return from + dlock_max(dlock_period_ms(lock->ttl_ms, lock->handle->jitter), 1);
}

/* Is it to be renewed? */
bool
dlock_lease_renews(const dlock_lock *lock)
{
	return lock->renew && !lock->held_out;
}

/*
 * From when on it is not renewed any more because of max_hold_ms: the last lease ends
 * then.
 */
int64_t
dlock_lease_renews_until(const dlock_lock *lock)
{
	return lock->ends_at == DLOCK_NEVER ? DLOCK_NEVER :
		lock->ends_at - dlock_lease_ms(lock->ttl_ms);
}

/* The program has to release it, and is told so. */
void
dlock_lease_ask(dlock_lock *lock, dlock_reason reason, int64_t until)
{
	lock->tell_preempted = true;
	lock->yield_reason = reason;
	lock->yield_until = until;
	dlock_loop_wake_background(lock->handle);
}

/*
 * The answer to a refresh: how long the lock lasts from then on, which a policy may have
 * cut short (max_hold).  False: it was not refreshed.
 */
bool
dlock_lease_answered(dlock_lock *lock, const DlockReply *reply, int row, int column)
{
	if (dlock_reply_get(reply, row, column) == NULL)
		return false;
	lock->left_ms = dlock_reply_amount(reply, row, column);
	return true;
}

/* The server has granted or refreshed it; the statement was sent after sent_at. */
void
dlock_lease_renewed(dlock_lock *lock, int64_t sent_at)
{
	int64_t		ttl_ms = dlock_min(lock->ttl_ms, lock->left_ms);

	if (lock->ends_at == 0)
		lock->ends_at = lock->max_hold_ms > 0 ? dlock_later(dlock_now(), lock->max_hold_ms) : DLOCK_NEVER;
	lock->deadline = dlock_min(sent_at + dlock_lease_ms(ttl_ms), lock->ends_at);
	lock->danger_at = sent_at + dlock_danger_ms(ttl_ms);
	lock->due = dlock_lease_next_due(lock, sent_at);
	lock->tell_danger = false;
	dlock_loop_due(lock->handle, &lock->handle->background_at, lock->due);
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
	dlock_loop_wake_background(lock->handle);
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
		dlock_lease_lost(lock, lock->held_out ? DLOCK_REASON_MAX_HOLD : DLOCK_REASON_DEADLINE);
	return lock->hold != DLOCK_HOLD_OURS;
}

/* Find the locks that are lost, in danger, or held for long enough by now. */
void
dlock_lease_check_all(dlock_handle *handle, int64_t now)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		if (dlock_lease_overdue(lock, now))
			continue;
		if (dlock_lease_renews(lock) && dlock_lease_renews_until(lock) <= now)
		{
			lock->held_out = true;
			dlock_lease_ask(lock, DLOCK_REASON_MAX_HOLD, lock->deadline);
		}
		if (dlock_lease_renews(lock) && lock->danger_at <= now)
		{
			lock->danger_at = DLOCK_NEVER;
			lock->tell_danger = true;
			dlock_loop_wake_background(handle);
		}
	}
}
