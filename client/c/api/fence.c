/*-------------------------------------------------------------------------
 *
 * fence.c
 *	  The fence, on a connection of the program.
 *
 * These are the only functions that use a connection which is not the library's.  They
 * block as PQexec() does, because they are a part of what the program does there.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "api/api.h"
#include "net/errors.h"

/* Why the server refused it.  LK001 is what the fence says of a lock that is not ours. */
static dlock_status
refused(PGconn *conn, const PGresult *result, dlock_error *err)
{
	dlock_error error;
	const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	dlock_error_make(&error, PQresultErrorField(result, PG_DIAG_SQLSTATE),
					 text != NULL ? text : PQerrorMessage(conn),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	(void) dlock_error_classify(&error);
	if (strcmp(error.sqlstate, "LK001") == 0)
		error.status = DLOCK_LOST;
	return dlock_error_copy(err, &error);
}

/* The schema of the extension in the database of that connection, as SQL. */
static dlock_status
find_schema(PGconn *conn, const DlockConninfo *conninfo, char *schema, size_t size, dlock_error *err)
{
	const char *params[] = {conninfo->schema};
	PGresult   *result = PQexecParams(conn, dlock_sql_schema, 1, NULL, params, NULL, NULL, 0);
	dlock_status status = DLOCK_OK;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		status = refused(conn, result, err);
	else if (PQntuples(result) == 0)
		status = dlock_conn_not_installed(conninfo, PQdb(conn), err);
	else
		snprintf(schema, size, "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	return status;
}

dlock_status
dlock_fence_connection(struct pg_conn *conn, const dlock_lock *lock, dlock_error *err)
{
	char	   *fence;
	const char *params[1];
	PGresult   *result;
	dlock_status status = DLOCK_OK;

	dlock_error_clear(err);
	if (conn == NULL)
		return dlock_fail(err, DLOCK_INVALID, "connection must not be null");
	fence = calloc(1, lock != NULL ? strlen(lock->key) + 24 : 1);
	if (fence == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	if (lock != NULL)
		sprintf(fence, "%lld:%s", (long long) lock->version, lock->key);
	params[0] = fence;
	result = PQexecParams(conn, dlock_sql_fence_connection, 1, NULL, params, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		status = refused(conn, result, err);
	else if (PQntuples(result) == 0 && lock != NULL)
		status = dlock_fail(err, DLOCK_NOT_READY, "the server has no setting \"dlock.fence\"");
	PQclear(result);
	free(fence);
	return status;
}

dlock_status
dlock_fence(struct pg_conn *conn, const dlock_lock *lock, dlock_error *err)
{
	char		schema[160];	/* a name has 63 bytes, which may all be
								 * quotes */
	char		sql[400];
	char		version[24];
	const char *params[2];
	PGresult   *result;
	dlock_status status;

	dlock_error_clear(err);
	if (conn == NULL || lock == NULL)
		return dlock_fail(err, DLOCK_INVALID, "connection and lock must not be null");
	if (PQtransactionStatus(conn) == PQTRANS_IDLE)
		return dlock_fail(err, DLOCK_INVALID, "a fence protects nothing outside a transaction block");
	status = find_schema(conn, lock->handle->conninfo, schema, sizeof(schema), err);
	if (status != DLOCK_OK)
		return status;
	snprintf(sql, sizeof(sql), dlock_sql_fence, schema);
	snprintf(version, sizeof(version), "%lld", (long long) lock->version);
	params[0] = lock->key;
	params[1] = version;
	result = PQexecParams(conn, sql, 2, NULL, params, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		status = refused(conn, result, err);
	PQclear(result);
	return status;
}
