/*
 * samples.c
 *	  What the server had counted when dlock top looked at it, for a minute.
 *
 * A rate is about the time between the last two samples.  What happens to single
 * keys is about the last minute, because a key that is polled once in a while
 * would come and go otherwise.
 */
#include "times.h"
#include "top/top.h"
#include "base/util.h"

#include <string.h>

static void
forget(Samples *samples, int number)
{
	numbers_free(&samples->list[number].numbers);
	samples->count--;
	memmove(&samples->list[number], &samples->list[number + 1],
			(size_t) (samples->count - number) * sizeof(Sample));
}

void
samples_free(Samples *samples)
{
	while (samples->count > 0)
		forget(samples, samples->count - 1);
}

/*
 * Keep as few as the minute needs: one from before it began, about one for each
 * second, and the last two.
 */
static void
thin_out(Samples *samples, int64_t now)
{
	Sample	   *list = samples->list;

	while (samples->count > 2 && list[1].at <= now - WINDOW_MS)
		forget(samples, 0);
	if (samples->count > 3 &&
		list[samples->count - 2].at - list[samples->count - 4].at < LOOK_GAP_MS)
		forget(samples, samples->count - 3);
	while (samples->count == MAX_SAMPLES)
		forget(samples, 1);
}

/*
 * Takes the numbers over.  If the server has started to count anew, so do we: at
 * a reset or a restart, and after a failover.
 */
void
samples_add(Samples *samples, Numbers *numbers)
{
	int64_t		now = dlock_now();
	Sample	   *sample;

	if (samples->count > 0 &&
		numbers_counter(&samples->list[samples->count - 1].numbers, "stats_reset") !=
		numbers_counter(numbers, "stats_reset"))
		samples_free(samples);
	thin_out(samples, now);
	sample = &samples->list[samples->count++];
	sample->at = now;
	sample->numbers = *numbers;
	memset(numbers, 0, sizeof(*numbers));
	if (samples->count == 1)
	{
		samples->began = unix_now_ms();
		for (int i = 0; i < EVENTS; i++)
			samples->events[i] = numbers_counter(&sample->numbers, event_counters[i]);
	}
}

const Numbers *
samples_now(const Samples *samples)
{
	return &samples->list[samples->count - 1].numbers;
}

/* At the last look but one; NULL: there was none. */
const Numbers *
samples_before(const Samples *samples)
{
	return samples->count > 1 ? &samples->list[samples->count - 2].numbers : NULL;
}

/* A minute ago, or at the first sample; NULL: there was none. */
const Numbers *
samples_oldest(const Samples *samples)
{
	return samples->count > 1 ? &samples->list[0].numbers : NULL;
}

/* The time between the last two samples, or since the oldest. */
int64_t
samples_interval(const Samples *samples, bool oldest)
{
	const Sample *last = &samples->list[samples->count - 1];
	int64_t		ms = last->at - (oldest ? samples->list : last - 1)->at;

	return ms > 0 ? ms : 1;
}

static int
find_row(const DlockReply *contended, const char *key)
{
	int			row;

	for (row = 0; row < dlock_reply_rows(contended); row++)
		if (strcmp(dlock_reply_text(contended, row, 0), key) == 0)
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
first_seen(const Samples *samples, const char *key, int *row)
{
	int			i;

	for (i = 0; i < samples->count - 1; i++)
	{
		const DlockReply *contended = samples->list[i].numbers.contended;

		*row = find_row(contended, key);
		if (*row >= 0)
			return contended;
		if (dlock_reply_rows(contended) < MAX_CONTENDED)
			return NULL;
	}

	/* nothing is known but the last look itself */
	*row = find_row(samples_now(samples)->contended, key);
	return samples->count > 1 ? samples_now(samples)->contended : NULL;
}

static int64_t
since(const DlockReply *now, int row, const DlockReply *before, int before_row, int column)
{
	int64_t		count = dlock_reply_amount(now, row, column);
	int64_t		base = before != NULL ? dlock_reply_amount(before, before_row, column) : 0;

	/* a key that had been displaced is counted from zero again */
	return count >= base ? count - base : count;
}

/*
 * How contended the keys of the list were within the window; without one, since
 * the server has counted.  *hot gets those, of the list or not, that match the
 * pattern, and all that somebody waits for.  It lives as long as the list.
 */
void
samples_count_keys(const Samples *samples, List *list, const char *pattern, List *hot)
{
	const DlockReply *now = samples_now(samples)->contended;
	int			row;
	size_t		i;

	list_free(hot);
	for (row = 0; row < dlock_reply_rows(now); row++)
	{
		const char *key = dlock_reply_text(now, row, 0);
		int			then = 0;
		const DlockReply *before = first_seen(samples, key, &then);
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
