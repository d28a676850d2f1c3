/*
 * inherit.c
 *	  The locks that a command runs under, in its environment.
 *
 * DLOCK_KEY, DLOCK_VERSION and DLOCK_OWNER are the lock of the innermost "dlock
 * exec", then come DLOCK_KEY_2 and so on: its other keys, and the locks of the
 * commands around it.  These variables may be stale, or set by anyone.  They only
 * say what to ask the server about.  A version is unique in one database only;
 * with the owner, no grant of another database is taken for ours.
 *
 * With --fence, PGOPTIONS has the first of our locks as the fence of all connections
 * that the command makes.
 */
#include "exec/hold.h"

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

/* Lock number n; 0: there is none.  The owner is NULL if it is not known. */
static int64_t
inherited(int n, const char **key, const char **owner)
{
	const char *version = variable("DLOCK_VERSION", n);
	char	   *end;
	long long	number;

	*key = variable("DLOCK_KEY", n);
	*owner = variable("DLOCK_OWNER", n);
	if (*owner != NULL && **owner == '\0')
		*owner = NULL;
	if (*key == NULL || version == NULL)
		return 0;
	errno = 0;
	number = strtoll(version, &end, 10);
	return *version != '\0' && *end == '\0' && errno == 0 && number > 0 ? number : 0;
}

/* owner may be NULL. */
int64_t
inherited_version(const char *sought, const char **owner)
{
	const char *key;
	const char *its_owner;
	int64_t		version;
	int			n;

	for (n = 1; (version = inherited(n, &key, &its_owner)) != 0; n++)
	{
		if (owner != NULL)
			*owner = its_owner;
		if (strcmp(key, sought) == 0)
			return version;
	}
	return 0;
}

static char *
assignment(const char *name, int n, const char *value)
{
	Text		text = {0};

	text_add(&text, name);
	if (n > 1)
		text_format(&text, "_%d", n);
	text_add(&text, "=");
	text_add(&text, value);
	return text_take(&text);
}

/* An unknown owner is empty, and hides that of another lock. */
static void
add_lock(char **variables, int *used, const char *key, int64_t version,
		 const char *owner)
{
	int			n = *used / 3 + 1;
	char		number[24];

	snprintf(number, sizeof(number), "%lld", (long long) version);
	variables[(*used)++] = assignment("DLOCK_KEY", n, key);
	variables[(*used)++] = assignment("DLOCK_VERSION", n, number);
	variables[(*used)++] = assignment("DLOCK_OWNER", n, owner != NULL ? owner : "");
	variables[*used] = NULL;
}

static bool
contains(const Hold *hold, const char *key)
{
	int			i;

	for (i = 0; i < hold->count; i++)
		if (strcmp(hold->keys[i], key) == 0)
			return true;
	return false;
}

/*
 * What is there already, and the fence.  The server splits the options at white
 * space, which its locale defines, and takes what follows a backslash as it is.
 */
static char *
fence_options(const char *key, int64_t version)
{
	const char *others = getenv("PGOPTIONS");
	Text		text = {0};

	text_add(&text, "PGOPTIONS=");
	if (others != NULL && *others != '\0')
		text_format(&text, "%s ", others);
	text_format(&text, "-c dlock.fence=%lld:", (long long) version);
	for (; *key != '\0'; key++)
		text_format(&text, *key <= ' ' || *key == '\\' || *key > '~' ? "\\%c" : "%c", *key);
	return text_take(&text);
}

/* These locks, followed by those that we run under ourselves; and the fence. */
char **
make_variables(const Hold *hold, bool fence)
{
	char	  **variables;
	const char *key;
	const char *owner;
	int64_t		version;
	int			used = 0;
	int			around = 0;
	int			n;

	while (inherited(around + 1, &key, &owner) != 0)
		around++;
	variables = allocate((size_t) (3 * (hold->count + around) + 2) * sizeof(char *));
	for (n = 0; n < hold->count; n++)
		add_lock(variables, &used, hold->keys[n], dlock_version(hold->locks[n]),
				 dlock_owner(hold->locks[n]));
	for (n = 1; n <= around; n++)
	{
		version = inherited(n, &key, &owner);
		if (!contains(hold, key))
			add_lock(variables, &used, key, version, owner);
	}
	if (fence)
		variables[used] = fence_options(hold->keys[0], dlock_version(hold->locks[0]));
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
