/*-------------------------------------------------------------------------
 *
 * threads_calls.c
 *	  Calls: one thread that has many cycles under way, by an event loop.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdlib.h>

#include "threads.h"

/* One of those that acquire and release, one key after another. */
typedef struct Caller
{
	unsigned int seed;
	double		start;			/* of its cycle */
	Samples		samples;
} Caller;

static dlock_handle *handle;
static int	under_way;
static bool stopping;

static void next_cycle(Caller *caller);

static void
on_released(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
			void *arg)
{
	Caller	   *caller = arg;

	(void) op;
	under_way--;
	if (status != DLOCK_OK)
		threads_complain(err->message);
	dlock_free(lock);
	if (threads_measuring)
		threads_sample(&caller->samples, caller->start);
	next_cycle(caller);
}

static void
on_acquired(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
			void *arg)
{
	dlock_error release_err;

	(void) op;
	under_way--;
	if (status == DLOCK_OK &&
		dlock_release_start(lock, -1, on_released, arg, NULL, &release_err) == DLOCK_OK)
	{
		under_way++;
		return;
	}
	if (status != DLOCK_BUSY)
		threads_complain(status == DLOCK_OK ? release_err.message : err->message);
	next_cycle(arg);
}

static void
next_cycle(Caller *caller)
{
	dlock_options options;
	dlock_error err;
	char		key[32];

	if (stopping)
		return;
	dlock_options_init(&options);
	options.ttl_ms = 60000;
	threads_choose_key(key, sizeof(key), &caller->seed);
	caller->start = threads_now();
	if (dlock_acquire_start(handle, key, &options, on_acquired, caller, NULL, &err) == DLOCK_OK)
		under_way++;
	else
		threads_complain(err.message);
}

/* Call back until then, or until nothing is under way. */
static void
loop_until(double until)
{
	struct pollfd fd = {.fd = dlock_handle_fd(handle),.events = POLLIN};

	while (under_way > 0 && threads_now() < until)
	{
		poll(&fd, 1, 100);
		dlock_handle_process(handle);
	}
}

void
threads_calls(void)
{
	Caller	   *callers = calloc((size_t) threads.clients, sizeof(Caller));

	if (callers == NULL)
		threads_die("out of memory");
	handle = threads_open();
	for (int i = 0; i < threads.clients; i++)
	{
		callers[i].seed = threads_seed(i);
		next_cycle(&callers[i]);
	}
	threads_measure(loop_until);
	stopping = true;
	loop_until(threads_now() + 60);
	for (int i = 0; i < threads.clients; i++)
		threads_gather(&callers[i].samples);
	dlock_close(handle);
	free(callers);
}
