/*
 * acquire.c
 *	  Acquiring a lock in a thread, so that a signal can end the wait.
 *
 * The library's call cannot be interrupted, and need not be: the process is
 * about to end, and its place in the queue ends with its connection.  But the
 * lock must not be granted at that moment and stay for its TTL.  So the request
 * is released by its owner, over another connection, before the process ends.
 */
#include "cli.h"
#include "child.h"
#include "times.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct
{
	dlock_handle *handle;
	const char *key;
	const dlock_options *options;
	bool		campaign;
	dlock_lock *lock;
	dlock_status status;
	dlock_error err;
	atomic_bool done;
} Attempt;

static void *
attempt_main(void *arg)
{
	Attempt    *attempt = arg;

	attempt->status = attempt->campaign ?
		dlock_campaign(attempt->handle, attempt->key, attempt->options,
					   &attempt->lock, &attempt->err) :
		dlock_acquire(attempt->handle, attempt->key, attempt->options,
					  &attempt->lock, &attempt->err);
	atomic_store(&attempt->done, true);
	news_post(NEWS_LOCK);
	return NULL;
}

/* Release the request, which may have been granted, or is about to be. */
static void
take_back(Attempt *attempt, const Options *options)
{
	dlock_handle *other = connect_server(options);

	/* a second signal ends us at once */
	end_by_signals();
	if (!atomic_load(&attempt->done))
		dlock_release_key(other, attempt->key, 0, attempt->options->owner,
						  GOODBYE_MS, NULL);
	if (atomic_load(&attempt->done) && attempt->status == DLOCK_OK)
		dlock_release(attempt->lock, GOODBYE_MS, NULL);
	dlock_close(other);
}

/*
 * *signo is the signal that ended it, or 0.  After a signal the thread is still
 * running, so the caller must end the process.
 */
dlock_status
acquire_or_signal(dlock_handle *handle, const Options *options,
				  const dlock_options *lock_options, bool campaign,
				  dlock_lock **lock, dlock_error *err, int *signo)
{
	Attempt    *attempt = allocate(sizeof(*attempt));
	pthread_t	thread;
	dlock_status status;

	*signo = 0;
	*lock = NULL;
	attempt->handle = handle;
	attempt->key = options->key;
	attempt->options = lock_options;
	attempt->campaign = campaign;
	if (pthread_create(&thread, NULL, attempt_main, attempt) != 0)
	{
		free(attempt);
		error("could not start a thread");
		exit(EXIT_INTERNAL);
	}
	while (!atomic_load(&attempt->done))
	{
		int			news = news_wait(DLOCK_NEVER);

		if (is_ending_signal(news))
		{
			*signo = news;
			take_back(attempt, options);
			return DLOCK_BUSY;
		}
	}
	pthread_join(thread, NULL);
	status = attempt->status;
	*lock = attempt->lock;
	*err = attempt->err;
	free(attempt);
	return status;
}
