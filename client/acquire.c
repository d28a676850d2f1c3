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
#include "op.h"
#include "reenter.h"
#include "request.h"
#include "roster.h"
#include "sql.h"
#include "util.h"

/*
 * By one statement that waits: for a session lock on a connection of its own, with
 * which the lock ends, and for a request that has too long a value for the queue.
 */
static dlock_status
acquire_by_statement(dlock_handle *handle, const char *key, const dlock_options *options,
					 int64_t wait_until, dlock_lock **granted, dlock_error *err)
{
	DlockOp    *op = malloc(sizeof(DlockOp));
	dlock_status status;

	if (op == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	status = dlock_op_init(op, handle, key, options, wait_until, err);
	if (status == DLOCK_OK)
	{
		DlockRequest request = {0};

		dlock_op_set_terms(op);
		op->params[5] = options->session ? "t" : "f";
		request.options = options;
		request.locks = &op->lock;
		request.n = 1;
		request.wait_until = wait_until;
		request.sql = options->wait_ms != 0 ? dlock_sql_wait : dlock_sql_try;
		request.nparams = options->wait_ms != 0 ? 13 : 12;
		request.params = op->params;
		request.kind = DLOCK_OTHER;
		status = dlock_request(handle, &request, err);
		if (status == DLOCK_OK)
		{
			pthread_mutex_lock(&handle->mutex);
			dlock_roster_add(op->lock);
			pthread_mutex_unlock(&handle->mutex);
			*granted = op->lock;
		}
		else
			dlock_lock_destroy(op->lock);
	}
	free(op);
	return status;
}

static dlock_status
acquire(dlock_handle *handle, const char *key, const dlock_options *options,
		int64_t wait_until, dlock_lock **granted, dlock_error *err)
{
	DlockOp		op;
	dlock_status status = dlock_keepalive_start(handle, err);

	if (status != DLOCK_OK)
		return status;
	if (options->session || !dlock_op_can_wait(options))
		return acquire_by_statement(handle, key, options, wait_until, granted, err);
	status = dlock_op_init(&op, handle, key, options, wait_until, err);
	if (status != DLOCK_OK)
		return status;
	status = dlock_op_run(&op, err);
	if (status == DLOCK_OK)
		*granted = op.lock;
	else
		dlock_lock_destroy(op.lock);
	return status;
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
