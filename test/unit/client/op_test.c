/*-------------------------------------------------------------------------
 *
 * op_test.c
 *	  Calls that were started: cancelled, out of time, closed, and in a child.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "engine/engine.h"
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

static dlock_handle *
open_handle(void)
{
	dlock_handle *handle = NULL;

	if (dlock_open("host=/nowhere", NULL, &handle, NULL) != DLOCK_OK)
		abort();
	return handle;
}

static dlock_op *
start(dlock_handle *handle, const char *key, int64_t timeout_ms, Told *told)
{
	dlock_options options;
	dlock_op   *op = NULL;

	dlock_options_init(&options);
	options.ttl_ms = 60000;
	options.timeout_ms = timeout_ms;
	if (dlock_acquire_start(handle, key, &options, done, told, &op, NULL) != DLOCK_OK)
		abort();
	return op;
}

/* One that was adopted by its version alone. */
static dlock_lock *
make_lock(dlock_handle *handle)
{
	dlock_options options;
	dlock_lock *lock;

	dlock_options_init(&options);
	options.ttl_ms = 600000;
	lock = dlock_lock_make(handle, "key", NULL, &options);
	if (lock == NULL)
		abort();
	lock->version = 1;
	pthread_mutex_lock(&handle->mutex);
	dlock_lease_renewed(lock, dlock_now());
	dlock_lock_list_add(lock);
	/* no connection is needed for it */
	lock->connect_at = DLOCK_NEVER;
	pthread_mutex_unlock(&handle->mutex);
	return lock;
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

static void
test_cancel(void)
{
	dlock_handle *handle = open_handle();
	Told		told = {0};
	Told		other_told = {0};
	Told		granted = {0};
	dlock_op   *op = start(handle, "cancelled", 600000, &told);
	dlock_op   *other = start(handle, "other", 600000, &other_told);
	dlock_op   *last = start(handle, "granted", 600000, &granted);

	dlock_op_cancel(op);
	dlock_op_cancel(op);
	ok(is_told(handle, &told) && told.status == DLOCK_CANCELLED, "cancelled: told once");
	ok(other_told.times == 0, "cancelled: the other call continues");

	/* the answer comes first */
	pthread_mutex_lock(&handle->mutex);
	dlock_request_take_out(handle, &last->request);
	last->request.sent_at = dlock_now();
	last->request.reply = make_grant();
	dlock_request_finish(handle, &last->request);
	pthread_mutex_unlock(&handle->mutex);
	dlock_op_cancel(last);
	ok(is_told(handle, &granted) && granted.status == DLOCK_OK, "granted before it is cancelled");
	dlock_op_cancel(other);
	ok(is_told(handle, &other_told) && other_told.status == DLOCK_CANCELLED, "cancelled: the last one");
	dlock_close(handle);
}

static void
test_timeout(void)
{
	dlock_handle *handle = open_handle();
	Told		told = {0};
	Told		other_told = {0};
	int64_t		since = dlock_now();

	(void) start(handle, "short", 100, &told);
	(void) start(handle, "long", 600000, &other_told);
	ok(is_told(handle, &told) && told.status == DLOCK_UNREACHABLE, "time is up");
	ok(dlock_now() - since >= 50, "time is up: not before");
	ok(other_told.times == 0, "time is up: not that of the other");
	dlock_close(handle);
	ok(other_told.times == 0, "closed: nobody is told");
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
	ok(op->request.state == DLOCK_REQUEST_QUEUED && lock->silent, "adopted: its release is started");
	dlock_close(handle);
	ok(told.times == 0, "adopted: the handle is closed meanwhile");
}

/* A release waits for a renewal that was sent. */
static void
test_held_up(void)
{
	dlock_handle *handle = open_handle();
	Told		told = {0};
	dlock_lock *lock = make_lock(handle);
	dlock_op   *op = NULL;

	pthread_mutex_lock(&handle->mutex);
	lock->index = 0;
	pthread_mutex_unlock(&handle->mutex);
	if (dlock_release_start(lock, 600000, done, &told, &op, NULL) != DLOCK_OK)
		abort();
	ok(op->stage == DLOCK_STAGE_START && lock->held_off == 1, "a renewal was sent: the release waits");
	pthread_mutex_lock(&handle->mutex);
	lock->index = -1;
	dlock_op_step_releases(handle);
	ok(op->stage == DLOCK_STAGE_RELEASE, "until it is answered");
	pthread_mutex_unlock(&handle->mutex);
	dlock_close(handle);
}

/* In a child, where the thread that has the mutex does not exist. */
static void
test_fork(void)
{
	dlock_handle *handle = open_handle();
	Told		told = {0};
	dlock_op   *op = start(handle, "forked", 600000, &told);
	pid_t		child;
	int			status = -1;

	pthread_mutex_lock(&handle->mutex);
	child = fork();
	if (child == 0)
	{
		alarm(LIMIT_MS / 1000);
		dlock_op_cancel(op);
		_exit(0);
	}
	pthread_mutex_unlock(&handle->mutex);
	ok(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child cancels nothing");
	dlock_op_cancel(op);
	ok(is_told(handle, &told) && told.status == DLOCK_CANCELLED, "its parent does");
	dlock_close(handle);
}

void
test_ops(void)
{
	test_cancel();
	test_timeout();
	test_adopted();
	test_held_up();
	test_fork();
}
