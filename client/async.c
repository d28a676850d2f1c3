/*-------------------------------------------------------------------------
 *
 * async.c
 *	  Calls of a program with an event loop.
 *
 * A thread of the library, the pilot, sees to these calls (pilot.c).  So timeouts, lost
 * connections and events need nothing from the program, whose descriptor is a bell:
 * it rings while there are calls that are done.  dlock_handle_process() then calls back,
 * in the thread of the program.
 *
 * A call is in one of three places, which the mutex of the handle protects:
 *
 *	  under way, where the pilot looks after it;
 *
 *	  done, until dlock_handle_process() takes it;
 *
 *	  told, where its callback runs, and after that it is freed.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "async.h"
#include "clock.h"
#include "flight.h"
#include "fork.h"
#include "keepalive.h"
#include "lock.h"
#include "orphan.h"
#include "request.h"
#include "roster.h"
#include "util.h"
#include "waker.h"

/*
 * Under way.  The caller of these has the mutex.
 */

static void
list(DlockAsync *async, dlock_op *op)
{
	op->prev = NULL;
	op->next = async->under_way;
	if (op->next != NULL)
		op->next->prev = op;
	async->under_way = op;
	dlock_wake(&op->op.waker);
}

static void
unlist(DlockAsync *async, dlock_op *op)
{
	if (op->prev != NULL)
		op->prev->next = op->next;
	else
		async->under_way = op->next;
	if (op->next != NULL)
		op->next->prev = op->prev;
	op->next = NULL;
}

/* It has ended: the program is told. */
void
dlock_async_finish(dlock_handle *handle, dlock_op *op)
{
	DlockAsync *async = &handle->async;

	unlist(async, op);
	dlock_forget_woken(&op->op.waker);
	op->finished = true;
	if (async->done == NULL)
	{
		async->done = op;
		dlock_bell_ring(&async->bell);
	}
	else
		async->last_done->next = op;	/* it rings already */
	async->last_done = op;
}

static void
free_op(dlock_op *op)
{
	free(op->value);
	free(op);
}

/*
 * What a program calls
 */

static dlock_status
may_start(dlock_handle *handle, dlock_error *err)
{
	dlock_error_clear(err);
	if (handle == NULL)
		return dlock_fail(err, DLOCK_INVALID, "handle must not be null");
	if (dlock_forked(handle))
		return dlock_may_ask(handle, err);
	return dlock_keepalive_start(handle, err);
}

static dlock_op *
new_op(dlock_handle *handle, dlock_done done, void *arg)
{
	dlock_op   *op = calloc(1, sizeof(dlock_op));

	if (op != NULL)
	{
		op->op.handle = handle;
		op->done = done;
		op->arg = arg;
	}
	return op;
}

/* It is on its way. */
static dlock_status
start(dlock_handle *handle, dlock_op *op, dlock_op **started, dlock_error *err)
{
	dlock_status status;

	op->op.waker.list = &handle->async.woken;
	pthread_mutex_lock(&handle->mutex);
	status = dlock_pilot_start(handle, err);
	if (status == DLOCK_OK)
	{
		list(&handle->async, op);
		if (started != NULL)
			*started = op;
	}
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

dlock_status
dlock_acquire_start(dlock_handle *handle, const char *key, const dlock_options *given,
					dlock_done done, void *arg, dlock_op **started, dlock_error *err)
{
	dlock_options options;
	dlock_op   *op;
	dlock_status status = may_start(handle, err);

	if (started != NULL)
		*started = NULL;
	if (status == DLOCK_OK)
		status = dlock_request_options(given, &options, err);
	if (status != DLOCK_OK)
		return status;
	if (key == NULL || done == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key and callback must not be null");
	if (options.session || options.reentrant)
		return dlock_fail(err, DLOCK_INVALID, "session and reentrant cannot be used here");
	if (!dlock_op_can_wait(&options))
		return dlock_fail(err, DLOCK_INVALID, "the value of a request that waits must not be longer than %d bytes",
						  DLOCK_MAX_TICKET_BYTES);
	op = new_op(handle, done, arg);
	if (op != NULL && options.value != NULL)
		options.value = op->value = dlock_strdup(options.value);
	if (op == NULL || (given != NULL && given->value != NULL && op->value == NULL))
	{
		free(op);
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	}
	status = dlock_op_init(&op->op, handle, key, &options,
						   options.wait_ms < 0 ? DLOCK_NEVER :
						   dlock_later(dlock_now(), options.wait_ms), err);
	if (status == DLOCK_OK)
	{
		/* the caller's text may be gone by then */
		op->op.options.owner = options.owner != NULL ? op->op.lock->owner : NULL;
		status = start(handle, op, started, err);
		if (status != DLOCK_OK)
			dlock_lock_destroy(op->op.lock);
	}
	if (status != DLOCK_OK)
		free_op(op);
	return status;
}

dlock_status
dlock_release_start(dlock_lock *lock, int64_t timeout_ms, dlock_done done, void *arg,
					dlock_op **started, dlock_error *err)
{
	dlock_handle *handle = lock != NULL ? lock->handle : NULL;
	dlock_op   *op;
	dlock_status status = may_start(handle, err);

	if (started != NULL)
		*started = NULL;
	if (status != DLOCK_OK)
		return status;
	if (done == NULL)
		return dlock_fail(err, DLOCK_INVALID, "callback must not be null");
	op = new_op(handle, done, arg);
	if (op == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	dlock_op_init_release(&op->op, lock, timeout_ms);
	status = start(handle, op, started, err);
	if (status != DLOCK_OK)
		free_op(op);
	return status;
}

int
dlock_handle_fd(dlock_handle *handle)
{
	DlockAsync *async;
	int			fd;

	if (handle == NULL || dlock_forked(handle))
		return -1;
	async = &handle->async;
	pthread_mutex_lock(&handle->mutex);
	(void) dlock_bell_make(&async->bell);
	fd = dlock_bell_fd(&async->bell);
	pthread_mutex_unlock(&handle->mutex);
	return fd;
}

int
dlock_handle_process(dlock_handle *handle)
{
	DlockAsync *async;
	dlock_op   *op;
	int			n = 0;

	if (handle == NULL || dlock_forked(handle))
		return 0;
	async = &handle->async;
	pthread_mutex_lock(&handle->mutex);
	dlock_bell_quiet(&async->bell);
	op = async->done;
	async->done = NULL;
	pthread_mutex_unlock(&handle->mutex);
	while (op != NULL)
	{
		dlock_op   *next = op->next;
		dlock_status status = op->op.status;
		dlock_lock *lock = op->op.lock;

		if (status != DLOCK_OK && !op->op.is_release)
		{
			dlock_lock_destroy(lock);
			lock = NULL;
		}
		op->done(op, status, lock, &op->op.error, op->arg);
		free_op(op);
		op = next;
		n++;
	}
	return n;
}

void
dlock_op_cancel(dlock_op *op)
{
	dlock_handle *handle = op->op.handle;

	/* it goes on in the parent, and another thread may have had the mutex */
	if (dlock_forked(handle))
		return;
	pthread_mutex_lock(&handle->mutex);
	if (!op->finished && !op->cancelling && !op->op.is_release)
	{
		/* it may be answered while this thread is without the mutex */
		op->cancelling = true;
		dlock_op_abandon(&op->op, DLOCK_CANCELLED, "the request was cancelled");
		dlock_async_finish(handle, op);
		dlock_rouse(&handle->async.woken);
	}
	pthread_mutex_unlock(&handle->mutex);
}

/*
 * Closing
 */

/*
 * No call goes on, and no callback is called.  What was in the queue is withdrawn
 * by the renewal thread, if the server answers soon, and if this is not that thread.
 */
void
dlock_async_stop(dlock_handle *handle)
{
	DlockAsync *async = &handle->async;
	int64_t		until = dlock_now() + DLOCK_FINISH_MS;

	if (!dlock_pilot_stop(handle))
		return;
	pthread_mutex_lock(&handle->mutex);
	while (async->under_way != NULL)
	{
		dlock_op   *op = async->under_way;

		dlock_op_abandon(&op->op, DLOCK_CANCELLED, "the handle was closed");
		/* nobody will hear of what was granted in the last moment */
		if (op->op.status == DLOCK_OK && !op->op.is_release)
			dlock_orphans_add(handle, op->op.lock->key, op->op.lock->owner,
							  op->op.lock->ttl_ms, false);
		dlock_async_finish(handle, op);
	}
	while (handle->orphans != NULL && !dlock_in_callback(handle) && dlock_roster_wait(handle, until))
		;
	pthread_mutex_unlock(&handle->mutex);
}

void
dlock_async_free(dlock_handle *handle)
{
	DlockAsync *async = &handle->async;

	while (async->done != NULL)
	{
		dlock_op   *op = async->done;

		async->done = op->next;
		if (op->op.status != DLOCK_OK && !op->op.is_release)
			dlock_lock_destroy(op->op.lock);
		free_op(op);
	}
	dlock_bell_free(&async->bell);
	dlock_bell_free(&async->woken.bell);
}
