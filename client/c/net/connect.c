/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  Connecting: walking hosts and addresses until a server accepts us.
 *
 * The list of hosts is walked here and not by libpq: libpq has no timeout in
 * its non-blocking mode, so a host that does not answer would keep it from
 * trying the next.  Each address of each host gets its own time.  If the hosts
 * come from a service file, libpq walks them.
 *
 * A server has accepted us when it has answered the first query, which finds
 * the schema of the extension.  A host that fails for good (a wrong password, a
 * missing extension) ends the walk; after any other failure the next address
 * has its turn.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "base/constants.h"
#include "base/sql.h"
#include "base/util.h"
#include "net/conn.h"
#include "net/errors.h"

static void next_address(DlockConn *conn, int64_t now);

/* What kept us from connecting, or broke the connection. */
void
dlock_connect_error(DlockConn *conn)
{
	dlock_error *error = &conn->error;

	dlock_error_parse(error, PQerrorMessage(conn->pg));
	conn->retry = dlock_error_classify(error);
	if (dlock_error_turned_away(error))
		conn->turned_away_at = dlock_now();
	if (dlock_error_full(error))
		conn->full_host = conn->host;
	/* without a statement, an unknown object is one that the conninfo names */
	if (strcmp(error->sqlstate, "42704") == 0)
		error->status = DLOCK_INVALID;
	if (PQconnectionNeedsPassword(conn->pg))
	{
		error->status = DLOCK_DENIED;
		conn->retry = false;
	}
}

void
dlock_connect_forget(DlockConn *conn)
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

/*
 * Notices are dropped, because libpq would print them.  One of them matters:
 * when a commit that waits for the synchronous standby is cancelled, the server
 * sends a warning and then reports success.  That is no confirmation, because
 * a failover would undo the change.  The text of the warning is translated and
 * its SQLSTATE is that of any warning, so it is recognized by the function of
 * the server that raised it.  A router passes on the warnings of a cluster
 * without that function, so there every warning counts.
 */
static void
hear_notice(void *arg, const PGresult *result)
{
	DlockConn  *conn = arg;
	const char *source = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
	const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (source == NULL || code == NULL)
		return;
	if (strcmp(source, "SyncRepWaitForLSN") == 0 ||
		(strcmp(source, "plproxy_remote_error") == 0 && strncmp(code, "01", 2) == 0))
		conn->unconfirmed = true;
}

static void
start_address(DlockConn *conn, int64_t now)
{
	const DlockConninfo *conninfo = conn->conninfo;
	const DlockHost *host = &conninfo->hosts[conn->host];
	const char *address = conn->naddresses > 0 ? conn->addresses[conn->address] : host->hostaddr;
	const char **keywords = calloc((size_t) conninfo->nparams + 4, sizeof(char *));
	const char **values = calloc((size_t) conninfo->nparams + 4, sizeof(char *));
	int			n;

	if (keywords == NULL || values == NULL)
	{
		free(keywords);
		free(values);
		dlock_conn_no_memory(conn);
		return;
	}
	for (n = 0; n < conninfo->nparams; n++)
	{
		keywords[n] = conninfo->keywords[n];
		values[n] = conninfo->values[n];
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
		dlock_conn_no_memory(conn);
		return;
	}
	PQsetErrorVerbosity(conn->pg, PQERRORS_VERBOSE);
	PQsetNoticeReceiver(conn->pg, hear_notice, conn);
	conn->until = dlock_later(now, conn->connect_ms);
	if (PQstatus(conn->pg) == CONNECTION_BAD)
	{
		dlock_connect_error(conn);
		next_address(conn, now);
		return;
	}
	conn->state = DLOCK_CONN_CONNECTING;
	conn->events = POLLOUT;
}

static void
start_host(DlockConn *conn, int64_t now)
{
	const DlockHost *host = &conn->conninfo->hosts[conn->host];

	dlock_connect_forget(conn);
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
		dlock_conn_no_memory(conn);
		return;
	}
	conn->until = dlock_later(now, conn->connect_ms);
	conn->events = POLLIN;
	conn->state = DLOCK_CONN_RESOLVING;
}

/* This address did not accept us; conn->error says why. */
static void
next_address(DlockConn *conn, int64_t now)
{
	dlock_conn_disconnect(conn);
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
	if (++conn->tried < conn->conninfo->nhosts)
	{
		conn->host = (conn->host + 1) % conn->conninfo->nhosts;
		start_host(conn, now);
		return;
	}
	dlock_conn_close(conn);
}

/*
 * Connect to the first host that accepts us.  connect_ms, if not 0, is the
 * longest time for each address.
 */
void
dlock_conn_start(DlockConn *conn, int64_t connect_ms, int64_t now)
{
	dlock_conn_close(conn);
	dlock_error_clear(&conn->error);
	conn->retry = true;
	conn->connect_ms = conn->conninfo->connect_ms;
	/* a busy server would only be asked again, behind all others */
	if (conn->conninfo->nhosts == 1 && !dlock_resolve_needed(conn->conninfo->hosts[0].host))
		conn->connect_ms = conn->conninfo->only_ms;
	if (connect_ms > 0 && connect_ms < conn->connect_ms)
		conn->connect_ms = connect_ms;
	conn->turned_away_at = 0;
	conn->full_host = -1;
	conn->tried = 0;
	conn->host = __atomic_load_n(&conn->conninfo->preferred, __ATOMIC_RELAXED);
	start_host(conn, now);
}

static const char *
host_name(const DlockConn *conn)
{
	const DlockHost *host = &conn->conninfo->hosts[conn->host];

	if (host->host != NULL)
		return host->host;
	return host->hostaddr != NULL ? host->hostaddr : "local socket";
}

void
dlock_connect_silent(DlockConn *conn, int64_t now)
{
	dlock_fail(&conn->error, DLOCK_UNREACHABLE,
			   "no answer from server \"%s\" in %lld ms while connecting",
			   host_name(conn), (long long) conn->connect_ms);
	conn->retry = true;
	next_address(conn, now);
}

/* There is no extension, or not the schema that was named. */
dlock_status
dlock_conn_not_installed(const DlockConninfo *conninfo, const char *database, dlock_error *error)
{
	static const char hint[] = "Run CREATE EXTENSION dlock in that database, or name the schema of the portable edition.";

	if (conninfo->schema != NULL)
		return dlock_fail(error, DLOCK_NOT_READY, "there is no schema \"%s\" in database \"%s\"", conninfo->schema, database);
	(void) dlock_fail(error, DLOCK_NOT_READY, "extension \"dlock\" is not installed in database \"%s\"", database);
	if (error != NULL)
		dlock_clip(error->hint, sizeof(error->hint), hint, strlen(hint));
	return DLOCK_NOT_READY;
}

static void
looked_up(DlockConn *conn, int64_t now)
{
	PGresult   *result = conn->result;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		dlock_conn_result_error(conn, result);
		next_address(conn, now);
		return;
	}
	if (PQntuples(result) == 0)
	{
		dlock_conn_not_installed(conn->conninfo, PQdb(conn->pg), &conn->error);
		conn->retry = false;
		next_address(conn, now);
		return;
	}

	if (PQnfields(result) != 9)
	{
		dlock_fail(&conn->error, DLOCK_SERVER_ERROR, "server \"%s\" gave an unexpected answer", host_name(conn));
		conn->retry = false;
		next_address(conn, now);
		return;
	}

	conn->schema = strdup(PQgetvalue(result, 0, 0));
	if (conn->schema == NULL)
	{
		dlock_conn_no_memory(conn);
		return;
	}
	conn->direct = atoi(PQgetvalue(result, 0, 1)) == PQbackendPID(conn->pg);
	conn->routed = PQgetvalue(result, 0, 6)[0] == 't';
	__atomic_store_n(&conn->conninfo->unflushed, PQgetvalue(result, 0, 7)[0] == 't', __ATOMIC_RELAXED);
	conn->portable = PQgetvalue(result, 0, 8)[0] == 't';
	__atomic_store_n(&conn->conninfo->portable, conn->portable, __ATOMIC_RELAXED);

	/*
	 * null if the library is not preloaded, which the next call will report,
	 * or portable
	 */
	conn->default_ttl = strtoll(PQgetvalue(result, 0, 2), NULL, 10);
	if (conn->default_ttl <= 0 || conn->default_ttl > DLOCK_MAX_AMOUNT)
		conn->default_ttl = DLOCK_DEFAULT_TTL_MS;
	conn->statement_timeout = conn->direct ? 0 : strtoll(PQgetvalue(result, 0, 3), NULL, 10);
	PQclear(result);
	conn->result = NULL;
	conn->turned_away_at = 0;
	conn->full_host = -1;
	dlock_connect_forget(conn);
	__atomic_store_n(&conn->conninfo->preferred, conn->host, __ATOMIC_RELAXED);
	dlock_conn_send_listen(conn);
}

static bool
look_up(DlockConn *conn)
{
	char		pid[16];
	const char *params[] = {pid, conn->conninfo->schema};

	snprintf(pid, sizeof(pid), "%d", PQbackendPID(conn->pg));
	conn->sent_at = dlock_now();
	return PQsetnonblocking(conn->pg, 1) == 0 &&
		PQsendQueryParams(conn->pg, dlock_sql_lookup, 2, NULL, params, NULL, NULL, 0);
}

static void
resolve_step(DlockConn *conn, short revents, int64_t now)
{
	if (revents == 0)
	{
		if (now >= conn->until)
			dlock_connect_silent(conn, now);
		return;
	}
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

static void
connect_step(DlockConn *conn, short revents, int64_t now)
{
	if (revents == 0)
	{
		if (now >= conn->until)
			dlock_connect_silent(conn, now);
		return;
	}
	switch (PQconnectPoll(conn->pg))
	{
		case PGRES_POLLING_READING:
			conn->events = POLLIN;
			return;
		case PGRES_POLLING_WRITING:
			conn->events = POLLOUT;
			return;
		case PGRES_POLLING_OK:
			if (look_up(conn))
			{
				conn->state = DLOCK_CONN_LOOKUP;
				conn->events = POLLIN | POLLOUT;
				return;
			}
			break;
		default:
			break;
	}
	dlock_connect_error(conn);
	next_address(conn, now);
}

static void
lookup_step(DlockConn *conn, short revents, int64_t now)
{
	int			done = dlock_conn_transfer(conn, revents);

	if (done < 0)
		next_address(conn, now);
	else if (done > 0)
		looked_up(conn, now);
	else if (now >= conn->until)
		dlock_connect_silent(conn, now);
}

/* dlock_conn_step() of a connection that has not been accepted yet. */
void
dlock_connect_step(DlockConn *conn, short revents, int64_t now)
{
	if (conn->state == DLOCK_CONN_RESOLVING)
		resolve_step(conn, revents, now);
	else if (conn->state == DLOCK_CONN_CONNECTING)
		connect_step(conn, revents, now);
	else if (conn->state == DLOCK_CONN_LOOKUP)
		lookup_step(conn, revents, now);
}
