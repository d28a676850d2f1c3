/*
 * cluster.h
 *	  Connections to routers and clusters, for "dlock shard".
 */
#ifndef DLOCK_CLUSTER_H
#define DLOCK_CLUSTER_H

#include "cli.h"

#include <libpq-fe.h>

typedef struct
{
	const char *kind;			/* "router" or "cluster" */
	char	   *name;
	PGconn	   *pg;
	char	   *schema;			/* of the extension, quoted */
	bool		unconfirmed;	/* a commit was not confirmed by a standby */
} Server;

extern void server_open(Server *server, const char *kind, const char *name,
						const char *conninfo, const Options *options);
extern void server_close(Server *server);
extern PGresult *server_ask(Server *server, const char *sql, const char *one,
							const char *two);
extern void server_do(Server *server, const char *sql, const char *one);
extern char *server_get(Server *server, const char *sql, const char *one,
						const char *two);

#endif							/* DLOCK_CLUSTER_H */
