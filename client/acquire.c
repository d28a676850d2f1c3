/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Acquiring a lock, and adopting one that was acquired elsewhere.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

#include "call.h"
#include "clock.h"
#include "keepalive.h"
#include "reenter.h"
#include "request.h"
#include "roster.h"
#include "sql.h"
#include "util.h"

/* Has it no more than a key, a TTL and an owner? */
static bool
is_simple(const dlock_options *options)
{
	return options->value == NULL && options->priority == 0 && options->cleanup_ms == 0 &&
		!options->force && (options->slots == DLOCK_EXCLUSIVE || options->slots == 1) &&
		options->at_least_ms == 0 && options->delay_ms == 0 && !options->lazy;
}

/*
 * The answer to a request for one lock, with which the caller gets *granted, and
 * everything that may run out of memory comes before the grant.
 */
static dlock_status
acquire(dlock_handle *handle, const char *key, const dlock_options *options,
		int64_t wait_until, dlock_lock **granted, dlock_error *err)
{
	DlockRequest request = {0};
	char		owner[DLOCK_OWNER_SIZE];
	char		priority[16];
	char		slots[16];
	char		cleanup[32];
	char		at_least[32];
	char		delay[32];
	const char *params[13];
	dlock_lock *lock = NULL;
	dlock_status status = dlock_keepalive_start(handle, err);

	if (status != DLOCK_OK)
		return status;
	if (options->owner != NULL || dlock_random_owner(owner))
		lock = dlock_request_lock(handle, key, options->owner != NULL ? options->owner : owner,
								  options);
	if (lock == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");

	snprintf(priority, sizeof(priority), "%d", (int) options->priority);
	snprintf(slots, sizeof(slots), "%d", (int) dlock_max(options->slots, 1));
	snprintf(cleanup, sizeof(cleanup), "%lld ms", (long long) options->cleanup_ms);
	snprintf(at_least, sizeof(at_least), "%lld ms", (long long) options->at_least_ms);
	snprintf(delay, sizeof(delay), "%lld ms", (long long) options->delay_ms);
	params[0] = lock->key;
	params[2] = lock->owner;
	params[3] = options->value;
	params[4] = priority;
	params[5] = options->session ? "t" : "f";
	params[6] = options->slots == DLOCK_SHARED ? NULL : slots;
	params[7] = cleanup;
	params[8] = options->force ? "t" : "f";
	params[9] = at_least;
	params[10] = delay;
	params[11] = options->lazy ? "t" : "f";

	request.options = options;
	request.locks = &lock;
	request.n = 1;
	request.wait_until = wait_until;
	request.sql = options->wait_ms != 0 ? dlock_sql_wait : dlock_sql_try;
	request.nparams = options->wait_ms != 0 ? 13 : 12;
	request.params = params;
	request.kind = options->wait_ms != 0 || options->session ? DLOCK_OTHER :
		is_simple(options) ? DLOCK_TRIES_FOR_KEY : DLOCK_TRIES;
	status = dlock_request(handle, &request, err);
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

/* The same, unless the handle holds it already. */
static dlock_status
reenter(dlock_handle *handle, const char *key, const dlock_options *options,
		int64_t wait_until, dlock_lock **lock, dlock_error *err)
{
	DlockEntry	entry;
	int32_t		slots = options->slots == 1 ? DLOCK_EXCLUSIVE : options->slots;
	dlock_status status = dlock_reenter(handle, &entry, key, slots,
										options->wait_ms != 0 ? wait_until : 0, lock, err);

	if (status != DLOCK_UNCHANGED)
		return status;
	status = acquire(handle, key, options, wait_until, lock, err);
	if (status == DLOCK_BUSY && dlock_reenter_again(handle, key, slots, lock) == DLOCK_OK)
	{
		dlock_error_clear(err);
		status = DLOCK_OK;
	}
	dlock_reenter_end(handle, &entry);
	return status;
}

dlock_status
dlock_acquire(dlock_handle *handle, const char *key, const dlock_options *given,
			  dlock_lock **granted, dlock_error *err)
{
	dlock_options options;
	int64_t		wait_until;
	dlock_status status;

	dlock_error_clear(err);
	if (granted == NULL)
		return dlock_fail(err, DLOCK_INVALID, "lock must not be null");
	*granted = NULL;
	status = dlock_may_ask(handle, err);
	if (status == DLOCK_OK)
		status = dlock_request_options(given, &options, err);
	if (status != DLOCK_OK)
		return status;
	if (key == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key must not be null");
	wait_until = options.wait_ms < 0 ? DLOCK_NEVER : dlock_later(dlock_now(), options.wait_ms);
	return options.reentrant ? reenter(handle, key, &options, wait_until, granted, err) :
		acquire(handle, key, &options, wait_until, granted, err);
}

/* Refresh the grant; *ttl_ms is its TTL unless it is given. */
static dlock_status
ask_adopt(dlock_lock *lock, int64_t timeout_ms, int64_t *sent_at, dlock_error *err)
{
	DlockCall	call;
	char		version[24];
	char		ttl[32];
	const char *params[5];
	dlock_status status;

	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	snprintf(ttl, sizeof(ttl), "%lld ms", (long long) lock->ttl_ms);
	params[0] = lock->key;
	params[1] = version;
	params[2] = lock->owner;
	params[3] = lock->ttl_ms > 0 ? ttl : NULL;
	dlock_call_init(&call, dlock_sql_adopt, 5, params, timeout_ms);
	call.row_param = 5;
	status = dlock_call(lock->handle, &call, err);
	if (status != DLOCK_OK)
		return status;
	if (dlock_reply_get(call.reply, 0, 0) == NULL)
		status = dlock_fail(err, DLOCK_LOST, "lock \"%s\" is not held by version %s",
							lock->key, version);
	else if (lock->ttl_ms == 0)
		lock->ttl_ms = dlock_max(dlock_reply_int(call.reply, 0, 0), 1);
	lock->slots = dlock_reply_slots(call.reply, 0, 1);
	dlock_reply_free(call.reply);
	*sent_at = call.sent_at;
	return status;
}

dlock_status
dlock_adopt(dlock_handle *handle, const char *key, int64_t version, const char *owner,
			const dlock_options *given, dlock_lock **adopted, dlock_error *err)
{
	dlock_options options;
	dlock_lock *lock;
	int64_t		timeout_ms;
	int64_t		sent_at = 0;
	dlock_status status;

	dlock_error_clear(err);
	if (adopted == NULL || key == NULL || version <= 0)
		return dlock_fail(err, DLOCK_INVALID, "lock and key must not be null, and version must be positive");
	*adopted = NULL;
	status = dlock_may_ask(handle, err);
	if (status == DLOCK_OK)
		status = dlock_request_options(given, &options, err);
	if (status == DLOCK_OK)
		status = dlock_keepalive_start(handle, err);
	if (status != DLOCK_OK)
		return status;
	lock = dlock_request_lock(handle, key, owner, &options);
	if (lock == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");

	lock->version = version;
	timeout_ms = dlock_timeout(handle, options.timeout_ms);
	status = ask_adopt(lock, timeout_ms, &sent_at, err);
	if (status == DLOCK_OK)
		status = dlock_request_confirm(&lock, 1, sent_at, timeout_ms,
									   dlock_later(dlock_now(), timeout_ms), err);
	if (status != DLOCK_OK)
	{
		dlock_lock_destroy(lock);
		return status;
	}
	pthread_mutex_lock(&handle->mutex);
	dlock_roster_add(lock);
	pthread_mutex_unlock(&handle->mutex);
	*adopted = lock;
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
	dlock_status status = dlock_request_options(given, &options, err);

	if (status != DLOCK_OK)
		return status;
	if (options.wait_ms <= 0)
		options.wait_ms = -1;
	options.renew = 1;
	return dlock_acquire(handle, key, &options, lock, err);
}
