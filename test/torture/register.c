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
 * The outcome is reported as it is.  A transaction whose COMMIT was never sent did
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

#include "register.h"
#include "sql.h"

static _Thread_local Sql sql = {.name = "register"};

void
register_close(void)
{
	sql_close(&sql);
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

	result = sql_ask(&sql, "BEGIN", 0, NULL, 0);
	done = sql_good(result, sqlstate);
	PQclear(result);
	if (!done)
		return false;

	result = sql_ask(&sql, "SELECT dlock_fence($1::text, $2::int8)", 2, fence, 0);
	done = sql_good(result, sqlstate);
	PQclear(result);
	if (!done)
		return false;

	/* only the fence keeps others away now: we have locked no row yet */
	if (pause_ms > 0)
		poll(NULL, 0, pause_ms);

	result = sql_ask(&sql, "UPDATE register SET n = n + 1, token = $2::int8 WHERE key = $1 RETURNING n",
					 2, fence, 0);
	done = sql_good(result, sqlstate);
	if (done && PQntuples(result) == 1)
		snprintf(n_text, sizeof(n_text), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	if (!done)
		return false;
	*n = strtoll(n_text, NULL, 10);

	result = sql_ask(&sql, "INSERT INTO journal VALUES ($1, $2::int8, $3::int8, $4::int4, $5::int8)",
					 5, row, 0);
	done = sql_good(result, sqlstate);
	PQclear(result);
	return done;
}

static RegisterOutcome
commit(char *sqlstate)
{
	PGresult   *result;
	RegisterOutcome outcome;

	sql.warned = false;
	result = sql_ask(&sql, "COMMIT", 0, NULL, 0);
	if (result == NULL || PQstatus(sql.conn) != CONNECTION_OK)
		outcome = REGISTER_UNKNOWN;
	else if (!sql_good(result, sqlstate))
		outcome = REGISTER_ERROR;
	else if (strcmp(PQcmdStatus(result), "COMMIT") != 0)
	{
		snprintf(sqlstate, 6, "40000");
		outcome = REGISTER_ERROR;
	}
	else
		outcome = sql.warned ? REGISTER_UNKNOWN : REGISTER_OK;
	PQclear(result);
	return outcome;
}

RegisterOutcome
register_write(const char *key, int64_t version, int client, long op,
			   int fence_ms, int commit_ms, int64_t *n, char *sqlstate)
{
	snprintf(sqlstate, 6, "08001");
	if (!sql_connect(&sql))
		return REGISTER_ERROR;
	if (prepare(key, version, client, op, fence_ms, n, sqlstate))
	{
		if (commit_ms > 0)
			poll(NULL, 0, commit_ms);
		return commit(sqlstate);
	}
	if (sql.conn != NULL)
		PQclear(sql_ask(&sql, "ROLLBACK", 0, NULL, 0));
	return strcmp(sqlstate, "LK001") == 0 ? REGISTER_FENCED : REGISTER_ERROR;
}
