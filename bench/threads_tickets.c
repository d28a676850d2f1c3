/*-------------------------------------------------------------------------
 *
 * threads_tickets.c
 *	  Tickets: requests that wait, for a key each or all for one, and how long it
 *	  takes from the release to the grant.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "threads.h"

/* how many locks one call gives back: they commit together */
#define RELEASED_AT_ONCE 1000

static bool is_queue;			/* all want the same key */
static double released_at;
static int	under_way;

static void
on_released(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
			void *arg)
{
	(void) op;
	(void) arg;
	under_way--;
	if (status != DLOCK_OK)
		threads_complain(err->message);
	dlock_free(lock);
}

static void
on_acquired(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
			void *arg)
{
	dlock_error release_err;

	(void) op;
	(void) arg;
	under_way--;
	if (status != DLOCK_OK)
	{
		threads_complain(err->message);
		return;
	}
	threads_sample(&threads_tally.samples, released_at);
	/* the next grant follows this release */
	if (is_queue)
		released_at = threads_now();
	if (dlock_release_start(lock, -1, on_released, NULL, NULL, &release_err) == DLOCK_OK)
		under_way++;
	else
		threads_complain(release_err.message);
}

static void
until_done(dlock_handle *handle)
{
	struct pollfd fd = {.fd = dlock_handle_fd(handle),.events = POLLIN};

	while (under_way > 0)
	{
		if (poll(&fd, 1, 60000) == 0)
			threads_die("calls do not come to an end");
		dlock_handle_process(handle);
	}
}

static void
take_keys(dlock_handle *holder, dlock_lock **locks, int n)
{
	dlock_options options;
	dlock_error err;

	dlock_options_init(&options);
	options.ttl_ms = 600000;
	for (int i = 0; i < n; i++)
	{
		char		key[32];

		snprintf(key, sizeof(key), "ticket:%d", i);
		if (dlock_acquire(holder, key, &options, &locks[i], &err) != DLOCK_OK)
			threads_die(err.message);
	}
}

/* Returns when all of them wait, which another handle sees. */
static void
start_waiting(dlock_handle *handle, dlock_handle *holder)
{
	dlock_waiter *waiters = NULL;
	size_t		waiting = 0;
	dlock_options options;
	dlock_error err;

	dlock_options_init(&options);
	options.ttl_ms = 60000;
	options.wait_ms = 600000;
	for (int i = 0; i < threads.clients; i++)
	{
		char		key[32];

		snprintf(key, sizeof(key), "ticket:%d", is_queue ? 0 : i);
		if (dlock_acquire_start(handle, key, &options, on_acquired, NULL, NULL, &err) != DLOCK_OK)
			threads_die(err.message);
		under_way++;
	}
	while (waiting < (size_t) threads.clients)
	{
		dlock_waiters_free(waiters, waiting);
		poll(NULL, 0, 100);
		if (dlock_list_waiters(holder, "ticket:%", 0, -1, &waiters, &waiting, &err) != DLOCK_OK)
			threads_die(err.message);
	}
	dlock_waiters_free(waiters, waiting);
}

static void
release_keys(dlock_lock **locks, int n)
{
	dlock_error err;

	for (int i = 0; i < n; i += RELEASED_AT_ONCE)
	{
		int			some = n - i < RELEASED_AT_ONCE ? n - i : RELEASED_AT_ONCE;

		if (dlock_release_all(locks + i, (size_t) some, -1, &err) != DLOCK_OK)
			threads_die(err.message);
	}
}

/* Take the keys with one handle, wait for them with another, and let them go. */
void
threads_tickets(bool one_key)
{
	dlock_handle *holder = threads_open();
	dlock_handle *handle = threads_open();
	int			held = one_key ? 1 : threads.clients;
	dlock_lock **locks = calloc((size_t) held, sizeof(dlock_lock *));
	double		start;

	if (locks == NULL)
		threads_die("out of memory");
	is_queue = one_key;
	take_keys(holder, locks, held);
	start_waiting(handle, holder);
	start = released_at = threads_now();
	release_keys(locks, held);
	until_done(handle);
	threads.seconds = threads_now() - start;
	dlock_close(handle);
	dlock_close(holder);
	free(locks);
}
