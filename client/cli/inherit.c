/*
 * inherit.c
 *	  The locks that a command runs under, in its environment.
 *
 * DLOCK_KEY and DLOCK_VERSION are the lock of the innermost "dlock exec", then
 * come DLOCK_KEY_2, DLOCK_VERSION_2 and so on: its other keys, and the locks of
 * the commands around it.  These variables may be stale, or set by anyone.  They
 * only say what to ask the server about.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The variable of lock number n, from 1; NULL: there is none. */
static const char *
variable(const char *name, int n)
{
	Text		full = {0};
	const char *value;

	text_add(&full, name);
	if (n > 1)
		text_format(&full, "_%d", n);
	value = getenv(full.data);
	text_free(&full);
	return value;
}

/* Lock number n; 0: there is none. */
static int64_t
inherited(int n, const char **key)
{
	const char *version = variable("DLOCK_VERSION", n);
	char	   *end;
	long long	number;

	*key = variable("DLOCK_KEY", n);
	if (*key == NULL || version == NULL)
		return 0;
	errno = 0;
	number = strtoll(version, &end, 10);
	return *version != '\0' && *end == '\0' && errno == 0 && number > 0 ? number : 0;
}

int64_t
inherited_version(const char *sought)
{
	const char *key;
	int64_t		version;
	int			n;

	for (n = 1; (version = inherited(n, &key)) != 0; n++)
		if (strcmp(key, sought) == 0)
			return version;
	return 0;
}

static void
add_lock(char **variables, int *used, const char *key, int64_t version)
{
	int			n = *used / 2 + 1;
	Text		name = {0};
	Text		number = {0};

	text_add(&name, "DLOCK_KEY");
	text_add(&number, "DLOCK_VERSION");
	if (n > 1)
	{
		text_format(&name, "_%d", n);
		text_format(&number, "_%d", n);
	}
	text_add(&name, "=");
	text_add(&name, key);
	text_format(&number, "=%lld", (long long) version);
	variables[(*used)++] = text_take(&name);
	variables[(*used)++] = text_take(&number);
	variables[*used] = NULL;
}

static bool
contains(const char *const *keys, int count, const char *key)
{
	int			i;

	for (i = 0; i < count; i++)
		if (strcmp(keys[i], key) == 0)
			return true;
	return false;
}

/* These locks, followed by those that we run under ourselves. */
char **
make_variables(const char *const *keys, const int64_t *versions, int count)
{
	char	  **variables;
	const char *key;
	int64_t		version;
	int			used = 0;
	int			inner = 0;
	int			n;

	while (inherited(inner + 1, &key) != 0)
		inner++;
	variables = allocate((size_t) (2 * (count + inner) + 1) * sizeof(char *));
	for (n = 0; n < count; n++)
		add_lock(variables, &used, keys[n], versions[n]);
	for (n = 1; n <= inner; n++)
	{
		version = inherited(n, &key);
		if (!contains(keys, count, key))
			add_lock(variables, &used, key, version);
	}
	return variables;
}

void
free_variables(char **variables)
{
	int			i;

	for (i = 0; variables[i] != NULL; i++)
		free(variables[i]);
	free(variables);
}
