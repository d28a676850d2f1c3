/*-------------------------------------------------------------------------
 *
 * conninfo.c
 *	  What to connect to: the parsed connection string.
 *
 * Hosts are kept apart from the other options, because connect.c tries them one
 * by one.  Options that neither the string nor the environment sets get
 * defaults that follow from the TTL.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "base/constants.h"
#include "base/util.h"
#include "net/conn.h"

/* The nth element of a list with commas; a list of one is for all hosts. */
static bool
nth(const char *list, int n, int count, char **to)
{
	const char *end;

	*to = NULL;
	if (list == NULL)
		return true;
	if (count > 1)
		while (n-- > 0 && (end = strchr(list, ',')) != NULL)
			list = end + 1;
	end = strchr(list, ',');
	if (end == NULL)
		end = list + strlen(list);
	*to = malloc((size_t) (end - list) + 1);
	if (*to == NULL)
		return false;
	memcpy(*to, list, (size_t) (end - list));
	(*to)[end - list] = '\0';
	return true;
}

static int
count_list(const char *list)
{
	int			n = 1;

	if (list == NULL)
		return 0;
	for (; *list != '\0'; list++)
		n += *list == ',';
	return n;
}

static bool
add_param(DlockConninfo *conninfo, const char *keyword, const char *value)
{
	int			n = conninfo->nparams;

	conninfo->keywords[n] = strdup(keyword);
	conninfo->values[n] = strdup(value);
	conninfo->nparams++;
	return conninfo->keywords[n] != NULL && conninfo->values[n] != NULL;
}

/* Add an option that neither the conninfo nor the environment sets. */
static bool
add_default(DlockConninfo *conninfo, const PQconninfoOption *options,
			const char *keyword, const char *value)
{
	for (; options->keyword != NULL; options++)
	{
		if (strcmp(options->keyword, keyword) != 0)
			continue;
		if (options->val != NULL ||
			(options->envvar != NULL && getenv(options->envvar) != NULL))
			return true;
		return add_param(conninfo, keyword, value);
	}
	/* libpq is too old to know it */
	return true;
}

static bool
add_default_int(DlockConninfo *conninfo, const PQconninfoOption *options,
				const char *keyword, int64_t value)
{
	char		text[24];

	snprintf(text, sizeof(text), "%lld", (long long) value);
	return add_default(conninfo, options, keyword, text);
}

/* From the conninfo, or else from the environment. */
static const char *
option(const PQconninfoOption *options, const char *keyword)
{
	for (; options->keyword != NULL; options++)
		if (strcmp(options->keyword, keyword) == 0)
		{
			if (options->val != NULL && options->val[0] != '\0')
				return options->val;
			return options->envvar != NULL ? getenv(options->envvar) : NULL;
		}
	return NULL;
}

static dlock_status
add_hosts(DlockConninfo *conninfo, const PQconninfoOption *options, bool *ok,
		  dlock_error *err)
{
	const char *host = option(options, "host");
	const char *hostaddr = option(options, "hostaddr");
	const char *port = option(options, "port");
	int			hosts = count_list(host);
	int			addrs = count_list(hostaddr);
	int			ports = count_list(port);
	int			n = addrs > 0 ? addrs : hosts;

	if (n == 0)
		n = 1;
	if (hosts > 0 && addrs > 0 && hosts != addrs)
		return dlock_fail(err, DLOCK_INVALID, "could not match %d host names to %d hostaddr values",
						  hosts, addrs);
	if (ports > 1 && ports != n)
		return dlock_fail(err, DLOCK_INVALID, "could not match %d port numbers to %d hosts",
						  ports, n);
	conninfo->hosts = calloc((size_t) n, sizeof(DlockHost));
	if (conninfo->hosts == NULL)
	{
		*ok = false;
		return DLOCK_OK;
	}
	conninfo->nhosts = n;
	for (int i = 0; i < n; i++)
		*ok = *ok && nth(host, i, hosts, &conninfo->hosts[i].host) &&
			nth(hostaddr, i, addrs, &conninfo->hosts[i].hostaddr) &&
			nth(port, i, ports, &conninfo->hosts[i].port);
	return DLOCK_OK;
}

/* Is it in a DlockHost? */
static bool
is_of_host(const char *keyword)
{
	return strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0;
}

/*
 * What the conninfo says.  If there is a service file, hosts may come from it,
 * so libpq walks all hosts.
 */
static dlock_status
add_given(DlockConninfo *conninfo, const PQconninfoOption *given, bool *ok,
		  dlock_error *err)
{
	bool		service = option(given, "service") != NULL;

	for (int i = 0; given[i].keyword != NULL; i++)
		if (given[i].val != NULL && (service || !is_of_host(given[i].keyword)))
			*ok = *ok && add_param(conninfo, given[i].keyword, given[i].val);
	if (!service)
		return add_hosts(conninfo, given, ok, err);
	conninfo->hosts = calloc(1, sizeof(DlockHost));
	conninfo->nhosts = 1;
	*ok = *ok && conninfo->hosts != NULL;
	return DLOCK_OK;
}

/* At most this many. */
#define MAX_DEFAULTS 15

static bool
add_defaults(DlockConninfo *conninfo, const PQconninfoOption *given,
			 const dlock_open_options *options)
{
	int64_t		ttl = options->ttl_ms;
	const char *timeout = option(given, "connect_timeout");

	conninfo->connect_ms = dlock_address_ms(ttl);
	conninfo->only_ms = dlock_max(conninfo->connect_ms, options->timeout_ms);
	if (timeout != NULL && atoi(timeout) > 0)
		conninfo->connect_ms = conninfo->only_ms = (int64_t) atoi(timeout) * 1000;
	return add_default(conninfo, given, "target_session_attrs", "read-write") &&
		add_default(conninfo, given, "fallback_application_name",
					options->application_name != NULL ?
					options->application_name : "libdlock") &&
		add_default(conninfo, given, "keepalives", "1") &&
		add_default_int(conninfo, given, "tcp_user_timeout",
						dlock_tcp_user_timeout_ms(ttl)) &&
		add_default_int(conninfo, given, "keepalives_idle",
						dlock_keepalives_idle_s(ttl)) &&
		add_default_int(conninfo, given, "keepalives_interval",
						dlock_keepalives_interval_s(ttl)) &&
		add_default_int(conninfo, given, "keepalives_count", DLOCK_KEEPALIVES_COUNT);
}

/* One with room for the options of a conninfo; NULL: no memory. */
static DlockConninfo *
new_conninfo(const PQconninfoOption *given)
{
	DlockConninfo *conninfo = calloc(1, sizeof(DlockConninfo));
	size_t		n = 0;

	if (conninfo == NULL)
		return NULL;
	while (given[n].keyword != NULL)
		n++;
	/* and the end of the list */
	conninfo->keywords = calloc(n + MAX_DEFAULTS + 1, sizeof(char *));
	conninfo->values = calloc(n + MAX_DEFAULTS + 1, sizeof(char *));
	if (conninfo->keywords == NULL || conninfo->values == NULL)
	{
		dlock_conninfo_free(conninfo);
		return NULL;
	}
	return conninfo;
}

dlock_status
dlock_conninfo_make(const char *text, const dlock_open_options *options,
					DlockConninfo **made, dlock_error *err)
{
	DlockConninfo *conninfo;
	PQconninfoOption *given;
	char	   *message = NULL;
	bool		ok = true;
	dlock_status status = DLOCK_OK;

	given = PQconninfoParse(text != NULL ? text : "", &message);
	if (given == NULL)
	{
		char		line[400];

		if (message == NULL)
			return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
		dlock_clip(line, sizeof(line), message, strlen(message));
		PQfreemem(message);
		return dlock_fail(err, DLOCK_INVALID, "invalid connection string: %s", line);
	}

	conninfo = new_conninfo(given);
	if (conninfo != NULL)
	{
		status = add_given(conninfo, given, &ok, err);
		ok = ok && add_defaults(conninfo, given, options);
		if (options->schema != NULL)
		{
			conninfo->schema = strdup(options->schema);
			ok = ok && conninfo->schema != NULL;
		}
	}
	PQconninfoFree(given);
	if (conninfo == NULL || !ok)
		status = dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	if (status != DLOCK_OK)
	{
		dlock_conninfo_free(conninfo);
		return status;
	}
	*made = conninfo;
	return DLOCK_OK;
}

void
dlock_conninfo_free(DlockConninfo *conninfo)
{
	if (conninfo == NULL)
		return;
	for (int i = 0; i < conninfo->nparams; i++)
	{
		free(conninfo->keywords[i]);
		/* it may be a password */
		if (conninfo->values[i] != NULL)
			memset(conninfo->values[i], 0, strlen(conninfo->values[i]));
		free(conninfo->values[i]);
	}
	for (int i = 0; i < conninfo->nhosts && conninfo->hosts != NULL; i++)
	{
		free(conninfo->hosts[i].host);
		free(conninfo->hosts[i].hostaddr);
		free(conninfo->hosts[i].port);
	}
	free(conninfo->keywords);
	free(conninfo->values);
	free(conninfo->hosts);
	free(conninfo->schema);
	free(conninfo);
}

/* The time to try each host once, if each has one address. */
int64_t
dlock_conninfo_round_ms(const DlockConninfo *conninfo)
{
	return conninfo->nhosts * conninfo->connect_ms;
}
