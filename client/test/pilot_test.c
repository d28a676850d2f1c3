/*-------------------------------------------------------------------------
 *
 * pilot_test.c
 *	  Calls that were started, and what happens to them while a thread loads
 *	  them.
 *
 * That takes a few microseconds in a program.  Here the test is that thread, and
 * takes its time.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "dlock.h"
#include "dlock_async.h"
#include "clock.h"
#include "handle.h"
#include "lease.h"
#include "op.h"
#include "queue.h"
#include "request.h"
#include "roster.h"
#include "util.h"
#include "unit_test.h"

/* Only a library that is broken takes so long. */
#define LIMIT_MS 20000

typedef struct Told
{
	int			times;
	dlock_status status;
} Told;

static void
done(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err, void *arg)
{
	Told	   *told = arg;

	(void) op;
	(void) err;
	told->status = status;
	if (++told->times > 1)
	{
		puts("Bail out!  A callback was called twice");
		exit(1);
	}
	dlock_free(lock);
}

static bool
is_told(dlock_handle *handle, const Told *told)
{
	for (int64_t until = dlock_now() + LIMIT_MS; told->times == 0 && dlock_now() < until; usleep(1000))
		dlock_handle_process(handle);
	return told->times == 1;
}

/*
 * What the pilot and other threads do
 */

typedef bool (*Condition) (const dlock_handle *handle, const DlockOp *op);

static bool
is_queued(const dlock_handle *handle, const DlockOp *op)
{
	(void) handle;
	return op->call.state == DLOCK_CALL_QUEUED;
}

static bool
is_leaving(const dlock_handle *handle, const DlockOp *op)
{
	(void) op;
	return handle->leaving > 0;
}

static bool
has_looked(const dlock_handle *handle, const DlockOp *op)
{
	(void) op;
	return handle->async.woken.first == NULL;
}

/* It sleeps until the next try to connect, and leaves the flight to others. */
static bool
is_left_alone(const dlock_handle *handle, const DlockOp *op)
{
	return handle->async.woken.sleeps && op->call.state == DLOCK_CALL_QUEUED &&
		handle->main.conn != NULL && !handle->main.driven;
}

static bool
comes_true(dlock_handle *handle, const DlockOp *op, Condition is_so)
{
	bool		so = false;

	for (int64_t until = dlock_now() + LIMIT_MS; !so && dlock_now() < until; usleep(1000))
	{
		pthread_mutex_lock(&handle->mutex);
		so = is_so(handle, op);
		pthread_mutex_unlock(&handle->mutex);
	}
	return so;
}

static dlock_handle *
open_handle(void)
{
	dlock_handle *handle = NULL;
	dlock_error err;

	if (dlock_open("host=/nowhere", NULL, &handle, &err) != DLOCK_OK)
		abort();
	/* by this thread */
	handle->main.driven = true;
	return handle;
}

static DlockOp *
start(dlock_handle *handle, const char *key, Told *told)
{
	dlock_options options;
	dlock_op   *op = NULL;
	dlock_error err;

	dlock_options_init(&options);
	options.ttl_ms = 60000;
	options.timeout_ms = 600000;
	if (dlock_acquire_start(handle, key, &options, done, told, &op, &err) != DLOCK_OK)
		abort();
	ok(comes_true(handle, (DlockOp *) op, is_queued), "\"%s\": started", key);
	return (DlockOp *) op;
}

/* One that was adopted by its version alone. */
static dlock_lock *
make_lock(dlock_handle *handle)
{
	dlock_options options;
	dlock_lock *lock;

	dlock_options_init(&options);
	options.ttl_ms = 600000;
	lock = dlock_request_lock(handle, "key", NULL, &options);
	if (lock == NULL)
		abort();
	lock->version = 1;
	pthread_mutex_lock(&handle->mutex);
	dlock_lease_renewed(lock, dlock_now());
	/* the renewal thread needs no connection for it */
	lock->connect_at = DLOCK_NEVER;
	dlock_roster_add(lock);
	pthread_mutex_unlock(&handle->mutex);
	return lock;
}

/* From here on it is in the air, and is being loaded. */
static void
load(dlock_handle *handle, DlockOp *op)
{
	DlockFlight *flight = &handle->main;

	pthread_mutex_lock(&handle->mutex);
	dlock_queue_take_out(&handle->queue, &op->call);
	op->call.state = DLOCK_CALL_FLYING;
	op->call.flight = flight;
	op->call.sent_at = dlock_now();
	flight->air[0] = &op->call;
	flight->nair = 1;
	flight->loading = true;
	pthread_mutex_unlock(&handle->mutex);
}

/* A version, as a try returns it. */
static DlockReply *
make_grant(void)
{
	char		name[] = "version";
	char		version[] = "7";
	PGresAttDesc column = {.name = name};
	PGresult   *result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
	DlockReply *reply = NULL;

	if (result != NULL && PQsetResultAttrs(result, 1, &column) &&
		PQsetvalue(result, 0, 0, version, 1))
		reply = dlock_reply_make(result);
	if (reply == NULL)
		abort();
	return reply;
}

static void *
cancel_main(void *op)
{
	dlock_op_cancel(op);
	return NULL;
}

/*
 * The answer comes, and the pilot hears of it, before the thread that cancels has
 * the mutex again.
 */
static void
test_cancel(bool is_granted, dlock_status expected, const char *what)
{
	dlock_handle *handle = open_handle();
	DlockFlight *flight = &handle->main;
	Told		told = {0};
	Told		other_told = {0};
	DlockOp    *other = start(handle, "other", &other_told);
	DlockOp    *op = start(handle, "cancelled", &told);
	pthread_t	thread;

	load(handle, op);
	if (pthread_create(&thread, NULL, cancel_main, op) != 0)
		abort();
	ok(comes_true(handle, op, is_leaving), "%s: waits until it is loaded", what);

	pthread_mutex_lock(&handle->mutex);
	flight->nair = 0;
	if (is_granted)
		op->call.reply = make_grant();
	else
		dlock_fail(&op->call.error, DLOCK_SERVER_ERROR, "refused");
	dlock_call_finish(flight, &op->call);
	flight->loading = false;
	pthread_mutex_unlock(&handle->mutex);
	ok(comes_true(handle, op, has_looked), "%s: the pilot looks", what);
	pthread_mutex_lock(&handle->mutex);
	pthread_cond_broadcast(&handle->changed);
	pthread_mutex_unlock(&handle->mutex);
	pthread_join(thread, NULL);

	ok(dlock_handle_process(handle) == 1 && told.times == 1, "%s: told once", what);
	ok(told.status == expected, "%s: %s", what, dlock_status_name(told.status));
	ok(other_told.times == 0, "%s: the other call goes on", what);
	dlock_op_cancel((dlock_op *) other);
	ok(is_told(handle, &other_told) && other_told.status == DLOCK_CANCELLED, "%s: until it is cancelled", what);
	dlock_close(handle);
}

/*
 * The pilot does not wait for a call that is being loaded when its time is up,
 * because others would wait with it.
 */
static void
test_timeout(void)
{
	dlock_handle *handle = open_handle();
	Told		first_told = {0};
	Told		told = {0};
	DlockOp    *first = start(handle, "first", &first_told);
	DlockOp    *op = start(handle, "loaded", &told);

	load(handle, op);
	pthread_mutex_lock(&handle->mutex);
	/* the pilot looks at the last one first */
	first->call.until = op->call.until = dlock_now();
	pthread_mutex_unlock(&handle->mutex);
	ok(is_told(handle, &first_told) && first_told.status == DLOCK_TIMEOUT, "time is up: in the queue");
	ok(told.times == 0, "time is up: not while it is loaded");

	pthread_mutex_lock(&handle->mutex);
	handle->main.loading = false;
	pthread_cond_broadcast(&handle->changed);
	pthread_mutex_unlock(&handle->mutex);
	ok(is_told(handle, &told) && told.status == DLOCK_TIMEOUT, "time is up: afterwards");
	dlock_close(handle);
}

/* The release of a lock that was adopted without its owner has no answer. */
static void
test_adopted(void)
{
	dlock_handle *handle = open_handle();
	Told		told = {0};
	dlock_lock *lock = make_lock(handle);
	dlock_op   *op = NULL;

	if (dlock_release_start(lock, 600000, done, &told, &op, NULL) != DLOCK_OK)
		abort();
	ok(comes_true(handle, (DlockOp *) op, is_queued), "adopted: its release is started");
	load(handle, (DlockOp *) op);
	pthread_mutex_lock(&handle->mutex);
	handle->main.loading = false;
	handle->main.driven = false;
	pthread_mutex_unlock(&handle->mutex);
	dlock_close(handle);
	ok(told.times == 0, "adopted: the handle is closed meanwhile");
}

/* In a child, where the thread that has the mutex does not exist. */
static void
test_fork(void)
{
	dlock_handle *handle = open_handle();
	Told		told = {0};
	DlockOp    *op = start(handle, "forked", &told);
	pid_t		child;
	int			status = -1;

	pthread_mutex_lock(&handle->mutex);
	child = fork();
	if (child == 0)
	{
		alarm(LIMIT_MS / 1000);
		dlock_op_cancel((dlock_op *) op);
		_exit(0);
	}
	pthread_mutex_unlock(&handle->mutex);
	ok(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child cancels nothing");
	dlock_op_cancel((dlock_op *) op);
	ok(is_told(handle, &told) && told.status == DLOCK_CANCELLED, "its parent does");
	dlock_close(handle);
}

/* Others may have something to send while the pilot has nothing to do. */
static void
test_idle(void)
{
	dlock_handle *handle = open_handle();
	Told		told = {0};
	DlockOp    *op;

	handle->main.driven = false;
	op = start(handle, "not connected", &told);
	ok(comes_true(handle, op, is_left_alone), "nothing to do: a thread may drive meanwhile");
	dlock_op_cancel((dlock_op *) op);
	ok(is_told(handle, &told) && told.status == DLOCK_CANCELLED, "nothing to do: cancelled");
	dlock_close(handle);
}

void
test_pilot(void)
{
	test_cancel(false, DLOCK_CANCELLED, "refused while it is cancelled");
	test_cancel(true, DLOCK_OK, "granted while it is cancelled");
	test_timeout();
	test_adopted();
	test_fork();
	test_idle();
}
