/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Timeouts that are set on the server.
 *
 * How long a call waits is said by its caller, and the library keeps to that.
 * So what an administrator has set for all statements of a role or database
 * is not for ours: it is turned off where the session is our own.  Through a
 * pooler the session is everybody's, and a setting would stay when we have
 * gone.  There we note what will happen (errors.c recognizes it), and ask
 * again.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

#include "conn.h"

/*
 * A session is our own if it has the process id that libpq was told; a pooler
 * makes one up.  transaction_timeout is there from PostgreSQL 17 on.
 */
static const char timeouts_sql[] =
"SELECT l.*, (EXTRACT(EPOCH FROM"
" pg_catalog.current_setting('statement_timeout')::pg_catalog.interval))::pg_catalog.float8,"
" CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $1::pg_catalog.int4 THEN"
" pg_catalog.concat(pg_catalog.set_config('statement_timeout', '0', false),"
" pg_catalog.set_config('lock_timeout', '0', false),"
" CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL"
" THEN pg_catalog.set_config('transaction_timeout', '0', false) END) END"
" FROM (";

/* The first statement of a connection: this one, and the timeouts. */
bool
dlock_settings_ask(DlockConn *conn, const char *lookup_sql)
{
	DlockString sql = {0};
	char		pid[16];
	const char *params[] = {pid};
	bool		sent = false;

	snprintf(pid, sizeof(pid), "%d", PQbackendPID(conn->pg));
	dlock_string_puts(&sql, timeouts_sql);
	dlock_string_puts(&sql, lookup_sql);
	dlock_string_puts(&sql, ") AS l");
	if (!sql.broken)
		sent = PQsetnonblocking(conn->pg, 1) == 0 &&
			PQsendQueryParams(conn->pg, sql.data, 1, NULL, params, NULL, NULL, 0);
	dlock_string_free(&sql);
	conn->sent_at = dlock_now();
	return sent;
}

/* statement_timeout in milliseconds, from the answer to that; 0: none. */
int64_t
dlock_settings_timeout(const PGresult *result)
{
	return (int64_t) (strtod(PQgetvalue(result, 0, PQnfields(result) - 2), NULL) * 1000);
}
