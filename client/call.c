/*-------------------------------------------------------------------------
 *
 * call.c
 *	  One statement, sent until it is answered.
 *
 * Every statement of the library can be sent twice: an acquire has an owner,
 * which gets the same grant again, and the others name their grant.  So when a
 * connection breaks, a server goes down or an answer does not arrive, the
 * statement is sent to the next host that accepts us, until the caller's time
 * is up.  Nothing is ever cancelled.
 *
 * A server that is full, starting or shutting down is not silent: a call that
 * waits for a lock retries until its wait is over.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "clock.h"
#include "constants.h"
#include "pool.h"
#include "sql.h"
#include "util.h"

void
dlock_call_init(DlockCall *call, const char *sql, int nparams,
				const char **params, int64_t timeout_ms)
{
	memset(call, 0, sizeof(*call));
	call->sql = sql;
	call->nparams = nparams;
	call->params = params;
	call->timeout_ms = timeout_ms;
	call->until = dlock_later(dlock_now(), timeout_ms);
}

/*
 * The server may go away while we wait, and TCP does not notice if a machine
 * in between stays alive.  So ask on another connection, and close that again,
 * because every waiter would need one.  Returns false if the server is gone,
 * or if another one has taken its place.
 */
static bool
still_there(dlock_handle *handle, DlockConn *waiting, int64_t timeout_ms,
			dlock_error *error)
{
	DlockCall	probe;
	DlockConn  *conn = dlock_pool_take(handle, false, 0);
	bool		was_open = conn != NULL && dlock_conn_state(conn) == DLOCK_CONN_READY;
	bool		there;

	dlock_call_init(&probe, dlock_sql_probe, 0, NULL, timeout_ms);
	probe.conn = &conn;
	probe.knocks = true;
	there = dlock_call(handle, &probe, error) == DLOCK_OK;
	if (there && !dlock_conn_same_server(conn, waiting))
	{
		dlock_fail(error, DLOCK_UNREACHABLE, "another server has taken over");
		there = false;
	}
	dlock_reply_free(probe.reply);
	if (conn != NULL && !there)
		there = dlock_conn_found_full(conn, waiting);
	if (was_open)
		dlock_pool_give(handle, conn);
	else
		dlock_conn_free(conn);
	return there;
}

static void
set_parameters(DlockCall *call, DlockConn *conn, int64_t now,
			   char *wait, char *ttl, size_t size)
{
	if (call->ttl_param > 0)
	{
		if (*call->ttl_ms == 0)
			*call->ttl_ms = dlock_max(dlock_conn_default_ttl(conn), call->ttl_least);
		snprintf(ttl, size, "%lld ms", (long long) *call->ttl_ms);
		call->params[call->ttl_param - 1] = ttl;
	}
	if (call->wait_param > 0)
	{
		snprintf(wait, size, "%lld ms",
				 (long long) dlock_max(call->wait_until - now, 0));
		call->params[call->wait_param - 1] =
			call->wait_until == DLOCK_NEVER ? NULL : wait;
	}
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
	char		wait[32];
	char		ttl[32];
	int64_t		until;
	int64_t		probe_at = DLOCK_NEVER;
	int64_t		probe_every = dlock_probe_ms(call->timeout_ms);
	bool		retry;
	Outcome		outcome = connect_for(call, conn, silent_until, error);

	if (outcome != ANSWERED || dlock_conn_state(conn) == DLOCK_CONN_CLOSED)
		return outcome;

	call->sent_at = dlock_now();
	set_parameters(call, conn, call->sent_at, wait, ttl, sizeof(wait));
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
 * DLOCK_OK: the caller frees call->reply.
 */
dlock_status
dlock_call(dlock_handle *handle, DlockCall *call, dlock_error *err)
{
	DlockConn  *conn = call->conn != NULL ? *call->conn : NULL;
	int64_t		silent_until = dlock_later(dlock_now(), call->timeout_ms);
	int64_t		backoff = DLOCK_BACKOFF_FIRST_MS;
	dlock_error error;
	Outcome		outcome;

	call->reply = NULL;
	call->in_doubt = false;
	dlock_error_clear(&error);
	if (call->once)
		silent_until = DLOCK_NEVER;
	if (conn == NULL)
		conn = dlock_pool_take(handle, call->conn == NULL, call->until);
	for (;;)
	{
		int64_t		until;
		bool		was_open;

		if (conn == NULL)
			return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
		was_open = dlock_conn_state(conn) == DLOCK_CONN_READY;
		outcome = try(handle, call, conn, &silent_until, &error);
		if (outcome != AGAIN)
			break;
		/* an old connection may have been closed by the server meanwhile */
		if (was_open && dlock_conn_state(conn) == DLOCK_CONN_CLOSED)
			continue;
		if (call->once || (call->knocks && dlock_conn_found_full(conn, NULL)))
			break;
		if (dlock_conn_found_full(conn, NULL))
		{
			bool		is_short = call->conn == NULL && call->wait_param == 0;
			DlockConn  *open = dlock_pool_take_open(handle, is_short, call->until);

			if (open != NULL)
			{
				dlock_conn_free(conn);
				conn = open;
				continue;
			}
		}
		until = next_try_at(call, conn, backoff);
		if (until >= dlock_min(call->until, silent_until))
			break;
		dlock_sleep_until(until);
		backoff = dlock_min(2 * backoff, DLOCK_BACKOFF_LAST_MS);
	}

	if (call->conn != NULL)
		*call->conn = conn;
	else
		dlock_pool_give(handle, conn);
	if (call->reply != NULL)
	{
		dlock_error_clear(err);
		return DLOCK_OK;
	}
	if (error.status == DLOCK_OK)
		error.status = DLOCK_UNREACHABLE;
	return dlock_error_copy(err, &error);
}
