/*-------------------------------------------------------------------------
 *
 * all.c
 *	  Several locks at once: all of them or none.
 *
 * They are granted by one statement and have the same owner and TTL, so they are
 * due at the same time and are renewed by one statement, too (renewal.c).
 * Otherwise they are locks like all others.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "call.h"
#include "clock.h"
#include "keepalive.h"
#include "lock.h"
#include "request.h"
#include "roster.h"
#include "sql.h"
#include "util.h"

static dlock_status
check(const char *const *keys, size_t n, const int32_t *slots,
	  const dlock_options *options, dlock_error *err)
{
	if (n < 1 || n > DLOCK_MAX_KEYS)
		return dlock_fail(err, DLOCK_INVALID, "there must be from 1 to %d keys", DLOCK_MAX_KEYS);
	for (size_t i = 0; i < n; i++)
	{
		if (keys[i] == NULL)
			return dlock_fail(err, DLOCK_INVALID, "key must not be null");
		if (slots != NULL && slots[i] < DLOCK_SHARED)
			return dlock_fail(err, DLOCK_INVALID, "slots must be -1 or more");
	}
	if (options->cleanup_ms != 0 || options->force || options->at_least_ms != 0 ||
		options->delay_ms != 0 || options->lazy || options->reentrant)
		return dlock_fail(err, DLOCK_INVALID,
						  "cleanup_ms, force, at_least_ms, delay_ms, lazy and reentrant cannot be used for several keys");
	return DLOCK_OK;
}

/* False: no memory. */
static bool
make_locks(dlock_handle *handle, const char *const *keys, size_t n,
		   const int32_t *slots, const dlock_options *given, dlock_lock **locks)
{
	dlock_options options = *given;
	char		owner[DLOCK_OWNER_SIZE];

	if (options.owner == NULL && !dlock_random_owner(owner))
		return false;
	for (size_t i = 0; i < n; i++)
	{
		if (slots != NULL)
			options.slots = slots[i];
		locks[i] = dlock_request_lock(handle, keys[i],
									  options.owner != NULL ? options.owner : owner, &options);
		if (locks[i] == NULL)
			return false;
	}
	return true;
}

static dlock_status
request_all(dlock_handle *handle, dlock_lock **locks, size_t n,
			const dlock_options *options, int64_t wait_until, dlock_error *err)
{
	DlockRequest request = {0};
	PQExpBufferData keys;
	PQExpBufferData slots;
	char		priority[16];
	const char *params[8];
	bool		good;
	dlock_status status;

	initPQExpBuffer(&keys);
	initPQExpBuffer(&slots);
	for (size_t i = 0; i < n; i++)
	{
		char		number[16];

		snprintf(number, sizeof(number), "%d", (int) dlock_max(locks[i]->slots, 1));
		dlock_array_text(&keys, locks[i]->key);
		dlock_array_text(&slots, locks[i]->slots == DLOCK_SHARED ? NULL : number);
	}
	good = dlock_array_end(&keys);
	good = dlock_array_end(&slots) && good;
	snprintf(priority, sizeof(priority), "%d", (int) options->priority);
	params[0] = keys.data;
	params[2] = locks[0]->owner;
	params[3] = options->value;
	params[4] = priority;
	params[5] = options->session ? "t" : "f";
	params[6] = slots.data;

	request.options = options;
	request.locks = locks;
	request.n = n;
	request.several = true;
	request.kind = DLOCK_OTHER;
	request.wait_until = wait_until;
	request.sql = options->wait_ms != 0 ? dlock_sql_wait_all : dlock_sql_try_all;
	request.nparams = options->wait_ms != 0 ? 8 : 7;
	request.params = params;
	status = good ? dlock_request(handle, &request, err) :
		dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	termPQExpBuffer(&keys);
	termPQExpBuffer(&slots);
	return status;
}

dlock_status
dlock_acquire_all(dlock_handle *handle, const char *const *keys, size_t n,
				  const int32_t *slots, const dlock_options *given,
				  dlock_lock **locks, dlock_error *err)
{
	dlock_options options;
	int64_t		wait_until;
	dlock_status status;

	dlock_error_clear(err);
	if (keys == NULL || locks == NULL)
		return dlock_fail(err, DLOCK_INVALID, "keys and locks must not be null");
	memset(locks, 0, n * sizeof(dlock_lock *));
	status = dlock_may_ask(handle, err);
	if (status == DLOCK_OK)
		status = dlock_request_options(given, &options, err);
	if (status == DLOCK_OK)
		status = check(keys, n, slots, &options, err);
	if (status != DLOCK_OK)
		return status;
	wait_until = options.wait_ms < 0 ? DLOCK_NEVER : dlock_later(dlock_now(), options.wait_ms);

	/* everything that may run out of memory comes before the grant */
	status = dlock_keepalive_start(handle, err);
	if (status == DLOCK_OK && !make_locks(handle, keys, n, slots, &options, locks))
		status = dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	if (status == DLOCK_OK)
		status = request_all(handle, locks, n, &options, wait_until, err);
	if (status != DLOCK_OK)
	{
		for (size_t i = 0; i < n; i++)
		{
			dlock_lock_destroy(locks[i]);
			locks[i] = NULL;
		}
		return status;
	}
	pthread_mutex_lock(&handle->mutex);
	for (size_t i = 0; i < n; i++)
	{
		/* the connection of session locks is closed with the last of them */
		if (i > 0)
			locks[i]->conn = dlock_conn_share(locks[0]->conn);
		dlock_roster_add(locks[i]);
	}
	pthread_mutex_unlock(&handle->mutex);
	return DLOCK_OK;
}

/*
 * Release
 */

/* Where a lock is in the statement. */
typedef struct Place
{
	dlock_lock *lock;
	int64_t		deadline;
} Place;

static dlock_status
ask_release(dlock_handle *handle, const Place *places, size_t n, int64_t timeout_ms,
			int64_t until, DlockCall *call, dlock_error *err)
{
	DlockArrays arrays;
	const char *params[4];
	dlock_status status;

	dlock_arrays_init(&arrays);
	for (size_t i = 0; i < n; i++)
		dlock_arrays_add(&arrays, places[i].lock);
	if (dlock_arrays_params(&arrays, params))
	{
		dlock_call_init(call, dlock_sql_release_all, 4, params, timeout_ms);
		call->row_param = 4;
		call->until = until;
		status = dlock_call(handle, call, err);
	}
	else
		status = dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	dlock_arrays_free(&arrays);
	return status;
}

/* Keep the first failure. */
static void
note(dlock_status status, const dlock_error *error, dlock_status *first, dlock_error *err)
{
	if (status == DLOCK_OK || *first != DLOCK_OK)
		return;
	*first = status;
	dlock_error_copy(err, error);
}

dlock_status
dlock_release_all(dlock_lock *const *locks, size_t n, int64_t timeout_ms,
				  dlock_error *err)
{
	dlock_handle *handle = n > 0 && locks != NULL && locks[0] != NULL ? locks[0]->handle : NULL;
	DlockCall	call = {0};
	Place	   *places;
	size_t		count = 0;
	int64_t		until;
	dlock_error error;
	dlock_status first = DLOCK_OK;
	dlock_status status;

	dlock_error_clear(err);
	if (n == 0)
		return DLOCK_OK;
	status = dlock_may_ask(handle, err);
	if (status != DLOCK_OK)
		return status;
	for (size_t i = 0; i < n; i++)
		if (locks[i] == NULL || locks[i]->handle != handle)
			return dlock_fail(err, DLOCK_INVALID, "the locks must be of one handle");
	places = calloc(n, sizeof(Place));
	if (places == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	timeout_ms = dlock_timeout(handle, timeout_ms);
	until = dlock_later(dlock_now(), timeout_ms);

	for (size_t i = 0; i < n; i++)
	{
		bool		is_last;

		status = dlock_lock_stop(locks[i], until, &places[count].deadline, &is_last, &error);
		note(status, &error, &first, err);
		if (status == DLOCK_OK && is_last)
			places[count++].lock = locks[i];
	}
	if (count > 0)
	{
		status = ask_release(handle, places, count, timeout_ms, until, &call, &error);
		note(status, &error, &first, err);
	}
	pthread_mutex_lock(&handle->mutex);
	for (int row = 0; count > 0 && status == DLOCK_OK && row < dlock_reply_rows(call.reply); row++)
	{
		int64_t		i = dlock_reply_int(call.reply, row, 0) - 1;

		if (i >= 0 && i < (int64_t) count)
			note(dlock_lock_released(places[i].lock, dlock_reply_get(call.reply, row, 1),
									 call.in_doubt, places[i].deadline, &error),
				 &error, &first, err);
	}
	pthread_mutex_unlock(&handle->mutex);
	dlock_reply_free(call.reply);
	free(places);
	return first;
}
