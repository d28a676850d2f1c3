/*-------------------------------------------------------------------------
 *
 * flight.c
 *	  Calls that go together: one connection carries those of all threads.
 *
 * A flight is one statement on the main connection of the handle, and one flight
 * is under way at a time.  A call that finds none goes at once.  Calls that come
 * meanwhile are queued, and are the next flight, all together.  So many threads
 * share one round trip and one flush, and one thread is not slowed down.
 *
 * There is no thread for this.  One of the threads that wait for an answer
 * drives: it connects, sends, polls and hands out the answers, without the mutex
 * where that may take time.  The others sleep, each on a condition variable of
 * its own, and are woken when their call is done, or to drive when the driver
 * has its answer and leaves.
 *
 * An error is the affair of the call that caused it.  If the server refuses a
 * flight, nothing of it has taken effect, unless through a router, where each call
 * does by itself.  Its calls go again, each in a statement of its own.
 * A call that waits for a row which an open transaction is using would hold up
 * the others, so lock_timeout ends such a flight (DLOCK_ROW_WAIT), and the call
 * that is left with that error by itself is "blocked": call.c sends it on a
 * connection of its own.
 *
 * Every call can be sent twice (call.c).  So if the connection breaks, or there
 * is no answer, the calls are queued again for the next connection, until the
 * time of each is up.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "batch.h"
#include "clock.h"
#include "flight.h"
#include "pool.h"
#include "queue.h"
#include "util.h"
#include "waker.h"

/*
 * Everything here needs the mutex, unless it says otherwise.
 */

/* Its owner waits no longer; others may, for the same flight. */
bool
dlock_flight_is_deserted(const DlockFlight *flight)
{
	for (int i = 0; i < flight->nair; i++)
		if (flight->air[i] != NULL)
			return false;
	return true;
}

/*
 * The connection
 */

static bool
is_second(const dlock_handle *handle, const DlockFlight *flight)
{
	return flight == &handle->second;
}

void
dlock_flight_drop_conn(dlock_handle *handle, DlockFlight *flight)
{
	if (flight->conn != NULL && is_second(handle, flight))
		handle->nspare--;
	dlock_pool_drop(handle, flight->conn);
	flight->conn = NULL;
}

/* It is not needed now. */
static void
give_conn(dlock_handle *handle, DlockFlight *flight)
{
	if (is_second(handle, flight))
		dlock_pool_give_spare(handle, flight->conn);
	else
		dlock_pool_give(handle, flight->conn);
	flight->conn = NULL;
}

/*
 * Many clients may be turned away at the same time, and must not all come back
 * at the same time.
 */
static void
pause_before_next(const dlock_handle *handle, DlockFlight *flight)
{
	int64_t		now = dlock_now();
	int64_t		backoff = flight->backoff;

	bool		turned_away = dlock_conn_turned_away_at(flight->conn) > 0;

	flight->backoff = dlock_min(2 * backoff, turned_away ? DLOCK_BACKOFF_FULL_MS : DLOCK_BACKOFF_LAST_MS);
	if (turned_away)
	{
		/* well below the time after which a server counts as silent */
		for (const DlockCall *call = handle->queue.first; call != NULL; call = call->next)
			backoff = dlock_min(backoff, call->timeout_ms / 2);
		backoff = dlock_max(backoff, 1);
		flight->retry_at = now + backoff / 2 + dlock_random() % backoff;
	}
	else
		flight->retry_at = now + dlock_jitter(backoff);
}

/* A server that turns us away is there, so it is not silent. */
static void
note_signs_of_life(const dlock_handle *handle, DlockFlight *flight)
{
	int64_t		turned_away_at = dlock_conn_turned_away_at(flight->conn);
	bool		retry;

	flight->error = *dlock_conn_error(flight->conn, &retry);
	for (DlockCall *call = handle->queue.first; call != NULL && turned_away_at > 0; call = call->next)
		call->silent_until = dlock_max(call->silent_until,
									   dlock_later(turned_away_at, call->timeout_ms));
}

/* No host has accepted us. */
static void
not_connected(dlock_handle *handle, DlockFlight *flight)
{
	bool		retry;
	bool		full = dlock_conn_found_full(flight->conn);
	DlockCall  *next;
	DlockConn  *open;

	/* the other flight can do without */
	if (is_second(handle, flight))
	{
		dlock_flight_drop_conn(handle, flight);
		flight->retry_at = dlock_now() + dlock_jitter(DLOCK_SECOND_PAUSE_MS);
		return;
	}
	note_signs_of_life(handle, flight);
	(void) dlock_conn_error(flight->conn, &retry);
	for (DlockCall *call = handle->queue.first; call != NULL; call = next)
	{
		next = call->next;
		if (!retry || call->once || (call->knocks && full))
		{
			call->full = full;
			call->host = dlock_conn_full_host(flight->conn);
			dlock_queue_take_out(&handle->queue, call);
			dlock_call_finish_with(flight, call, &flight->error);
		}
		else
			call->error = flight->error;
	}
	if (handle->queue.first == NULL)
	{
		dlock_flight_drop_conn(handle, flight);
		return;
	}
	open = full ? dlock_pool_take_open(handle, true, DLOCK_NEVER) : NULL;
	if (open != NULL)
	{
		dlock_flight_drop_conn(handle, flight);
		flight->conn = open;
		flight->is_fresh = false;
	}
	else
		pause_before_next(handle, flight);
}

/*
 * Flights
 */

/* Without the mutex: nobody else touches what is in the air meanwhile. */
static void
load_and_send(DlockFlight *flight)
{
	for (int i = 0; i < flight->nair; i++)
		dlock_call_set_params(flight->air[i], flight->conn, flight->sent_at, DLOCK_ROW_WAIT,
							  flight->air[i]->kind != DLOCK_OTHER);
	/* if it fails, settle() sees it by the state of the connection */
	(void) dlock_batch_send(flight->conn, flight->air, flight->nair);
}

/* Those whose calls are done. */
static DlockWaker *
take_landed(DlockFlight *flight)
{
	DlockWaker *landed = flight->landed;

	flight->landed = NULL;
	return landed;
}

/* The connection is ready: send what is queued. */
static void
launch(dlock_handle *handle, DlockFlight *flight)
{
	DlockWaker *landed;
	int64_t		until = 0;

	flight->sent_at = dlock_now();
	dlock_queue_board(&handle->queue, flight, is_second(handle, flight), flight->sent_at);
	if (flight->nair == 0)
		return;
	for (int i = 0; i < flight->nair; i++)
	{
		DlockCall  *call = flight->air[i];

		flight->is_knock = flight->is_knock && call->knocks;
		call->sent_at = flight->sent_at;
		if (!call->once)
			call->silent_until = dlock_later(flight->sent_at, call->timeout_ms);
		until = dlock_max(until, dlock_flight_limit(call));
	}
	flight->answer_by = until;
	flight->is_old = !flight->is_fresh;
	flight->is_fresh = false;
	flight->loading = true;
	landed = take_landed(flight);
	pthread_mutex_unlock(&handle->mutex);
	load_and_send(flight);
	/* the server is at work, and those who have their answers can be */
	dlock_waker_wake_list(landed, DLOCK_WOKEN_DONE);
	pthread_mutex_lock(&handle->mutex);
	flight->loading = false;
	if (handle->leaving > 0)
		pthread_cond_broadcast(&handle->changed);
}

/* The calls that still have an owner; there are so many. */
static int
land(DlockFlight *flight, DlockCall **calls)
{
	int			n = 0;

	for (int i = 0; i < flight->nair; i++)
		if (flight->air[i] != NULL)
			calls[n++] = flight->air[i];
	flight->nair = 0;
	return n;
}

/* Hand out the answers. */
static void
answered(dlock_handle *handle, DlockFlight *flight, DlockReply *reply)
{
	DlockCall  *calls[DLOCK_MAX_FLIGHT];
	int			left = 0;
	int			n = flight->nair;

	flight->backoff = DLOCK_BACKOFF_FIRST_MS;
	if (n == 1)
	{
		DlockCall  *call = flight->air[0];

		flight->nair = 0;
		if (call == NULL)
			dlock_reply_free(reply);
		else
		{
			call->reply = reply;
			call->host = dlock_conn_host(flight->conn);
			dlock_call_finish(flight, call);
		}
		return;
	}
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int64_t		kind = dlock_reply_int(reply, row, 0);
		int64_t		i = dlock_reply_int(reply, row, 1) - 1;
		DlockCall  *call;

		if (kind < 0 || kind >= DLOCK_KINDS || i < 0)
			continue;
		i += flight->first[kind];
		call = i < n ? flight->air[i] : NULL;
		if (call == NULL || call->kind != (DlockKind) kind)
			continue;
		flight->air[i] = NULL;
		call->reply = dlock_reply_row(reply, row, 2);
		call->host = dlock_conn_host(flight->conn);
		if (call->reply == NULL)
		{
			call->in_doubt = true;
			dlock_fail(&call->error, DLOCK_NO_MEMORY, "out of memory");
		}
		dlock_call_finish(flight, call);
	}
	dlock_reply_free(reply);

	/* each has a row, unless a function of the server is not ours */
	left = land(flight, calls);
	for (int i = 0; i < left; i++)
		calls[i]->alone = true;
	dlock_queue_put_back(&handle->queue, calls, left);
}

/* The server has refused it, and the connection is as good as before. */
static void
refused(dlock_handle *handle, DlockFlight *flight)
{
	DlockCall  *calls[DLOCK_MAX_FLIGHT];
	bool		together = flight->nair > 1;
	bool		retry;
	int			n = land(flight, calls);
	const dlock_error *error = dlock_conn_error(flight->conn, &retry);

	for (int i = 0; i < n; i++)
	{
		DlockCall  *call = calls[i];

		if (together)
		{
			call->alone = true;
			call->in_doubt = call->in_doubt || dlock_conn_is_routed(flight->conn);
		}
		else if (!dlock_conn_timed_out(flight->conn))
		{
			dlock_call_finish_with(flight, call, error);
			return;
		}
		else if (call->row_param > 0 && strcmp(error->sqlstate, "55P03") == 0)
		{
			call->blocked = true;
			dlock_call_finish_with(flight, call, error);
			return;
		}
		else
		{
			/* a timeout of the server, perhaps a very short one */
			call->error = *error;
			call->ready_at = flight->sent_at + dlock_jitter(DLOCK_TIMED_OUT_PAUSE_MS);
		}
	}
	dlock_queue_put_back(&handle->queue, calls, n);
}

/* The connection is gone, and nobody knows what the server did. */
static void
broken(dlock_handle *handle, DlockFlight *flight, const dlock_error *error)
{
	DlockCall  *calls[DLOCK_MAX_FLIGHT];
	int			n = land(flight, calls);
	int			again = 0;

	for (int i = 0; i < n; i++)
	{
		DlockCall  *call = calls[i];

		call->in_doubt = true;
		if (call->once)
			dlock_call_finish_with(flight, call, error);
		else
		{
			call->error = *error;
			call->silent_until = dlock_later(dlock_now(), call->timeout_ms);
			calls[again++] = call;
		}
	}
	dlock_queue_put_back(&handle->queue, calls, again);
	/* an old connection may have been closed by the server meanwhile */
	if (is_second(handle, flight))
		not_connected(handle, flight);
	else if (flight->is_old)
		flight->retry_at = dlock_now();
	else
		pause_before_next(handle, flight);
}

static void
no_memory(dlock_handle *handle, DlockFlight *flight)
{
	DlockCall  *calls[DLOCK_MAX_FLIGHT];
	int			n = land(flight, calls);
	dlock_error error;

	dlock_fail(&error, DLOCK_NO_MEMORY, "out of memory");
	dlock_queue_put_back(&handle->queue, calls, n);
	while (handle->queue.first != NULL)
	{
		DlockCall  *call = handle->queue.first;

		dlock_queue_take_out(&handle->queue, call);
		dlock_call_finish_with(flight, call, &error);
	}
}

/* Look at what the connection has come to. */
static void
settle(dlock_handle *handle, DlockFlight *flight)
{
	int64_t		now = dlock_now();
	bool		retry;
	dlock_error error;
	DlockReply *reply;

	switch (dlock_conn_state(flight->conn))
	{
		case DLOCK_CONN_DONE:
			reply = dlock_conn_take(flight->conn);
			if (reply != NULL)
				answered(handle, flight, reply);
			else if (dlock_conn_state(flight->conn) == DLOCK_CONN_READY)
				refused(handle, flight);
			else
				broken(handle, flight, dlock_conn_error(flight->conn, &retry));
			break;
		case DLOCK_CONN_CLOSED:
			if (flight->nair > 0)
				broken(handle, flight, dlock_conn_error(flight->conn, &retry));
			else
				not_connected(handle, flight);
			break;
		case DLOCK_CONN_BUSY:

			/*
			 * The server may still execute it.  Another connection may work
			 * better, and others wait for one.
			 */
			if (now >= flight->answer_by || dlock_flight_is_deserted(flight) ||
				(handle->queue.first != NULL &&
				 now >= flight->sent_at + dlock_probe_ms(handle->timeout_ms)))
			{
				dlock_fail(&error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
						   (long long) (now - flight->sent_at));
				dlock_conn_close(flight->conn);
				flight->is_old = true;
				broken(handle, flight, &error);
			}
			break;
		case DLOCK_CONN_READY:
			if (flight->nair > 0)
				no_memory(handle, flight);
			break;
		default:
			note_signs_of_life(handle, flight);
			break;
	}
}

/* Nothing is under way: connect, or send what is queued. */
static int64_t
start(dlock_handle *handle, DlockFlight *flight, int64_t now, int64_t until)
{
	int64_t		ready_at = dlock_queue_next_ready(&handle->queue);

	if (ready_at > now)
		return ready_at;
	if (flight->conn == NULL)
	{
		flight->conn = is_second(handle, flight) ? dlock_pool_spare(handle, false, now) :
			dlock_pool_take(handle, true, until);
		flight->is_fresh = false;
		flight->is_knock = false;
		flight->retry_at = 0;
		dlock_error_clear(&flight->error);
		if (flight->conn == NULL)
		{
			no_memory(handle, flight);
			return 0;
		}
	}
	if (dlock_conn_state(flight->conn) == DLOCK_CONN_READY)
		launch(handle, flight);
	else if (dlock_conn_state(flight->conn) == DLOCK_CONN_CLOSED)
	{
		if (flight->retry_at > now)
			return flight->retry_at;
		flight->is_fresh = true;
		flight->is_knock = true;
		/* resolving and connecting may take a while */
		pthread_mutex_unlock(&handle->mutex);
		dlock_conn_start(flight->conn, 0, now);
		pthread_mutex_lock(&handle->mutex);
	}
	return 0;
}

/* May the second flight take those that wait?  Few are better off together. */
static bool
is_second_wanted(const dlock_handle *handle)
{
	return handle->queue.n >= DLOCK_SECOND_LEAST && handle->queue.n >= handle->main.nair &&
		handle->main.nair > 0 && dlock_queue_next_ready(&handle->queue) <= dlock_now();
}

static bool
may_launch(const dlock_handle *handle, const DlockFlight *flight)
{
	return is_second(handle, flight) ? is_second_wanted(handle) :
		dlock_queue_next_ready(&handle->queue) <= dlock_now();
}

/* Which one has to be driven by the owner of this call?  NULL: none. */
DlockFlight *
dlock_flight_to_drive(dlock_handle *handle, const DlockCall *call)
{
	DlockFlight *second = &handle->second;

	if (call->state == DLOCK_CALL_FLYING)
		return call->flight->driven ? NULL : call->flight;
	if (!handle->main.driven)
		return &handle->main;
	if (second->driven || second->nair > 0)
		return NULL;
	if (second->conn != NULL)
		return second;
	return is_second_wanted(handle) && dlock_now() >= second->retry_at &&
		handle->nspare < handle->max_connections - DLOCK_MIN_CONNECTIONS - 1 ? second : NULL;
}

/*
 * Do what can be done, until then at most, as the only one that does.  Returns
 * 0, or when there will be something to do.
 */
int64_t
dlock_flight_drive(dlock_handle *handle, DlockFlight *flight, int64_t until)
{
	int64_t		now = dlock_now();
	int64_t		idle_until = 0;

	flight->driven = true;
	if (flight->nair == 0)
		idle_until = start(handle, flight, now, until);
	if (flight->nair > 0)
	{
		int64_t		patience = flight->sent_at + dlock_probe_ms(handle->timeout_ms);

		until = dlock_min(until, flight->answer_by);
		if (patience > now)
			until = dlock_min(until, patience);
	}
	if (idle_until == 0 && flight->conn != NULL)
	{
		if (dlock_conn_connecting(flight->conn) ||
			dlock_conn_state(flight->conn) == DLOCK_CONN_BUSY)
		{
			/* its driver may have been answered by the other flight */
			if (flight->nair == 0 && is_second(handle, flight))
				until = dlock_min(until, now + DLOCK_GLANCE_MS);
			pthread_mutex_unlock(&handle->mutex);
			dlock_conn_work(flight->conn, until);
			pthread_mutex_lock(&handle->mutex);
		}
		settle(handle, flight);
	}

	/* the next flight leaves before its passengers are all awake */
	if (flight->conn != NULL && flight->nair == 0 &&
		dlock_conn_state(flight->conn) == DLOCK_CONN_READY)
	{
		if (may_launch(handle, flight))
			launch(handle, flight);
		else if (flight->is_knock)
			dlock_flight_drop_conn(handle, flight); /* all that wait would need one */
		else
			give_conn(handle, flight);
	}
	if (flight->landed != NULL)
	{
		DlockWaker *landed = take_landed(flight);

		pthread_mutex_unlock(&handle->mutex);
		dlock_waker_wake_list(landed, DLOCK_WOKEN_DONE);
		pthread_mutex_lock(&handle->mutex);
	}
	flight->driven = false;
	return idle_until;
}
