/*-------------------------------------------------------------------------
 *
 * handle.c
 *	  Handles: options, opening and closing, calls that are done, and what a child
 *	  may do with the handle of its parent.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"

/*
 * Options
 */

void
dlock_open_options_init_size(dlock_open_options *options, size_t size)
{
	memset(options, 0, size);
	options->size = size;
	options->ttl_ms = DLOCK_DEFAULT_TTL_MS;
	options->timeout_ms = DLOCK_DEFAULT_TIMEOUT_MS;
	options->max_connections = DLOCK_DEFAULT_CONNECTIONS;
}

void
dlock_options_init_size(dlock_options *options, size_t size)
{
	memset(options, 0, size);
	options->size = size;
	options->renew = 1;
	options->slots = 1;
	options->timeout_ms = -1;
}

/*
 * A program that was built with an older header has a smaller struct.  The
 * fields that it lacks keep their defaults.
 */
bool
dlock_handle_take_options(void *to, size_t to_size, const void *from, size_t from_size)
{
	if (from_size < sizeof(size_t) || from_size > DLOCK_MAX_OPTIONS_SIZE)
		return false;
	memcpy(to, from, from_size < to_size ? from_size : to_size);
	return true;
}

/*
 * Handles
 */

/* It has no thread, no connection and no lock any more. */
static void
free_handle(dlock_handle *handle)
{
	dlock_loop_free(handle);
	pthread_mutex_destroy(&handle->mutex);
	dlock_conninfo_free(handle->conninfo);
	free(handle);
}

/* Calls that were started end here, and do not call back. */
static void
end_ops(dlock_handle *handle)
{
	int64_t		until = dlock_now() + DLOCK_FINISH_MS;
	bool		any = false;

	while (handle->ops != NULL)
	{
		dlock_op   *op = handle->ops;

		dlock_op_abandon(op, DLOCK_CANCELLED, "the handle was closed");
		any = true;
	}
	/* what was in the queue is withdrawn, if the server answers soon */
	while (any && handle->abandoned != NULL && !dlock_background_is_here(handle) &&
		   dlock_loop_wait_for_change(handle, until))
		;
}

static void
free_op(dlock_op *op)
{
	if (op->status != DLOCK_OK && op->kind != DLOCK_OP_RELEASE)
		dlock_lock_destroy(op->lock);
	free(op->value);
	free(op);
}

/* Everything of a handle; its background thread has ended, or is the caller. */
void
dlock_handle_destroy(dlock_handle *handle)
{
	pthread_mutex_lock(&handle->mutex);
	end_ops(handle);
	dlock_loop_finish(handle, dlock_now() + DLOCK_FINISH_MS);
	dlock_links_free(handle);
	dlock_abandoned_drop(handle, DLOCK_NEVER);
	dlock_background_free(handle);
	pthread_mutex_unlock(&handle->mutex);
	while (handle->done != NULL)
	{
		dlock_op   *op = handle->done;

		handle->done = op->next;
		free_op(op);
	}
	while (handle->locks != NULL)
	{
		dlock_lock *lock = handle->locks;

		dlock_lock_list_remove(lock);
		dlock_lock_destroy(lock);
	}
	free_handle(handle);
}

/* It is held for a moment only, so a thread that wants it tries again before it sleeps. */
static void
init_mutex(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
	pthread_mutex_init(mutex, &attr);
	pthread_mutexattr_destroy(&attr);
}

dlock_status
dlock_open(const char *conninfo, const dlock_open_options *given,
		   dlock_handle **made, dlock_error *err)
{
	dlock_open_options options;
	dlock_handle *handle;
	dlock_status status;

	dlock_error_clear(err);
	if (made == NULL)
		return dlock_fail(err, DLOCK_INVALID, "handle must not be null");
	*made = NULL;
	dlock_open_options_init(&options);
	if (given != NULL && !dlock_handle_take_options(&options, sizeof(options), given, given->size))
		return dlock_fail(err, DLOCK_INVALID, "options were not initialized");
	if (options.ttl_ms <= 0 || options.timeout_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must be positive and timeout_ms must not be negative");
	if (options.max_connections < DLOCK_MIN_CONNECTIONS)
		return dlock_fail(err, DLOCK_INVALID, "max_connections must be %d or more", DLOCK_MIN_CONNECTIONS);

	handle = calloc(1, sizeof(dlock_handle));
	if (handle == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	handle->ttl_ms = options.ttl_ms;
	handle->timeout_ms = options.timeout_ms;
	handle->max_connections = options.max_connections;
	handle->callback = options.callback;
	handle->callback_arg = options.callback_arg;
	handle->pid = getpid();
	handle->expire_at = handle->background_at = DLOCK_NEVER;
	handle->background_backoff = DLOCK_BACKOFF_FIRST_MS;
	handle->watch_fd = handle->background_fd = -1;
	dlock_wakeup_init(&handle->wakeup);
	dlock_wakeup_init(&handle->background_wakeup);
	dlock_wakeup_init(&handle->done_wakeup);
	init_mutex(&handle->mutex);

	status = dlock_conninfo_make(conninfo, &options, &handle->conninfo, err);
	if (status == DLOCK_OK &&
		(!dlock_wakeup_make(&handle->wakeup) || !dlock_wakeup_make(&handle->background_wakeup)))
		status = dlock_fail(err, DLOCK_NO_MEMORY, "could not create a pipe");
	if (status != DLOCK_OK)
	{
		free_handle(handle);
		return status;
	}
	*made = handle;
	return DLOCK_OK;
}

/*
 * A child has a copy of the handle and shares its sockets, but has none of its threads.  If
 * it sent a statement, the parent might read the answer, and the locks belong to the parent.
 * So all that a child may do is to close the handle, which frees the copy and disturbs
 * neither the parent nor the server.  A mutex may be held by a thread that the child does
 * not have, so none is locked there.
 */
bool
dlock_handle_is_forked(const dlock_handle *handle)
{
	return handle->pid != getpid();
}

/* dlock_close() in a child. */
static void
close_forked(dlock_handle *handle)
{
	dlock_links_disown(handle);
	while (handle->locks != NULL)
	{
		dlock_lock *lock = handle->locks;

		handle->locks = lock->next;
		if (lock->conn != NULL)
			dlock_conn_disown(lock->conn, true);
		lock->conn = NULL;
		dlock_lock_destroy(lock);
	}
	dlock_abandoned_drop(handle, DLOCK_NEVER);
	dlock_background_free(handle);
	dlock_loop_free(handle);
	dlock_conninfo_free(handle->conninfo);
	free(handle);
}

void
dlock_close(dlock_handle *handle)
{
	if (handle == NULL)
		return;
	if (dlock_handle_is_forked(handle))
		close_forked(handle);
	else if (dlock_background_is_here(handle))
		dlock_background_stop_later(handle);
	else
	{
		pthread_mutex_lock(&handle->mutex);
		end_ops(handle);
		pthread_mutex_unlock(&handle->mutex);
		dlock_background_stop(handle);
		dlock_handle_destroy(handle);
	}
}

/* May this thread call the server with that handle? */
dlock_status
dlock_handle_may_ask(dlock_handle *handle, dlock_error *err)
{
	if (handle == NULL)
		return dlock_fail(err, DLOCK_INVALID, "handle must not be null");
	if (dlock_handle_is_forked(handle))
		return dlock_fail(err, DLOCK_INVALID,
						  "handle belongs to process %ld, of which this process is a fork",
						  (long) handle->pid);
	if (dlock_background_is_here(handle))
		return dlock_fail(err, DLOCK_INVALID, "cannot call the server within a callback");
	return DLOCK_OK;
}

int64_t
dlock_handle_timeout(const dlock_handle *handle, int64_t timeout_ms)
{
	return timeout_ms < 0 ? handle->timeout_ms : timeout_ms;
}

dlock_status
dlock_ping(dlock_handle *handle, int64_t timeout_ms, dlock_error *err)
{
	DlockRequest request;
	const char *params[] = {"dlock ping", "0", NULL};
	dlock_status status = dlock_handle_may_ask(handle, err);

	if (status != DLOCK_OK)
		return status;
	timeout_ms = dlock_handle_timeout(handle, timeout_ms);
	dlock_request_init(&request, dlock_sql_check, 3, params, timeout_ms);
	request.kind = DLOCK_CHECKS;
	if (timeout_ms == 0)
	{
		request.once = true;
		request.timeout_ms = dlock_conninfo_round_ms(handle->conninfo);
		request.until = dlock_later(dlock_now(), 2 * request.timeout_ms);
	}
	status = dlock_request_call(handle, &request, err);
	dlock_reply_free(request.reply);
	return status;
}

/*
 * Programs with an event loop
 *
 * The background thread sees to the calls of such a program, so timeouts, lost connections
 * and events need nothing from it.  Its descriptor is readable while calls are done, and
 * dlock_handle_process() calls back in the thread of the program.
 */

/* May a call be started?  Also within callbacks. */
dlock_status
dlock_handle_may_start(dlock_handle *handle, dlock_error *err)
{
	dlock_error_clear(err);
	if (handle == NULL || dlock_handle_is_forked(handle))
		return dlock_handle_may_ask(handle, err);
	return dlock_background_start(handle, err);
}

/* Start it; it is freed if that fails, and otherwise when the program was called back. */
dlock_status
dlock_handle_start(dlock_op *op, dlock_op **started, dlock_error *err)
{
	dlock_handle *handle = op->handle;
	bool		good;

	pthread_mutex_lock(&handle->mutex);
	good = dlock_wakeup_make(&handle->done_wakeup);
	if (good)
	{
		if (started != NULL)
			*started = op;
		dlock_op_start(op);
	}
	pthread_mutex_unlock(&handle->mutex);
	if (good)
		return DLOCK_OK;
	op->status = DLOCK_NO_MEMORY;
	free_op(op);
	return dlock_fail(err, DLOCK_NO_MEMORY, "could not create a pipe");
}

void
dlock_op_cancel(dlock_op *op)
{
	dlock_handle *handle = op->handle;

	/* it continues in the parent, and another thread may have had the mutex */
	if (dlock_handle_is_forked(handle))
		return;
	pthread_mutex_lock(&handle->mutex);
	if (op->stage != DLOCK_STAGE_END && op->kind != DLOCK_OP_RELEASE)
		dlock_op_abandon(op, DLOCK_CANCELLED, "the request was cancelled");
	pthread_mutex_unlock(&handle->mutex);
}

int
dlock_handle_fd(dlock_handle *handle)
{
	int			fd;

	if (handle == NULL || dlock_handle_is_forked(handle))
		return -1;
	pthread_mutex_lock(&handle->mutex);
	(void) dlock_wakeup_make(&handle->done_wakeup);
	fd = handle->done_wakeup.fds[0];
	pthread_mutex_unlock(&handle->mutex);
	return fd;
}

int
dlock_handle_process(dlock_handle *handle)
{
	dlock_op   *op;
	int			n = 0;

	if (handle == NULL || dlock_handle_is_forked(handle))
		return 0;
	pthread_mutex_lock(&handle->mutex);
	dlock_wakeup_clear(&handle->done_wakeup);
	op = handle->done;
	handle->done = NULL;
	pthread_mutex_unlock(&handle->mutex);
	while (op != NULL)
	{
		dlock_op   *next = op->next;
		bool		has_lock = op->status == DLOCK_OK || op->kind == DLOCK_OP_RELEASE;

		op->done(op, op->status, has_lock ? op->lock : NULL, &op->error, op->arg);
		free_op(op);
		op = next;
		n++;
	}
	if (n > 0)
	{
		/* what was started meanwhile is sent, if this thread can do it */
		pthread_mutex_lock(&handle->mutex);
		dlock_loop_try(handle);
		pthread_mutex_unlock(&handle->mutex);
	}
	return n;
}
