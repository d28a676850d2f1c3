/*
 * cluster.c
 *	  Connections to routers and clusters, for "dlock shard".
 *
 * The library is for the locks of one server.  Here there are several, and each
 * has a session of its own for as long as the command runs, which may block.  An
 * error ends the program, because the command can be run again at any time.
 */
#include "shard/cluster.h"
#include "net/errors.h"

#include <stdlib.h>
#include <string.h>

#define CONNECT_SECONDS 10

static void
give_up_on(Server *server, dlock_error *err)
{
	error("%s \"%s\": %s", server->kind, server->name, err->message);
	if (err->hint[0] != '\0')
		hint("%s", err->hint);
	hint("Once that is solved, run the same command again: it continues where it stopped.");
	exit(exit_code(err->status));
}

static void
fail_with_result(Server *server, const PGresult *result)
{
	const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	dlock_error err = {0};

	dlock_error_make(&err, PQresultErrorField(result, PG_DIAG_SQLSTATE),
					 text != NULL ? text : PQerrorMessage(server->pg),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
					 PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	dlock_error_classify(&err);
	give_up_on(server, &err);
}

/* See hear_notice() in connect.c of libdlock. */
static void
hear_notice(void *arg, const PGresult *result)
{
	Server	   *server = arg;
	const char *source = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

	if (source != NULL && strcmp(source, "SyncRepWaitForLSN") == 0)
		server->unconfirmed = true;
}

/*
 * "@." in the statement is the schema of the extension.  Parameters that are NULL
 * at the end are left out.
 */
PGresult   *
server_ask(Server *server, const char *sql, const char *one, const char *two)
{
	const char *params[] = {one, two};
	Text		text = {0};
	const char *at;
	PGresult   *result;

	for (; (at = strstr(sql, "@.")) != NULL; sql = at + 1)
	{
		text_add_bytes(&text, sql, (size_t) (at - sql));
		text_add(&text, server->schema);
	}
	text_add(&text, sql);
	result = PQexecParams(server->pg, text.data, two != NULL ? 2 : one != NULL ? 1 : 0,
						  NULL, params, NULL, NULL, 0);
	text_free(&text);
	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		fail_with_result(server, result);
	return result;
}

/*
 * Execute a statement.  Not every standby may have it when the wait for them was
 * cancelled, and then a failover would undo it.
 */
void
server_do(Server *server, const char *sql, const char *one)
{
	PQclear(server_ask(server, sql, one, NULL));
	if (server->unconfirmed)
	{
		error("%s \"%s\": no standby has confirmed the change", server->kind, server->name);
		hint("Run the same command again when a synchronous standby is there.");
		exit(EXIT_UNREACHABLE);
	}
}

/* The first column of the only row; NULL if there is no row. */
char *
server_get(Server *server, const char *sql, const char *one, const char *two)
{
	PGresult   *result = server_ask(server, sql, one, two);
	char	   *value = NULL;

	if (PQntuples(result) > 0 && PQnfields(result) > 0)
		value = copy_string(PQgetvalue(result, 0, 0));

	PQclear(result);
	return value;
}

/*
 * A statement must not depend on the search_path of the database, and no timeout
 * of it must end a wait.  What is written must be as durable as a grant.
 *
 * Nothing is set if the process is not the one that libpq knows: then it belongs to a
 * pooler, whose next client would have the settings.
 */
static const char prepare[] =
"SELECT CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $1::pg_catalog.int4 THEN pg_catalog.concat("
"pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false),"
" pg_catalog.set_config('statement_timeout', '0', false),"
" pg_catalog.set_config('lock_timeout', '0', false),"
" pg_catalog.set_config('idle_session_timeout', '0', false),"
" pg_catalog.set_config('client_min_messages', 'warning', false),"
" CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) 'remote_apply'::pg_catalog.text"
" THEN pg_catalog.set_config('synchronous_commit', 'on', false) END) END";

/* Without a name, that of the database. */
void
server_open(Server *server, const char *kind, const char *name, const char *conninfo,
			const Options *options)
{
	const char *keywords[] = {"dbname", "application_name", "connect_timeout", "client_encoding",
	options->user != NULL ? "user" : NULL, NULL};
	char		seconds[16];
	const char *values[] = {conninfo, "dlock shard", seconds, "UTF8", options->user, NULL};
	bool		is_router = strcmp(kind, "router") == 0;
	char		pid[16];
	char	   *set;

	memset(server, 0, sizeof(*server));
	server->kind = kind;
	snprintf(seconds, sizeof(seconds), "%d",
			 options->timeout > 0 ? (int) ((options->timeout + 999) / 1000) : CONNECT_SECONDS);
	server->pg = PQconnectdbParams(keywords, values, 1);
	if (server->pg == NULL)
		out_of_memory();
	server->name = copy_string(name != NULL ? name : PQdb(server->pg));
	if (PQstatus(server->pg) != CONNECTION_OK)
	{
		dlock_error err = {0};

		dlock_error_parse(&err, PQerrorMessage(server->pg));
		err.status = DLOCK_UNREACHABLE;
		give_up_on(server, &err);
	}
	PQsetNoticeReceiver(server->pg, hear_notice, server);

	server->schema = copy_string("");
	snprintf(pid, sizeof(pid), "%d", PQbackendPID(server->pg));
	set = server_get(server, prepare, pid, NULL);
	if (set == NULL || set[0] == '\0')
	{
		error("%s \"%s\" is reached through a pooler", kind, server->name);
		hint("Moving shards needs direct connections.");
		exit(EXIT_USAGE);
	}
	free(set);

	free(server->schema);
	server->schema = server_get(server,
								"SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
								" WHERE e.extname = $1::name",
								is_router ? "dlock_router" : "dlock", NULL);
	if (server->schema == NULL)
	{
		error("%s \"%s\": extension \"%s\" is not installed in database \"%s\"",
			  kind, server->name, is_router ? "dlock_router" : "dlock", PQdb(server->pg));
		hint(is_router ? "Connect to a database that is a router." :
			 "Run CREATE EXTENSION dlock in that database.");
		exit(EXIT_NOT_READY);
	}
}

void
server_close(Server *server)
{
	PQfinish(server->pg);
	free(server->name);
	free(server->schema);
}
