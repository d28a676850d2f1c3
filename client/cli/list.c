/*
 * list.c
 *	  Keys with their grants and queues, for ls, info and top.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Convert a shell pattern to one of LIKE. */
static char *
like_pattern(const char *glob)
{
	Text		like = {0};

	text_clear(&like);
	for (; *glob != '\0'; glob++)
	{
		if (*glob == '*')
			text_add(&like, "%");
		else if (*glob == '?')
			text_add(&like, "_");
		else
		{
			if (*glob == '\\' && glob[1] != '\0')
				glob++;
			if (strchr("%_\\", *glob) != NULL)
				text_add(&like, "\\");
			text_add_bytes(&like, glob, 1);
		}
	}
	return text_take(&like);
}

static int
by_key(const void *a, const void *b)
{
	return strcmp(((const Entry *) a)->key, ((const Entry *) b)->key);
}

static int
by_remaining(const void *a, const void *b)
{
	int64_t		x = entry_remaining(a);
	int64_t		y = entry_remaining(b);

	return x != y ? (x < y ? -1 : 1) : by_key(a, b);
}

static int
by_waiters(const void *a, const void *b)
{
	const Entry *x = a;
	const Entry *y = b;

	if (x->waiting != y->waiting)
		return x->waiting > y->waiting ? -1 : 1;
	if (x->changes != y->changes)
		return x->changes > y->changes ? -1 : 1;
	return by_remaining(a, b);
}

/* When the first of its grants was won. */
static int64_t
held_since(const Entry *entry)
{
	int64_t		since = INT64_MAX;
	size_t		i;

	for (i = 0; i < entry->grant_count; i++)
		if (entry->grants[i].acquired_at_ms < since)
			since = entry->grants[i].acquired_at_ms;
	return since;
}

/* The longest held first; keys that are not held last. */
static int
by_held(const void *a, const void *b)
{
	int64_t		x = held_since(a);
	int64_t		y = held_since(b);

	return x != y ? (x < y ? -1 : 1) : by_key(a, b);
}

void
list_sort(List *list, const char *by)
{
	if (list->count < 2)
		return;
	qsort(list->entries, list->count, sizeof(Entry),
		  strcmp(by, "remaining") == 0 ? by_remaining :
		  strcmp(by, "waiters") == 0 ? by_waiters :
		  strcmp(by, "held") == 0 ? by_held : by_key);
}

/* The grants come by key, so those of one key are neighbours. */
static void
group_grants(List *list)
{
	size_t		i;

	for (i = 0; i < list->info_count; i++)
	{
		const dlock_info *info = &list->infos[i];
		Entry	   *entry = &list->entries[list->count];

		if (i > 0 && strcmp(info->key, info[-1].key) == 0)
			entry[-1].grant_count++;
		else
		{
			entry->key = info->key;
			entry->grants = info;
			entry->grant_count = 1;
			list->count++;
		}
	}
	if (list->count > 1)
		qsort(list->entries, list->count, sizeof(Entry), by_key);
}

/* An entry for each key that has grants, waiters or both. */
static void
merge(List *list)
{
	size_t		i;
	size_t		grants;

	list->entries = allocate((list->info_count + list->waiter_count + 1) *
							 sizeof(Entry));
	group_grants(list);
	grants = list->count;
	for (i = 0; i < list->waiter_count; i++)
	{
		const dlock_waiter *waiter = &list->waiters[i];
		Entry		sought = {.key = waiter->key};
		Entry	   *entry = NULL;

		if (grants > 0)
			entry = bsearch(&sought, list->entries, grants, sizeof(Entry),
							by_key);
		if (entry == NULL && list->count > grants &&
			strcmp(list->entries[list->count - 1].key, waiter->key) == 0)
			entry = &list->entries[list->count - 1];
		if (entry == NULL)
		{
			entry = &list->entries[list->count++];
			entry->key = waiter->key;
		}
		if (waiter->watches)
			entry->watching++;
		else
		{
			entry->waiting++;
			if (waiter->waited_ms > entry->longest_wait)
				entry->longest_wait = waiter->waited_ms;
		}
	}
}

/* max_keys: of so many keys, and of those that are waited for; 0: of all. */
dlock_status
list_get(dlock_handle *handle, const Options *options, int64_t max_keys,
		 int64_t timeout, List *list, dlock_error *err)
{
	char	   *pattern = options->key != NULL ? like_pattern(options->key) : NULL;
	dlock_status status;

	memset(list, 0, sizeof(*list));
	status = dlock_list(handle, pattern, max_keys, timeout, &list->infos,
						&list->info_count, err);
	if (status == DLOCK_OK)
		status = dlock_list_waiters(handle, pattern, 0, timeout,
									&list->waiters, &list->waiter_count, err);
	free(pattern);
	if (status == DLOCK_OK)
		merge(list);
	return status;
}

void
list_free(List *list)
{
	free(list->entries);
	if (list->infos != NULL)
		dlock_list_free(list->infos, list->info_count);
	if (list->waiters != NULL)
		dlock_waiters_free(list->waiters, list->waiter_count);
	memset(list, 0, sizeof(*list));
}

const char *
duration_string(int64_t ms, Text *buffer)
{
	text_clear(buffer);
	text_duration(buffer, ms);
	return buffer->data;
}

/* The wall clock, which is only shown. */
int64_t
unix_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void
format_time(Text *out, const char *format, int64_t unix_ms, bool utc)
{
	time_t		seconds = (time_t) (unix_ms / 1000);
	struct tm	tm;
	char		buffer[64];

	if (utc)
		gmtime_r(&seconds, &tm);
	else
		localtime_r(&seconds, &tm);
	strftime(buffer, sizeof(buffer), format, &tm);
	text_format(out, "%s.%03d", buffer, (int) (unix_ms % 1000));
}

/* In local time, for people. */
void
text_time(Text *out, int64_t unix_ms)
{
	format_time(out, "%Y-%m-%d %H:%M:%S", unix_ms, false);
}

/* ISO 8601 in UTC, for programs. */
void
json_time(Text *json, const char *name, int64_t unix_ms)
{
	Text		time = {0};

	format_time(&time, "%Y-%m-%dT%H:%M:%S", unix_ms, true);
	text_add(&time, "Z");
	json_string(json, name, time.data);
	text_free(&time);
}
