/*-------------------------------------------------------------------------
 *
 * event_loop.c
 *	  Many requests in one thread, by poll().
 *
 *	  event_loop CONNINFO KEYS REQUESTS
 *
 * Starts REQUESTS requests at once, for KEYS keys, and waits for them in an
 * event loop.  Each that is granted does its work and is released, which makes room
 * for the next one of the same key.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "dlock.h"

/* What the loop knows of its requests. */
typedef struct Loop
{
	int			under_way;		/* calls that were started and are not done */
	int			served;
	int			failed;
} Loop;

static void
failed(Loop *loop, const dlock_error *err)
{
	fprintf(stderr, "%s\n", err->message);
	loop->failed++;
}

static void
released(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
		 void *arg)
{
	Loop	   *loop = arg;

	(void) op;
	loop->under_way--;
	if (status == DLOCK_OK)
		loop->served++;
	else
		failed(loop, err);
	dlock_free(lock);
}

static void
acquired(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
		 void *arg)
{
	Loop	   *loop = arg;
	dlock_error error;

	(void) op;
	loop->under_way--;
	if (status != DLOCK_OK)
	{
		failed(loop, err);
		return;
	}
	/* a real program would work for a while here, and continue in its loop */
	if (dlock_release_start(lock, -1, released, loop, NULL, &error) == DLOCK_OK)
		loop->under_way++;
	else
		failed(loop, &error);
}

int
main(int argc, char **argv)
{
	dlock_handle *handle;
	dlock_options options;
	dlock_error err;
	Loop		loop = {0};
	struct pollfd fd = {0};
	int			keys = argc == 4 ? atoi(argv[2]) : 0;

	if (keys < 1)
	{
		fprintf(stderr, "usage: %s CONNINFO KEYS REQUESTS\n", argv[0]);
		return 2;
	}
	if (dlock_open(argv[1], NULL, &handle, &err) != DLOCK_OK)
	{
		fprintf(stderr, "%s\n", err.message);
		return 2;
	}
	dlock_options_init(&options);
	options.wait_ms = 60000;
	for (int i = 0; i < atoi(argv[3]); i++)
	{
		char		key[32];

		snprintf(key, sizeof(key), "room:%d", i % keys);
		if (dlock_acquire_start(handle, key, &options, acquired, &loop, NULL, &err) == DLOCK_OK)
			loop.under_way++;
		else
			failed(&loop, &err);
	}

	/* a real program has other descriptors here */
	fd.fd = dlock_handle_fd(handle);
	fd.events = POLLIN;
	while (loop.under_way > 0 && poll(&fd, 1, -1) >= 0)
		dlock_handle_process(handle);
	printf("%d served, %d failed\n", loop.served, loop.failed);
	dlock_close(handle);
	return loop.failed > 0;
}
