/*
 * connect.c
 *	  From the options to a handle, and from a status to an exit code.
 */
#include "cli.h"
#include "clock.h"
#include "times.h"
#include "util.h"

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
	make_conninfo(options, &conninfo);
	dlock_open_options_init(&open_options);
	if (options->ttl > 0)
		open_options.ttl_ms = options->ttl;
	if (options->timeout > 0)
		open_options.timeout_ms = options->timeout;
	text_format(&name, "dlock %s", current_command);
	open_options.application_name = name.data;
	status = dlock_open(conninfo.data, &open_options, &handle, &err);
	if (status != DLOCK_OK)
		exit(report_status(status, &err, options->key));
	text_free(&conninfo);
	text_free(&name);
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
			error("lock \"%s\" is not held any more", key);
			break;
		case DLOCK_NOT_HELD:
			error("lock \"%s\" is not held", key);
			break;
		case DLOCK_HELD_BY_OTHER:
			error("lock \"%s\" is held by another client", key);
			break;
		default:
			error("%s", err->message[0] != '\0' ? err->message :
				  dlock_status_name(status));
			if (err->hint[0] != '\0')
				hint("%s", err->hint);
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

/* Who holds a busy key, or what else keeps it busy. */
static void
text_holder(Text *line, const char *key, bool name_it, const dlock_info *infos, size_t n)
{
	Entry		entry = {.key = key,.grants = infos,.grant_count = n};
	const dlock_info *info = shown_grant(&entry);

	if (name_it)
		text_format(line, "\"%s\"", key);
	else
		text_add(line, "It");
	if (is_pending(info))
	{
		text_format(line, " is held by nobody, but an open transaction of process %d keeps it busy.",
					(int) info->using_pid);
		return;
	}
	if (is_cooling(info))
	{
		text_format(line, " is held by nobody, but stays busy after version %lld for ",
					(long long) info->version);
		text_duration(line, info->remaining_ms);
		text_add(line, ".");
		return;
	}
	if (holder_count(&entry) > 1)
		text_format(line, " is held by %d clients, the last of which has version %lld, role ",
					(int) holder_count(&entry), (long long) info->version);
	else
		text_format(line, " is held with version %lld by role ", (long long) info->version);
	text_add(line, info->role);
	if (info->owner != NULL)
	{
		text_add(line, ", owner ");
		text_add(line, info->owner);
	}
	text_add(line, ", and expires in ");
	text_duration(line, info->remaining_ms);
	text_add(line, " unless renewed.");
}

/* Report who holds them, unless the server takes too long to tell. */
void
report_holders(dlock_handle *handle, dlock_status status, const char *const *keys,
			   int count)
{
	int64_t		until = dlock_now() + HOLDER_MS;
	int			i;

	if (exit_code(status) != EXIT_BUSY || is_quiet)
		return;
	for (i = 0; i < count && dlock_now() < until; i++)
	{
		dlock_info *infos = NULL;
		size_t		n = 0;
		Text		line = {0};

		if (dlock_get_infos(handle, keys[i], until - dlock_now(), &infos, &n, NULL) == DLOCK_OK &&
			n > 0)
		{
			text_holder(&line, keys[i], count > 1, infos, n);
			detail("%s", line.data);
		}
		text_free(&line);
		dlock_list_free(infos, n);
	}
}

/*
 * An owner that is unique, and tells a person where it comes from.  Valid until
 * the next call.
 */
const char *
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
	out->priority = (int32_t) options->priority;
	out->cleanup_ms = options->cleanup > 0 ? options->cleanup : 0;
	out->force = options->force;
	out->slots = options->shared ? DLOCK_SHARED :
		options->slots > 1 ? (int32_t) options->slots : DLOCK_EXCLUSIVE;
	out->at_least_ms = options->at_least;
	out->delay_ms = options->delay;
	out->lazy = options->lazy;
}
