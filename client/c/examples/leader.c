/*-------------------------------------------------------------------------
 *
 * leader.c
 *	  A worker that runs many times, of which one is active.
 *
 *	  leader CONNINFO KEY NAME TERMS
 *
 * Each instance campaigns.  The one that is elected leads until it loses the
 * lock; here it resigns after a moment to let the others have a turn.  After
 * TERMS terms it exits.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "dlock.h"

/* One piece of work, much shorter than the TTL. */
static void
work(const char *name, const dlock_lock *lock)
{
	printf("%s leads in term %lld\n", name, (long long) dlock_version(lock));
	fflush(stdout);
	poll(NULL, 0, 10);
}

int
main(int argc, char **argv)
{
	dlock_handle *handle;
	dlock_options options;
	dlock_error err;
	int			terms;

	if (argc != 5)
	{
		fprintf(stderr, "usage: %s CONNINFO KEY NAME TERMS\n", argv[0]);
		return 2;
	}
	if (dlock_open(argv[1], NULL, &handle, &err) != DLOCK_OK)
	{
		fprintf(stderr, "%s\n", err.message);
		return 2;
	}
	/* observers see the value; use it for the address of the leader */
	dlock_options_init(&options);
	options.value = argv[3];

	for (terms = atoi(argv[4]); terms > 0;)
	{
		dlock_lock *lock;
		dlock_status status = dlock_campaign(handle, argv[2], &options, &lock, &err);

		if (status == DLOCK_UNREACHABLE || status == DLOCK_TIMEOUT)
		{
			/* servers come back, so a candidate does not give up */
			fprintf(stderr, "%s: %s\n", argv[3], err.message);
			continue;
		}
		if (status != DLOCK_OK)
		{
			fprintf(stderr, "%s: %s\n", argv[3], err.message);
			break;
		}

		/*
		 * check before each piece of work, and fence what must not happen
		 * twice
		 */
		for (int i = 0; i < 3 && dlock_is_owner(lock); i++)
			work(argv[3], lock);
		if (dlock_resign(lock, -1, &err) == DLOCK_OK)
			terms--;
		dlock_free(lock);
	}
	dlock_close(handle);
	return terms > 0;
}
