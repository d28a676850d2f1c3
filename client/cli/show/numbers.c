/*
 * numbers.c
 *	  What the server counts: the counters, the waits, and the contended keys.
 */
#include "show/list.h"
#include "show/numbers.h"
#include "api/inspect.h"
#include "base/sql.h"

#include <string.h>

dlock_status
numbers_get(dlock_handle *handle, int64_t timeout, Numbers *numbers, dlock_error *err)
{
	dlock_status status;

	memset(numbers, 0, sizeof(*numbers));
	status = dlock_read(handle, dlock_sql_stats, timeout, &numbers->counters, err);
	if (status == DLOCK_OK)
		status = dlock_read(handle, dlock_sql_wait_times, timeout, &numbers->times, err);
	if (status == DLOCK_OK)
		status = dlock_read(handle, dlock_sql_contended, timeout, &numbers->contended, err);
	return status;
}

void
numbers_free(Numbers *numbers)
{
	dlock_reply_free(numbers->counters);
	dlock_reply_free(numbers->times);
	dlock_reply_free(numbers->contended);
	memset(numbers, 0, sizeof(*numbers));
}

int64_t
numbers_counter(const Numbers *numbers, const char *name)
{
	int			row;

	for (row = 0; row < dlock_reply_rows(numbers->counters); row++)
		if (strcmp(dlock_reply_text(numbers->counters, row, 0), name) == 0)
			return dlock_reply_amount(numbers->counters, row, 1);
	return 0;
}

/* How many waits ended in this bucket since then; before NULL: in all. */
static int64_t
bucket(const Numbers *now, const Numbers *before, int row)
{
	int64_t		count = dlock_reply_amount(now->times, row, 1);

	if (before != NULL && row < dlock_reply_rows(before->times))
		count -= dlock_reply_amount(before->times, row, 1);
	return count > 0 ? count : 0;
}

int64_t
numbers_waits(const Numbers *now, const Numbers *before)
{
	int64_t		total = 0;
	int			row;

	for (row = 0; row < dlock_reply_rows(now->times); row++)
		total += bucket(now, before, row);
	return total;
}

/*
 * This many percent of the waits were no longer than this.  The histogram tells
 * only in which bucket they end.  False if there was no wait.
 */
bool
numbers_percentile(const Numbers *now, const Numbers *before, int percent,
				   Percentile *result)
{
	int64_t		total = numbers_waits(now, before);
	int64_t		so_far = 0;
	int			row;

	result->beyond = false;
	result->bound = 0;
	for (row = 0; total > 0 && row < dlock_reply_rows(now->times); row++)
	{
		if (dlock_reply_get(now->times, row, 0) != NULL)
			result->bound = dlock_reply_amount(now->times, row, 0);
		else
			result->beyond = true;
		so_far += bucket(now, before, row);
		if (so_far * 100 >= total * percent)
			return true;
	}
	return false;
}

void
text_percentile(Text *to, const Percentile *percentile)
{
	text_add(to, percentile->beyond ? "> " : "<= ");
	text_duration(to, percentile->bound);
}

static void
json_percentile(Text *json, const char *name, const Numbers *numbers, int percent)
{
	Percentile	result;

	if (numbers_percentile(numbers, NULL, percent, &result) && !result.beyond)
		json_seconds(json, name, result.bound);
	else
		json_null(json, name);
}

/* The members of an object.  All of them count since stats_reset. */
void
json_numbers(Text *json, const Numbers *numbers, int64_t max_keys)
{
	int			row;

	for (row = 0; row < dlock_reply_rows(numbers->counters); row++)
	{
		const char *name = dlock_reply_text(numbers->counters, row, 0);
		int64_t		value = dlock_reply_amount(numbers->counters, row, 1);

		if (strcmp(name, "stats_reset") == 0)
			json_time(json, name, value);
		else if (dlock_reply_bool(numbers->counters, row, 2))
			json_seconds(json, name, value);
		else
			json_number(json, name, value);
	}
	json_percentile(json, "wait_p50", numbers, 50);
	json_percentile(json, "wait_p90", numbers, 90);
	json_percentile(json, "wait_p99", numbers, 99);
	json_open(json, "wait_times", '[');
	for (row = 0; row < dlock_reply_rows(numbers->times); row++)
	{
		json_open(json, NULL, '{');
		if (dlock_reply_get(numbers->times, row, 0) != NULL)
			json_seconds(json, "upper", dlock_reply_amount(numbers->times, row, 0));
		else
			json_null(json, "upper");
		json_number(json, "count", dlock_reply_amount(numbers->times, row, 1));
		json_close(json, '}');
	}
	json_close(json, ']');
	json_open(json, "contended", '[');
	for (row = 0; row < dlock_reply_rows(numbers->contended) && row < max_keys; row++)
	{
		json_open(json, NULL, '{');
		json_string(json, "key", dlock_reply_get(numbers->contended, row, 0));
		json_number(json, "busy", dlock_reply_amount(numbers->contended, row, 1));
		json_number(json, "waits", dlock_reply_amount(numbers->contended, row, 2));
		json_seconds(json, "wait_time", dlock_reply_amount(numbers->contended, row, 3));
		json_number(json, "lost", dlock_reply_amount(numbers->contended, row, 4));
		json_close(json, '}');
	}
	json_close(json, ']');
}
