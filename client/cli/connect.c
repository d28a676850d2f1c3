/*
 * connect.c
 *	  From the options to a handle, and from a status to an exit code.
 */
#include "cli.h"
#include "api/inspect.h"
#include "net/errors.h"
#include "base/util.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool		encoding_is_ours = false;

static void
add_parameter(Text *conninfo, const char *name, const char *value)
{
	if (value == NULL)
		return;
	text_format(conninfo, "%s = '", name);
	for (; *value != '\0'; value++)
	{
		if (*value == '\'' || *value == '\\')
			text_add(conninfo, "\\");
		text_add_bytes(conninfo, value, 1);
	}
	text_add(conninfo, "' ");
}

/*
 * As in psql, -d may be a name or a connection string, and a string overrides
 * the other options.
 */
void
make_conninfo(const Options *options, Text *conninfo)
{
	const char *dbname = options->dbname;
	const char *port = options->port;

	if (port != NULL && strspn(port, "0123456789,") < strlen(port))
		usage_error("invalid port \"%s\", must be a number", port);
	text_clear(conninfo);
	if (dbname != NULL && (strncmp(dbname, "postgres://", 11) == 0 ||
						   strncmp(dbname, "postgresql://", 13) == 0))
	{
		if (options->host != NULL || options->port != NULL ||
			options->user != NULL)
			usage_error("-h, -p and -U cannot be used together with a URI");
		text_add(conninfo, dbname);
		return;
	}
	add_parameter(conninfo, "host", options->host);
	add_parameter(conninfo, "port", options->port);
	add_parameter(conninfo, "user", options->user);
	if (dbname != NULL && strchr(dbname, '=') != NULL)
		text_add(conninfo, dbname);
	else
		add_parameter(conninfo, "dbname", dbname);
}

/* Would --wait be news to the user? */
static bool can_wait = false;

dlock_handle *
connect_server(const Options *options)
{
	dlock_open_options open_options;
	dlock_handle *handle;
	dlock_error err = {0};
	dlock_status status;
	Text		conninfo = {0};
	Text		name = {0};

	/* JSON is UTF-8; the command that we run gets the original environment */
	if (getenv("PGCLIENTENCODING") == NULL)
	{
		setenv("PGCLIENTENCODING", "UTF8", 1);
		encoding_is_ours = true;
	}
	can_wait = option_allowed(parse_command(current_command), "wait") && !options->wait_given;
	make_conninfo(options, &conninfo);
	dlock_open_options_init(&open_options);
	if (options->ttl > 0)
		open_options.ttl_ms = options->ttl;
	if (options->timeout > 0)
		open_options.timeout_ms = options->timeout;
	text_format(&name, "dlock %s", current_command);
	open_options.application_name = name.data;
	open_options.schema = options->schema;
	status = dlock_open(conninfo.data, &open_options, &handle, &err);
	if (status != DLOCK_OK)
		exit(report_status(status, &err, options->key));
	text_free(&conninfo);
	text_free(&name);
	return handle;
}

/*
 * For commands that only read: the server that accepts writes, because it alone knows who
 * waits, and if there is none, any that answers.  *on_standby (may be NULL): it is one.
 */
dlock_handle *
connect_reader(const Options *options, bool *on_standby)
{
	dlock_handle *handle = connect_server(options);
	DlockReply *reply = NULL;
	bool		is_standby = false;

	if (on_standby != NULL)
		*on_standby = false;
	if (dlock_ping(handle, 0, NULL) != DLOCK_UNREACHABLE)
		return handle;
	dlock_close(handle);

	/* what the connection string says counts more */
	setenv("PGTARGETSESSIONATTRS", "any", 0);
	handle = connect_server(options);
	if (dlock_read(handle, "SELECT pg_catalog.pg_is_in_recovery()", -1, &reply, NULL) == DLOCK_OK)
		is_standby = dlock_reply_bool(reply, 0, 0);
	dlock_reply_free(reply);
	if (is_standby)
		notice("connected to a standby: it has the locks, but does not know who waits");
	if (on_standby != NULL)
		*on_standby = is_standby;
	return handle;
}

int
exit_code(dlock_status status)
{
	switch (status)
	{
		case DLOCK_OK:
		case DLOCK_PREEMPTING:
			return 0;
		case DLOCK_BUSY:
		case DLOCK_REFUSED:
		case DLOCK_UNCHANGED:
			return EXIT_BUSY;
		case DLOCK_NOT_HELD:
		case DLOCK_HELD_BY_OTHER:
		case DLOCK_LOST:
			return EXIT_LOST;
		case DLOCK_TIMEOUT:
		case DLOCK_UNREACHABLE:
			return EXIT_UNREACHABLE;
		case DLOCK_DENIED:
			return EXIT_DENIED;
		case DLOCK_NOT_READY:
			return EXIT_NOT_READY;
		case DLOCK_INVALID:
			return EXIT_USAGE;
		case DLOCK_SERVER_ERROR:
			return EXIT_SERVER;
		case DLOCK_NO_MEMORY:
		case DLOCK_CANCELLED:
			break;
	}
	return EXIT_INTERNAL;
}

static bool
is(const dlock_error *err, const char *sqlstate)
{
	return strcmp(err->sqlstate, sqlstate) == 0;
}

/* What to do about an error; NULL: its message has to be enough. */
const char *
advice(dlock_status status, const dlock_error *err)
{
	if (err->hint[0] != '\0')
		return err->hint;
	if (status == DLOCK_UNREACHABLE && dlock_error_full(err))
		return can_wait ?
			"Use --wait to try until a connection is free, connect through a pooler, or raise max_connections." :
			"Try again later, connect through a pooler, or raise max_connections.";
	if (status == DLOCK_UNREACHABLE && dlock_error_turned_away(err))
		return can_wait ? "Try again in a moment, or use --wait." : "Try again in a moment.";
	if (status == DLOCK_UNREACHABLE && is(err, "25006"))
		return "Connect to the primary; -d 'host=pg1,pg2' tries several servers.";
	if (status == DLOCK_UNREACHABLE && is(err, ""))
		return "Check that the server is running, and where: -h and -p, or PGHOST and PGPORT.";
	if (status == DLOCK_DENIED && (is(err, "28P01") || is(err, "")))
		return "Check the password: dlock takes it from PGPASSWORD or ~/.pgpass, and never asks for it.";
	if (status == DLOCK_DENIED && is(err, "28000"))
		return "The server needs a role for you: sudo -u postgres createuser NAME makes one, and -U (or PGUSER) names another. pg_hba.conf says who may connect.";
	if (status == DLOCK_DENIED && is(err, "3D000"))
		return "Check -d (or PGDATABASE).";
	if (status == DLOCK_DENIED)
		return "Connect as another role (-U), or ask an administrator for the privilege.";
	return NULL;
}

/* Report it and return the exit code. */
int
report_status(dlock_status status, const dlock_error *err, const char *key)
{
	/* an answer about several keys */
	if (key == NULL && status != DLOCK_OK && status <= DLOCK_REFUSED)
	{
		error("%s", err->message);
		return exit_code(status);
	}
	switch (status)
	{
		case DLOCK_OK:
		case DLOCK_PREEMPTING:
			return 0;
		case DLOCK_BUSY:
			error("lock \"%s\" is busy", key);
			break;
		case DLOCK_REFUSED:
			error("the holder of lock \"%s\" did not yield", key);
			hint("Use --force to take it from a holder of lower priority.");
			break;
		case DLOCK_LOST:
		case DLOCK_NOT_HELD:
			error("lock \"%s\" is not held", key);
			break;
		case DLOCK_HELD_BY_OTHER:
			error("lock \"%s\" is held by another client", key);
			break;
		default:
			error("%s", err->message[0] != '\0' ? err->message :
				  dlock_status_name(status));
			if (advice(status, err) != NULL)
				hint("%s", advice(status, err));
	}
	return exit_code(status);
}

/* The same, and close the handle. */
int
give_up(dlock_handle *handle, dlock_status status, const dlock_error *err,
		const char *key)
{
	int			code = report_status(status, err, key);

	dlock_close(handle);
	return code;
}

/*
 * An owner that is unique, and tells a person where it comes from.  Valid until
 * the next call.
 */
static const char *
default_owner(void)
{
	char		host[256] = "";
	unsigned char random[8] = {0};
	static Text owner = {0};
	size_t		i;

	if (!dlock_random_bytes(random, sizeof(random)))
	{
		error("could not generate random bytes");
		exit(EXIT_INTERNAL);
	}
	gethostname(host, sizeof(host) - 1);
	text_clear(&owner);
	text_format(&owner, "%s:%ld:", host, (long) getpid());
	for (i = 0; i < sizeof(random); i++)
		text_format(&owner, "%02x", random[i]);
	return owner.data;
}

void
fill_lock_options(const Options *options, dlock_options *out)
{
	dlock_options_init(out);
	out->ttl_ms = options->ttl;
	out->wait_ms = options->wait;
	out->value = options->value;
	out->owner = options->owner != NULL ? options->owner : default_owner();
	/* our own name is that of one request, which may be repeated */
	out->adopt = options->adopt || options->owner == NULL;
	out->priority = (int32_t) options->priority;
	out->cleanup_ms = options->cleanup > 0 ? options->cleanup : 0;
	out->force = options->force;
	out->slots = options->slots > 1 ? (int32_t) options->slots : 1;
	out->shared = options->shared;
	out->at_least_ms = options->at_least;
	out->delay_ms = options->delay;
	out->lazy = options->lazy;
	out->max_hold_ms = options->max_hold;
}
