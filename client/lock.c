/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  Locks: acquire, release, refresh, check, elections.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"


dlock_status
dlock_ping(dlock_handle *handle, int64_t timeout_ms, dlock_error *err)
{
	DlockCall	call;
	const char *params[] = {"dlock ping", "0", NULL};
	dlock_status status = dlock_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	timeout_ms = dlock_timeout(handle, timeout_ms);
	dlock_call_init(&call, dlock_sql_check, 3, params, timeout_ms);
	if (timeout_ms == 0)
	{
		call.once = true;
		call.timeout_ms = dlock_target_round_ms(handle->target);
		call.until = dlock_later(dlock_now(), 2 * call.timeout_ms);
	}
	status = dlock_call(handle, &call, err);
	dlock_reply_free(call.reply);
	return status;
}

/*
 * Acquire
 */

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

static dlock_status
check_options(const char *key, const dlock_options *options, dlock_error *err)
{
	if (key == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key must not be null");
	if (options->ttl_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must not be negative");
	if (options->wait_ms < -1)
		return dlock_fail(err, DLOCK_INVALID, "wait_ms must be -1 or more");
	if (options->cleanup_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "cleanup_ms must not be negative");
	return DLOCK_OK;
}

/* Everything but the grant. */
static dlock_lock *
new_lock(dlock_handle *handle, const char *key, const dlock_options *options)
{
	dlock_lock *lock = calloc(1, sizeof(dlock_lock));
	char		owner[DLOCK_OWNER_SIZE];

	if (lock == NULL)
		return NULL;
	lock->handle = handle;
	lock->key = dlock_strdup(key);
	if (options->owner != NULL)
		lock->owner = dlock_strdup(options->owner);
	else if (dlock_random_owner(owner))
		lock->owner = dlock_strdup(owner);
	lock->ttl_ms = options->ttl_ms;
	lock->renew = options->renew < 0 ? options->ttl_ms == 0 : options->renew != 0;
	lock->callback = options->callback != NULL ? options->callback : handle->callback;
	lock->callback_arg = options->callback != NULL ? options->callback_arg : handle->callback_arg;
	lock->index = -1;
	if (lock->key == NULL || lock->owner == NULL)
	{
		dlock_lock_destroy(lock);
		return NULL;
	}
	return lock;
}

static dlock_status
ask_refresh(const dlock_lock *lock, int64_t ttl_ms, int64_t timeout_ms,
			int64_t until, DlockCall *call, dlock_error *err)
{
	char		version[24];
	char		ttl[32];
	const char *params[4];

	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	snprintf(ttl, sizeof(ttl), "%lld ms", (long long) ttl_ms);
	params[0] = lock->key;
	params[1] = version;
	params[2] = lock->owner;
	params[3] = ttl_ms > 0 ? ttl : NULL;
	dlock_call_init(call, dlock_sql_refresh, 4, params, timeout_ms);
	call->until = until;
	return dlock_call(lock->handle, call, err);
}

/*
 * We were granted the lock, but perhaps long after we asked: we may have
 * waited for it, or slept.  Then only a refresh tells from when on its TTL
 * counts, and whether it is ours at all.
 */
static dlock_status
confirm(dlock_lock *lock, int64_t sent_at, int64_t timeout_ms, int64_t until,
		dlock_error *err)
{
	while (dlock_now() - sent_at > lock->ttl_ms / 4)
	{
		DlockCall	call;
		dlock_status status;
		const char *answer;
		bool		ours;

		status = ask_refresh(lock, 0, timeout_ms,
							 dlock_min(dlock_later(dlock_now(), timeout_ms), until),
							 &call, err);
		if (status != DLOCK_OK)
			return status;
		answer = dlock_reply_get(call.reply, 0, 0);
		ours = answer != NULL && answer[0] == 't';
		dlock_reply_free(call.reply);
		if (!ours)
			return DLOCK_LOST;
		sent_at = call.sent_at;
	}
	pthread_mutex_lock(&lock->handle->mutex);
	dlock_lease_renewed(lock, sent_at);
	pthread_mutex_unlock(&lock->handle->mutex);
	return DLOCK_OK;
}

static dlock_status
acquire(dlock_handle *handle, dlock_lock *lock, const dlock_options *options,
		dlock_error *err)
{
	int64_t		timeout_ms = dlock_timeout(handle, options->timeout_ms);
	int64_t		start = dlock_now();
	int64_t		wait_until = options->wait_ms < 0 ? DLOCK_NEVER : dlock_later(start, options->wait_ms);
	int64_t		until = dlock_later(wait_until, timeout_ms);
	char		priority[16];
	char		cleanup[32];
	const char *params[9];

	snprintf(priority, sizeof(priority), "%d", (int) options->priority);
	snprintf(cleanup, sizeof(cleanup), "%lld ms", (long long) options->cleanup_ms);
	params[0] = lock->key;
	params[2] = lock->owner;
	params[3] = options->value;
	params[4] = priority;
	params[5] = cleanup;
	params[6] = options->force ? "t" : "f";
	params[7] = options->session ? "t" : "f";

	if (options->owner != NULL &&
		!dlock_orphans_forget(handle, lock->key, lock->owner, until))
		return dlock_fail(err, DLOCK_TIMEOUT,
						  "a release of lock \"%s\" has no answer from the server", lock->key);

	for (;;)
	{
		bool		waits = options->wait_ms != 0;
		DlockCall	call;
		dlock_status status;

		dlock_call_init(&call, waits ? dlock_sql_wait : dlock_sql_try, waits ? 9 : 8,
						params, timeout_ms);
		call.until = until;
		call.ttl_param = 2;
		call.ttl_ms = &lock->ttl_ms;
		if (waits)
		{
			call.wait_param = 9;
			call.wait_until = wait_until;
		}
		if (options->session)
			call.conn = &lock->conn;
		status = dlock_call(handle, &call, err);
		if (status == DLOCK_OK)
		{
			lock->version = dlock_reply_int(call.reply, 0, 0);
			dlock_reply_free(call.reply);
			if (lock->version == 0)
			{
				/* perhaps by our own first try, which had no answer */
				if (call.in_doubt)
					dlock_orphans_add(handle, lock->key, lock->owner, lock->ttl_ms);
				return dlock_fail(err, DLOCK_BUSY, "lock \"%s\" is held by somebody else",
								  lock->key);
			}
			status = confirm(lock, call.sent_at, timeout_ms, until, err);
			if (status == DLOCK_OK)
				return DLOCK_OK;
			/* it came and went: once more, with what is left of the time */
			if (status == DLOCK_LOST && dlock_now() < until)
				continue;
			if (status == DLOCK_LOST)
				return dlock_fail(err, DLOCK_LOST,
								  "lock \"%s\" was granted and lost before we knew", lock->key);
			call.in_doubt = true;
		}
		if (call.in_doubt)
			dlock_orphans_add(handle, lock->key, lock->owner,
							  lock->ttl_ms > 0 ? lock->ttl_ms : handle->ttl_ms);
		return status;
	}
}

dlock_status
dlock_acquire(dlock_handle *handle, const char *key, const dlock_options *given,
			  dlock_lock **granted, dlock_error *err)
{
	dlock_options options;
	dlock_lock *lock;
	dlock_status status;

	dlock_error_clear(err);
	if (granted == NULL)
		return dlock_fail(err, DLOCK_INVALID, "no place for the lock");
	*granted = NULL;
	status = dlock_may_ask(handle, err);
	if (status != DLOCK_OK)
		return status;
	dlock_options_init(&options);
	if (given != NULL && !dlock_take_options(&options, sizeof(options), given, given->size))
		return dlock_fail(err, DLOCK_INVALID, "options were not initialized");
	status = check_options(key, &options, err);
	if (status != DLOCK_OK)
		return status;

	/* what may fail for want of memory comes before the grant */
	status = dlock_keepalive_start(handle, err);
	if (status != DLOCK_OK)
		return status;
	lock = new_lock(handle, key, &options);
	if (lock == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");

	status = acquire(handle, lock, &options, err);
	if (status != DLOCK_OK)
	{
		dlock_lock_destroy(lock);
		return status;
	}
	pthread_mutex_lock(&handle->mutex);
	dlock_keepalive_add(lock);
	pthread_mutex_unlock(&handle->mutex);
	*granted = lock;
	return DLOCK_OK;
}

/*
 * Release
 */

dlock_status
dlock_release(dlock_lock *lock, int64_t timeout_ms, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	DlockCall	call;
	DlockConn  *conn;
	char		version[24];
	const char *params[3];
	const char *answer;
	int64_t		until;
	int64_t		deadline;
	bool		done;
	dlock_status status = dlock_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	dlock_error_clear(err);
	timeout_ms = dlock_timeout(handle, timeout_ms);
	until = dlock_later(dlock_now(), timeout_ms);

	/* first of all, no renewal any more */
	pthread_mutex_lock(&handle->mutex);
	lock->silent = true;
	done = dlock_keepalive_hold_off(lock, until);
	deadline = lock->hold == DLOCK_HOLD_OURS ? lock->deadline : 0;
	if (lock->hold == DLOCK_HOLD_RELEASED)
		status = dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" was released before", lock->key);
	else if (!done)
		status = dlock_fail(err, DLOCK_TIMEOUT, "a renewal has no answer from the server");
	pthread_mutex_unlock(&handle->mutex);
	if (status != DLOCK_OK)
		return status;

	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	params[0] = lock->key;
	params[1] = version;
	params[2] = lock->owner;
	dlock_call_init(&call, dlock_sql_release, 3, params, timeout_ms);
	call.until = until;
	status = dlock_call(handle, &call, err);
	if (status != DLOCK_OK)
		return status;

	answer = dlock_reply_get(call.reply, 0, 0);
	if (answer != NULL && strcmp(answer, "released") == 0)
		status = DLOCK_OK;
	else if (call.in_doubt && dlock_now() < deadline)
		status = DLOCK_OK;		/* the try that had no answer did it */
	else if (answer != NULL && strcmp(answer, "held_by_other") == 0)
		status = dlock_fail(err, DLOCK_HELD_BY_OTHER,
							"lock \"%s\" was lost, and is held by somebody else", lock->key);
	else
		status = dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" had expired", lock->key);
	dlock_reply_free(call.reply);

	pthread_mutex_lock(&handle->mutex);
	lock->hold = DLOCK_HOLD_RELEASED;
	conn = lock->conn;
	lock->conn = NULL;
	pthread_mutex_unlock(&handle->mutex);
	dlock_conn_free(conn);
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
	lock->silent = true;
	/* in the thread, this can only be its own callback or that of another */
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
		dlock_keepalive_remove(lock);
	pthread_mutex_unlock(&handle->mutex);
	dlock_lock_destroy(lock);
}

/*
 * Refresh and check
 */

/* What we know to be lost, and tell so. */
static dlock_status
lost(const dlock_lock *lock, dlock_error *err)
{
	if (lock->hold == DLOCK_HOLD_RELEASED)
		return dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" was released", lock->key);
	return dlock_fail(err, DLOCK_LOST, "lock \"%s\" is lost (%s)", lock->key,
					  dlock_reason_name(lock->reason));
}

/* What the answer says; the caller has the mutex. */
static dlock_status
refreshed(dlock_lock *lock, int64_t ttl_ms, const DlockCall *call, dlock_error *err)
{
	const char *answer = dlock_reply_get(call->reply, 0, 0);

	if (answer == NULL || answer[0] != 't')
	{
		dlock_lease_gone(lock, dlock_reply_get(call->reply, 0, 1));
		return lost(lock, err);
	}
	if (ttl_ms > 0)
		lock->ttl_ms = ttl_ms;
	dlock_lease_renewed(lock, call->sent_at);
	/* it may have taken so long that it means nothing any more */
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

	/* with two at a time, nobody would know which TTL holds */
	pthread_mutex_lock(&handle->mutex);
	if (!dlock_keepalive_hold_off(lock, until))
		status = dlock_fail(err, DLOCK_TIMEOUT, "a renewal has no answer from the server");
	if (dlock_lease_overdue(lock, dlock_now()))
		status = lost(lock, err);
	if (status == DLOCK_OK)
	{
		bool		shorter = ttl_ms > 0 && ttl_ms < lock->ttl_ms;
		int64_t		deadline = lock->deadline;

		/* from the moment that it is sent, the shorter one may hold */
		if (shorter)
		{
			lock->deadline = dlock_min(deadline, dlock_now() + dlock_lease_ms(ttl_ms));
			dlock_keepalive_wake(handle);
		}
		until = dlock_min(until, lock->deadline);
		pthread_mutex_unlock(&handle->mutex);
		status = ask_refresh(lock, ttl_ms, timeout_ms, until, &call, err);
		pthread_mutex_lock(&handle->mutex);

		/* our time may have run out meanwhile; an answer does not help then */
		if (dlock_lease_overdue(lock, dlock_now()))
			status = lost(lock, err);
		else if (status == DLOCK_OK)
			status = refreshed(lock, ttl_ms, &call, err);
		else if (!call.in_doubt)
			lock->deadline = deadline;	/* nothing has come of it */
		else if (shorter)
			lock->ttl_ms = ttl_ms;
		dlock_reply_free(call.reply);
	}
	lock->held_off--;
	dlock_keepalive_wake(handle);
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

/* As dlock_check() of the server says it. */
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
 * What we know by ourselves
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

/*
 * Elections; dlock_observe() is in keys.c
 */

dlock_status
dlock_campaign(dlock_handle *handle, const char *key, const dlock_options *given,
			   dlock_lock **lock, dlock_error *err)
{
	dlock_options options;

	dlock_options_init(&options);
	if (given != NULL && !dlock_take_options(&options, sizeof(options), given, given->size))
		return dlock_fail(err, DLOCK_INVALID, "options were not initialized");
	options.size = sizeof(options);
	if (options.wait_ms <= 0)
		options.wait_ms = -1;
	options.renew = 1;
	return dlock_acquire(handle, key, &options, lock, err);
}

dlock_status
dlock_resign(dlock_lock *lock, int64_t timeout_ms, dlock_error *err)
{
	return dlock_release(lock, timeout_ms, err);
}
