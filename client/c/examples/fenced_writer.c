/*-------------------------------------------------------------------------
 *
 * fenced_writer.c
 *	  Writes that fail if the writer has lost the lock.
 *
 *	  fenced_writer CONNINFO KEY TEXT [PAUSE]
 *
 * Writes TEXT into table journal(token, what).  dlock_fence() in the same
 * transaction fails unless we hold the lock, and keeps it ours until the commit.  So even a writer that slept through its lease (PAUSE is in
 * milliseconds, and nothing renews the lock meanwhile) does no harm.  Only the
 * fence protects against that; a look at the clock does not.
 *
 * Exit status: 0 written; 1 fenced off; 2 no lock; 3 any other error.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "dlock.h"

/* Execute a statement.  Returns its SQLSTATE, or "" if it succeeded. */
static const char *
run(PGconn *conn, const char *sql, int nparams, const char *const *params)
{
	static char sqlstate[6];
	PGresult   *result = PQexecParams(conn, sql, nparams, NULL, params, NULL, NULL, 0);
	const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK)
		sqlstate[0] = '\0';
	else
		snprintf(sqlstate, sizeof(sqlstate), "%s", code != NULL ? code : "08006");
	PQclear(result);
	return sqlstate;
}

static int
write_fenced(PGconn *conn, const dlock_lock *lock, const char *text)
{
	char		token[24];
	const char *row[] = {token, text};
	const char *code;
	dlock_error err;

	snprintf(token, sizeof(token), "%lld", (long long) dlock_version(lock));
	code = run(conn, "BEGIN", 0, NULL);
	if (code[0] == '\0' && dlock_fence(conn, lock, &err) != DLOCK_OK)
		code = err.sqlstate;
	if (code[0] == '\0')
		code = run(conn, "INSERT INTO journal VALUES ($1::int8, $2)", 2, row);
	if (code[0] == '\0')
		code = run(conn, "COMMIT", 0, NULL);
	if (code[0] == '\0')
	{
		printf("written with token %s\n", token);
		return 0;
	}
	printf("not written: %s\n", code);
	return strcmp(code, "LK001") == 0 ? 1 : 3;
}

int
main(int argc, char **argv)
{
	dlock_handle *handle;
	dlock_lock *lock;
	dlock_options options;
	dlock_error err;
	PGconn	   *conn;
	int			result = 3;

	if (argc < 4)
	{
		fprintf(stderr, "usage: %s CONNINFO KEY TEXT [PAUSE]\n", argv[0]);
		return 3;
	}
	if (dlock_open(argv[1], NULL, &handle, &err) != DLOCK_OK)
	{
		fprintf(stderr, "%s\n", err.message);
		return 3;
	}
	dlock_options_init(&options);
	options.ttl_ms = argc > 4 ? 500 : 30000;
	options.renew = 0;
	if (dlock_acquire(handle, argv[2], &options, &lock, &err) != DLOCK_OK)
	{
		printf("no lock: %s\n", err.message);
		dlock_close(handle);
		return 2;
	}

	if (argc > 4)
		poll(NULL, 0, atoi(argv[4]));

	/* the data has a connection of its own */
	conn = PQconnectdb(argv[1]);
	if (PQstatus(conn) == CONNECTION_OK)
		result = write_fenced(conn, lock, argv[3]);
	else
		fprintf(stderr, "%s", PQerrorMessage(conn));
	PQfinish(conn);

	dlock_release_free(lock, -1, &err);
	dlock_close(handle);
	return result;
}
