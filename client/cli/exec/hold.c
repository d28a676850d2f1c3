/*
 * hold.c
 *	  The locks of one command: one, or several that are all ours or none.
 *
 * A signal must be able to end the wait, so nothing here blocks the main loop.
 * One lock is acquired by a call that the library does on its own, and which is
 * cancelled by a signal: its place in the queue is withdrawn, and if it is granted
 * at that moment, it is released.
 *
 * Several locks, and what we run under, have no such calls.  They are acquired in
 * a thread.  After a signal the process is about to end, and its place in the queue
 * ends with its connection.  But the locks must not be granted at that moment and
 * stay for their TTL.  So the request is released by its owner, over another
 * connection, before the process ends.
 *
 * Within the command of a "dlock exec" that holds the same key, that lock is
 * used.  The server confirms it by a refresh.  It is renewed here as well, so
 * that its loss is noticed, and released only where it was acquired.
 */
#include "exec/hold.h"
#include "signals.h"
#include "times.h"
#include "base/util.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct
{
	Hold	   *hold;
	dlock_handle *handle;
	const dlock_options *options;
	HoldMode	mode;
	dlock_status status;
	dlock_error err;
	int			single;			/* the lock that is left to be acquired, or -1 */
	atomic_bool done;
} Attempt;

void
hold_init(Hold *hold, const Options *options)
{
	int			i;

	hold->count = 1 + options->also_count;
	hold->keys = allocate((size_t) hold->count * sizeof(char *));
	hold->locks = allocate((size_t) hold->count * sizeof(dlock_lock *));
	hold->borrowed = allocate((size_t) hold->count * sizeof(bool));
	hold->keys[0] = options->key;
	for (i = 0; i < options->also_count; i++)
		hold->keys[i + 1] = options->also[i];
}

/* For messages about all of them; NULL: there are several. */
const char *
hold_name(const Hold *hold)
{
	return hold->count == 1 ? hold->keys[0] : NULL;
}

/* Does the lock around us serve what is asked for here? */
static bool
serves(const dlock_lock *lock, const dlock_options *asked)
{
	return dlock_slots(lock) == 1 || asked->shared ||
		(!dlock_is_shared(lock) && dlock_slots(lock) == asked->slots);
}

/* Use what we run under.  DLOCK_OK also if there is nothing. */
static dlock_status
borrow(Attempt *attempt, int i)
{
	Hold	   *hold = attempt->hold;
	const char *owner;
	int64_t		version = inherited_version(hold->keys[i], &owner);
	dlock_options options = *attempt->options;
	dlock_status status;

	if (version == 0)
		return DLOCK_OK;
	options.ttl_ms = 0;
	status = dlock_adopt(attempt->handle, hold->keys[i], version, owner, &options,
						 &hold->locks[i], &attempt->err);
	/* the command that held it has ended, and left its environment behind */
	if (status == DLOCK_LOST)
		return DLOCK_OK;
	if (status == DLOCK_OK && !serves(hold->locks[i], &options))
	{
		snprintf(attempt->err.message, sizeof(attempt->err.message),
				 "lock \"%s\" is held by the \"dlock exec\" around this one, but not exclusively",
				 hold->keys[i]);
		return DLOCK_INVALID;
	}
	hold->borrowed[i] = status == DLOCK_OK;
	return status;
}

/* Acquire those that are not ours yet, unless it is a single one. */
static dlock_status
acquire_rest(Attempt *attempt)
{
	Hold	   *hold = attempt->hold;
	const char **keys = allocate((size_t) hold->count * sizeof(char *));
	dlock_lock **locks = allocate((size_t) hold->count * sizeof(dlock_lock *));
	size_t		n = 0;
	int			last = 0;
	int			i;
	dlock_status status = DLOCK_OK;

	for (i = 0; i < hold->count; i++)
		if (hold->locks[i] == NULL)
		{
			keys[n++] = hold->keys[i];
			last = i;
		}
	if (n == 1)
		attempt->single = last;
	else if (n > 1)
	{
		status = dlock_acquire_all(attempt->handle, keys, n, NULL, NULL, attempt->options,
								   locks, &attempt->err);
		n = 0;
		for (i = 0; i < hold->count; i++)
			if (hold->locks[i] == NULL)
				hold->locks[i] = locks[n++];
	}
	free(keys);
	free(locks);
	return status;
}

static void *
attempt_main(void *arg)
{
	Attempt    *attempt = arg;
	dlock_status status = DLOCK_OK;
	int			i;

	for (i = 0; i < attempt->hold->count && status == DLOCK_OK &&
		 attempt->mode == HOLD_NESTED; i++)
		status = borrow(attempt, i);
	if (status == DLOCK_OK)
		status = acquire_rest(attempt);
	attempt->status = status;
	atomic_store(&attempt->done, true);
	news_post(NEWS_LOCK);
	return NULL;
}

/* Release the request, which may have been granted, or is about to be. */
static void
take_back(Attempt *attempt, const Options *options)
{
	dlock_handle *other = connect_server(options);
	const Hold *hold = attempt->hold;
	int64_t		until = dlock_now() + GOODBYE_MS;
	int			i;

	/* a second signal ends us at once */
	end_by_signals();
	for (i = 0; i < hold->count && !atomic_load(&attempt->done) && dlock_now() < until; i++)
		dlock_release_key(other, hold->keys[i], 0, attempt->options->owner,
						  until - dlock_now(), NULL);
	if (atomic_load(&attempt->done) && attempt->status == DLOCK_OK)
		hold_release(attempt->hold, GOODBYE_MS, NULL);
	dlock_close(other);
}

/*
 * In a thread: what we run under, and several locks.  Returns the signal that
 * ended it, or 0.  After a signal the thread is still running, so the caller must
 * end the process.
 */
static int
acquire_in_thread(Attempt *attempt, const Options *options)
{
	pthread_t	thread;
	Waiting		waiting;

	if (pthread_create(&thread, NULL, attempt_main, attempt) != 0)
	{
		error("could not start a thread");
		exit(EXIT_INTERNAL);
	}
	waiting_begin(&waiting, attempt->handle, attempt->hold, attempt->options);
	while (!atomic_load(&attempt->done))
	{
		int			news = news_wait(waiting.tell_at);

		if (is_ending_signal(news))
		{
			waiting_end(&waiting, false);
			take_back(attempt, options);
			return news;
		}
		if (news == NEWS_NONE && dlock_now() >= waiting.tell_at)
			waiting_tell(&waiting);
	}
	pthread_join(thread, NULL);
	waiting_end(&waiting, attempt->status == DLOCK_OK && attempt->single < 0);
	return 0;
}

static void
on_done(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
		void *arg)
{
	Attempt    *attempt = arg;

	(void) op;
	attempt->status = status;
	attempt->err = *err;
	attempt->hold->locks[attempt->single] = lock;
	atomic_store(&attempt->done, true);
}

/* The single one.  Returns the signal that ended it, or 0. */
static int
acquire_single(Attempt *attempt)
{
	dlock_options options = *attempt->options;
	Waiting		waiting;
	dlock_op   *op;
	int			signo = 0;

	if (attempt->mode == HOLD_CAMPAIGN)
		options.wait_ms = -1;
	waiting_begin(&waiting, attempt->handle, attempt->hold, &options);
	attempt->status = dlock_acquire_start(attempt->handle, attempt->hold->keys[attempt->single],
										  &options, on_done, attempt, &op, &attempt->err);
	atomic_store(&attempt->done, attempt->status != DLOCK_OK);
	news_add_input(dlock_handle_fd(attempt->handle));
	while (!atomic_load(&attempt->done))
	{
		int			news = news_wait(waiting.tell_at);

		if (is_ending_signal(news))
		{
			/* a second one ends us at once */
			end_by_signals();
			signo = news;
			waiting.tell_at = DLOCK_NEVER;
			dlock_op_cancel(op);
		}
		if (news == NEWS_NONE && dlock_now() >= waiting.tell_at)
			waiting_tell(&waiting);
		dlock_handle_process(attempt->handle);
	}
	news_add_input(-1);
	waiting_end(&waiting, attempt->status == DLOCK_OK);
	if (signo != 0)
	{
		if (attempt->status == DLOCK_OK)
			hold_release(attempt->hold, GOODBYE_MS, NULL);
		/* this waits for the withdrawal */
		dlock_close(attempt->handle);
	}
	return signo;
}

/*
 * *signo is the signal that ended it, or 0.  After a signal the caller must end
 * the process, and use nothing of these any more.
 */
dlock_status
hold_acquire(Hold *hold, dlock_handle *handle, const Options *options,
			 const dlock_options *lock_options, HoldMode mode, dlock_error *err,
			 int *signo)
{
	Attempt    *attempt = allocate(sizeof(*attempt));
	const char *owner;
	dlock_status status;

	*signo = 0;
	attempt->hold = hold;
	attempt->handle = handle;
	attempt->options = lock_options;
	attempt->mode = mode;
	attempt->single = hold->count == 1 &&
		(mode != HOLD_NESTED || inherited_version(hold->keys[0], &owner) == 0) ? 0 : -1;
	if (attempt->single < 0)
		*signo = acquire_in_thread(attempt, options);
	if (*signo != 0)
		return DLOCK_BUSY;
	if (attempt->single >= 0 && attempt->status == DLOCK_OK)
		*signo = acquire_single(attempt);
	status = attempt->status;
	*err = attempt->err;
	free(attempt);
	return status;
}

/* Until the first of them is not ours any more. */
int64_t
hold_left(const Hold *hold)
{
	int64_t		left = dlock_left_ms(hold->locks[0]);
	int			i;

	for (i = 1; i < hold->count; i++)
		left = dlock_min(left, dlock_left_ms(hold->locks[i]));
	return left;
}

/* The shortest. */
int64_t
hold_ttl(const Hold *hold)
{
	int64_t		ttl = dlock_ttl_ms(hold->locks[0]);
	int			i;

	for (i = 1; i < hold->count; i++)
		ttl = dlock_min(ttl, dlock_ttl_ms(hold->locks[i]));
	return ttl;
}

/* One that is not ours; NULL: all are. */
const dlock_lock *
hold_lost(const Hold *hold)
{
	int			i;

	for (i = 0; i < hold->count; i++)
		if (!dlock_is_owner(hold->locks[i]))
			return hold->locks[i];
	return NULL;
}

/* Release what was acquired here. */
dlock_status
hold_release(Hold *hold, int64_t timeout, dlock_error *err)
{
	dlock_lock **locks = allocate((size_t) hold->count * sizeof(dlock_lock *));
	size_t		n = 0;
	int			i;
	dlock_status status;

	for (i = 0; i < hold->count; i++)
		if (!hold->borrowed[i])
			locks[n++] = hold->locks[i];
	status = dlock_release_all(locks, n, timeout, err);
	free(locks);
	return status;
}

void
hold_free(Hold *hold)
{
	int			i;

	for (i = 0; i < hold->count; i++)
		dlock_free(hold->locks[i]);
	free(hold->keys);
	free(hold->locks);
	free(hold->borrowed);
	memset(hold, 0, sizeof(*hold));
}
