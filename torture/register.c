/*-------------------------------------------------------------------------
 *
 * register.c
 *	  The fenced register: what the locks of a torture run protect.
 *
 * For each key there is a row in table register, with a counter and the token
 * that advanced it last, and a row in table journal for each time that it was
 * advanced.  Both are written in one transaction after dlock_fence(), on a
 * separate connection, as a program does that uses libdlock for its locks.
 *
 * Everything has a deadline, because the network may be a black hole.  The
 * outcome is reported as it is.  A transaction whose COMMIT was never sent did
 * nothing.  If its COMMIT got no answer, or one with the warning that the wait
 * for the synchronous standby was cancelled, it may or may not exist after a
 * failover.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "history.h"
#include "register.h"

#define MAX_SERVERS 8
#define CONNECT_MS 1500
#define ANSWER_MS 4000

static int	ports[MAX_SERVERS];
static int	nports;
static const char *conninfo_more = "";
static int	server;				/* the one that accepted us last */
static PGconn *conn;
static bool warned;

void
register_servers(const int *list, int n, const char *more)
{
	nports = n < MAX_SERVERS ? n : MAX_SERVERS;
	memcpy(ports, list, sizeof(int) * (size_t) nports);
	conninfo_more = more;
}

void
register_close(void)
{
	if (conn != NULL)
		PQfinish(conn);
	conn = NULL;
}

static void
on_notice(void *arg, const PGresult *result)
{
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

	(void) arg;
	if (severity != NULL && strcmp(severity, "WARNING") == 0)
		warned = true;
}

/* Wait for the socket; false when the time is up. */
static bool
ready(short events, int64_t until)
{
	struct pollfd fd;
	int64_t		left = (until - now_us()) / 1000;

	fd.fd = PQsocket(conn);
	fd.events = events;
	fd.revents = 0;
	return left > 0 && poll(&fd, 1, (int) left) > 0;
}

static bool
connect_to(int port)
{
	char		conninfo[500];
	int64_t		until = now_us() + CONNECT_MS * 1000;
	PostgresPollingStatusType state = PGRES_POLLING_WRITING;

	snprintf(conninfo, sizeof(conninfo),
			 "host=127.0.0.1 port=%d target_session_attrs=read-write application_name=register %s",
			 port, conninfo_more);
	conn = PQconnectStart(conninfo);
	if (conn == NULL)
		abort();
	PQsetNoticeReceiver(conn, on_notice, NULL);
	while (PQstatus(conn) != CONNECTION_BAD)
	{
		if (state == PGRES_POLLING_OK)
			return true;
		if (state == PGRES_POLLING_FAILED ||
			!ready(state == PGRES_POLLING_READING ? POLLIN : POLLOUT, until))
			break;
		state = PQconnectPoll(conn);
	}
	register_close();
	return false;
}

static bool
connected(void)
{
	if (conn != NULL && PQstatus(conn) == CONNECTION_OK)
		return true;
	register_close();
	for (int i = 0; i < nports; i++)
	{
		if (connect_to(ports[server]))
			return true;
		server = (server + 1) % nports;
	}
	return false;
}

/*
 * Run one statement.  Returns the result, or NULL if there was no answer and the
 * connection is gone.
 */
static PGresult *
ask(const char *sql, int nparams, const char *const *params)
{
	int64_t		until = now_us() + ANSWER_MS * 1000;
	PGresult   *result = NULL;
	PGresult   *next;

	if (!PQsendQueryParams(conn, sql, nparams, NULL, params, NULL, NULL, 0))
	{
		register_close();
		return NULL;
	}
	for (;;)
	{
		while (PQisBusy(conn))
			if (!ready(POLLIN, until) || !PQconsumeInput(conn))
			{
				PQclear(result);
				register_close();
				return NULL;
			}
		next = PQgetResult(conn);
		if (next == NULL)
			return result;

		/* the first says why; later ones only say that the connection is gone */
		if (result == NULL)
			result = next;
		else
			PQclear(next);
	}
}

/* Did it succeed?  If not, sqlstate says why. */
static bool
good(const PGresult *result, char *sqlstate)
{
	const char *code = result != NULL ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	if (result != NULL && (PQresultStatus(result) == PGRES_TUPLES_OK ||
						   PQresultStatus(result) == PGRES_COMMAND_OK))
		return true;
	snprintf(sqlstate, 6, "%s", code != NULL ? code : "08006");
	return false;
}

/* What comes before the COMMIT. */
static bool
prepare(const char *key, int64_t version, int client, long op, int pause_ms,
		int64_t *n, char *sqlstate)
{
	char		token[24];
	char		client_text[16];
	char		op_text[24];
	char		n_text[24] = "";
	const char *fence[] = {key, token};
	const char *row[] = {key, n_text, token, client_text, op_text};
	PGresult   *result;
	bool		done;

	snprintf(token, sizeof(token), "%lld", (long long) version);
	snprintf(client_text, sizeof(client_text), "%d", client);
	snprintf(op_text, sizeof(op_text), "%ld", op);

	result = ask("BEGIN", 0, NULL);
	done = good(result, sqlstate);
	PQclear(result);
	if (!done)
		return false;

	result = ask("SELECT dlock_fence($1::text, $2::int8)", 2, fence);
	done = good(result, sqlstate);
	PQclear(result);
	if (!done)
		return false;

	/* only the fence keeps others away now: we have locked no row yet */
	if (pause_ms > 0)
		poll(NULL, 0, pause_ms);

	result = ask("UPDATE register SET n = n + 1, token = $2::int8 WHERE key = $1 RETURNING n",
				 2, fence);
	done = good(result, sqlstate);
	if (done && PQntuples(result) == 1)
		snprintf(n_text, sizeof(n_text), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	if (!done)
		return false;
	*n = strtoll(n_text, NULL, 10);

	result = ask("INSERT INTO journal VALUES ($1, $2::int8, $3::int8, $4::int4, $5::int8)", 5, row);
	done = good(result, sqlstate);
	PQclear(result);
	return done;
}

static RegisterOutcome
commit(char *sqlstate)
{
	PGresult   *result;
	RegisterOutcome outcome;

	warned = false;
	result = ask("COMMIT", 0, NULL);
	if (result == NULL || PQstatus(conn) != CONNECTION_OK)
		outcome = REGISTER_UNKNOWN;
	else if (!good(result, sqlstate))
		outcome = REGISTER_ERROR;
	else if (strcmp(PQcmdStatus(result), "COMMIT") != 0)
	{
		snprintf(sqlstate, 6, "40000");
		outcome = REGISTER_ERROR;
	}
	else
		outcome = warned ? REGISTER_UNKNOWN : REGISTER_OK;
	PQclear(result);
	return outcome;
}

RegisterOutcome
register_write(const char *key, int64_t version, int client, long op,
			   int fence_ms, int commit_ms, int64_t *n, char *sqlstate)
{
	snprintf(sqlstate, 6, "08001");
	if (!connected())
		return REGISTER_ERROR;
	if (prepare(key, version, client, op, fence_ms, n, sqlstate))
	{
		if (commit_ms > 0)
			poll(NULL, 0, commit_ms);
		return commit(sqlstate);
	}
	if (conn != NULL)
		PQclear(ask("ROLLBACK", 0, NULL));
	return strcmp(sqlstate, "LK001") == 0 ? REGISTER_FENCED : REGISTER_ERROR;
}
