/*-------------------------------------------------------------------------
 *
 * sql.h
 *	  A connection to the primary on which everything has a deadline.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_SQL_H
#define TORTURE_SQL_H

#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>

typedef struct Sql
{
	const char *name;			/* application_name */
	PGconn	   *conn;			/* NULL: none */
	int			server;			/* the one that accepted us last */
	bool		warned;			/* there was a warning since this was cleared */
} Sql;

/* The servers: loopback ports, and the rest of the connection string. */
extern void sql_servers(const int *ports, int n, const char *more);

extern bool sql_connect(Sql *sql);
extern void sql_close(Sql *sql);

/*
 * Run one statement.  Returns the result, or NULL if there was no answer and the
 * connection is gone.
 */
extern PGresult *sql_ask(Sql *sql, const char *text, int nparams, const char *const *params,
						 int wait_ms);

/* Did it succeed?  If not, sqlstate says why. */
extern bool sql_good(const PGresult *result, char *sqlstate);

#endif							/* TORTURE_SQL_H */
