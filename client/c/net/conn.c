/*-------------------------------------------------------------------------
 *
 * conn.c
 *	  One connection to one of the servers.
 *
 * This file and connect.c are the only ones that talk to servers through libpq
 * (conninfo.c has it parse a string, reply.c reads results).  They never block:
 * the user of a connection polls the descriptor that dlock_conn_fd() returns
 * until dlock_conn_until(), and then calls dlock_conn_step().  So every wait
 * ends when its caller wants, and the renewal thread can wait for the network
 * and the clock at once.
 *
 * A connection has no state that a later statement needs, so it may go through
 * a pooler.  LISTEN is only sent if there is no pooler.  Statements are only
 * prepared then (prepare.c), and the search_path is only set then; sql.c explains
 * why nothing depends on it.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "base/sql.h"
#include "base/util.h"
#include "net/conn.h"
#include "net/errors.h"

/*
 * Connecting
 */

DlockConn  *
dlock_conn_new(DlockConninfo *conninfo)
{
	DlockConn  *conn = calloc(1, sizeof(DlockConn));

	if (conn == NULL)
		return NULL;
	conn->conninfo = conninfo;
	conn->full_host = -1;
	conn->users = 1;
	return conn;
}

/* What this server has told us, and has prepared, is not true of the next one. */
void
dlock_conn_disconnect(DlockConn *conn)
{
	if (conn->result != NULL)
		PQclear(conn->result);
	conn->result = NULL;
	if (conn->pg != NULL)
		PQfinish(conn->pg);
	conn->pg = NULL;
	dlock_prepare_forget(conn);
	free(conn->schema);
	conn->schema = NULL;
	conn->listens = false;
}

/* Close it, whatever its state; the error stays. */
void
dlock_conn_close(DlockConn *conn)
{
	dlock_conn_disconnect(conn);
	dlock_connect_forget(conn);
	conn->state = DLOCK_CONN_CLOSED;
}

/* Close it with that error, as if the server had. */
void
dlock_conn_abort(DlockConn *conn, const dlock_error *error)
{
	dlock_conn_close(conn);
	conn->error = *error;
	conn->retry = true;
}

/* One more user of it, who frees it, too.  NULL is allowed. */
DlockConn  *
dlock_conn_share(DlockConn *conn)
{
	if (conn != NULL)
		__atomic_fetch_add(&conn->users, 1, __ATOMIC_RELAXED);
	return conn;
}

/* NULL is allowed.  The last user closes it. */
void
dlock_conn_free(DlockConn *conn)
{
	if (conn == NULL || __atomic_sub_fetch(&conn->users, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	dlock_conn_close(conn);
	free(conn);
}

/* Those that cannot be freed; leak checkers see that they are not forgotten. */
static DlockConn *left_behind;

/*
 * In a child of the process that opened it: drop it without telling the server.  Its
 * descriptor is replaced by /dev/null before libpq sends its farewell.  A connection
 * that a thread was using when the process forked may be in any state, so only its
 * descriptor is closed.
 */
void
dlock_conn_disown(DlockConn *conn, bool was_idle)
{
	int			fd;

	if (conn->users > 1)
	{
		conn->users--;			/* session locks that share it */
		return;
	}
	fd = conn->pg != NULL ? PQsocket(conn->pg) : -1;
	if (conn->resolve != NULL)
		close(dlock_resolve_fd(conn->resolve));
	if (!was_idle)
	{
		if (fd >= 0)
			close(fd);
		conn->left_behind = left_behind;
		left_behind = conn;
		return;
	}
	if (fd >= 0)
	{
		int			nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

		if (nothing < 0 || dup2(nothing, fd) < 0)
		{
			close(fd);
			conn->pg = NULL;
		}
		if (nothing >= 0)
			close(nothing);
	}
	dlock_conn_free(conn);
}

void
dlock_conn_no_memory(DlockConn *conn)
{
	dlock_fail(&conn->error, DLOCK_NO_MEMORY, "out of memory");
	conn->retry = false;
	dlock_conn_close(conn);
}

void
dlock_conn_result_error(DlockConn *conn, const PGresult *result)
{
	const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

	dlock_error_make(&conn->error, PQresultErrorField(result, PG_DIAG_SQLSTATE),
					 text != NULL ? text : PQresultErrorMessage(result),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	/* the server's own hint is for the author of the SQL */
	if (strcmp(conn->error.sqlstate, "42725") == 0 && conn->schema != NULL)
		snprintf(conn->error.hint, sizeof(conn->error.hint),
				 "Drop the function of the same name in schema %s that does not belong to extension dlock,"
				 " and revoke CREATE on that schema from other roles.",
				 conn->schema);
	/* all else that we ask for is there */
	if (conn->portable && strcmp(conn->error.sqlstate, "42P01") == 0)
		snprintf(conn->error.message, sizeof(conn->error.message),
				 "the portable edition of dlock does not support statistics");
	conn->retry = dlock_error_classify(&conn->error) ||
		dlock_error_no_cluster(&conn->error, function);
	conn->timed_out =
		dlock_error_timed_out(&conn->error, function,
							  dlock_now() - conn->sent_at, conn->statement_timeout);
	if (PQstatus(conn->pg) == CONNECTION_BAD)
		conn->retry = true;
}

/*
 * Statements
 */

static bool
succeeded(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
}

/* No statement of ours copies. */
static bool
is_copy(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH;
}

/*
 * Read and write what is possible without blocking.  Returns -1 if the
 * connection is broken, with conn->error set, and 1 if the result is complete,
 * in conn->result.
 */
int
dlock_conn_transfer(DlockConn *conn, short revents)
{
	int			flushed = PQflush(conn->pg);

	if (flushed >= 0 && revents != 0 && !PQconsumeInput(conn->pg))
		flushed = -1;
	if (flushed < 0 && conn->result == NULL)
	{
		dlock_connect_error(conn);
		conn->retry = true;
		return -1;
	}
	conn->events = flushed > 0 ? POLLIN | POLLOUT : POLLIN;
	while (!PQisBusy(conn->pg))
	{
		PGresult   *result = PQgetResult(conn->pg);

		if (result == NULL)
			return 1;
		if (is_copy(result))
		{
			/* libpq would return it again and again */
			PQclear(result);
			dlock_fail(&conn->error, DLOCK_SERVER_ERROR, "the server gave an unexpected answer");
			conn->retry = false;
			return -1;
		}

		/*
		 * An error after a result means that the commit failed, or that the
		 * connection ended before it was confirmed, so the result may never
		 * have taken effect.  Of several errors the first tells the cause;
		 * those after it only say that the connection is gone.
		 */
		if (conn->result != NULL && !succeeded(conn->result))
			PQclear(result);
		else
		{
			PQclear(conn->result);
			conn->result = result;
		}
	}
	return 0;
}

static void
tell_notifications(DlockConn *conn)
{
	PGnotify   *notify;

	while ((notify = PQnotifies(conn->pg)) != NULL)
	{
		if (conn->notified != NULL && strcmp(notify->relname, "dlock") == 0)
			conn->notified(conn->notified_arg, notify->extra);
		PQfreemem(notify);
	}
}

/*
 * Subscribe to notifications, unless there is a pooler or a router in between,
 * which they do not pass.  Sets the state: READY, or LISTEN while the statement is
 * on its way.
 */
void
dlock_conn_send_listen(DlockConn *conn)
{
	conn->events = POLLIN;
	conn->state = DLOCK_CONN_READY;
	if (conn->notified != NULL && conn->direct && !conn->routed && !conn->listens &&
		PQsendQuery(conn->pg, dlock_sql_listen))
	{
		conn->events = POLLIN | POLLOUT;
		conn->state = DLOCK_CONN_LISTEN;
	}
}

/*
 * Call notified() with notifications, where that is possible.  A connection
 * that is READY may be busy with that for up to patience.
 */
void
dlock_conn_listen(DlockConn *conn, DlockNotified notified, void *arg,
				  int64_t patience, int64_t now)
{
	conn->notified = notified;
	conn->notified_arg = arg;
	if (conn->state == DLOCK_CONN_READY)
	{
		conn->until = dlock_later(now, patience);
		dlock_conn_send_listen(conn);
	}
}

static void
listen_step(DlockConn *conn, short revents, int64_t now)
{
	int			done = dlock_conn_transfer(conn, revents);

	if (done < 0)
		dlock_conn_close(conn);
	else if (done > 0)
	{
		/* if it failed there are no notifications, and all else works */
		conn->listens = conn->result != NULL && succeeded(conn->result);
		PQclear(conn->result);
		conn->result = NULL;
		conn->state = DLOCK_CONN_READY;
	}
	else if (now >= conn->until)
		dlock_connect_silent(conn, now);
}

/* It is on its way, or not, and then the connection is closed. */
static bool
was_sent(DlockConn *conn, bool sent)
{
	if (!sent && conn->error.status != DLOCK_NO_MEMORY)
	{
		dlock_connect_error(conn);
		conn->retry = true;
	}
	if (!sent)
	{
		dlock_conn_close(conn);
		return false;
	}
	/* libpq sends what it can; dlock_conn_step() does the rest */
	conn->state = DLOCK_CONN_BUSY;
	conn->events = PQflush(conn->pg) == 0 ? POLLIN : POLLIN | POLLOUT;
	return true;
}

static void
statement_step(DlockConn *conn, short revents)
{
	int			done = dlock_conn_transfer(conn, revents);

	if (done != 0)
		tell_notifications(conn);
	if (done < 0)
		dlock_conn_close(conn);
	else if (done > 0 && dlock_prepare_is_coming(conn))
		(void) was_sent(conn, dlock_prepare_came(conn));
	else if (done > 0)
		conn->state = DLOCK_CONN_DONE;
}

static void
idle_step(DlockConn *conn, short revents)
{
	if (revents == 0)
		return;
	if (PQconsumeInput(conn->pg))
	{
		tell_notifications(conn);
		return;
	}
	dlock_connect_error(conn);
	conn->retry = true;
	dlock_conn_close(conn);
}

/*
 * Continue; revents is what poll() returned.  Look at the state afterwards.
 */
void
dlock_conn_step(DlockConn *conn, short revents, int64_t now)
{
	switch (conn->state)
	{
		case DLOCK_CONN_RESOLVING:
		case DLOCK_CONN_CONNECTING:
		case DLOCK_CONN_LOOKUP:
			dlock_connect_step(conn, revents, now);
			break;
		case DLOCK_CONN_LISTEN:
			listen_step(conn, revents, now);
			break;
		case DLOCK_CONN_BUSY:
			statement_step(conn, revents);
			break;
		case DLOCK_CONN_READY:
			idle_step(conn, revents);
			break;
		case DLOCK_CONN_CLOSED:
		case DLOCK_CONN_DONE:
			break;
	}
}

/* In state READY.  False: it could not be sent, and the connection is closed. */
bool
dlock_conn_send(DlockConn *conn, const char *sql, const DlockParams *params)
{
	dlock_error_clear(&conn->error);
	conn->retry = false;
	conn->unconfirmed = false;
	conn->timed_out = false;
	conn->sent_at = dlock_now();
	return was_sent(conn, dlock_prepare_send(conn, sql, params));
}

/* In state DONE: the reply, or NULL after an error.  Then it is READY. */
DlockReply *
dlock_conn_take(DlockConn *conn)
{
	PGresult   *result = conn->result;
	DlockReply *reply = NULL;

	conn->result = NULL;
	conn->state = DLOCK_CONN_READY;
	if (conn->unconfirmed)
	{
		/* a retry waits for the standby again */
		dlock_fail(&conn->error, DLOCK_UNREACHABLE,
				   "the wait for a synchronous standby was cancelled");
		conn->retry = true;
	}
	else if (succeeded(result))
	{
		reply = dlock_reply_make(result);
		if (reply != NULL)
			return reply;
		dlock_fail(&conn->error, DLOCK_NO_MEMORY, "out of memory");
		conn->retry = false;
	}
	else
	{
		dlock_conn_result_error(conn, result);
		conn->retry = conn->retry || dlock_prepare_is_lost(conn, result);
	}
	PQclear(result);
	if (conn->retry)
		dlock_conn_close(conn);
	return NULL;
}

bool
dlock_conn_connecting(const DlockConn *conn)
{
	return conn->state > DLOCK_CONN_CLOSED && conn->state < DLOCK_CONN_READY;
}

int
dlock_conn_fd(const DlockConn *conn, short *events)
{
	*events = conn->events;
	if (conn->state == DLOCK_CONN_RESOLVING)
		return dlock_resolve_fd(conn->resolve);
	return conn->pg != NULL ? PQsocket(conn->pg) : -1;
}

/* When to call dlock_conn_step() even if poll() reports nothing. */
int64_t
dlock_conn_until(const DlockConn *conn)
{
	return dlock_conn_connecting(conn) ? conn->until : DLOCK_NEVER;
}
