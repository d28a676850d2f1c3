/*
 * looks.c
 *	  What the server had counted at the last looks of dlock top, for a minute.
 *
 * A rate is about the time between the last two looks.  What happens to single
 * keys is about the last minute, because a key that is polled once in a while
 * would come and go otherwise.
 */
#include "top.h"
#include "clock.h"
#include "times.h"

#include <string.h>

static void
forget(Looks *looks, int number)
{
	numbers_free(&looks->list[number].numbers);
	looks->count--;
	memmove(&looks->list[number], &looks->list[number + 1],
			(size_t) (looks->count - number) * sizeof(Look));
}

void
looks_free(Looks *looks)
{
	while (looks->count > 0)
		forget(looks, looks->count - 1);
}

/*
 * Keep as few as the minute needs: one from before it began, about one for each
 * second, and the last two.
 */
static void
thin_out(Looks *looks, int64_t now)
{
	Look	   *list = looks->list;

	while (looks->count > 2 && list[1].at <= now - WINDOW_MS)
		forget(looks, 0);
	if (looks->count > 3 &&
		list[looks->count - 2].at - list[looks->count - 4].at < LOOK_GAP_MS)
		forget(looks, looks->count - 3);
	while (looks->count == MAX_LOOKS)
		forget(looks, 1);
}

/*
 * Takes the numbers over.  If the server has started to count anew, so do we: at
 * a reset or a restart, and after a failover.
 */
void
looks_add(Looks *looks, Numbers *numbers)
{
	int64_t		now = dlock_now();
	Look	   *look;

	if (looks->count > 0 &&
		numbers_counter(&looks->list[looks->count - 1].numbers, "stats_reset") !=
		numbers_counter(numbers, "stats_reset"))
		looks_free(looks);
	thin_out(looks, now);
	look = &looks->list[looks->count++];
	look->at = now;
	look->numbers = *numbers;
	memset(numbers, 0, sizeof(*numbers));
	if (looks->count == 1)
	{
		looks->began = unix_now_ms();
		for (int i = 0; i < EVENTS; i++)
			looks->events[i] = numbers_counter(&look->numbers, event_counters[i]);
	}
}

const Numbers *
looks_now(const Looks *looks)
{
	return &looks->list[looks->count - 1].numbers;
}

/* At the last look but one; NULL: there was none. */
const Numbers *
looks_before(const Looks *looks)
{
	return looks->count > 1 ? &looks->list[looks->count - 2].numbers : NULL;
}

/* A minute ago, or at the first look; NULL: there was none. */
const Numbers *
looks_oldest(const Looks *looks)
{
	return looks->count > 1 ? &looks->list[0].numbers : NULL;
}

/* The time between the last two looks, or since the oldest. */
int64_t
looks_interval(const Looks *looks, bool oldest)
{
	const Look *last = &looks->list[looks->count - 1];
	int64_t		ms = last->at - (oldest ? looks->list : last - 1)->at;

	return ms > 0 ? ms : 1;
}

static int
find_row(const DlockReply *contended, const char *key)
{
	int			row;

	for (row = 0; row < dlock_reply_rows(contended); row++)
		if (strcmp(dlock_reply_get(contended, row, 0), key) == 0)
			return row;
	return -1;
}

/*
 * What was counted of a key at the beginning of the window, or zero if it was
 * not contended then.  The server shows only the most contended keys, so one that
 * is not there may only have been further behind.  Then we count from where we
 * first saw it.
 */
static const DlockReply *
first_seen(const Looks *looks, const char *key, int *row)
{
	int			i;

	for (i = 0; i < looks->count - 1; i++)
	{
		const DlockReply *contended = looks->list[i].numbers.contended;

		*row = find_row(contended, key);
		if (*row >= 0)
			return contended;
		if (dlock_reply_rows(contended) < MAX_CONTENDED)
			return NULL;
	}

	/* nothing is known but the last look itself */
	*row = find_row(looks_now(looks)->contended, key);
	return looks->count > 1 ? looks_now(looks)->contended : NULL;
}

static int64_t
since(const DlockReply *now, int row, const DlockReply *before, int before_row, int column)
{
	int64_t		count = dlock_reply_int(now, row, column);
	int64_t		base = before != NULL ? dlock_reply_int(before, before_row, column) : 0;

	/* a key that had been displaced is counted from zero again */
	return count >= base ? count - base : count;
}

/*
 * How contended the keys of the list were within the window; without one, since
 * the server has counted.  *hot gets those, of the list or not, that match the
 * pattern, and all that somebody waits for.  It lives as long as the list.
 */
void
looks_count_keys(const Looks *looks, List *list, const char *pattern, List *hot)
{
	const DlockReply *now = looks_now(looks)->contended;
	int			row;
	size_t		i;

	list_free(hot);
	for (row = 0; row < dlock_reply_rows(now); row++)
	{
		const char *key = dlock_reply_get(now, row, 0);
		int			then = 0;
		const DlockReply *before = first_seen(looks, key, &then);
		int64_t		busy = since(now, row, before, then, 1);
		int64_t		waits = since(now, row, before, then, 2);
		Entry	   *entry;

		if (busy + waits == 0 || !matches_pattern(key, pattern))
			continue;
		entry = list_find(list, key);
		if (entry == NULL)
			entry = list_add(hot, key);
		entry->busy = busy;
		entry->waits = waits;
		entry->wait_time = since(now, row, before, then, 3);
	}
	for (i = 0; i < list->count; i++)
	{
		const Entry *entry = &list->entries[i];

		if (entry->waiting > 0 || entry->busy + entry->waits > 0)
			*list_add(hot, entry->key) = *entry;
	}
	list_sort(hot, "waiters");
}
