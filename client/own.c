/*-------------------------------------------------------------------------
 *
 * own.c
 *	  A call on a connection of its own.
 *
 * This is for a session lock, which needs one, and for a call that the server
 * makes wait or that may take long, so that it does not hold up the others.  The
 * thread of the caller does everything.
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"
#include "constants.h"
#include "flight.h"
#include "own.h"
#include "pool.h"
#include "util.h"

/*
 * The server may go away while we wait, and TCP does not notice if a machine
 * in between stays alive.  So ask on the main connection.  Returns false if the
 * server is gone, or if another one has taken its place.
 */
static bool
still_there(dlock_handle *handle, const DlockConn *waiting, int64_t timeout_ms,
			dlock_error *error)
{
	DlockCall	probe;
	bool		there;

	dlock_call_init(&probe, dlock_sql_probe, 0, NULL, timeout_ms);
	probe.knocks = true;
	dlock_flight_call(handle, &probe);
	there = probe.reply != NULL || probe.full;
	if (!there)
		dlock_error_copy(error, &probe.error);
	else if (probe.host != dlock_conn_host(waiting))
	{
		dlock_fail(error, DLOCK_UNREACHABLE, "another server has taken over");
		there = false;
	}
	dlock_reply_free(probe.reply);
	return there;
}

typedef enum Outcome
{
	ANSWERED,					/* or failed for good */
	AGAIN,
	OUT_OF_TIME
} Outcome;

/* Connect if necessary.  ANSWERED: it is connected, or never will be. */
static Outcome
connect_for(const DlockCall *call, DlockConn *conn, int64_t *silent_until,
			dlock_error *error)
{
	bool		retry;

	if (dlock_conn_state(conn) == DLOCK_CONN_CLOSED)
		dlock_conn_start(conn, 0, dlock_now());
	for (;;)
	{
		int64_t		turned_away_at = dlock_conn_turned_away_at(conn);
		int64_t		until;

		if (turned_away_at > 0)
			*silent_until = dlock_max(*silent_until,
									  dlock_later(turned_away_at, call->timeout_ms));
		if (!dlock_conn_connecting(conn))
			break;
		until = dlock_min(call->until, *silent_until);
		if (dlock_now() >= until)
		{
			/* the error of an earlier host says more than a timeout */
			dlock_error_copy(error, dlock_conn_error(conn, &retry));
			if (error->message[0] == '\0')
				dlock_fail(error, DLOCK_UNREACHABLE,
						   "could not reach a server in %lld ms",
						   (long long) call->timeout_ms);
			dlock_conn_close(conn);
			return OUT_OF_TIME;
		}
		dlock_conn_work(conn, until);
	}
	if (dlock_conn_state(conn) != DLOCK_CONN_CLOSED)
		return ANSWERED;
	dlock_error_copy(error, dlock_conn_error(conn, &retry));
	return retry ? AGAIN : ANSWERED;
}

/* One try. */
static Outcome
try(dlock_handle *handle, DlockCall *call, DlockConn *conn,
	int64_t *silent_until, dlock_error *error)
{
	int64_t		until;
	int64_t		probe_at = DLOCK_NEVER;
	int64_t		probe_every = dlock_probe_ms(call->timeout_ms);
	bool		retry;
	Outcome		outcome = connect_for(call, conn, silent_until, error);

	if (outcome != ANSWERED || dlock_conn_state(conn) == DLOCK_CONN_CLOSED)
		return outcome;

	call->sent_at = dlock_now();
	dlock_call_set_params(call, conn, call->sent_at, "0", true);
	*silent_until = dlock_later(call->sent_at, call->timeout_ms);
	until = *silent_until;
	if (call->wait_param > 0)
	{
		until = call->wait_until == DLOCK_NEVER ? DLOCK_NEVER :
			dlock_later(dlock_max(call->wait_until, call->sent_at), call->timeout_ms);
		probe_at = dlock_later(call->sent_at, probe_every);
	}
	until = dlock_min(until, call->until);

	if (dlock_conn_send(conn, call->sql, call->nparams, call->params))
		while (dlock_conn_state(conn) == DLOCK_CONN_BUSY)
		{
			int64_t		now = dlock_now();

			if (now >= until)
			{
				/* the server may still execute it */
				dlock_conn_close(conn);
				call->in_doubt = true;
				dlock_fail(error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
						   (long long) (now - call->sent_at));
				return OUT_OF_TIME;
			}
			if (now >= probe_at)
			{
				if (!still_there(handle, conn,
								 dlock_min(call->timeout_ms, dlock_max(until - now, 0)), error))
				{
					dlock_conn_close(conn);
					call->in_doubt = true;
					return AGAIN;
				}
				probe_at = dlock_later(dlock_now(), probe_every);
				*silent_until = dlock_later(dlock_now(), call->timeout_ms);
				continue;
			}
			dlock_conn_work(conn, dlock_min(until, probe_at));
		}

	if (dlock_conn_state(conn) == DLOCK_CONN_DONE)
	{
		call->reply = dlock_conn_take(conn);
		if (call->reply != NULL)
			return ANSWERED;
	}
	dlock_error_copy(error, dlock_conn_error(conn, &retry));
	*silent_until = dlock_later(dlock_now(), call->timeout_ms);
	if (!retry)
		return dlock_conn_timed_out(conn) ? AGAIN : ANSWERED;
	call->in_doubt = true;
	return AGAIN;
}

/*
 * When to try again.  Many clients may be turned away at the same time, and
 * must not all come back at the same time.  After a timeout of the server the
 * next try is made at once, unless that timeout was very short.
 */
static int64_t
next_try_at(const DlockCall *call, const DlockConn *conn, int64_t backoff)
{
	if (dlock_conn_state(conn) == DLOCK_CONN_READY)
		return dlock_max(dlock_now(),
						 call->sent_at + dlock_jitter(dlock_min(backoff, DLOCK_TIMED_OUT_PAUSE_MS)));
	if (dlock_conn_turned_away_at(conn) > 0)
	{
		/* well below the time after which a server counts as silent */
		backoff = dlock_max(dlock_min(backoff, call->timeout_ms / 2), 1);
		return dlock_now() + backoff / 2 + dlock_random() % backoff;
	}
	return dlock_now() + dlock_jitter(backoff);
}

/*
 * Until it is answered.  DLOCK_OK: the caller frees call->reply.  If the server
 * has no connection left, a call that could go elsewhere gives up.
 */
static dlock_status
call_on(dlock_handle *handle, DlockCall *call, DlockConn *conn, bool can_go_elsewhere,
		dlock_error *err)
{
	int64_t		silent_until = call->once ? DLOCK_NEVER :
	dlock_later(dlock_now(), call->timeout_ms);
	int64_t		backoff = DLOCK_BACKOFF_FIRST_MS;
	dlock_error error;

	dlock_error_clear(&error);
	for (;;)
	{
		bool		was_open = dlock_conn_state(conn) == DLOCK_CONN_READY;
		Outcome		outcome = try(handle, call, conn, &silent_until, &error);
		int64_t		until;

		if (outcome != AGAIN)
			break;
		/* an old connection may have been closed by the server meanwhile */
		if (was_open && dlock_conn_state(conn) == DLOCK_CONN_CLOSED)
			continue;
		if (call->once || (can_go_elsewhere && dlock_conn_found_full(conn)))
			break;
		until = next_try_at(call, conn, backoff);
		if (until >= dlock_min(call->until, silent_until))
			break;
		dlock_sleep_until(until);
		backoff = dlock_min(2 * backoff, DLOCK_BACKOFF_LAST_MS);
	}
	if (call->reply != NULL)
	{
		dlock_error_clear(err);
		return DLOCK_OK;
	}
	if (error.status == DLOCK_OK)
		error.status = DLOCK_UNREACHABLE;
	return dlock_error_copy(err, &error);
}

/* On *call->conn, which is that of a session lock, and may not be there yet. */
dlock_status
dlock_own_session(dlock_handle *handle, DlockCall *call, dlock_error *err)
{
	call->reply = NULL;
	call->in_doubt = false;
	if (*call->conn == NULL)
	{
		pthread_mutex_lock(&handle->mutex);
		if (handle->nidle > 0)
			handle->nconns--;
		*call->conn = handle->nidle > 0 ? handle->idle[--handle->nidle] :
			dlock_conn_new(handle->target);
		pthread_mutex_unlock(&handle->mutex);
	}
	if (*call->conn == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	return call_on(handle, call, *call->conn, false, err);
}

/*
 * On one of the handle.  False: there is none to spare, or the server has none
 * left, and nothing has happened.
 */
bool
dlock_own_call(dlock_handle *handle, DlockCall *call, dlock_status *status,
			   dlock_error *err)
{
	DlockConn  *conn;
	bool		full;

	pthread_mutex_lock(&handle->mutex);
	conn = dlock_pool_spare(handle, call->wait_param == 0, call->until);
	pthread_mutex_unlock(&handle->mutex);
	if (conn == NULL)
		return false;
	call->reply = NULL;
	call->polled = false;
	*status = call_on(handle, call, conn, true, err);
	full = *status != DLOCK_OK && dlock_conn_found_full(conn);
	pthread_mutex_lock(&handle->mutex);
	dlock_pool_give_spare(handle, conn);
	pthread_mutex_unlock(&handle->mutex);
	return !full;
}
