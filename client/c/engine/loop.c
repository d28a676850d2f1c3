/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  The loop of a handle, and who runs it.
 *
 * work() hands out answers, ends what is out of time, sends what is queued and renews;
 * sleep_and_step() sleeps in poll() until a connection, the clock or another thread has
 * news.
 *
 * At most one thread runs it.  handle->running says that one does, and only that thread
 * uses the connections.  A thread that waits for its own call runs the loop if nobody
 * does; the others sleep, and one of them is woken when it leaves.  So a single thread
 * talks to the server without another thread in between.
 *
 * If no thread waits, the background thread runs the loop.  It does not count as running
 * while it sleeps in poll(), so a thread that comes takes the loop from it without waking
 * it.  The background thread notices that when it wakes up (handle->turn), and leaves the
 * connections alone.  A thread that is done need not wake it either, as long as it sleeps
 * no longer than it may and watches what it should (hand_over()).
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/engine.h"

/*
 * Wake-ups: a thread that sleeps in poll().  These need no mutex.
 */

/* It can be freed from here on. */
void
dlock_wakeup_init(DlockWakeup *wakeup)
{
	wakeup->fds[0] = wakeup->fds[1] = -1;
}

/* Unless it is made already.  False: there are too many files. */
bool
dlock_wakeup_make(DlockWakeup *wakeup)
{
	if (wakeup->fds[0] < 0 && pipe2(wakeup->fds, O_CLOEXEC | O_NONBLOCK) != 0)
		dlock_wakeup_init(wakeup);
	return wakeup->fds[0] >= 0;
}

/* Who polls it wakes up, now or later. */
void
dlock_wakeup_ring(const DlockWakeup *wakeup)
{
	/* if the pipe is full, there is enough to read */
	if (wakeup->fds[1] >= 0 && write(wakeup->fds[1], "", 1) < 0)
		return;
}

void
dlock_wakeup_clear(const DlockWakeup *wakeup)
{
	char		bytes[64];

	while (wakeup->fds[0] >= 0 && read(wakeup->fds[0], bytes, sizeof(bytes)) == sizeof(bytes))
		;
}

static void
free_wakeup(DlockWakeup *wakeup)
{
	if (wakeup->fds[0] >= 0)
	{
		close(wakeup->fds[0]);
		close(wakeup->fds[1]);
	}
	dlock_wakeup_init(wakeup);
}

/* Have the loop looked at, if the thread that runs it sleeps. */
void
dlock_loop_wake(dlock_handle *handle)
{
	if (handle->running && handle->polls)
	{
		handle->polls = false;
		dlock_wakeup_ring(&handle->wakeup);
	}
	else if (!handle->running)
		dlock_loop_wake_background(handle);
}

/* Have the background thread look, if it sleeps. */
void
dlock_loop_wake_background(dlock_handle *handle)
{
	if (handle->background_until == 0)
		return;
	handle->background_until = 0;
	dlock_wakeup_ring(&handle->background_wakeup);
}

/* *which, a time at which the loop has something to do, is not later than that. */
void
dlock_loop_due(dlock_handle *handle, int64_t *which, int64_t at)
{
	if (at >= *which)
		return;
	*which = at;
	if (at < (handle->running ? handle->polls_until : handle->background_until))
		dlock_loop_wake(handle);
}

/*
 * Threads that sleep while another one runs the loop
 *
 * Each has a semaphore.  Threads are woken when the mutex is free, so that they do not wake
 * up only to wait for it, and one whose call is done does not need it any more.  A thread
 * that is about to be woken, and so is not in the list, must wait for that: its semaphore
 * must be there.
 */

static void
list_sleeper(dlock_handle *handle, DlockSleeper *sleeper)
{
	sleeper->listed = true;
	sleeper->prev = NULL;
	sleeper->next = handle->sleepers;
	if (sleeper->next != NULL)
		sleeper->next->prev = sleeper;
	handle->sleepers = sleeper;
}

static void
unlist_sleeper(dlock_handle *handle, DlockSleeper *sleeper)
{
	sleeper->listed = false;
	if (sleeper->prev != NULL)
		sleeper->prev->next = sleeper->next;
	else
		handle->sleepers = sleeper->next;
	if (sleeper->next != NULL)
		sleeper->next->prev = sleeper->prev;
}

/* Wake it.  It may be gone as soon as the semaphore is posted. */
static void
wake_sleeper(DlockSleeper *sleeper)
{
	__atomic_store_n(&sleeper->woken, true, __ATOMIC_RELEASE);
	sem_post(&sleeper->semaphore);
}

/* Sleep until it is woken, or for a part of the time until then.  True: it was woken. */
static bool
sleep_until(DlockSleeper *sleeper, int64_t until)
{
	return dlock_semaphore_wait(&sleeper->semaphore, until) &&
		__atomic_load_n(&sleeper->woken, __ATOMIC_ACQUIRE);
}

/*
 * Wake those that are to be woken, without the mutex, which the caller has.  The caller is
 * about to sleep until then: what comes meanwhile wakes it already.
 */
static void
flush_signals(dlock_handle *handle, int64_t until)
{
	DlockSleeper *signals[DLOCK_MAX_SIGNALS];
	int			n = handle->nsignals;

	handle->polls = true;
	handle->polls_until = until;
	if (n == 0)
		return;
	for (int i = 0; i < n; i++)
		signals[i] = handle->signals[i];
	handle->nsignals = 0;
	pthread_mutex_unlock(&handle->mutex);
	for (int i = 0; i < n; i++)
		wake_sleeper(signals[i]);
	pthread_mutex_lock(&handle->mutex);
}

/* That thread is to look; the loop wakes it before it sleeps. */
static void
signal_sleeper(dlock_handle *handle, DlockSleeper *sleeper)
{
	unlist_sleeper(handle, sleeper);
	if (handle->running && !handle->polls && handle->nsignals < DLOCK_MAX_SIGNALS)
		handle->signals[handle->nsignals++] = sleeper;
	else
		wake_sleeper(sleeper);
}

/* What that thread waits for is over.  NULL: it does not sleep. */
void
dlock_loop_signal(dlock_handle *handle, DlockSleeper *sleeper)
{
	/* one that is about to be woken looks itself */
	if (sleeper == NULL || !sleeper->listed)
		return;
	sleeper->is_over = true;
	signal_sleeper(handle, sleeper);
}

/* A renewal or a callback has ended, or a lock was acquired: see who waits for that. */
void
dlock_loop_changed(dlock_handle *handle)
{
	DlockSleeper *next;

	handle->changes++;
	for (DlockSleeper *sleeper = handle->sleepers; sleeper != NULL; sleeper = next)
	{
		next = sleeper->next;
		if (sleeper->for_change)
			signal_sleeper(handle, sleeper);
	}
}

/*
 * One pass
 */

/* Do what can be done.  Returns until when there is nothing to do but to wait. */
static int64_t
work(dlock_handle *handle)
{
	int64_t		now = dlock_now();
	int64_t		until;

	/* a lock whose deadline has passed is lost, whatever the answer is */
	if (now >= handle->background_at)
		dlock_lease_check_all(handle, now);
	dlock_links_settle(handle, now);
	if (now >= handle->expire_at)
		dlock_request_expire(handle, now);
	until = dlock_links_schedule(handle, now);
	if (now >= handle->background_at)
	{
		/* after that, because it uses a connection that is idle now */
		dlock_background_look(handle, now);
		until = dlock_links_schedule(handle, now);
	}
	return dlock_min(until, dlock_min(handle->expire_at, handle->background_at));
}

/* The descriptors of all connections that have something to wait for; returns how many. */
static int
prepare_poll(dlock_handle *handle, int which, const DlockWakeup *wakeup)
{
	int			n = 1;
	int			room = handle->nfds[which];

	for (const DlockLink *link = handle->links; link != NULL; link = link->next)
		n++;
	if (room < n)
	{
		struct pollfd *more = realloc(handle->fds[which], (size_t) n * 2 * sizeof(struct pollfd));

		if (more != NULL)
		{
			handle->fds[which] = more;
			room = handle->nfds[which] = n * 2;
		}
	}
	n = 0;
	if (room == 0)
		return 0;
	handle->fds[which][n].fd = wakeup->fds[0];
	handle->fds[which][n++].events = POLLIN;
	for (DlockLink *link = handle->links; link != NULL; link = link->next)
	{
		link->poll_index = -1;
		if (n < room && dlock_links_is_waiting(link))
		{
			link->poll_index = n;
			handle->fds[which][n].fd = dlock_conn_fd(link->conn, &handle->fds[which][n].events);
			n++;
		}
	}
	return n;
}

/*
 * Let the connections continue.  While one connects, this lets go of the mutex, because
 * libpq may read files and ask other services then.
 */
static void
step_links(dlock_handle *handle, int which, bool polled)
{
	int64_t		now = dlock_now();

	for (DlockLink *link = handle->links; link != NULL; link = link->next)
	{
		short		revents = 0;

		if (link->poll_index < 0 || link->conn == NULL)
			continue;
		if (polled)
			revents = handle->fds[which][link->poll_index].revents;
		if (revents == 0 && now < dlock_conn_until(link->conn))
			continue;
		if (dlock_conn_connecting(link->conn))
		{
			pthread_mutex_unlock(&handle->mutex);
			dlock_conn_step(link->conn, revents, now);
			pthread_mutex_lock(&handle->mutex);
		}
		else
			dlock_conn_step(link->conn, revents, now);
	}
}

/* Sleep until then, as the thread that runs the loop, and let the connections continue. */
static void
sleep_and_step(dlock_handle *handle, int64_t until)
{
	int			n = prepare_poll(handle, 1, &handle->wakeup);
	int			polled = 0;

	flush_signals(handle, until);
	pthread_mutex_unlock(&handle->mutex);
	polled = poll(handle->fds[1], (nfds_t) n, dlock_poll_timeout(until, dlock_now()));
	if (polled > 0 && handle->fds[1][0].revents != 0)
		dlock_wakeup_clear(&handle->wakeup);
	pthread_mutex_lock(&handle->mutex);
	handle->polls = false;
	step_links(handle, 1, polled > 0);
}

/*
 * This thread does not run the loop any more.  If there is something to wait for, another
 * thread that waits for its call takes over, or the background thread.  That one is also
 * woken if it sleeps for too long, or does not watch what it should.
 */
static void
hand_over(dlock_handle *handle)
{
	handle->running = false;
	handle->polls = false;
	if (handle->next_leader != NULL)
		return;					/* it is about to wake up */
	if (handle->sleepers != NULL)
	{
		handle->next_leader = handle->sleepers;
		signal_sleeper(handle, handle->sleepers);
	}
	else if (handle->watch_fd != handle->background_fd || dlock_links_in_use(handle) ||
			 dlock_min(handle->expire_at, handle->background_at) < handle->background_until)
		dlock_loop_wake_background(handle);
}

/*
 * Threads that wait for their call
 */

/* Run the loop until it is over. */
static void
lead(dlock_handle *handle, DlockIsOver is_over, const void *arg)
{
	handle->running = true;
	handle->turn++;
	for (;;)
	{
		int64_t		until = work(handle);

		if (is_over(arg))
			break;
		sleep_and_step(handle, until);
	}
	flush_signals(handle, DLOCK_NEVER);
	hand_over(handle);
}

/* What follow() has come to. */
typedef enum Followed
{
	OVER,						/* what it waits for, and it has no mutex */
	LOOK,						/* it may be over */
	LEAD						/* the same, and the loop was handed over to
								 * it */
} Followed;

/*
 * Sleep while another thread runs the loop, until this one is woken.  If that thread is
 * held up, it is this one that sees that the time is up.
 */
static Followed
follow(dlock_handle *handle, DlockSleeper **at, bool for_change, int64_t until)
{
	DlockSleeper sleeper = {.for_change = for_change};
	bool		is_woken;
	bool		is_next;

	until = dlock_min(until, handle->expire_at);
	sem_init(&sleeper.semaphore, 0, 0);
	list_sleeper(handle, &sleeper);

	/* only until the end of this function */
	/* cppcheck-suppress autoVariables */
	*at = &sleeper;
	pthread_mutex_unlock(&handle->mutex);
	is_woken = sleep_until(&sleeper, until);
	if (is_woken && sleeper.is_over)
	{
		sem_destroy(&sleeper.semaphore);
		return OVER;
	}
	pthread_mutex_lock(&handle->mutex);
	if (sleeper.listed)
		unlist_sleeper(handle, &sleeper);
	else if (!is_woken)
	{
		/* it is about to be woken, and must be there then */
		pthread_mutex_unlock(&handle->mutex);
		while (!sleep_until(&sleeper, DLOCK_NEVER))
			;
		pthread_mutex_lock(&handle->mutex);
	}
	*at = NULL;
	is_next = handle->next_leader == &sleeper;
	if (is_next)
		handle->next_leader = NULL;
	sem_destroy(&sleeper.semaphore);
	if (dlock_now() >= handle->expire_at)
		dlock_request_expire(handle, dlock_now());
	return is_next ? LEAD : LOOK;
}

/*
 * Wait until it is over: this thread runs the loop, or sleeps while another one does.
 * *sleeper is set while it sleeps; dlock_loop_signal() wakes it.  The request that it
 * waits for has a limit of its own.  The caller has the mutex, and does not have it
 * afterwards.
 */
void
dlock_loop_wait(dlock_handle *handle, DlockIsOver is_over, const void *arg,
				DlockSleeper **sleeper)
{
	Followed	followed = LOOK;

	while (!is_over(arg))
	{
		if (!handle->running)
			lead(handle, is_over, arg);
		else
		{
			followed = follow(handle, sleeper, false, DLOCK_NEVER);
			if (followed == OVER)
				return;
		}
	}
	if (followed == LEAD && !handle->running)
		hand_over(handle);
	pthread_mutex_unlock(&handle->mutex);
}

/* What dlock_loop_wait_for_change() waits for. */
typedef struct Change
{
	const dlock_handle *handle;
	unsigned int seen;			/* handle->changes, then */
	int64_t		until;
} Change;

static bool
has_changed(const void *arg)
{
	const Change *change = arg;

	return change->handle->changes != change->seen || dlock_now() >= change->until;
}

/* Wait until something has changed (dlock_loop_changed()).  False: the time is up. */
bool
dlock_loop_wait_for_change(dlock_handle *handle, int64_t until)
{
	Change		change = {.handle = handle,.seen = handle->changes,.until = until};
	DlockSleeper *sleeper = NULL;
	Followed	followed = LOOK;

	if (dlock_now() >= until)
		return false;
	while (!has_changed(&change))
	{
		dlock_loop_due(handle, &handle->expire_at, until);
		if (handle->running)
			followed = follow(handle, &sleeper, true, until);
		else
			lead(handle, has_changed, &change);
	}
	if (followed == LEAD && !handle->running)
		hand_over(handle);
	return true;
}

/* One pass that does not sleep, unless another thread runs the loop. */
void
dlock_loop_try(dlock_handle *handle)
{
	if (handle->running)
		return;
	handle->running = true;
	handle->turn++;
	flush_signals(handle, work(handle));
	hand_over(handle);
}

/*
 * The background thread
 */

/*
 * One pass, or a sleep while another thread runs the loop.  was_read: what it watched was
 * readable, and that thread reads it, so it is left alone for a moment.  Returns whether
 * that is so now.
 */
bool
dlock_loop_run_background(dlock_handle *handle, bool was_read)
{
	unsigned int turn = 0;
	bool		is_running = !handle->running;
	struct pollfd two[2] = {{0}, {0}};
	struct pollfd *fds;
	int64_t		until;
	int			n;
	int			polled;

	if (is_running)
	{
		handle->running = true;
		turn = ++handle->turn;
		until = work(handle);
		flush_signals(handle, until);
		handle->running = false;
		if (!handle->polls)
		{
			/* something has come meanwhile */
			dlock_wakeup_clear(&handle->wakeup);
			until = 0;
		}
		handle->polls = false;
		/* a thread that waits for its call runs the loop itself */
		if (handle->sleepers != NULL && handle->next_leader == NULL)
		{
			handle->next_leader = handle->sleepers;
			signal_sleeper(handle, handle->sleepers);
		}
		if (handle->stopping || dlock_callbacks_pending(handle))
			return false;
		n = prepare_poll(handle, 0, &handle->background_wakeup);
		fds = handle->fds[0];
	}
	else
	{
		until = dlock_now() + DLOCK_WATCH_PAUSE_MS;
		if (!was_read)
			until = dlock_max(until, dlock_min(handle->expire_at, handle->background_at));
		two[0].fd = handle->background_wakeup.fds[0];
		two[1].fd = was_read ? -1 : handle->watch_fd;
		two[0].events = two[1].events = POLLIN;
		fds = two;
		n = 2;
	}
	handle->background_fd = was_read && !is_running ? -2 : handle->watch_fd;
	handle->background_until = until;
	pthread_mutex_unlock(&handle->mutex);
	polled = poll(fds, (nfds_t) n, dlock_poll_timeout(until, dlock_now()));
	if (polled > 0 && fds[0].revents != 0)
		dlock_wakeup_clear(&handle->background_wakeup);
	pthread_mutex_lock(&handle->mutex);
	handle->background_until = 0;
	if (is_running && !handle->running && handle->turn == turn)
	{
		handle->running = true;
		step_links(handle, 0, polled > 0);
		handle->running = false;
		return false;
	}
	return polled > 0 && fds[0].revents == 0;
}

/*
 * The end
 */

/*
 * Wait for answers that are under way: if a connection were closed before, the server would
 * log an error.  No other thread uses the handle.
 */
void
dlock_loop_finish(dlock_handle *handle, int64_t until)
{
	handle->running = true;
	for (;;)
	{
		bool		any = false;

		for (DlockLink *link = handle->links; link != NULL; link = link->next)
		{
			DlockConnState state = link->conn != NULL ? link->conn->state : DLOCK_CONN_CLOSED;

			any = any || state == DLOCK_CONN_BUSY ||
				(state > DLOCK_CONN_RESOLVING && state < DLOCK_CONN_READY);
		}
		if (!any || dlock_now() >= until)
			break;
		sleep_and_step(handle, until);
	}
	handle->running = false;
}

void
dlock_loop_free(dlock_handle *handle)
{
	free(handle->fds[0]);
	free(handle->fds[1]);
	free_wakeup(&handle->wakeup);
	free_wakeup(&handle->background_wakeup);
	free_wakeup(&handle->done_wakeup);
}
