/*-------------------------------------------------------------------------
 *
 * landing.c
 *	  What has become of a flight, and of a connection for one.
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
 * The second flight gives up where the main one tries again: its calls go to the
 * queue, and so to the main one.
 *
 * Everything here needs the mutex.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "clock.h"
#include "flight.h"
#include "pool.h"
#include "queue.h"
#include "util.h"

/*
 * No connection
 */

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

/*
 * How long may the driver wait for the connection of the renewal thread?  Its own call,
 * if it has one, is in the queue; the pilot has others, too.
 */
static int64_t
may_borrow_until(const dlock_handle *handle)
{
	int64_t		until = DLOCK_NEVER;

	if (handle->async.under_way != NULL)
		until = dlock_now() + DLOCK_PILOT_LATE_MS;
	for (const DlockCall *call = handle->queue.first; call != NULL; call = call->next)
		until = dlock_min(until, dlock_flight_limit(call));
	return until;
}

/* No host has accepted us. */
static void
not_connected(dlock_handle *handle, DlockFlight *flight)
{
	bool		retry;
	bool		full = dlock_conn_found_full(flight->conn);
	DlockCall  *next;
	DlockConn  *open;

	/* the main flight can do without it */
	if (dlock_flight_is_second(handle, flight))
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
	open = full ? dlock_pool_take_open(handle, true, may_borrow_until(handle)) : NULL;
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
 * Answers
 */

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
	if (dlock_flight_is_second(handle, flight))
		not_connected(handle, flight);
	else if (flight->is_old)
		flight->retry_at = dlock_now();
	else
		pause_before_next(handle, flight);
}

void
dlock_flight_no_memory(dlock_handle *handle, DlockFlight *flight)
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
void
dlock_flight_settle(dlock_handle *handle, DlockFlight *flight)
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
				dlock_pool_distrust(handle);
				flight->is_old = true;
				broken(handle, flight, &error);
			}
			break;
		case DLOCK_CONN_READY:
			if (flight->nair > 0)
				dlock_flight_no_memory(handle, flight);
			break;
		default:
			note_signs_of_life(handle, flight);
			break;
	}
}
