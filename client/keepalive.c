/*-------------------------------------------------------------------------
 *
 * keepalive.c
 *	  The renewal thread of a handle.
 *
 * One thread with one connection renews all locks of the handle.  It blocks
 * only in poll(), so neither a server nor a network that hangs delays its
 * events: that a lock is in danger, and that it is lost when its local deadline
 * has come.
 *
 * The deadline of a lock is nine tenths of its TTL after the moment before the
 * last successful request was sent.  The server counts from when it received
 * the request, so it cannot grant the lock to another client before that.  A
 * late answer does not bring the lock back, so deadlines are checked before
 * answers are read.
 *
 * A lock that is released soon needs none of this, so the thread has no
 * connection until a lock has been held for a moment.  Then it takes one from
 * the pool, if there is one.
 *
 * This file has the loop, its connection, and what is in flight on it.  The
 * statements are in renewal.c and orphan.c, the rules for a lock in lease.c.
 * The mutex of the handle protects the locks; the connection belongs to the
 * thread.  The mutex is never held while calling back, polling or connecting.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "events.h"
#include "fork.h"
#include "keepalive.h"
#include "lease.h"
#include "orphan.h"
#include "pool.h"
#include "renewal.h"
#include "roster.h"
#include "tell.h"
#include "util.h"
#include "wait.h"

typedef enum Flight
{
	NOTHING,
	RENEWAL,
	TICKETS,
	ORPHANS
} Flight;

/* What only the thread uses. */
typedef struct Keeper
{
	dlock_handle *handle;
	DlockConn  *conn;			/* NULL: none */
	bool		is_new;			/* not seen READY yet */
	bool		is_open;		/* it was READY once, here or elsewhere */
	Flight		flight;
	int64_t		sent_at;
	int64_t		answer_by;
	int64_t		backoff;
	int64_t		retry_at;
} Keeper;

/*
 * What is in flight.  The caller has the mutex.
 */

/* It is no longer in flight; callers that waited for that may go on. */
static void
land(Keeper *keeper, const DlockReply *reply, int64_t now)
{
	dlock_handle *handle = keeper->handle;

	if (keeper->flight == ORPHANS)
		dlock_orphans_landed(handle, reply, now);
	dlock_renewal_landed(handle);
	keeper->flight = NOTHING;
	pthread_cond_broadcast(&handle->changed);
}

/* The statement has come to an end, with a reply or without. */
static void
flight_ended(Keeper *keeper, int64_t now)
{
	DlockReply *reply = NULL;

	if (dlock_conn_state(keeper->conn) == DLOCK_CONN_DONE)
		reply = dlock_conn_take(keeper->conn);
	if (reply != NULL)
		keeper->handle->alive_at = now;
	if (reply != NULL && keeper->flight == RENEWAL)
		dlock_renewal_answered(keeper->handle, reply, keeper->sent_at, now);
	else if (reply != NULL && keeper->flight == TICKETS)
		dlock_wait_answered(keeper->handle, reply, now);
	else if (reply == NULL && dlock_conn_state(keeper->conn) == DLOCK_CONN_READY)
		dlock_renewal_refused(keeper->handle, now);
	land(keeper, reply, now);
	dlock_reply_free(reply);
}

/*
 * The connection.  The caller has the mutex.
 */

static DlockConnState
conn_state(const Keeper *keeper)
{
	return keeper->conn != NULL ? dlock_conn_state(keeper->conn) : DLOCK_CONN_CLOSED;
}

static void
replace_conn(Keeper *keeper, DlockConn *conn, bool is_new, bool is_open)
{
	dlock_pool_drop(keeper->handle, keeper->conn);
	keeper->conn = conn;
	keeper->is_new = is_new;
	keeper->is_open = is_open;
}

/* Take back what was lent; lend what a caller wants to borrow. */
static void
lend(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;
	DlockConn  *back = handle->returned;

	/* the borrower may have reconnected it, so it counts as new */
	handle->returned = NULL;
	if (back != NULL && conn_state(keeper) < DLOCK_CONN_READY)
		replace_conn(keeper, back, true, true);
	else
		dlock_pool_drop(handle, back);

	if (handle->wanted > 0 && handle->nidle == 0 && keeper->flight == NOTHING &&
		conn_state(keeper) == DLOCK_CONN_READY)
	{
		handle->idle[handle->nidle++] = keeper->conn;
		keeper->conn = NULL;
		keeper->is_open = false;
		/* it will be back in a moment, so do not open another one at once */
		keeper->retry_at = dlock_max(keeper->retry_at,
									 now + (handle->locks != NULL ? DLOCK_BACKOFF_FIRST_MS :
											DLOCK_BACKOFF_LAST_MS));
	}
	if (handle->wanted > 0 && conn_state(keeper) == DLOCK_CONN_CLOSED)
	{
		handle->lends = false;
		pthread_cond_broadcast(&handle->changed);
	}
}

static void
open_connection(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;
	int64_t		ttl = handle->ttl_ms;
	int64_t		patience;

	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->hold == DLOCK_HOLD_OURS)
			ttl = dlock_min(ttl, lock->ttl_ms);
	patience = dlock_connect_ms(ttl);
	if (handle->nidle > 0 && handle->wanted == 0)
	{
		replace_conn(keeper, handle->idle[--handle->nidle], true, true);
		dlock_conn_listen(keeper->conn, dlock_events_hear, handle, patience, now);
		return;
	}
	if (now < keeper->retry_at)
		return;
	keeper->retry_at = now + dlock_jitter(keeper->backoff);
	keeper->backoff = dlock_min(2 * keeper->backoff, DLOCK_BACKOFF_LAST_MS);
	replace_conn(keeper, dlock_pool_new(handle), true, false);
	if (keeper->conn == NULL)
		return;
	dlock_conn_listen(keeper->conn, dlock_events_hear, handle, patience, now);
	/* resolving and connecting may take a while, so do it without the mutex */
	pthread_mutex_unlock(&handle->mutex);
	dlock_conn_start(keeper->conn, patience, now);
	pthread_mutex_lock(&handle->mutex);
}

/* When does the thread need a connection? */
static int64_t
needed_at(dlock_handle *handle, int64_t now)
{
	int64_t		at = handle->nwaits > 0 ? now : DLOCK_NEVER;

	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->hold == DLOCK_HOLD_OURS && !lock->silent)
			at = dlock_min(at, lock->connect_at);
	dlock_orphans_drop(handle, now);
	return handle->orphans != NULL ? now : at;
}

/*
 * The thread
 */

/* Send what is due. */
static void
ask_server(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;

	keeper->backoff = DLOCK_BACKOFF_FIRST_MS;
	keeper->is_open = true;
	if (keeper->is_new && dlock_conn_listens(keeper->conn))
		dlock_events_missed(handle);
	if (keeper->is_new)
		dlock_wait_missed(handle);
	keeper->is_new = false;
	dlock_error_clear(&handle->keeper_error);
	dlock_orphans_drop(handle, now);
	if (dlock_renewal_choose(handle, now))
	{
		keeper->flight = RENEWAL;
		dlock_renewal_send(handle, keeper->conn, &keeper->sent_at, &keeper->answer_by);
	}
	else if (dlock_wait_ask_at(handle, dlock_conn_listens(keeper->conn)) <= now &&
			 dlock_wait_send(handle, keeper->conn, now))
	{
		keeper->flight = TICKETS;
		keeper->answer_by = now + dlock_answer_ms(handle->ttl_ms);
	}
	/* unless that could not be sent, which closes the connection */
	else if (dlock_conn_state(keeper->conn) == DLOCK_CONN_READY &&
			 dlock_orphans_send(handle, keeper->conn, now))
	{
		keeper->flight = ORPHANS;
		keeper->answer_by = now + dlock_answer_ms(handle->ttl_ms);
	}
	if (keeper->flight != NOTHING &&
		dlock_conn_state(keeper->conn) != DLOCK_CONN_BUSY)
		flight_ended(keeper, now);
}

/* Start what can be started.  Returns when to look again at the latest. */
static int64_t
plan(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;
	int64_t		until = DLOCK_NEVER;
	DlockConnState state;

	if (conn_state(keeper) == DLOCK_CONN_CLOSED && needed_at(handle, now) <= now)
		open_connection(keeper, now);
	if (conn_state(keeper) == DLOCK_CONN_READY)
		ask_server(keeper, now);

	state = conn_state(keeper);
	if (state == DLOCK_CONN_CLOSED)
	{
		until = needed_at(handle, now);
		if (until < DLOCK_NEVER)
			until = dlock_max(until, keeper->retry_at);
	}
	else
		until = dlock_conn_until(keeper->conn);
	if (state == DLOCK_CONN_BUSY)
		until = dlock_min(until, keeper->answer_by);
	if (state == DLOCK_CONN_READY)
	{
		until = dlock_min(until, dlock_orphans_due(handle));
		until = dlock_min(until, dlock_wait_ask_at(handle, dlock_conn_listens(keeper->conn)));
	}
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		if (lock->hold != DLOCK_HOLD_OURS || lock->silent)
			continue;
		until = dlock_min(until, lock->deadline);
		if (lock->renew)
			until = dlock_min(until, lock->danger_at);
		if (state == DLOCK_CONN_READY && lock->held_off == 0)
			until = dlock_min(until, lock->heard ?
							  dlock_min(lock->due, dlock_events_ripe_at(handle)) : lock->due);
	}
	return until;
}

/* For the requests that wait; a server that turns us away is there. */
static void
note_signs_of_life(Keeper *keeper)
{
	dlock_handle *handle = keeper->handle;
	bool		retry;

	if (keeper->conn == NULL || handle->nwaits == 0)
		return;
	handle->alive_at = dlock_max(handle->alive_at, dlock_conn_turned_away_at(keeper->conn));
	if (conn_state(keeper) < DLOCK_CONN_READY)
		handle->keeper_error = *dlock_conn_error(keeper->conn, &retry);
}

/* Wait for the server, a caller or the clock; then let the connection go on. */
static void
wait_for_news(Keeper *keeper, int64_t until)
{
	dlock_handle *handle = keeper->handle;
	struct pollfd fds[2] = {{0}, {0}};
	int			n;

	fds[0].fd = dlock_bell_fd(&handle->bell);
	fds[0].events = POLLIN;
	fds[1].fd = -1;
	if (keeper->conn != NULL)
		fds[1].fd = dlock_conn_fd(keeper->conn, &fds[1].events);
	handle->lends = keeper->is_open && conn_state(keeper) != DLOCK_CONN_CLOSED;
	handle->sleeps_until = until;
	pthread_mutex_unlock(&handle->mutex);

	n = poll(fds, 2, dlock_poll_timeout(until, dlock_now()));
	if (n > 0 && fds[0].revents != 0)
		dlock_bell_quiet(&handle->bell);
	if (keeper->conn != NULL)
		dlock_conn_step(keeper->conn, n > 0 ? fds[1].revents : 0, dlock_now());
	pthread_mutex_lock(&handle->mutex);
	handle->sleeps_until = 0;
	note_signs_of_life(keeper);
}

static void *
keeper_main(void *arg)
{
	Keeper		keeper;
	dlock_handle *handle = arg;
	bool		closing;

	memset(&keeper, 0, sizeof(keeper));
	keeper.handle = handle;
	keeper.backoff = DLOCK_BACKOFF_FIRST_MS;

	pthread_mutex_lock(&handle->mutex);
	while (!handle->stopping)
	{
		int64_t		now = dlock_now();
		int64_t		until;

		dlock_lease_check_all(handle, now);
		if (dlock_tell(handle, now))
			continue;
		lend(&keeper, now);
		until = plan(&keeper, now);
		wait_for_news(&keeper, until);

		/* a lock whose deadline has passed is lost, whatever the answer is */
		now = dlock_now();
		dlock_lease_check_all(handle, now);
		if (keeper.flight != NOTHING)
		{
			if (dlock_conn_state(keeper.conn) != DLOCK_CONN_BUSY)
				flight_ended(&keeper, now);
			else if (now >= keeper.answer_by)
			{
				/*
				 * Another connection may work better, and a refresh can be
				 * sent twice.
				 */
				dlock_conn_close(keeper.conn);
				flight_ended(&keeper, now);
			}
		}
	}
	if (keeper.flight != NOTHING)
		land(&keeper, NULL, dlock_now());
	handle->lends = false;
	closing = handle->closing;
	pthread_mutex_unlock(&handle->mutex);
	dlock_pool_finish(keeper.conn, dlock_now() + DLOCK_FINISH_MS);
	if (closing)
	{
		/* nobody waits for this thread or may use the handle any more */
		pthread_detach(pthread_self());
		dlock_handle_destroy(handle);
	}
	return NULL;
}

dlock_status
dlock_keepalive_start(dlock_handle *handle, dlock_error *err)
{
	sigset_t	all;
	sigset_t	before;
	int			failed = 0;

	if (__atomic_load_n(&handle->running, __ATOMIC_ACQUIRE))
		return DLOCK_OK;
	pthread_mutex_lock(&handle->mutex);
	if (!handle->running)
	{
		/* leave signals to the threads of the program */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		failed = pthread_create(&handle->thread, NULL, keeper_main, handle);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		__atomic_store_n(&handle->running, failed == 0, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&handle->mutex);
	if (failed)
		return dlock_fail(err, DLOCK_NO_MEMORY, "could not start the renewal thread: %s",
						  strerror(failed));
	return DLOCK_OK;
}

void
dlock_keepalive_stop(dlock_handle *handle)
{
	bool		running;

	pthread_mutex_lock(&handle->mutex);
	running = handle->running;
	handle->stopping = true;
	dlock_roster_wake(handle);
	pthread_mutex_unlock(&handle->mutex);
	if (running)
		pthread_join(handle->thread, NULL);
}

/* In a callback: when it returns, the thread ends and frees the handle. */
void
dlock_keepalive_stop_later(dlock_handle *handle)
{
	pthread_mutex_lock(&handle->mutex);
	handle->stopping = true;
	handle->closing = true;
	pthread_mutex_unlock(&handle->mutex);
}

/* Is this the renewal thread? */
bool
dlock_in_callback(dlock_handle *handle)
{
	return __atomic_load_n(&handle->running, __ATOMIC_ACQUIRE) &&
		pthread_equal(handle->thread, pthread_self());
}
