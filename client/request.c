/*-------------------------------------------------------------------------
 *
 * request.c
 *	  One question to the server, asked until it is answered.
 *
 * Every statement of the library may be asked twice: an acquire has an owner,
 * who gets the same grant again, and the others name their grant.  So when a
 * connection breaks, a server goes down or an answer does not come, the
 * question goes to whichever host takes us next, until the caller's time is
 * up.  Nothing is ever cancelled.
 *
 * A connection is used by one thread at a time; those that nobody uses wait
 * in the handle for the next one.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define BACKOFF_FIRST_MS 50
#define BACKOFF_LAST_MS 1000

void
dlock_request_init(DlockRequest *request, const char *sql, int nparams,
				   const char **params, int64_t timeout_ms)
{
	memset(request, 0, sizeof(*request));
	request->sql = sql;
	request->nparams = nparams;
	request->params = params;
	request->timeout_ms = timeout_ms;
	request->until = dlock_later(dlock_now(), timeout_ms);
}

static DlockConn *
check_out(dlock_handle *handle)
{
	DlockConn  *conn = NULL;

	pthread_mutex_lock(&handle->mutex);
	if (handle->nidle > 0)
		conn = handle->idle[--handle->nidle];
	pthread_mutex_unlock(&handle->mutex);
	return conn != NULL ? conn : dlock_conn_new(handle->target);
}

static void
check_in(dlock_handle *handle, DlockConn *conn)
{
	if (dlock_conn_state(conn) == DLOCK_CONN_READY)
	{
		pthread_mutex_lock(&handle->mutex);
		if (handle->nidle < DLOCK_POOL_SIZE)
		{
			handle->idle[handle->nidle++] = conn;
			conn = NULL;
		}
		pthread_mutex_unlock(&handle->mutex);
	}
	dlock_conn_free(conn);
}

void
dlock_pool_close(dlock_handle *handle)
{
	while (handle->nidle > 0)
		dlock_conn_free(handle->idle[--handle->nidle]);
}

/* Let the connection go on until then at most. */
static void
work(DlockConn *conn, int64_t until)
{
	struct pollfd fd;
	int64_t		now = dlock_now();
	int			n;

	fd.fd = dlock_conn_fd(conn, &fd.events);
	fd.revents = 0;
	n = poll(&fd, 1, dlock_poll_timeout(dlock_min(until, dlock_conn_until(conn)), now));
	dlock_conn_step(conn, n > 0 ? fd.revents : 0, dlock_now());
}

/*
 * While the server makes us wait, it may have gone, and TCP does not tell if
 * the machine in between is alive.  Ask on another connection.  false: gone,
 * or another server is the one to ask.
 */
static bool
still_there(dlock_handle *handle, DlockConn *waiting, int64_t timeout_ms,
			dlock_error *error)
{
	DlockRequest probe;
	DlockConn  *conn = NULL;
	bool		there;

	dlock_request_init(&probe, dlock_sql_probe, 0, NULL, timeout_ms);
	probe.conn = &conn;
	conn = check_out(handle);
	there = dlock_request(handle, &probe, error) == DLOCK_OK;
	if (there && !dlock_conn_same_server(conn, waiting))
	{
		dlock_fail(error, DLOCK_UNREACHABLE, "another server has taken over");
		there = false;
	}
	dlock_answer_free(probe.answer);
	if (conn != NULL)
		check_in(handle, conn);
	return there;
}

static void
set_parameters(DlockRequest *request, DlockConn *conn, int64_t now,
			   char *wait, char *ttl, size_t size)
{
	if (request->ttl_param > 0)
	{
		if (*request->ttl_ms == 0)
			*request->ttl_ms = dlock_conn_default_ttl(conn);
		snprintf(ttl, size, "%lld ms", (long long) *request->ttl_ms);
		request->params[request->ttl_param - 1] = ttl;
	}
	if (request->wait_param > 0)
	{
		snprintf(wait, size, "%lld ms",
				 (long long) dlock_max(request->wait_until - now, 0));
		request->params[request->wait_param - 1] =
			request->wait_until == DLOCK_NEVER ? NULL : wait;
	}
}

typedef enum Outcome
{
	ANSWERED,					/* or failed for good */
	AGAIN,
	OUT_OF_TIME
} Outcome;

/* One try. */
static Outcome
try(dlock_handle *handle, DlockRequest *request, DlockConn *conn,
	int64_t *silent_until, dlock_error *error)
{
	char		wait[32];
	char		ttl[32];
	int64_t		until;
	int64_t		probe_at = DLOCK_NEVER;
	int64_t		probe_every = dlock_max(request->timeout_ms / 2, 250);
	bool		retry;

	if (dlock_conn_state(conn) == DLOCK_CONN_CLOSED)
		dlock_conn_start(conn, 0, dlock_now());
	while (dlock_conn_connecting(conn))
	{
		until = dlock_min(request->until, *silent_until);
		if (dlock_now() >= until)
		{
			bool		known;

			/* what the host before said is more than that time is up */
			dlock_error_copy(error, dlock_conn_error(conn, &known));
			if (error->message[0] == '\0')
				dlock_fail(error, DLOCK_UNREACHABLE,
						   "no server could be reached in %lld ms",
						   (long long) request->timeout_ms);
			dlock_conn_close(conn);
			return OUT_OF_TIME;
		}
		work(conn, until);
	}
	if (dlock_conn_state(conn) == DLOCK_CONN_CLOSED)
	{
		dlock_error_copy(error, dlock_conn_error(conn, &retry));
		return retry ? AGAIN : ANSWERED;
	}

	request->sent_at = dlock_now();
	set_parameters(request, conn, request->sent_at, wait, ttl, sizeof(wait));
	*silent_until = dlock_later(request->sent_at, request->timeout_ms);
	until = *silent_until;
	if (request->wait_param > 0)
	{
		until = request->wait_until == DLOCK_NEVER ? DLOCK_NEVER :
			dlock_later(dlock_max(request->wait_until, request->sent_at), request->timeout_ms);
		probe_at = dlock_later(request->sent_at, probe_every);
	}
	until = dlock_min(until, request->until);

	if (dlock_conn_send(conn, request->sql, request->nparams, request->params))
		while (dlock_conn_state(conn) == DLOCK_CONN_BUSY)
		{
			int64_t		now = dlock_now();

			if (now >= until)
			{
				/* it may be done yet */
				dlock_conn_close(conn);
				request->in_doubt = true;
				dlock_fail(error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
						   (long long) (now - request->sent_at));
				return OUT_OF_TIME;
			}
			if (now >= probe_at)
			{
				if (!still_there(handle, conn,
								 dlock_min(request->timeout_ms, dlock_max(until - now, 0)), error))
				{
					dlock_conn_close(conn);
					request->in_doubt = true;
					return AGAIN;
				}
				probe_at = dlock_later(dlock_now(), probe_every);
				*silent_until = dlock_later(dlock_now(), request->timeout_ms);
				continue;
			}
			work(conn, dlock_min(until, probe_at));
		}

	if (dlock_conn_state(conn) == DLOCK_CONN_DONE)
	{
		request->answer = dlock_conn_take(conn);
		if (request->answer != NULL)
			return ANSWERED;
	}
	dlock_error_copy(error, dlock_conn_error(conn, &retry));
	if (!retry)
		return ANSWERED;
	request->in_doubt = true;
	*silent_until = dlock_later(dlock_now(), request->timeout_ms);
	return AGAIN;
}

/*
 * DLOCK_OK: request->answer is the answer, to be freed.
 */
dlock_status
dlock_request(dlock_handle *handle, DlockRequest *request, dlock_error *err)
{
	DlockConn  *conn = request->conn != NULL ? *request->conn : NULL;
	int64_t		silent_until = dlock_later(dlock_now(), request->timeout_ms);
	int64_t		backoff = BACKOFF_FIRST_MS;
	dlock_error error;
	Outcome		outcome;

	request->answer = NULL;
	request->in_doubt = false;
	dlock_error_clear(&error);
	if (request->once)
		silent_until = DLOCK_NEVER;
	if (conn == NULL)
		conn = check_out(handle);
	for (;;)
	{
		int64_t		until;
		bool		was_open;

		if (conn == NULL)
			return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
		was_open = dlock_conn_state(conn) == DLOCK_CONN_READY;
		outcome = try(handle, request, conn, &silent_until, &error);
		if (outcome != AGAIN)
			break;
		/* an old connection may just have become stale */
		if (was_open)
			continue;
		if (request->once)
			break;
		until = dlock_later(dlock_now(), dlock_jitter(backoff));
		if (until >= dlock_min(request->until, silent_until))
			break;
		dlock_sleep_until(until);
		backoff = dlock_min(2 * backoff, BACKOFF_LAST_MS);
	}

	if (request->conn != NULL)
		*request->conn = conn;
	else
		check_in(handle, conn);
	if (request->answer != NULL)
	{
		dlock_error_clear(err);
		return DLOCK_OK;
	}
	if (error.status == DLOCK_OK)
		error.status = DLOCK_UNREACHABLE;
	return dlock_error_copy(err, &error);
}
