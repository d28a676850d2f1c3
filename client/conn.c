/*-------------------------------------------------------------------------
 *
 * conn.c
 *	  One connection to one of the servers.
 *
 * This is the only file that talks to servers through libpq (target.c has it
 * parse a string, reply.c reads results), and it never blocks: whoever uses a
 * connection polls the descriptor that dlock_conn_fd() names until
 * dlock_conn_until(), and calls dlock_conn_step().  So every wait has the
 * deadline of the one who waits, and one thread can look after more than the
 * network.
 *
 * The list of hosts is walked here and not by libpq: libpq has no timeout in
 * its non-blocking mode, so a host that does not answer would keep it from
 * the next.  Each address of each host gets its own time.  Where the hosts
 * come from a service file, libpq walks them.
 *
 * A connection has no state that a later statement needs, so it may go
 * through a pooler.  LISTEN is only sent where there is no pooler, and the
 * search_path only set there; sql.c says why nothing depends on it.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "internal.h"
#include "conn.h"

static void next_address(DlockConn *conn, int64_t now);

/*
 * Errors
 */

/* What kept us from connecting, or broke the connection. */
static void
connect_error(DlockConn *conn)
{
	dlock_error *error = &conn->error;

	dlock_error_parse(error, PQerrorMessage(conn->pg));
	conn->retry = dlock_error_classify(error);
	if (dlock_error_turned_away(error))
		conn->turned_away_at = dlock_now();
	if (strcmp(error->sqlstate, "53300") == 0)
		conn->full_host = conn->host;
	/* before there is a statement, it is about what the conninfo sets */
	if (strcmp(error->sqlstate, "42704") == 0)
		error->status = DLOCK_INVALID;
	if (PQconnectionNeedsPassword(conn->pg))
	{
		error->status = DLOCK_DENIED;
		conn->retry = false;
	}
}

static void
result_error(DlockConn *conn, const PGresult *result)
{
	const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	dlock_error_make(&conn->error, PQresultErrorField(result, PG_DIAG_SQLSTATE),
					 text != NULL ? text : PQresultErrorMessage(result),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	/* the server's hint is for the author of the call */
	if (strcmp(conn->error.sqlstate, "42725") == 0 && conn->schema != NULL)
		snprintf(conn->error.hint, sizeof(conn->error.hint),
				 "Drop the function of the same name that is not of extension dlock from schema %s,"
				 " and revoke CREATE on that schema from other roles.",
				 conn->schema);
	conn->retry = dlock_error_classify(&conn->error);
	conn->timed_out =
		dlock_error_timed_out(&conn->error,
							  PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION),
							  dlock_now() - conn->sent_at, conn->statement_timeout);
	if (PQstatus(conn->pg) == CONNECTION_BAD)
		conn->retry = true;
}

const dlock_error *
dlock_conn_error(const DlockConn *conn, bool *retry)
{
	*retry = conn->retry;
	return &conn->error;
}

/*
 * Connecting
 */

DlockConn  *
dlock_conn_new(DlockTarget *target)
{
	DlockConn  *conn = calloc(1, sizeof(DlockConn));

	if (conn == NULL)
		return NULL;
	conn->target = target;
	conn->full_host = -1;
	pthread_mutex_lock(&target->mutex);
	conn->next = target->conns;
	if (conn->next != NULL)
		conn->next->prev = conn;
	target->conns = conn;
	pthread_mutex_unlock(&target->mutex);
	return conn;
}

static void send_listen(DlockConn *conn);

/*
 * Tell of notifications, where that is possible.  One that is READY may be
 * busy with that for up to so long.
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
		send_listen(conn);
	}
}

bool
dlock_conn_listens(const DlockConn *conn)
{
	return conn->listens;
}

static void
forget_addresses(DlockConn *conn)
{
	if (conn->resolve != NULL)
		dlock_resolve_abandon(conn->resolve);
	conn->resolve = NULL;
	for (int i = 0; i < conn->naddresses; i++)
		free(conn->addresses[i]);
	free(conn->addresses);
	conn->addresses = NULL;
	conn->naddresses = 0;
}

static void
disconnect(DlockConn *conn)
{
	if (conn->result != NULL)
		PQclear(conn->result);
	conn->result = NULL;
	if (conn->pg != NULL)
		PQfinish(conn->pg);
	conn->pg = NULL;
}

/* Whatever it is doing; the error stays. */
void
dlock_conn_close(DlockConn *conn)
{
	disconnect(conn);
	forget_addresses(conn);
	free(conn->schema);
	conn->schema = NULL;
	conn->listens = false;
	conn->state = DLOCK_CONN_CLOSED;
}

void
dlock_conn_free(DlockConn *conn)
{
	if (conn == NULL)
		return;
	dlock_conn_close(conn);
	pthread_mutex_lock(&conn->target->mutex);
	if (conn->prev != NULL)
		conn->prev->next = conn->next;
	else
		conn->target->conns = conn->next;
	if (conn->next != NULL)
		conn->next->prev = conn->prev;
	pthread_mutex_unlock(&conn->target->mutex);
	free(conn);
}

static void
no_memory(DlockConn *conn)
{
	dlock_fail(&conn->error, DLOCK_NO_MEMORY, "out of memory");
	conn->retry = false;
	dlock_conn_close(conn);
}

/*
 * Notices are nobody's business here, and libpq would print them.  But for
 * one: when somebody cancels a commit that waits for the synchronous standby,
 * the server answers as if all were well, with a warning before it.  That is
 * no confirmation: a failover would lose what the answer says.  Its text is
 * translated and its code is that of any warning, so it is known by where it
 * comes from, which servers always tell.
 */
static void
hear_notice(void *arg, const PGresult *result)
{
	DlockConn  *conn = arg;
	const char *source = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

	if (source != NULL && strcmp(source, "SyncRepWaitForLSN") == 0)
		conn->unconfirmed = true;
}

static void
start_address(DlockConn *conn, int64_t now)
{
	const DlockTarget *target = conn->target;
	const DlockHost *host = &target->hosts[conn->host];
	const char *address = conn->naddresses > 0 ? conn->addresses[conn->address] : host->hostaddr;
	const char **keywords = calloc((size_t) target->nparams + 4, sizeof(char *));
	const char **values = calloc((size_t) target->nparams + 4, sizeof(char *));
	int			n;

	if (keywords == NULL || values == NULL)
	{
		free(keywords);
		free(values);
		no_memory(conn);
		return;
	}
	for (n = 0; n < target->nparams; n++)
	{
		keywords[n] = target->keywords[n];
		values[n] = target->values[n];
	}
	if (host->host != NULL)
	{
		keywords[n] = "host";
		values[n++] = host->host;
	}
	if (address != NULL)
	{
		keywords[n] = "hostaddr";
		values[n++] = address;
	}
	if (host->port != NULL)
	{
		keywords[n] = "port";
		values[n++] = host->port;
	}
	conn->pg = PQconnectStartParams(keywords, values, 0);
	free(keywords);
	free(values);
	if (conn->pg == NULL)
	{
		no_memory(conn);
		return;
	}
	PQsetErrorVerbosity(conn->pg, PQERRORS_VERBOSE);
	PQsetNoticeReceiver(conn->pg, hear_notice, conn);
	conn->until = dlock_later(now, conn->connect_ms);
	if (PQstatus(conn->pg) == CONNECTION_BAD)
	{
		connect_error(conn);
		next_address(conn, now);
		return;
	}
	conn->state = DLOCK_CONN_CONNECTING;
	conn->events = POLLOUT;
}

static void
start_host(DlockConn *conn, int64_t now)
{
	const DlockHost *host = &conn->target->hosts[conn->host];

	forget_addresses(conn);
	conn->address = 0;
	if ((host->hostaddr != NULL && host->hostaddr[0] != '\0') ||
		!dlock_resolve_needed(host->host))
	{
		start_address(conn, now);
		return;
	}
	conn->resolve = dlock_resolve_start(host->host);
	if (conn->resolve == NULL)
	{
		no_memory(conn);
		return;
	}
	conn->until = dlock_later(now, conn->connect_ms);
	conn->events = POLLIN;
	conn->state = DLOCK_CONN_RESOLVING;
}

/* This one did not take us; conn->error says why. */
static void
next_address(DlockConn *conn, int64_t now)
{
	disconnect(conn);
	if (!conn->retry)
	{
		dlock_conn_close(conn);
		return;
	}
	if (conn->address + 1 < conn->naddresses)
	{
		conn->address++;
		start_address(conn, now);
		return;
	}
	if (++conn->tried < conn->target->nhosts)
	{
		conn->host = (conn->host + 1) % conn->target->nhosts;
		start_host(conn, now);
		return;
	}
	dlock_conn_close(conn);
}

/* Connect to the first host that takes us, connect_ms (or 0) for each. */
void
dlock_conn_start(DlockConn *conn, int64_t connect_ms, int64_t now)
{
	dlock_conn_close(conn);
	dlock_error_clear(&conn->error);
	conn->retry = true;
	conn->connect_ms = conn->target->connect_ms;
	if (connect_ms > 0 && connect_ms < conn->connect_ms)
		conn->connect_ms = connect_ms;
	conn->turned_away_at = 0;
	conn->full_host = -1;
	conn->tried = 0;
	conn->host = __atomic_load_n(&conn->target->preferred, __ATOMIC_RELAXED);
	start_host(conn, now);
}

static const char *
host_name(const DlockConn *conn)
{
	const DlockHost *host = &conn->target->hosts[conn->host];

	if (host->host != NULL)
		return host->host;
	return host->hostaddr != NULL ? host->hostaddr : "local socket";
}

static void
address_silent(DlockConn *conn, int64_t now)
{
	dlock_fail(&conn->error, DLOCK_UNREACHABLE,
			   "no answer from server \"%s\" in %lld ms while connecting",
			   host_name(conn), (long long) conn->connect_ms);
	conn->retry = true;
	next_address(conn, now);
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

/*
 * Read and write what can be without blocking.  -1: the connection is broken,
 * and conn->error says so; 1: the answer is complete, in conn->result.
 */
static int
transfer(DlockConn *conn, short revents)
{
	int			flushed = PQflush(conn->pg);

	if (flushed >= 0 && revents != 0 && !PQconsumeInput(conn->pg))
		flushed = -1;
	if (flushed < 0 && conn->result == NULL)
	{
		connect_error(conn);
		conn->retry = true;
		return -1;
	}
	conn->events = flushed > 0 ? POLLIN | POLLOUT : POLLIN;
	while (!PQisBusy(conn->pg))
	{
		PGresult   *result = PQgetResult(conn->pg);

		if (result == NULL)
			return 1;

		/*
		 * An error after a result is that of the commit, or the end of the
		 * connection before there was word of it: what the result says may
		 * never have come about.  Of several errors the first tells why; what
		 * follows is that the connection is gone.
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
 * From here on it tells of notifications, if there is no pooler in between.
 * Not yet READY: look at the state.
 */
static void
send_listen(DlockConn *conn)
{
	conn->events = POLLIN;
	conn->state = DLOCK_CONN_READY;
	if (conn->notified != NULL && conn->direct && !conn->listens &&
		PQsendQuery(conn->pg, dlock_sql_listen))
	{
		conn->events = POLLIN | POLLOUT;
		conn->state = DLOCK_CONN_LISTEN;
	}
}

static void
looked_up(DlockConn *conn, int64_t now)
{
	PGresult   *result = conn->result;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		result_error(conn, result);
		next_address(conn, now);
		return;
	}
	if (PQntuples(result) == 0)
	{
		dlock_fail(&conn->error, DLOCK_NOT_READY,
				   "extension \"dlock\" is not installed in database \"%s\"",
				   PQdb(conn->pg));
		dlock_clip(conn->error.hint, sizeof(conn->error.hint),
				   "Run CREATE EXTENSION dlock in that database.", 100);
		conn->retry = false;
		next_address(conn, now);
		return;
	}

	conn->schema = dlock_strdup(PQgetvalue(result, 0, 0));
	if (conn->schema == NULL)
	{
		no_memory(conn);
		return;
	}
	conn->direct = atoi(PQgetvalue(result, 0, 1)) == PQbackendPID(conn->pg);
	/* not there if the library is not preloaded, which any call will tell */
	conn->default_ttl = strtoll(PQgetvalue(result, 0, 2), NULL, 10);
	if (conn->default_ttl <= 0)
		conn->default_ttl = 20000;
	conn->statement_timeout = conn->direct ? 0 : strtoll(PQgetvalue(result, 0, 3), NULL, 10);
	PQclear(result);
	conn->result = NULL;
	conn->turned_away_at = 0;
	conn->full_host = -1;
	forget_addresses(conn);
	__atomic_store_n(&conn->target->preferred, conn->host, __ATOMIC_RELAXED);
	send_listen(conn);
}

static bool
look_up(DlockConn *conn)
{
	char		pid[16];
	const char *params[] = {pid};

	snprintf(pid, sizeof(pid), "%d", PQbackendPID(conn->pg));
	conn->sent_at = dlock_now();
	return PQsetnonblocking(conn->pg, 1) == 0 &&
		PQsendQueryParams(conn->pg, dlock_sql_lookup, 1, NULL, params, NULL, NULL, 0);
}

/*
 * Go on, where revents is what poll() said.  Look at the state afterwards.
 */
void
dlock_conn_step(DlockConn *conn, short revents, int64_t now)
{
	int			done;

	switch (conn->state)
	{
		case DLOCK_CONN_RESOLVING:
			if (revents != 0)
			{
				dlock_error_clear(&conn->error);
				conn->error.status = DLOCK_UNREACHABLE;
				conn->retry = true;
				conn->naddresses = dlock_resolve_take(conn->resolve, &conn->addresses,
													  conn->error.message,
													  sizeof(conn->error.message));
				conn->resolve = NULL;
				if (conn->naddresses > 0)
					start_address(conn, now);
				else
					next_address(conn, now);
			}
			else if (now >= conn->until)
				address_silent(conn, now);
			break;

		case DLOCK_CONN_CONNECTING:
			if (revents == 0)
			{
				if (now >= conn->until)
					address_silent(conn, now);
				break;
			}
			switch (PQconnectPoll(conn->pg))
			{
				case PGRES_POLLING_READING:
					conn->events = POLLIN;
					break;
				case PGRES_POLLING_WRITING:
					conn->events = POLLOUT;
					break;
				case PGRES_POLLING_OK:
					if (look_up(conn))
					{
						conn->state = DLOCK_CONN_LOOKUP;
						conn->events = POLLIN | POLLOUT;
						break;
					}
					/* FALLTHROUGH */
				default:
					connect_error(conn);
					next_address(conn, now);
					break;
			}
			break;

		case DLOCK_CONN_LOOKUP:
			done = transfer(conn, revents);
			if (done < 0)
				next_address(conn, now);
			else if (done > 0)
				looked_up(conn, now);
			else if (now >= conn->until)
				address_silent(conn, now);
			break;

		case DLOCK_CONN_LISTEN:
			done = transfer(conn, revents);
			if (done < 0)
				dlock_conn_close(conn);
			else if (done > 0)
			{
				/* if it did not work there are just no notifications */
				conn->listens = conn->result != NULL && succeeded(conn->result);
				PQclear(conn->result);
				conn->result = NULL;
				conn->state = DLOCK_CONN_READY;
			}
			else if (now >= conn->until)
				address_silent(conn, now);
			break;

		case DLOCK_CONN_BUSY:
			done = transfer(conn, revents);
			if (done != 0)
				tell_notifications(conn);
			if (done < 0)
				dlock_conn_close(conn);
			else if (done > 0)
				conn->state = DLOCK_CONN_DONE;
			break;

		case DLOCK_CONN_READY:
			if (revents == 0)
				break;
			if (!PQconsumeInput(conn->pg))
			{
				connect_error(conn);
				conn->retry = true;
				dlock_conn_close(conn);
				break;
			}
			tell_notifications(conn);
			break;

		case DLOCK_CONN_CLOSED:
		case DLOCK_CONN_DONE:
			break;
	}
}

/* In state READY; false: it could not be sent, and the connection is closed. */
bool
dlock_conn_send(DlockConn *conn, const char *sql, int nparams,
				const char *const *params)
{
	PQExpBufferData text;
	const char *at;
	int			sent;

	initPQExpBuffer(&text);
	while ((at = strstr(sql, "@.")) != NULL)
	{
		appendBinaryPQExpBuffer(&text, sql, (size_t) (at - sql));
		appendPQExpBufferStr(&text, conn->schema);
		/* the dot stays */
		sql = at + 1;
	}
	appendPQExpBufferStr(&text, sql);
	if (PQExpBufferDataBroken(text))
	{
		termPQExpBuffer(&text);
		no_memory(conn);
		return false;
	}

	dlock_error_clear(&conn->error);
	conn->retry = false;
	conn->unconfirmed = false;
	conn->timed_out = false;
	conn->sent_at = dlock_now();
	sent = PQsendQueryParams(conn->pg, text.data, nparams, NULL, params, NULL, NULL, 0);
	termPQExpBuffer(&text);
	if (!sent)
	{
		connect_error(conn);
		conn->retry = true;
		dlock_conn_close(conn);
		return false;
	}
	/* libpq has written what it could; the rest, and what came, is for later */
	conn->state = DLOCK_CONN_BUSY;
	conn->events = POLLIN | POLLOUT;
	return true;
}

DlockReply *
dlock_conn_take(DlockConn *conn)
{
	PGresult   *result = conn->result;
	DlockReply *reply = NULL;

	conn->result = NULL;
	conn->state = DLOCK_CONN_READY;
	if (conn->unconfirmed)
	{
		/* asked again, it waits for the standby again */
		dlock_fail(&conn->error, DLOCK_UNREACHABLE,
				   "the wait for a synchronous standby was cancelled");
		conn->retry = true;
	}
	else if (succeeded(result))
	{
		reply = malloc(sizeof(DlockReply));
		if (reply != NULL)
		{
			reply->result = result;
			return reply;
		}
		dlock_fail(&conn->error, DLOCK_NO_MEMORY, "out of memory");
		conn->retry = false;
	}
	else
		result_error(conn, result);
	PQclear(result);
	if (conn->retry)
		dlock_conn_close(conn);
	return NULL;
}

DlockConnState
dlock_conn_state(const DlockConn *conn)
{
	return conn->state;
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

/* When to call dlock_conn_step() even if nothing happened. */
int64_t
dlock_conn_until(const DlockConn *conn)
{
	return dlock_conn_connecting(conn) ? conn->until : DLOCK_NEVER;
}

/* Was it ended by a timeout of the server, and is it to be asked again? */
bool
dlock_conn_timed_out(const DlockConn *conn)
{
	return conn->timed_out;
}

/* When a server last said that it is there but cannot take us; 0: never. */
int64_t
dlock_conn_turned_away_at(const DlockConn *conn)
{
	return conn->turned_away_at;
}

/* Was that because it is full?  The server of the other one, if given. */
bool
dlock_conn_found_full(const DlockConn *conn, const DlockConn *where)
{
	return conn->full_host >= 0 && (where == NULL || conn->full_host == where->host);
}

int64_t
dlock_conn_default_ttl(const DlockConn *conn)
{
	return conn->default_ttl;
}

bool
dlock_conn_same_server(const DlockConn *a, const DlockConn *b)
{
	return a->host == b->host;
}
