/*-------------------------------------------------------------------------
 *
 * target.c
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

#include "clock.h"
#include "constants.h"
#include "target.h"
#include "util.h"

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
add_param(DlockTarget *target, const char *keyword, const char *value)
{
	int			n = target->nparams;

	target->keywords[n] = dlock_strdup(keyword);
	target->values[n] = dlock_strdup(value);
	target->nparams++;
	return target->keywords[n] != NULL && target->values[n] != NULL;
}

/* Add an option that neither the conninfo nor the environment sets. */
static bool
add_default(DlockTarget *target, const PQconninfoOption *options,
			const char *keyword, const char *value)
{
	for (; options->keyword != NULL; options++)
	{
		if (strcmp(options->keyword, keyword) != 0)
			continue;
		if (options->val != NULL ||
			(options->envvar != NULL && getenv(options->envvar) != NULL))
			return true;
		return add_param(target, keyword, value);
	}
	/* libpq is too old to know it */
	return true;
}

static bool
add_default_int(DlockTarget *target, const PQconninfoOption *options,
				const char *keyword, int64_t value)
{
	char		text[24];

	snprintf(text, sizeof(text), "%lld", (long long) value);
	return add_default(target, options, keyword, text);
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
add_hosts(DlockTarget *target, const PQconninfoOption *options, bool *ok,
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
	target->hosts = calloc((size_t) n, sizeof(DlockHost));
	if (target->hosts == NULL)
	{
		*ok = false;
		return DLOCK_OK;
	}
	target->nhosts = n;
	for (int i = 0; i < n; i++)
		*ok = *ok && nth(host, i, hosts, &target->hosts[i].host) &&
			nth(hostaddr, i, addrs, &target->hosts[i].hostaddr) &&
			nth(port, i, ports, &target->hosts[i].port);
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
add_given(DlockTarget *target, const PQconninfoOption *given, bool *ok,
		  dlock_error *err)
{
	bool		service = option(given, "service") != NULL;

	for (int i = 0; given[i].keyword != NULL; i++)
		if (given[i].val != NULL && (service || !is_of_host(given[i].keyword)))
			*ok = *ok && add_param(target, given[i].keyword, given[i].val);
	if (!service)
		return add_hosts(target, given, ok, err);
	target->hosts = calloc(1, sizeof(DlockHost));
	target->nhosts = 1;
	*ok = *ok && target->hosts != NULL;
	return DLOCK_OK;
}

/* At most this many. */
#define MAX_DEFAULTS 15

static bool
add_defaults(DlockTarget *target, const PQconninfoOption *given,
			 const dlock_open_options *options)
{
	int64_t		ttl = options->ttl_ms;
	const char *timeout = option(given, "connect_timeout");

	target->connect_ms = dlock_address_ms(ttl);
	target->only_ms = dlock_max(target->connect_ms, options->timeout_ms);
	if (timeout != NULL && atoi(timeout) > 0)
		target->connect_ms = target->only_ms = (int64_t) atoi(timeout) * 1000;
	return add_default(target, given, "target_session_attrs", "read-write") &&
		add_default(target, given, "fallback_application_name",
					options->application_name != NULL ?
					options->application_name : "libdlock") &&
		add_default(target, given, "keepalives", "1") &&
		add_default_int(target, given, "tcp_user_timeout",
						dlock_tcp_user_timeout_ms(ttl)) &&
		add_default_int(target, given, "keepalives_idle",
						dlock_keepalives_idle_s(ttl)) &&
		add_default_int(target, given, "keepalives_interval",
						dlock_keepalives_interval_s(ttl)) &&
		add_default_int(target, given, "keepalives_count", DLOCK_KEEPALIVES_COUNT);
}

/* One with room for the options of a conninfo; NULL: no memory. */
static DlockTarget *
new_target(const PQconninfoOption *given)
{
	DlockTarget *target = calloc(1, sizeof(DlockTarget));
	size_t		n = 0;

	if (target == NULL)
		return NULL;
	while (given[n].keyword != NULL)
		n++;
	pthread_mutex_init(&target->mutex, NULL);
	/* and the end of the list */
	target->keywords = calloc(n + MAX_DEFAULTS + 1, sizeof(char *));
	target->values = calloc(n + MAX_DEFAULTS + 1, sizeof(char *));
	if (target->keywords == NULL || target->values == NULL)
	{
		dlock_target_free(target);
		return NULL;
	}
	return target;
}

dlock_status
dlock_target_make(const char *conninfo, const dlock_open_options *options,
				  DlockTarget **made, dlock_error *err)
{
	DlockTarget *target;
	PQconninfoOption *given;
	char	   *message = NULL;
	bool		ok = true;
	dlock_status status = DLOCK_OK;

	given = PQconninfoParse(conninfo != NULL ? conninfo : "", &message);
	if (given == NULL)
	{
		char		line[400];

		if (message == NULL)
			return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
		dlock_clip(line, sizeof(line), message, strlen(message));
		PQfreemem(message);
		return dlock_fail(err, DLOCK_INVALID, "invalid connection string: %s", line);
	}

	target = new_target(given);
	if (target != NULL)
	{
		status = add_given(target, given, &ok, err);
		ok = ok && add_defaults(target, given, options);
	}
	PQconninfoFree(given);
	if (target == NULL || !ok)
		status = dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	if (status != DLOCK_OK)
	{
		dlock_target_free(target);
		return status;
	}
	*made = target;
	return DLOCK_OK;
}

void
dlock_target_free(DlockTarget *target)
{
	if (target == NULL)
		return;
	for (int i = 0; i < target->nparams; i++)
	{
		free(target->keywords[i]);
		/* it may be a password */
		if (target->values[i] != NULL)
			memset(target->values[i], 0, strlen(target->values[i]));
		free(target->values[i]);
	}
	for (int i = 0; i < target->nhosts && target->hosts != NULL; i++)
	{
		free(target->hosts[i].host);
		free(target->hosts[i].hostaddr);
		free(target->hosts[i].port);
	}
	free(target->keywords);
	free(target->values);
	free(target->hosts);
	free(target);
}

/* The time to try each host once, if each has one address. */
int64_t
dlock_target_round_ms(const DlockTarget *target)
{
	return target->nhosts * target->connect_ms;
}
