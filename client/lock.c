/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  A lock that was granted: release, refresh, check, and what is known of it.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "clock.h"
#include "fork.h"
#include "keepalive.h"
#include "lease.h"
#include "lock.h"
#include "roster.h"
#include "sql.h"
#include "util.h"
#include "wait.h"

static dlock_status
ask_refresh(const dlock_lock *lock, int64_t ttl_ms, int64_t timeout_ms,
			int64_t until, DlockCall *call, dlock_error *err)
{
	char		version[24];
	char		ttl[32];
	const char *params[5];

	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	snprintf(ttl, sizeof(ttl), "%lld ms", (long long) ttl_ms);
	params[0] = lock->key;
	params[1] = version;
	params[2] = lock->owner;
	params[3] = ttl_ms > 0 ? ttl : NULL;
	dlock_call_init(call, dlock_sql_refresh, 5, params, timeout_ms);
	call->kind = DLOCK_REFRESHES;
	call->row_param = 5;
	call->until = until;
	return dlock_call(lock->handle, call, err);
}

/* The error for a lock that is not held any more; the caller has the mutex. */
static dlock_status
lost(const dlock_lock *lock, dlock_error *err)
{
	if (lock->hold == DLOCK_HOLD_RELEASED)
		return dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" was released", lock->key);
	return dlock_fail(err, DLOCK_LOST, "lock \"%s\" is lost (%s)", lock->key,
					  dlock_reason_name(lock->reason));
}

/*
 * Release
 */

/*
 * Count down, and before the last release stop its renewals.  *deadline is that
 * of the lock, or 0 if it is lost.
 */
dlock_status
dlock_lock_stop(dlock_lock *lock, int64_t until, int64_t *deadline, bool *is_last,
				dlock_error *err)
{
	dlock_handle *handle = lock->handle;
	dlock_status status = DLOCK_OK;

	dlock_error_clear(err);
	pthread_mutex_lock(&handle->mutex);
	*is_last = lock->holds <= 1;
	if (!*is_last)
	{
		lock->holds--;
		if (dlock_lease_overdue(lock, dlock_now()))
			status = lost(lock, err);
	}
	else
	{
		bool		done;

		lock->holds = 0;
		lock->silent = true;
		done = dlock_roster_hold_off(lock, until);
		*deadline = lock->hold == DLOCK_HOLD_OURS ? lock->deadline : 0;
		if (lock->hold == DLOCK_HOLD_RELEASED)
			status = dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" has been released already", lock->key);
		else if (!done)
			status = dlock_fail(err, DLOCK_TIMEOUT, "the server did not answer a renewal");
	}
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

/* The server has answered its release; the caller has the mutex. */
dlock_status
dlock_lock_released(dlock_lock *lock, const char *answer, bool in_doubt,
					int64_t deadline, dlock_error *err)
{
	dlock_status status;

	dlock_error_clear(err);
	if (answer != NULL && strcmp(answer, "released") == 0)
		status = DLOCK_OK;
	else if (in_doubt && dlock_now() < deadline)
		status = DLOCK_OK;		/* the try that got no answer released it */
	else if (answer != NULL && strcmp(answer, "held_by_other") == 0)
		status = dlock_fail(err, DLOCK_HELD_BY_OTHER,
							"lock \"%s\" was lost and is held by another client", lock->key);
	else
		status = dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" had expired", lock->key);

	lock->hold = DLOCK_HOLD_RELEASED;
	dlock_conn_free(lock->conn);
	lock->conn = NULL;
	dlock_wait_nudge(lock->handle);
	return status;
}

dlock_status
dlock_release(dlock_lock *lock, int64_t timeout_ms, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	DlockCall	call;
	char		version[24];
	const char *params[4];
	int64_t		until;
	int64_t		deadline = 0;
	bool		is_last;
	dlock_status status = dlock_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	timeout_ms = dlock_timeout(handle, timeout_ms);
	until = dlock_later(dlock_now(), timeout_ms);
	status = dlock_lock_stop(lock, until, &deadline, &is_last, err);
	if (status != DLOCK_OK || !is_last)
		return status;

	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	params[0] = lock->key;
	params[1] = version;
	params[2] = lock->owner;
	dlock_call_init(&call, dlock_sql_release, 4, params, timeout_ms);
	call.kind = DLOCK_RELEASES;
	call.row_param = 4;
	call.until = until;
	status = dlock_call(handle, &call, err);
	if (status != DLOCK_OK)
		return status;
	pthread_mutex_lock(&handle->mutex);
	status = dlock_lock_released(lock, dlock_reply_get(call.reply, 0, 0), call.in_doubt,
								 deadline, err);
	pthread_mutex_unlock(&handle->mutex);
	dlock_reply_free(call.reply);
	return status;
}

void
dlock_free(dlock_lock *lock)
{
	dlock_handle *handle;
	bool		here;

	if (lock == NULL)
		return;
	handle = lock->handle;
	if (dlock_forked(handle))
		return;					/* dlock_close() frees it */
	here = dlock_in_callback(handle);
	pthread_mutex_lock(&handle->mutex);
	if (lock->users > 1)
	{
		/* a pointer that is freed without a release does not release */
		lock->users--;
		lock->holds = (int) dlock_min(lock->holds, lock->users);
		pthread_mutex_unlock(&handle->mutex);
		return;
	}
	lock->silent = true;

	/*
	 * in the renewal thread, this is its own callback, or that of another
	 * lock
	 */
	while (lock->in_callback && !here)
		pthread_cond_wait(&handle->changed, &handle->mutex);
	if (lock->index >= 0)
		handle->batch[lock->index] = NULL;
	if (lock->in_callback)
	{
		lock->index = -1;
		lock->freed = true;
		lock = NULL;
	}
	else
		dlock_roster_remove(lock);
	pthread_mutex_unlock(&handle->mutex);
	dlock_lock_destroy(lock);
}

/*
 * Refresh and check
 */

/* Act upon the reply; the caller has the mutex. */
static dlock_status
refreshed(dlock_lock *lock, int64_t ttl_ms, const DlockCall *call, dlock_error *err)
{
	if (!dlock_reply_bool(call->reply, 0, 0))
	{
		dlock_lease_gone(lock, dlock_reply_get(call->reply, 0, 1));
		return lost(lock, err);
	}
	if (ttl_ms > 0)
		lock->ttl_ms = ttl_ms;
	dlock_lease_renewed(lock, call->sent_at);
	/* the call may have taken longer than the lease */
	if (dlock_lease_overdue(lock, dlock_now()))
		return lost(lock, err);
	return DLOCK_OK;
}

dlock_status
dlock_refresh(dlock_lock *lock, int64_t ttl_ms, int64_t timeout_ms, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	DlockCall	call;
	int64_t		until;
	dlock_status status = dlock_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	if (ttl_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must not be negative");
	dlock_error_clear(err);
	timeout_ms = dlock_timeout(handle, timeout_ms);
	until = dlock_later(dlock_now(), timeout_ms);

	/* with two refreshes at a time, it would be unknown which TTL counts */
	pthread_mutex_lock(&handle->mutex);
	if (!dlock_roster_hold_off(lock, until))
		status = dlock_fail(err, DLOCK_TIMEOUT, "the server did not answer a renewal");
	if (dlock_lease_overdue(lock, dlock_now()))
		status = lost(lock, err);
	if (status == DLOCK_OK)
	{
		bool		shorter = ttl_ms > 0 && ttl_ms < lock->ttl_ms;
		int64_t		deadline = lock->deadline;

		/* the shorter TTL may count from the moment that it is sent */
		if (shorter)
		{
			lock->deadline = dlock_min(deadline, dlock_now() + dlock_lease_ms(ttl_ms));
			dlock_roster_wake(handle);
		}
		until = dlock_min(until, lock->deadline);
		pthread_mutex_unlock(&handle->mutex);
		status = ask_refresh(lock, ttl_ms, timeout_ms, until, &call, err);
		pthread_mutex_lock(&handle->mutex);

		/* after the deadline, no answer helps */
		if (dlock_lease_overdue(lock, dlock_now()))
			status = lost(lock, err);
		else if (status == DLOCK_OK)
			status = refreshed(lock, ttl_ms, &call, err);
		else if (!call.in_doubt)
			lock->deadline = deadline;	/* it was never sent */
		else if (shorter)
			lock->ttl_ms = ttl_ms;
		dlock_reply_free(call.reply);
	}
	lock->held_off--;
	dlock_roster_wake(handle);
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

/* The status for a result of dlock_check() in SQL. */
dlock_status
dlock_checked(const char *state)
{
	if (state == NULL)
		return DLOCK_NOT_HELD;
	if (strcmp(state, "held") == 0)
		return DLOCK_OK;
	if (strcmp(state, "preempting") == 0)
		return DLOCK_PREEMPTING;
	if (strcmp(state, "held_by_other") == 0)
		return DLOCK_HELD_BY_OTHER;
	return DLOCK_NOT_HELD;
}

dlock_status
dlock_check(dlock_lock *lock, int64_t timeout_ms, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	DlockCall	call;
	char		version[24];
	const char *params[3];
	dlock_status status = dlock_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	dlock_error_clear(err);
	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	params[0] = lock->key;
	params[1] = version;
	params[2] = lock->owner;
	dlock_call_init(&call, dlock_sql_check, 3, params, dlock_timeout(handle, timeout_ms));
	call.kind = DLOCK_CHECKS;
	status = dlock_call(handle, &call, err);

	pthread_mutex_lock(&handle->mutex);
	if (lock->hold == DLOCK_HOLD_RELEASED)
	{
		if (status == DLOCK_OK)
			status = dlock_checked(dlock_reply_get(call.reply, 0, 0));
	}
	else if (dlock_lease_overdue(lock, dlock_now()))
		status = lost(lock, err);
	else if (status == DLOCK_OK)
	{
		const char *state = dlock_reply_get(call.reply, 0, 0);

		status = dlock_checked(state);
		if (status != DLOCK_OK && status != DLOCK_PREEMPTING)
		{
			dlock_lease_gone(lock, state);
			status = lost(lock, err);
		}
	}
	pthread_mutex_unlock(&handle->mutex);
	dlock_reply_free(call.reply);
	return status;
}

/*
 * What is known without the server
 */

int64_t
dlock_left_ms(const dlock_lock *lock)
{
	int64_t		left = 0;

	if (lock == NULL || dlock_forked(lock->handle))
		return 0;
	pthread_mutex_lock(&lock->handle->mutex);
	if (lock->hold == DLOCK_HOLD_OURS)
		left = dlock_max(lock->deadline - dlock_now(), 0);
	pthread_mutex_unlock(&lock->handle->mutex);
	return left;
}

int
dlock_is_owner(const dlock_lock *lock)
{
	return dlock_left_ms(lock) > 0;
}

dlock_reason
dlock_lost_reason(const dlock_lock *lock)
{
	dlock_reason reason;

	if (lock == NULL || dlock_forked(lock->handle))
		return DLOCK_REASON_NONE;
	pthread_mutex_lock(&lock->handle->mutex);
	reason = lock->reason;
	if (lock->hold == DLOCK_HOLD_OURS && dlock_now() >= lock->deadline)
		reason = DLOCK_REASON_DEADLINE;
	pthread_mutex_unlock(&lock->handle->mutex);
	return reason;
}

int64_t
dlock_version(const dlock_lock *lock)
{
	return lock->version;
}

const char *
dlock_key(const dlock_lock *lock)
{
	return lock->key;
}

const char *
dlock_owner(const dlock_lock *lock)
{
	return lock->owner;
}

int32_t
dlock_slots(const dlock_lock *lock)
{
	return lock->slots;
}

int64_t
dlock_ttl_ms(const dlock_lock *lock)
{
	int64_t		ttl;

	if (dlock_forked(lock->handle))
		return lock->ttl_ms;
	pthread_mutex_lock(&lock->handle->mutex);
	ttl = lock->ttl_ms;
	pthread_mutex_unlock(&lock->handle->mutex);
	return ttl;
}

dlock_status
dlock_resign(dlock_lock *lock, int64_t timeout_ms, dlock_error *err)
{
	return dlock_release(lock, timeout_ms, err);
}
