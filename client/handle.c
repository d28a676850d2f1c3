/*-------------------------------------------------------------------------
 *
 * handle.c
 *	  Handles, and options as the program gives them.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "async.h"
#include "call.h"
#include "clock.h"
#include "fork.h"
#include "handle.h"
#include "keepalive.h"
#include "orphan.h"
#include "pool.h"
#include "roster.h"
#include "sql.h"
#include "util.h"

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
	options->renew = -1;
	options->timeout_ms = -1;
}

/*
 * A program that was built with an older header has a smaller struct.  The
 * fields that it lacks keep their defaults.
 */
bool
dlock_take_options(void *to, size_t to_size, const void *from, size_t from_size)
{
	if (from_size < sizeof(size_t) || from_size > DLOCK_MAX_OPTIONS_SIZE)
		return false;
	memcpy(to, from, from_size < to_size ? from_size : to_size);
	return true;
}

int64_t
dlock_timeout(const dlock_handle *handle, int64_t timeout_ms)
{
	return timeout_ms < 0 ? handle->timeout_ms : timeout_ms;
}

/*
 * Handles
 */

static void
free_handle(dlock_handle *handle)
{
	dlock_bell_free(&handle->bell);
	dlock_async_free(handle);
	pthread_cond_destroy(&handle->changed);
	pthread_mutex_destroy(&handle->mutex);
	if (handle->target != NULL)
		pthread_mutex_destroy(&handle->target->mutex);
	dlock_target_free(handle->target);
	free(handle);
}

/* Everything of a handle; its renewal thread has ended, or is the caller. */
void
dlock_handle_destroy(dlock_handle *handle)
{
	dlock_async_stop(handle);
	dlock_orphans_drop(handle, DLOCK_NEVER);
	while (handle->locks != NULL)
	{
		dlock_lock *lock = handle->locks;

		dlock_roster_remove(lock);
		dlock_lock_destroy(lock);
	}
	dlock_pool_drop(handle, handle->main.conn);
	dlock_pool_drop(handle, handle->second.conn);
	dlock_pool_close(handle);
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
	if (given != NULL && !dlock_take_options(&options, sizeof(options), given, given->size))
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
	handle->main.backoff = handle->second.backoff = DLOCK_BACKOFF_FIRST_MS;
	handle->callback = options.callback;
	handle->callback_arg = options.callback_arg;
	handle->pid = getpid();
	dlock_fork_watch();
	dlock_bell_init(&handle->bell);
	dlock_bell_init(&handle->async.bell);
	dlock_bell_init(&handle->async.woken.bell);
	init_mutex(&handle->mutex);
	dlock_cond_init(&handle->changed);

	status = dlock_target_make(conninfo, &options, &handle->target, err);
	if (status == DLOCK_OK && !dlock_bell_make(&handle->bell))
		status = dlock_fail(err, DLOCK_NO_MEMORY, "could not create a pipe");
	if (status != DLOCK_OK)
	{
		free_handle(handle);
		return status;
	}
	*made = handle;
	return DLOCK_OK;
}

void
dlock_close(dlock_handle *handle)
{
	if (handle == NULL)
		return;
	if (dlock_forked(handle))
		dlock_forked_close(handle);
	else if (dlock_in_callback(handle))
		dlock_keepalive_stop_later(handle);
	else
	{
		dlock_async_stop(handle);
		dlock_keepalive_stop(handle);
		dlock_handle_destroy(handle);
	}
}

/* May this thread call the server with that handle? */
dlock_status
dlock_may_ask(dlock_handle *handle, dlock_error *err)
{
	if (handle == NULL)
		return dlock_fail(err, DLOCK_INVALID, "handle must not be null");
	if (dlock_forked(handle))
		return dlock_fail(err, DLOCK_INVALID,
						  "handle belongs to process %ld, of which this process is a fork",
						  (long) handle->pid);
	if (dlock_in_callback(handle))
		return dlock_fail(err, DLOCK_INVALID, "cannot call the server within a callback");
	return DLOCK_OK;
}

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
	call.kind = DLOCK_CHECKS;
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
