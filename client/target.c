/*-------------------------------------------------------------------------
 *
 * target.c
 *	  What to connect to: the connection string, taken apart.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "internal.h"

/* The nth of a list with commas, where a list of one is for all. */
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

/* An option that neither the conninfo nor the environment has. */
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
	/* an old libpq that does not know it */
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

dlock_status
dlock_target_make(const char *conninfo, const dlock_open_options *options,
				  DlockTarget **made, dlock_error *err)
{
	DlockTarget *target;
	PQconninfoOption *parsed;
	char	   *message = NULL;
	const char *text;
	int			n = 0;
	bool		ok = true;
	bool		service;
	dlock_status status = DLOCK_OK;

	parsed = PQconninfoParse(conninfo != NULL ? conninfo : "", &message);
	if (parsed == NULL)
	{
		char		line[400];

		if (message == NULL)
			return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
		dlock_clip(line, sizeof(line), message, strlen(message));
		PQfreemem(message);
		return dlock_fail(err, DLOCK_INVALID, "bad connection string: %s", line);
	}

	while (parsed[n].keyword != NULL)
		n++;
	target = calloc(1, sizeof(DlockTarget));
	if (target != NULL)
	{
		pthread_mutex_init(&target->mutex, NULL);
		/* each option, our defaults, and the end */
		target->keywords = calloc((size_t) n + 16, sizeof(char *));
		target->values = calloc((size_t) n + 16, sizeof(char *));
	}
	ok = target != NULL && target->keywords != NULL && target->values != NULL;
	if (ok)
	{
		service = option(parsed, "service") != NULL;
		for (int i = 0; i < n; i++)
		{
			const char *keyword = parsed[i].keyword;

			if (parsed[i].val == NULL)
				continue;
			if (!service && (strcmp(keyword, "host") == 0 ||
							 strcmp(keyword, "hostaddr") == 0 ||
							 strcmp(keyword, "port") == 0))
				continue;
			ok = ok && add_param(target, keyword, parsed[i].val);
		}
		if (service)
		{
			target->hosts = calloc(1, sizeof(DlockHost));
			target->nhosts = 1;
			ok = ok && target->hosts != NULL;
		}
		else
			status = add_hosts(target, parsed, &ok, err);

		ok = ok && add_default(target, parsed, "target_session_attrs", "read-write") &&
			add_default(target, parsed, "fallback_application_name",
						options->application_name != NULL ?
						options->application_name : "libdlock") &&
			add_default(target, parsed, "keepalives", "1") &&
			add_default_int(target, parsed, "tcp_user_timeout",
							dlock_min(dlock_max(options->ttl_ms / 3, 1000), 20000)) &&
			add_default_int(target, parsed, "keepalives_idle",
							dlock_min(dlock_max(options->ttl_ms / 6000, 1), 10)) &&
			add_default_int(target, parsed, "keepalives_interval",
							dlock_min(dlock_max(options->ttl_ms / 12000, 1), 10)) &&
			add_default_int(target, parsed, "keepalives_count", 3);

		target->connect_ms = dlock_min(dlock_max(options->ttl_ms / 4, 1000), 10000);
		text = option(parsed, "connect_timeout");
		if (text != NULL && atoi(text) > 0)
			target->connect_ms = (int64_t) atoi(text) * 1000;
	}
	PQconninfoFree(parsed);
	if (!ok)
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
		/* there may be a password */
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

/* Time to try each host once, if each has one address. */
int64_t
dlock_target_round_ms(const DlockTarget *target)
{
	return target->nhosts * target->connect_ms;
}
