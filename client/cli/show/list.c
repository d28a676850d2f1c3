/*
 * list.c
 *	  Keys with their grants and queues, for ls, info and top.
 */
#include "show/list.h"
#include "api/inspect.h"
#include "base/sql.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A pattern that matches only this text. */
static char *
literal_pattern(const char *text)
{
	Text		pattern = {0};

	text_clear(&pattern);
	for (; *text != '\0'; text++)
	{
		if (strchr("*?\\", *text) != NULL)
			text_add(&pattern, "\\");
		text_add_bytes(&pattern, text, 1);
	}
	return text_take(&pattern);
}

/* Does the key match a shell pattern?  NULL: any does. */
bool
matches_pattern(const char *key, const char *glob)
{
	const char *retry_glob = NULL;
	const char *retry_key = NULL;

	if (glob == NULL)
		return true;
	while (*key != '\0')
	{
		uint32_t	character;
		bool		escaped = *glob == '\\' && glob[1] != '\0';

		if (*glob == '*')
		{
			retry_glob = ++glob;
			retry_key = key;
		}
		else if (*glob == '?')
		{
			glob++;
			key += utf8_character(key, &character);
		}
		else if (glob[escaped] == *key)
		{
			glob += 1 + escaped;
			key++;
		}
		else if (retry_glob != NULL)
		{
			/* the last star stands for one byte more */
			glob = retry_glob;
			key = ++retry_key;
		}
		else
			return false;
	}
	while (*glob == '*')
		glob++;
	return *glob == '\0';
}

static int
by_key(const void *a, const void *b)
{
	return strcmp(((const Entry *) a)->key, ((const Entry *) b)->key);
}

static int
by_remaining(const void *a, const void *b)
{
	/* -1 is the highest number: what does not expire comes last */
	uint64_t	x = (uint64_t) entry_remaining(a);
	uint64_t	y = (uint64_t) entry_remaining(b);

	return x != y ? (x < y ? -1 : 1) : by_key(a, b);
}

/* The most contended first. */
static int
by_busy(const void *a, const void *b)
{
	int64_t		x = ((const Entry *) a)->busy + ((const Entry *) a)->waits;
	int64_t		y = ((const Entry *) b)->busy + ((const Entry *) b)->waits;

	return x != y ? (x > y ? -1 : 1) : by_remaining(a, b);
}

/* What an open transaction keeps busy before what is merely held. */
static bool
only_pending(const Entry *entry)
{
	return entry->grant_count > 0 && is_pending(entry->grants);
}

static int
by_waiters(const void *a, const void *b)
{
	const Entry *x = a;
	const Entry *y = b;

	if (x->waiting != y->waiting)
		return x->waiting > y->waiting ? -1 : 1;
	if (x->busy + x->waits == y->busy + y->waits && only_pending(x) != only_pending(y))
		return only_pending(x) ? -1 : 1;
	return by_busy(a, b);
}

/* When the first of its grants was won. */
static int64_t
held_since(const Entry *entry)
{
	int64_t		since = INT64_MAX;
	size_t		i;

	for (i = 0; i < entry->grant_count; i++)
		if (!is_pending(&entry->grants[i]) && entry->grants[i].acquired_at_ms < since)
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
		  strcmp(by, "busy") == 0 ? by_busy :
		  strcmp(by, "held") == 0 ? by_held : by_key);
}

/* The list is in the order of the keys.  NULL: there is none. */
Entry *
list_find(const List *list, const char *key)
{
	Entry		sought = {.key = key};

	return list->count == 0 ? NULL :
		bsearch(&sought, list->entries, list->count, sizeof(Entry), by_key);
}

/* At the end; the key must live as long as the list. */
Entry *
list_add(List *list, const char *key)
{
	Entry	   *entry;

	if (list->count == list->size)
	{
		list->size = list->size * 2 + 64;
		list->entries = reallocate(list->entries, list->size * sizeof(Entry));
	}
	entry = &list->entries[list->count++];
	memset(entry, 0, sizeof(*entry));
	entry->key = key;
	return entry;
}

/* The grants come by key, so those of one key are neighbours. */
static void
group_grants(List *list)
{
	size_t		i;

	for (i = 0; i < list->info_count; i++)
	{
		const dlock_info *info = &list->infos[i];

		if (i == 0 || strcmp(info->key, info[-1].key) != 0)
			list_add(list, info->key)->grants = info;
		list->entries[list->count - 1].grant_count++;
	}
	list_sort(list, "key");
}

static void
count_waiter(Entry *entry, const dlock_waiter *waiter)
{
	if (waiter->watches)
		entry->watching++;
	else
	{
		entry->waiting++;
		if (waiter->waited_ms > entry->longest_wait)
			entry->longest_wait = waiter->waited_ms;
	}
}

/*
 * An entry for each key that has grants, waiters or both, in the order of the
 * keys.  Waiters come by key, too: those up to the given key, or all (NULL).
 */
static void
merge(List *list, const char *last)
{
	List		waited = {0};
	size_t		i;

	group_grants(list);
	for (; list->next_waiter < list->waiter_count; list->next_waiter++)
	{
		const dlock_waiter *waiter = &list->waiters[list->next_waiter];
		Entry	   *entry = list_find(list, waiter->key);

		if (last != NULL && strcmp(waiter->key, last) > 0)
			break;
		if (entry == NULL && waited.count > 0 &&
			strcmp(waited.entries[waited.count - 1].key, waiter->key) == 0)
			entry = &waited.entries[waited.count - 1];
		if (entry == NULL)
			entry = list_add(&waited, waiter->key);
		count_waiter(entry, waiter);
	}
	for (i = 0; i < waited.count; i++)
		*list_add(list, waited.entries[i].key) = waited.entries[i];
	free(waited.entries);
	list_sort(list, "key");
}

static void
free_infos(List *list)
{
	if (list->infos != NULL)
		dlock_list_free(list->infos, list->info_count);
	list->infos = NULL;
	list->info_count = 0;
	list->count = 0;
}

/* Those that wait for keys that match: once, before anything else is asked. */
dlock_status
list_get_waiters(dlock_handle *handle, const char *pattern, List *list, dlock_error *err)
{
	memset(list, 0, sizeof(*list));
	return dlock_list_waiters(handle, pattern, 0, -1, &list->waiters,
							  &list->waiter_count, err);
}

/* The last key of the list, or NULL.  It is copied to list->after. */
static const char *
end_page(List *list)
{
	if (list->info_count == 0)
		return NULL;
	free(list->after);
	list->after = copy_string(list->infos[list->info_count - 1].key);
	return list->after;
}

/* How many keys have the grants of this page? */
static size_t
count_keys(const dlock_info *infos, size_t n)
{
	size_t		keys = 0;
	size_t		i;

	for (i = 0; i < n; i++)
		keys += i == 0 || strcmp(infos[i].key, infos[i - 1].key) != 0;
	return keys;
}

/*
 * The next keys, in their order, and those that are waited for among them.  list->more
 * is false after the last ones.  A page takes the server a few milliseconds, however many
 * locks there are.
 */
dlock_status
list_get_page(dlock_handle *handle, const char *pattern, int64_t max_keys, List *list,
			  dlock_error *err)
{
	dlock_status status;
	const char *last;

	free_infos(list);
	status = dlock_list_by(handle, dlock_sql_list, pattern, list->after, max_keys, -1,
						   &list->infos, &list->info_count, err);
	if (status != DLOCK_OK)
		return status;
	list->more = count_keys(list->infos, list->info_count) >= (size_t) max_keys;
	last = end_page(list);
	merge(list, list->more ? last : NULL);
	return DLOCK_OK;
}

/* All keys, for another order. */
dlock_status
list_get_all(dlock_handle *handle, const char *pattern, List *list, dlock_error *err)
{
	dlock_info *infos;
	size_t		n;

	do
	{
		dlock_status status = dlock_list_by(handle, dlock_sql_list, pattern, list->after,
											LIST_PAGE, -1, &infos, &n, err);

		if (status != DLOCK_OK)
			return status;
		list->more = count_keys(infos, n) >= LIST_PAGE;
		if (n > 0)
		{
			list->infos = reallocate(list->infos, (list->info_count + n) * sizeof(*infos));
			memcpy(list->infos + list->info_count, infos, n * sizeof(*infos));
			list->info_count += n;
			(void) end_page(list);
		}
		free(infos);
	} while (list->more);
	merge(list, NULL);
	return DLOCK_OK;
}

/*
 * For top, of at most max_keys keys, and of those that are waited for or contended.
 */
dlock_status
list_get_hot(dlock_handle *handle, const char *pattern, int64_t max_keys,
			 int64_t timeout, List *list, dlock_error *err)
{
	dlock_status status;

	memset(list, 0, sizeof(*list));
	status = dlock_list_by(handle, dlock_sql_list_hot, pattern, NULL, max_keys, timeout,
						   &list->infos, &list->info_count, err);
	if (status == DLOCK_OK)
		status = dlock_list_waiters(handle, pattern, 0, timeout,
									&list->waiters, &list->waiter_count, err);
	if (status == DLOCK_OK)
		merge(list, NULL);
	list->more = max_keys > 0 && list->count >= (size_t) max_keys;
	return status;
}

/* One key, by the index. */
dlock_status
list_get_one(dlock_handle *handle, const char *key, int64_t timeout, List *list, dlock_error *err)
{
	char	   *pattern = literal_pattern(key);
	dlock_status status;

	memset(list, 0, sizeof(*list));
	status = dlock_get_info(handle, key, timeout, &list->infos, &list->info_count, err);
	if (status == DLOCK_OK)
		status = dlock_list_waiters(handle, pattern, 0, timeout, &list->waiters,
									&list->waiter_count, err);
	free(pattern);
	if (status == DLOCK_OK)
		merge(list, NULL);
	return status;
}

void
list_free(List *list)
{
	free_infos(list);
	free(list->entries);
	free(list->after);
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
	if (utc)
		text_add(out, "Z");
	else
	{
		/* as PostgreSQL writes it: +00, +05:30 */
		strftime(buffer, sizeof(buffer), "%z", &tm);
		text_add_bytes(out, buffer, 3);
		if (strcmp(buffer + 3, "00") != 0)
			text_format(out, ":%s", buffer + 3);
	}
}

/* In local time, with its zone, for people. */
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
	json_string(json, name, time.data);
	text_free(&time);
}
