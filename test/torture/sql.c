/*-------------------------------------------------------------------------
 *
 * sql.c
 *	  A connection to the primary on which everything has a deadline, because
 *	  the network may be a black hole.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "history.h"
#include "sql.h"

#define MAX_SERVERS 8
#define CONNECT_MS 1500
#define ANSWER_MS 4000

static int	ports[MAX_SERVERS];
static int	nports;
static const char *conninfo_more = "";

void
sql_servers(const int *list, int n, const char *more)
{
	nports = n < MAX_SERVERS ? n : MAX_SERVERS;
	memcpy(ports, list, sizeof(int) * (size_t) nports);
	conninfo_more = more;
}

void
sql_close(Sql *sql)
{
	if (sql->conn != NULL)
		PQfinish(sql->conn);
	sql->conn = NULL;
}

static void
on_notice(void *arg, const PGresult *result)
{
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

	if (severity != NULL && strcmp(severity, "WARNING") == 0)
		((Sql *) arg)->warned = true;
}

/* Wait for the socket; false when the time is up. */
static bool
ready(const Sql *sql, short events, int64_t until)
{
	struct pollfd fd;
	int64_t		left = (until - now_us()) / 1000;

	fd.fd = PQsocket(sql->conn);
	fd.events = events;
	fd.revents = 0;
	return left > 0 && poll(&fd, 1, (int) left) > 0;
}

static bool
connect_to(Sql *sql, int port)
{
	char		conninfo[500];
	int64_t		until = now_us() + CONNECT_MS * 1000;
	PostgresPollingStatusType state = PGRES_POLLING_WRITING;

	snprintf(conninfo, sizeof(conninfo),
			 "host=127.0.0.1 port=%d target_session_attrs=read-write application_name=%s %s",
			 port, sql->name, conninfo_more);
	sql->conn = PQconnectStart(conninfo);
	if (sql->conn == NULL)
		abort();
	PQsetNoticeReceiver(sql->conn, on_notice, sql);
	while (PQstatus(sql->conn) != CONNECTION_BAD)
	{
		if (state == PGRES_POLLING_OK)
			return true;
		if (state == PGRES_POLLING_FAILED ||
			!ready(sql, state == PGRES_POLLING_READING ? POLLIN : POLLOUT, until))
			break;
		state = PQconnectPoll(sql->conn);
	}
	sql_close(sql);
	return false;
}

bool
sql_connect(Sql *sql)
{
	if (sql->conn != NULL && PQstatus(sql->conn) == CONNECTION_OK)
		return true;
	sql_close(sql);
	for (int i = 0; i < nports; i++)
	{
		if (connect_to(sql, ports[sql->server]))
			return true;
		sql->server = (sql->server + 1) % nports;
	}
	return false;
}

PGresult   *
sql_ask(Sql *sql, const char *text, int nparams, const char *const *params, int wait_ms)
{
	int64_t		until = now_us() + (int64_t) (ANSWER_MS + wait_ms) * 1000;
	PGresult   *result = NULL;
	PGresult   *next;

	if (!PQsendQueryParams(sql->conn, text, nparams, NULL, params, NULL, NULL, 0))
	{
		sql_close(sql);
		return NULL;
	}
	for (;;)
	{
		while (PQisBusy(sql->conn))
			if (!ready(sql, POLLIN, until) || !PQconsumeInput(sql->conn))
			{
				PQclear(result);
				sql_close(sql);
				return NULL;
			}
		next = PQgetResult(sql->conn);
		if (next == NULL)
			return result;

		/* the first says why; later ones only say that the connection is gone */
		if (result == NULL)
			result = next;
		else
			PQclear(next);
	}
}

bool
sql_good(const PGresult *result, char *sqlstate)
{
	const char *code = result != NULL ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	if (result != NULL && (PQresultStatus(result) == PGRES_TUPLES_OK ||
						   PQresultStatus(result) == PGRES_COMMAND_OK))
		return true;
	snprintf(sqlstate, 6, "%s", code != NULL ? code : "08006");
	return false;
}
