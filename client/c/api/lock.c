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

#include "api/api.h"

static dlock_status
ask_refresh(const dlock_lock *lock, int64_t ttl_ms, int64_t timeout_ms,
			int64_t until, DlockRequest *request, dlock_error *err)
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
	dlock_request_init(request, dlock_sql_refresh, 5, params, timeout_ms);
	request->kind = DLOCK_REFRESHES;
	request->row_param = 5;
	request->until = until;
	return dlock_request_call(lock->handle, request, err);
}

/*
 * Release
 */

dlock_status
dlock_release(dlock_lock *lock, int64_t timeout_ms, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	dlock_op	op;
	dlock_status status = dlock_handle_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	dlock_op_init(&op, handle, DLOCK_OP_RELEASE, timeout_ms, dlock_now());
	dlock_op_set_lock(&op, lock);
	return dlock_op_run(&op, err);
}

dlock_status
dlock_release_all(dlock_lock *const *locks, size_t n, int64_t timeout_ms,
				  dlock_error *err)
{
	dlock_handle *handle = n > 0 && locks != NULL && locks[0] != NULL ? locks[0]->handle : NULL;
	DlockParamList list;
	dlock_lock **copy;
	dlock_op	op;
	dlock_status status;

	dlock_error_clear(err);
	if (n == 0)
		return DLOCK_OK;
	status = dlock_handle_may_ask(handle, err);
	if (status != DLOCK_OK)
		return status;
	for (size_t i = 0; i < n; i++)
		if (locks[i] == NULL || locks[i]->handle != handle)
			return dlock_fail(err, DLOCK_INVALID, "the locks must be of one handle");
	copy = malloc(n * sizeof(dlock_lock *));
	if (copy == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	memcpy(copy, locks, n * sizeof(dlock_lock *));
	dlock_op_init(&op, handle, DLOCK_OP_RELEASE, timeout_ms, dlock_now());
	dlock_op_set_locks(&op, copy, n, &list);
	status = dlock_op_run(&op, err);
	free(copy);
	return status;
}

dlock_status
dlock_release_start(dlock_lock *lock, int64_t timeout_ms, dlock_done done, void *arg,
					dlock_op **started, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	dlock_op   *op;
	dlock_status status = dlock_handle_may_start(handle, err);

	if (started != NULL)
		*started = NULL;
	if (status != DLOCK_OK)
		return status;
	if (done == NULL)
		return dlock_fail(err, DLOCK_INVALID, "callback must not be null");
	op = malloc(sizeof(dlock_op));
	if (op == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	dlock_op_init(op, handle, DLOCK_OP_RELEASE, timeout_ms, dlock_now());
	dlock_op_set_lock(op, lock);
	op->done = done;
	op->arg = arg;
	return dlock_handle_start(op, started, err);
}

void
dlock_free(dlock_lock *lock)
{
	dlock_handle *handle;
	bool		here;

	if (lock == NULL)
		return;
	handle = lock->handle;
	if (dlock_handle_is_forked(handle))
		return;					/* dlock_close() frees it */
	here = dlock_background_is_here(handle);
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
	 * in the background thread, this is its own callback, or that of another
	 * lock
	 */
	while (lock->in_callback && !here)
		(void) dlock_loop_wait_for_change(handle, DLOCK_NEVER);
	if (lock->index >= 0)
		handle->renewing[lock->index] = NULL;
	if (lock->in_callback)
	{
		lock->index = -1;
		lock->freed = true;
		lock = NULL;
	}
	else
		dlock_lock_list_remove(lock);
	pthread_mutex_unlock(&handle->mutex);
	dlock_lock_destroy(lock);
}

dlock_status
dlock_release_free(dlock_lock *lock, int64_t timeout_ms, dlock_error *err)
{
	dlock_status status = dlock_release(lock, timeout_ms, err);

	dlock_free(lock);
	return status;
}

/*
 * Refresh and check
 */

/*
 * Stop renewals of the lock until held_off is decremented, and wait for one that was sent.
 * False: the time is up.  The caller has the mutex.
 */
static bool
hold_off(dlock_lock *lock, int64_t until)
{
	lock->held_off++;
	while (lock->index >= 0)
		if (!dlock_loop_wait_for_change(lock->handle, until))
			return false;
	return true;
}

/* Act upon the reply; the caller has the mutex. */
static dlock_status
refreshed(dlock_lock *lock, int64_t ttl_ms, const DlockRequest *request, dlock_error *err)
{
	if (!dlock_lease_answered(lock, request->reply, 0, 0))
	{
		dlock_lease_gone(lock, dlock_reply_get(request->reply, 0, 1));
		return dlock_lock_lost(lock, err);
	}
	if (ttl_ms > 0)
		lock->ttl_ms = ttl_ms;
	dlock_lease_renewed(lock, request->sent_at);
	/* the call may have taken longer than the lease */
	if (dlock_lease_overdue(lock, dlock_now()))
		return dlock_lock_lost(lock, err);
	return DLOCK_OK;
}

dlock_status
dlock_refresh(dlock_lock *lock, int64_t ttl_ms, int64_t timeout_ms, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	DlockRequest request;
	int64_t		until;
	dlock_status status = dlock_handle_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	if (ttl_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must not be negative");
	dlock_error_clear(err);
	timeout_ms = dlock_handle_timeout(handle, timeout_ms);
	until = dlock_later(dlock_now(), timeout_ms);

	/* with two refreshes at a time, it would be unknown which TTL counts */
	pthread_mutex_lock(&handle->mutex);
	if (!hold_off(lock, until))
		status = dlock_fail(err, DLOCK_TIMEOUT, "the server did not answer a renewal");
	if (dlock_lease_overdue(lock, dlock_now()))
		status = dlock_lock_lost(lock, err);
	if (status == DLOCK_OK)
	{
		bool		shorter = ttl_ms > 0 && ttl_ms < lock->ttl_ms;
		int64_t		deadline = lock->deadline;

		/* the shorter TTL may count from the moment that it is sent */
		if (shorter)
		{
			lock->deadline = dlock_min(deadline, dlock_now() + dlock_lease_ms(ttl_ms));
			dlock_loop_due(handle, &handle->background_at, lock->deadline);
		}
		until = dlock_min(until, lock->deadline);
		pthread_mutex_unlock(&handle->mutex);
		status = ask_refresh(lock, ttl_ms, timeout_ms, until, &request, err);
		pthread_mutex_lock(&handle->mutex);

		/* after the deadline, no answer helps */
		if (dlock_lease_overdue(lock, dlock_now()))
			status = dlock_lock_lost(lock, err);
		else if (status == DLOCK_OK)
			status = refreshed(lock, ttl_ms, &request, err);
		else if (!request.in_doubt)
			lock->deadline = deadline;	/* it was never sent */
		else if (shorter)
			lock->ttl_ms = ttl_ms;
		dlock_reply_free(request.reply);
	}
	lock->held_off--;
	dlock_loop_due(handle, &handle->background_at, 0);
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

/*
 * Handover
 */

dlock_status
dlock_handover(dlock_lock *lock, const char *owner, int64_t ttl_ms,
			   int64_t timeout_ms, int64_t *version, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	int64_t		until;
	dlock_status status = dlock_handle_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	dlock_error_clear(err);
	until = dlock_later(dlock_now(), dlock_handle_timeout(handle, timeout_ms));

	pthread_mutex_lock(&handle->mutex);
	if (!hold_off(lock, until))
		status = dlock_fail(err, DLOCK_TIMEOUT, "the server did not answer a renewal");
	if (lock->holds > 1)
		status = dlock_fail(err, DLOCK_INVALID, "lock \"%s\" was acquired several times", lock->key);
	else if (dlock_lease_overdue(lock, dlock_now()))
		status = dlock_lock_lost(lock, err);
	if (status == DLOCK_OK)
	{
		timeout_ms = dlock_min(until, lock->deadline) - dlock_now();
		pthread_mutex_unlock(&handle->mutex);
		status = dlock_handover_key(handle, lock->key, lock->version, owner, ttl_ms,
									dlock_max(timeout_ms, 0), version, err);
		pthread_mutex_lock(&handle->mutex);
	}
	if (status == DLOCK_OK)
	{
		lock->hold = DLOCK_HOLD_RELEASED;
		lock->silent = true;
		lock->holds = 0;
	}
	else if (status == DLOCK_LOST)
		dlock_lease_gone(lock, NULL);
	lock->held_off--;
	dlock_loop_due(handle, &handle->background_at, 0);
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

/* The status for a result of dlock_check() in SQL. */
dlock_status
dlock_lock_checked(const char *state)
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
	DlockRequest request;
	char		version[24];
	const char *params[3];
	dlock_status status = dlock_handle_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	dlock_error_clear(err);
	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	params[0] = lock->key;
	params[1] = version;
	params[2] = lock->owner;
	dlock_request_init(&request, dlock_sql_check, 3, params, dlock_handle_timeout(handle, timeout_ms));
	request.kind = DLOCK_CHECKS;
	status = dlock_request_call(handle, &request, err);

	pthread_mutex_lock(&handle->mutex);
	if (lock->hold == DLOCK_HOLD_RELEASED)
	{
		if (status == DLOCK_OK)
			status = dlock_lock_checked(dlock_reply_get(request.reply, 0, 0));
	}
	else if (dlock_lease_overdue(lock, dlock_now()))
		status = dlock_lock_lost(lock, err);
	else if (status == DLOCK_OK)
	{
		const char *state = dlock_reply_get(request.reply, 0, 0);

		status = dlock_lock_checked(state);
		if (status != DLOCK_OK && status != DLOCK_PREEMPTING)
		{
			dlock_lease_gone(lock, state);
			status = dlock_lock_lost(lock, err);
		}
	}
	pthread_mutex_unlock(&handle->mutex);
	dlock_reply_free(request.reply);
	return status;
}

/*
 * What is known without the server
 */

int64_t
dlock_left_ms(const dlock_lock *lock)
{
	int64_t		left = 0;

	if (lock == NULL || dlock_handle_is_forked(lock->handle))
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

	if (lock == NULL || dlock_handle_is_forked(lock->handle))
		return DLOCK_REASON_NONE;
	pthread_mutex_lock(&lock->handle->mutex);
	reason = lock->reason;
	if (lock->hold == DLOCK_HOLD_OURS && dlock_now() >= lock->deadline)
		reason = lock->held_out ? DLOCK_REASON_MAX_HOLD : DLOCK_REASON_DEADLINE;
	pthread_mutex_unlock(&lock->handle->mutex);
	return reason;
}

/* Nothing is heard of a lock after its loss, so the text does not change any more. */
const char *
dlock_lost_detail(const dlock_lock *lock)
{
	return dlock_lost_reason(lock) == DLOCK_REASON_FORCED ? lock->forced_by : "";
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

int
dlock_is_shared(const dlock_lock *lock)
{
	return lock->slots == DLOCK_SHARED;
}

int64_t
dlock_ttl_ms(const dlock_lock *lock)
{
	int64_t		ttl;

	if (dlock_handle_is_forked(lock->handle))
		return lock->ttl_ms;
	pthread_mutex_lock(&lock->handle->mutex);
	ttl = lock->ttl_ms;
	pthread_mutex_unlock(&lock->handle->mutex);
	return ttl;
}
