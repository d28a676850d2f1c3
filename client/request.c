/*-------------------------------------------------------------------------
 *
 * request.c
 *	  A request for one lock or several, until it is granted or refused.
 *
 * A grant is ours from the moment before its request was sent, so a request that
 * took long, because it waited for the lock or the machine was suspended, has to
 * be confirmed by a refresh.  A request whose answer was lost may have been
 * granted: it becomes an orphan (orphan.c), which the renewal thread releases.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "call.h"
#include "clock.h"
#include "lease.h"
#include "orphan.h"
#include "request.h"
#include "roster.h"
#include "sql.h"
#include "util.h"

/* The options as the library knows them, checked. */
dlock_status
dlock_request_options(const dlock_options *given, dlock_options *options,
					  dlock_error *err)
{
	dlock_options_init(options);
	if (given != NULL && !dlock_take_options(options, sizeof(*options), given, given->size))
		return dlock_fail(err, DLOCK_INVALID, "options were not initialized");
	options->size = sizeof(*options);
	if (options->ttl_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must not be negative");
	if (options->wait_ms < -1)
		return dlock_fail(err, DLOCK_INVALID, "wait_ms must be -1 or more");
	if (options->cleanup_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "cleanup_ms must not be negative");
	if (options->slots < DLOCK_SHARED)
		return dlock_fail(err, DLOCK_INVALID, "slots must be -1 or more");
	if (options->at_least_ms < 0 || options->delay_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "at_least_ms and delay_ms must not be negative");
	return DLOCK_OK;
}

/* A lock that has everything except its grant.  NULL: no memory. */
dlock_lock *
dlock_request_lock(dlock_handle *handle, const char *key, const char *owner,
				   const dlock_options *options)
{
	dlock_lock *lock = calloc(1, sizeof(dlock_lock));

	if (lock == NULL)
		return NULL;
	lock->handle = handle;
	lock->key = dlock_strdup(key);
	lock->owner = owner != NULL ? dlock_strdup(owner) : NULL;
	lock->slots = options->slots == 1 ? DLOCK_EXCLUSIVE : options->slots;
	lock->ttl_ms = options->ttl_ms;
	lock->renew = options->renew < 0 ? options->ttl_ms == 0 : options->renew != 0;
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

/* Refresh them; DLOCK_LOST: one of them is not ours any more. */
static dlock_status
refresh(dlock_lock **locks, size_t n, int64_t timeout_ms, int64_t until,
		int64_t *sent_at, dlock_error *err)
{
	dlock_handle *handle = locks[0]->handle;
	DlockArrays arrays;
	DlockCall	call = {0};
	PQExpBufferData renew;
	const char *params[5];
	size_t		ours = 0;
	bool		good;
	dlock_status status;

	dlock_arrays_init(&arrays);
	initPQExpBuffer(&renew);
	for (size_t i = 0; i < n; i++)
	{
		dlock_arrays_add(&arrays, locks[i]);
		dlock_array_next(&renew);
		appendPQExpBufferChar(&renew, 't');
	}
	good = dlock_arrays_params(&arrays, params);
	good = dlock_array_end(&renew) && good;
	params[3] = renew.data;
	if (good)
	{
		dlock_call_init(&call, dlock_sql_renew, 5, params, timeout_ms);
		call.row_param = 5;
		call.until = until;
		status = dlock_call(handle, &call, err);
	}
	else
		status = dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	dlock_arrays_free(&arrays);
	termPQExpBuffer(&renew);
	if (status != DLOCK_OK)
		return status;
	for (int row = 0; row < dlock_reply_rows(call.reply); row++)
		ours += dlock_reply_bool(call.reply, row, 1);
	dlock_reply_free(call.reply);
	*sent_at = call.sent_at;
	return ours == n ? DLOCK_OK : DLOCK_LOST;
}

/*
 * We were granted the locks, but perhaps long after we asked, because we waited
 * for them or slept.  Then only a refresh tells when their TTL began, and whether
 * they are still ours.
 */
dlock_status
dlock_request_confirm(dlock_lock **locks, size_t n, int64_t sent_at,
					  int64_t timeout_ms, int64_t until, dlock_error *err)
{
	dlock_handle *handle = locks[0]->handle;

	while (dlock_now() - sent_at > dlock_confirm_ms(locks[0]->ttl_ms))
	{
		dlock_status status = refresh(locks, n, timeout_ms,
									  dlock_min(dlock_later(dlock_now(), timeout_ms), until),
									  &sent_at, err);

		if (status != DLOCK_OK)
			return status;
	}
	pthread_mutex_lock(&handle->mutex);
	for (size_t i = 0; i < n; i++)
		dlock_lease_renewed(locks[i], sent_at);
	pthread_mutex_unlock(&handle->mutex);
	return DLOCK_OK;
}

/* Take the versions out of the reply.  False: it was not granted. */
static bool
take_versions(DlockRequest *request, const DlockReply *reply)
{
	size_t		granted = 0;

	if (!request->several)
	{
		request->locks[0]->version = dlock_reply_int(reply, 0, 0);
		return request->locks[0]->version != 0;
	}
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int64_t		i = dlock_reply_int(reply, row, 0) - 1;

		if (i < 0 || i >= (int64_t) request->n)
			continue;
		request->locks[i]->version = dlock_reply_int(reply, row, 1);
		request->locks[i]->ttl_ms = request->locks[0]->ttl_ms;
		granted++;
	}
	return granted == request->n;
}

/* It may have been granted, or partly: have it released. */
static void
abandon(dlock_handle *handle, const DlockRequest *request)
{
	int64_t		ttl_ms = request->locks[0]->ttl_ms;

	pthread_mutex_lock(&handle->mutex);
	for (size_t i = 0; i < request->n; i++)
		dlock_orphans_add(handle, request->locks[i]->key, request->locks[i]->owner,
						  ttl_ms > 0 ? ttl_ms : handle->ttl_ms, false);
	pthread_mutex_unlock(&handle->mutex);
}

static dlock_status
busy(const DlockRequest *request, dlock_error *err)
{
	if (request->several)
		return dlock_fail(err, DLOCK_BUSY, "one of %d locks is held by another client",
						  (int) request->n);
	return dlock_fail(err, DLOCK_BUSY, "lock \"%s\" is held by another client",
					  request->locks[0]->key);
}

static dlock_status
lost(const DlockRequest *request, dlock_error *err)
{
	if (request->several)
		return dlock_fail(err, DLOCK_LOST,
						  "%d locks were granted, but one was lost before the answer arrived",
						  (int) request->n);
	return dlock_fail(err, DLOCK_LOST,
					  "lock \"%s\" was granted but lost before the answer arrived",
					  request->locks[0]->key);
}

/* A release of the same owner's earlier request must not be executed later. */
static dlock_status
forget_orphans(dlock_handle *handle, const DlockRequest *request, int64_t until,
			   dlock_error *err)
{
	bool		in_time = true;
	size_t		i = 0;

	pthread_mutex_lock(&handle->mutex);
	while (in_time && i < request->n && request->options->owner != NULL)
		if (dlock_orphans_forget(handle, request->locks[i]->key, request->locks[i]->owner))
			i++;
		else
			in_time = dlock_roster_wait(handle, until);
	pthread_mutex_unlock(&handle->mutex);
	if (!in_time)
		return dlock_fail(err, DLOCK_TIMEOUT,
						  "the server did not answer an earlier release of lock \"%s\"",
						  request->locks[i]->key);
	return DLOCK_OK;
}

/* One statement, and its confirmation. */
static dlock_status
ask(dlock_handle *handle, DlockRequest *request, int64_t until, int64_t *ready_at,
	bool *in_doubt, dlock_error *err)
{
	const dlock_options *options = request->options;
	int64_t		timeout_ms = dlock_timeout(handle, options->timeout_ms);
	DlockCall	call;
	dlock_status status;

	dlock_call_init(&call, request->sql, request->nparams, request->params, timeout_ms);
	call.kind = request->kind;
	call.until = until;
	call.ready_at = dlock_min(*ready_at, request->wait_until);
	call.ttl_param = 2;
	call.ttl_ms = &request->locks[0]->ttl_ms;
	call.ttl_least = options->at_least_ms;
	if (options->wait_ms != 0)
	{
		call.wait_param = request->nparams;
		call.wait_until = request->wait_until;
	}
	if (options->session)
		call.conn = &request->locks[0]->conn;
	status = dlock_call(handle, &call, err);
	*in_doubt = call.in_doubt;
	if (status != DLOCK_OK)
		return status;
	if (!take_versions(request, call.reply))
	{
		status = busy(request, err);
		/* the server did not wait, so we do */
		*ready_at = call.polled && call.sent_at < request->wait_until ?
			call.sent_at + DLOCK_POLL_MS : 0;
	}
	dlock_reply_free(call.reply);
	if (status != DLOCK_OK)
		return status;

	status = dlock_request_confirm(request->locks, request->n, call.sent_at, timeout_ms,
								   until, err);
	/* without an answer, or of several, some may still be ours */
	*in_doubt = status != DLOCK_OK && (status != DLOCK_LOST || request->several);
	return status;
}

/*
 * DLOCK_OK: the locks have their grants.  Otherwise the caller destroys them.
 */
dlock_status
dlock_request(dlock_handle *handle, DlockRequest *request, dlock_error *err)
{
	int64_t		until = dlock_later(request->wait_until,
									dlock_timeout(handle, request->options->timeout_ms));
	dlock_status status = forget_orphans(handle, request, until, err);
	bool		in_doubt = false;
	int64_t		ready_at = 0;

	if (status != DLOCK_OK)
		return status;

	/* if it was granted and lost, try again in the time that is left */
	do
		status = ask(handle, request, until, &ready_at, &in_doubt, err);
	while ((status == DLOCK_LOST && dlock_now() < until) ||
		   (status == DLOCK_BUSY && ready_at > 0));

	/* if it is busy, the holder may be our own first try, which got no answer */
	if (status != DLOCK_OK && in_doubt)
		abandon(handle, request);
	return status == DLOCK_LOST ? lost(request, err) : status;
}
