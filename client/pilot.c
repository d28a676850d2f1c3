/*-------------------------------------------------------------------------
 *
 * pilot.c
 *	  The thread that looks after the calls of a program with an event loop.
 *
 * The pilot steps calls (op.c): those that were woken at once, and all of them now and
 * then, because their time may be up.  It also drives the flights (flight.c) that no
 * thread of the program drives, both of them if need be, as it waits for the calls of
 * both.  So it sleeps in poll(), where an answer or its bell wakes it.
 *
 * While no call is under way it sleeps, and leaves all flights to others.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "async.h"
#include "clock.h"
#include "flight.h"
#include "util.h"
#include "waker.h"

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
	{
		dlock_op   *op = (dlock_op *) woken;

		if (op->cancelling)
			continue;
		if (dlock_op_step(&op->op))
			dlock_async_finish(handle, op);
		else
			until = dlock_min(until, dlock_op_due(&op->op));
	}
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
				dlock_async_finish(handle, op);
				continue;
			}
		}
		until = dlock_min(until, dlock_op_due(&op->op));
	}
	return until;
}

/*
 * A flight, while the pilot drives it
 */

typedef struct Leg
{
	DlockFlight *flight;		/* NULL: there is nothing to do, or another
								 * thread does it */
	bool		waits;			/* for the connection */
} Leg;

/* What can be done at once; *until: sleep no longer than that. */
static void
depart(dlock_handle *handle, DlockFlight *flight, Leg *leg, struct pollfd *fd, int64_t *until)
{
	int64_t		idle_until;

	leg->flight = dlock_flight_needs_driver(handle, flight) ? flight : NULL;
	leg->waits = false;
	fd->fd = -1;
	if (leg->flight == NULL)
		return;
	idle_until = dlock_flight_depart(handle, flight, NULL, until);
	if (idle_until != 0)
	{
		/* the call of a thread may be ready earlier, and that one drives */
		*until = dlock_min(*until, idle_until);
		dlock_flight_arrive(handle, flight, NULL, idle_until);
		leg->flight = NULL;
	}
	else if (dlock_flight_is_waiting(flight))
	{
		leg->waits = true;
		fd->fd = dlock_conn_fd(flight->conn, &fd->events);
		*until = dlock_min(*until, dlock_conn_until(flight->conn));
	}
	else
		*until = 0;
}

/* Sleep until then, until something arrives, or until the bell rings. */
static void
nap(dlock_handle *handle, const Leg *legs, struct pollfd *fds, int nlegs, int64_t until)
{
	DlockWoken *woken = &handle->async.woken;
	struct pollfd *bell = &fds[nlegs];

	bell->fd = dlock_bell_fd(&woken->bell);
	bell->events = POLLIN;
	/* something may have come while a flight was loaded, without the mutex */
	if (!dlock_may_sleep(woken))
		until = 0;
	pthread_mutex_unlock(&handle->mutex);
	/* if it fails, it has not written revents */
	(void) poll(fds, (nfds_t) nlegs + 1, dlock_poll_timeout(until, dlock_now()));
	if (bell->revents != 0)
		dlock_bell_quiet(&woken->bell);
	for (int i = 0; i < nlegs; i++)
		if (legs[i].waits)
			dlock_conn_step(legs[i].flight->conn, fds[i].revents, dlock_now());
	pthread_mutex_lock(&handle->mutex);
	woken->sleeps = false;
}

/* Drive what nobody drives, and sleep, until then at most. */
static void
fly(dlock_handle *handle, int64_t until)
{
	Leg			legs[2];
	struct pollfd fds[3] = {{0}, {0}, {0}};

	dlock_flight_drop_deserted(handle);
	depart(handle, &handle->main, &legs[0], &fds[0], &until);
	depart(handle, &handle->second, &legs[1], &fds[1], &until);
	nap(handle, legs, fds, 2, until);
	for (int i = 0; i < 2; i++)
		if (legs[i].flight != NULL)
			dlock_flight_arrive(handle, legs[i].flight, NULL, 0);
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
		bool		at_all = now >= look_at;

		dlock_look(&async->woken);
		if (at_all)
			look_at = now + DLOCK_PILOT_LATE_MS;
		look_at = dlock_min(look_at, dlock_max(look(handle, at_all), now + DLOCK_PILOT_MS));
		if (async->under_way != NULL)
			fly(handle, look_at);
		else
		{
			struct pollfd bell = {0};

			dlock_flight_hand_over(handle, NULL);
			nap(handle, NULL, &bell, 0, DLOCK_NEVER);
		}
	}
	pthread_mutex_unlock(&handle->mutex);
	return NULL;
}

/* Unless it is there.  The caller has the mutex. */
dlock_status
dlock_pilot_start(dlock_handle *handle, dlock_error *err)
{
	DlockAsync *async = &handle->async;
	sigset_t	all;
	sigset_t	before;
	int			failed;

	if (async->running)
		return DLOCK_OK;
	if (!dlock_bell_make(&async->bell) || !dlock_bell_make(&async->woken.bell))
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

/* For good.  False: it was not there.  The caller does not have the mutex. */
bool
dlock_pilot_stop(dlock_handle *handle)
{
	DlockAsync *async = &handle->async;
	bool		running;

	pthread_mutex_lock(&handle->mutex);
	async->stopping = true;
	running = async->running;
	dlock_rouse(&async->woken);
	pthread_mutex_unlock(&handle->mutex);
	if (!running)
		return false;
	pthread_join(async->pilot, NULL);
	async->running = false;
	return true;
}
