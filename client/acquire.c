/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Acquiring a lock.
 *
 * A grant is ours from the moment before its request was sent, so a request that
 * took long, because it waited for the lock or the machine was suspended, has to
 * be confirmed by a refresh.  A request whose answer was lost may have been
 * granted: it becomes an orphan (orphan.c), which the renewal thread releases.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "clock.h"
#include "keepalive.h"
#include "lease.h"
#include "lock.h"
#include "orphan.h"
#include "roster.h"
#include "sql.h"
#include "util.h"

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

/* A lock that has everything except its grant. */
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

/*
 * We were granted the lock, but perhaps long after we asked, because we waited
 * for it or slept.  Then only a refresh tells when its TTL began, and whether
 * it is still ours.
 */
static dlock_status
confirm(dlock_lock *lock, int64_t sent_at, int64_t timeout_ms, int64_t until,
		dlock_error *err)
{
	while (dlock_now() - sent_at > dlock_confirm_ms(lock->ttl_ms))
	{
		DlockCall	call;
		dlock_status status;
		bool		ours;

		status = dlock_lock_ask_refresh(lock, 0, timeout_ms,
										dlock_min(dlock_later(dlock_now(), timeout_ms), until),
										&call, err);
		if (status != DLOCK_OK)
			return status;
		ours = dlock_reply_bool(call.reply, 0, 0);
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
						  "the server did not answer an earlier release of lock \"%s\"", lock->key);

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
				/* the holder may be our own first try, which got no answer */
				if (call.in_doubt)
					dlock_orphans_add(handle, lock->key, lock->owner, lock->ttl_ms);
				return dlock_fail(err, DLOCK_BUSY, "lock \"%s\" is held by another client",
								  lock->key);
			}
			status = confirm(lock, call.sent_at, timeout_ms, until, err);
			if (status == DLOCK_OK)
				return DLOCK_OK;
			/* it was granted and lost: try again in the time that is left */
			if (status == DLOCK_LOST && dlock_now() < until)
				continue;
			if (status == DLOCK_LOST)
				return dlock_fail(err, DLOCK_LOST,
								  "lock \"%s\" was granted but lost before the answer arrived", lock->key);
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
		return dlock_fail(err, DLOCK_INVALID, "lock must not be null");
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

	/* everything that may run out of memory comes before the grant */
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
	dlock_roster_add(lock);
	pthread_mutex_unlock(&handle->mutex);
	*granted = lock;
	return DLOCK_OK;
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
