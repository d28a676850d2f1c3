/*-------------------------------------------------------------------------
 *
 * async.c
 *	  Calls of a program with an event loop.
 *
 * A thread of the library, the pilot, steps these calls (op.c) and drives their
 * flights when no other thread does.  So timeouts, lost connections and events
 * need nothing from the program, whose descriptor is a pipe: a byte in it says
 * that calls are done.  dlock_handle_process() then calls back, in the thread of
 * the program.
 *
 * A call is in one of three places, which the mutex of the handle protects:
 *
 *	  under way, where the pilot looks at those that were woken (handle->ready)
 *	  at once, and at all of them now and then, because their time may be up;
 *
 *	  done, until dlock_handle_process() takes it;
 *
 *	  told, where its callback runs, and after that it is freed.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "async.h"
#include "clock.h"
#include "flight.h"
#include "fork.h"
#include "keepalive.h"
#include "lock.h"
#include "op.h"
#include "orphan.h"
#include "request.h"
#include "roster.h"
#include "util.h"
#include "waker.h"

struct dlock_op
{
	DlockOp		op;				/* first, so that both have one address */
	char	   *value;
	dlock_done	done;
	void	   *arg;
	dlock_op   *prev;			/* under way */
	dlock_op   *next;			/* under way, or done */
	bool		cancelling;		/* by a thread, which will finish it */
	bool		finished;
};

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
static void
finish(dlock_handle *handle, dlock_op *op)
{
	DlockAsync *async = &handle->async;

	unlist(async, op);
	dlock_forget_woken(&op->op.waker);
	op->finished = true;
	if (async->done == NULL)
		async->done = op;
	else
		async->last_done->next = op;
	async->last_done = op;
	/* a full pipe is readable as well */
	if (async->fds[1] >= 0 && write(async->fds[1], "", 1) < 0)
		return;
}

static void
free_op(dlock_op *op)
{
	free(op->value);
	free(op);
}

/*
 * The pilot
 */

/*
 * Step those that were woken, or all of them; returns when to look again.  The mutex
 * is not let go, so no other thread finishes or frees one of them meanwhile.
 */
static int64_t
look(dlock_handle *handle, bool at_all)
{
	DlockAsync *async = &handle->async;
	int64_t		until = DLOCK_NEVER;
	DlockWaker *woken;
	dlock_op   *next;

	while ((woken = dlock_next_woken(&async->woken)) != NULL)
		if (!((dlock_op *) woken)->cancelling && dlock_op_step((DlockOp *) woken))
			finish(handle, (dlock_op *) woken);
	for (dlock_op *op = async->under_way; op != NULL && at_all; op = next)
	{
		next = op->next;
		if (op->cancelling)
			continue;
		/* to leave what is loaded would wait, and it is loaded in a moment */
		if (dlock_op_due(&op->op) <= dlock_now() &&
			!dlock_flight_is_loading(&op->op.call))
		{
			/* its question is not answered in time */
			if (op->op.call.state == DLOCK_CALL_QUEUED || op->op.call.state == DLOCK_CALL_FLYING)
				dlock_flight_leave(handle, &op->op.call);
			if (dlock_op_step(&op->op))
			{
				finish(handle, op);
				continue;
			}
		}
		until = dlock_min(until, dlock_op_due(&op->op));
	}
	return until;
}

static void *
pilot_main(void *arg)
{
	dlock_handle *handle = arg;
	DlockAsync *async = &handle->async;
	int64_t		look_at = 0;

	pthread_mutex_lock(&handle->mutex);
	while (!async->stopping)
	{
		int64_t		now = dlock_now();
		int64_t		idle_until;

		/* new ones may be due earlier, but not by much */
		if (now >= look_at)
			look_at = dlock_max(look(handle, true), now + DLOCK_PILOT_MS);
		else
			look(handle, false);
		look_at = dlock_min(look_at, now + DLOCK_PILOT_LATE_MS);
		if (async->woken.first != NULL)
			continue;
		idle_until = look_at;
		if (!handle->main.driven &&
			(handle->main.nair > 0 || handle->queue.first != NULL))
		{
			idle_until = dlock_flight_drive(handle, &handle->main, NULL, look_at);
			if (idle_until == 0)
				continue;
		}
		if (async->under_way == NULL)
			idle_until = DLOCK_NEVER;
		dlock_flight_hand_over(handle, async->under_way != NULL ? &handle->main : NULL);
		dlock_cond_wait(&async->wake, &handle->mutex, dlock_min(idle_until, look_at));
	}
	pthread_mutex_unlock(&handle->mutex);
	return NULL;
}

/* The caller has the mutex. */
static dlock_status
start_pilot(dlock_handle *handle, dlock_error *err)
{
	DlockAsync *async = &handle->async;
	sigset_t	all;
	sigset_t	before;
	int			failed;

	if (async->running)
		return DLOCK_OK;
	if (async->fds[0] < 0 && pipe2(async->fds, O_CLOEXEC | O_NONBLOCK) != 0)
		return dlock_fail(err, DLOCK_NO_MEMORY, "could not create a pipe");
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&async->pilot, NULL, pilot_main, handle);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed)
		return dlock_fail(err, DLOCK_NO_MEMORY, "could not start a thread: %s", strerror(failed));
	async->running = true;
	return DLOCK_OK;
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
	status = start_pilot(handle, err);
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
	if (async->fds[0] < 0 && pipe2(async->fds, O_CLOEXEC | O_NONBLOCK) != 0)
		async->fds[0] = async->fds[1] = -1;
	fd = async->fds[0];
	pthread_mutex_unlock(&handle->mutex);
	return fd;
}

int
dlock_handle_process(dlock_handle *handle)
{
	DlockAsync *async;
	dlock_op   *op;
	char		bytes[256];
	int			n = 0;

	if (handle == NULL || dlock_forked(handle))
		return 0;
	async = &handle->async;
	pthread_mutex_lock(&handle->mutex);
	while (async->fds[0] >= 0 && read(async->fds[0], bytes, sizeof(bytes)) > 0)
		;
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

	pthread_mutex_lock(&handle->mutex);
	if (!op->finished && !op->cancelling && !op->op.is_release)
	{
		/* it may be answered while this thread is without the mutex */
		op->cancelling = true;
		dlock_op_abandon(&op->op, DLOCK_CANCELLED, "the request was cancelled");
		finish(handle, op);
		pthread_cond_signal(&handle->async.wake);
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
	bool		running;

	pthread_mutex_lock(&handle->mutex);
	async->stopping = true;
	running = async->running;
	pthread_cond_signal(&async->wake);
	pthread_mutex_unlock(&handle->mutex);
	if (!running)
		return;
	pthread_join(async->pilot, NULL);

	pthread_mutex_lock(&handle->mutex);
	async->running = false;
	while (async->under_way != NULL)
	{
		dlock_op   *op = async->under_way;

		dlock_op_abandon(&op->op, DLOCK_CANCELLED, "the handle was closed");
		/* nobody will hear of what was granted in the last moment */
		if (op->op.status == DLOCK_OK && !op->op.is_release)
			dlock_orphans_add(handle, op->op.lock->key, op->op.lock->owner,
							  op->op.lock->ttl_ms, false);
		finish(handle, op);
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
	if (async->fds[0] >= 0)
	{
		close(async->fds[0]);
		close(async->fds[1]);
	}
	pthread_cond_destroy(&async->wake);
}
