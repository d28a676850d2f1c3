/*
 * stats.c
 *	  stats: the counters, the waits, and the contended keys.
 */
#include "cli.h"

#include "keys.h"
#include "sql.h"

#include <string.h>

#define DEFAULT_KEYS	10

typedef struct
{
	DlockReply *counters;		/* name, value, is it milliseconds? */
	DlockReply *times;			/* upper or null, count */
	DlockReply *contended;		/* key, busy, waits, wait time */
} Stats;

static dlock_status
get_stats(dlock_handle *handle, Stats *stats, dlock_error *err)
{
	dlock_status status = dlock_read(handle, dlock_sql_stats, &stats->counters, err);

	if (status == DLOCK_OK)
		status = dlock_read(handle, dlock_sql_wait_times, &stats->times, err);
	if (status == DLOCK_OK)
		status = dlock_read(handle, dlock_sql_contended, &stats->contended, err);
	return status;
}

static void
free_stats(Stats *stats)
{
	if (stats->counters != NULL)
		dlock_reply_free(stats->counters);
	if (stats->times != NULL)
		dlock_reply_free(stats->times);
	if (stats->contended != NULL)
		dlock_reply_free(stats->contended);
}

/*
 * The bucket that so many percent of the waits are in or below: its upper bound.
 * False if there was no wait; -1 if the bucket has no bound.
 */
static bool
percentile(const DlockReply *times, int percent, int64_t *upper)
{
	int64_t		total = 0;
	int64_t		so_far = 0;
	int			row;

	for (row = 0; row < dlock_reply_rows(times); row++)
		total += dlock_reply_int(times, row, 1);
	for (row = 0; row < dlock_reply_rows(times); row++)
	{
		so_far += dlock_reply_int(times, row, 1);
		if (total > 0 && so_far * 100 >= total * percent)
		{
			*upper = dlock_reply_get(times, row, 0) != NULL ?
				dlock_reply_int(times, row, 0) : -1;
			return true;
		}
	}
	return false;
}

static const int percents[] = {50, 90, 99};

#define PERCENTS ((int) (sizeof(percents) / sizeof(percents[0])))

static int
shown_keys(const Options *options, const DlockReply *contended)
{
	int			rows = dlock_reply_rows(contended);
	int64_t		limit = options->limit > 0 ? options->limit : DEFAULT_KEYS;

	return rows < limit ? rows : (int) limit;
}

static void
add_contended(Text *out, const Options *options, const DlockReply *contended)
{
	static const Column columns[] = {
		{"CONTENDED KEY", false, 12, 0},
		{"BUSY", true, 0, 1},
		{"WAITS", true, 0, 2},
		{"WAITED FOR", true, 0, 3},
	};
	Table	   *table;
	int			row;

	if (dlock_reply_rows(contended) == 0)
		return;
	text_add(out, "\n");
	table = table_new(columns, 4);
	for (row = 0; row < shown_keys(options, contended); row++)
	{
		table_cell(table, CYAN, dlock_reply_get(contended, row, 0));
		table_number(table, PLAIN, dlock_reply_int(contended, row, 1));
		table_number(table, PLAIN, dlock_reply_int(contended, row, 2));
		table_duration(table, PLAIN, dlock_reply_int(contended, row, 3));
	}
	table_text(table, out, terminal_width(), NULL, colours_on(stdout));
	table_free(table);
}

static void
add_text(Text *out, const Options *options, const Stats *stats)
{
	int			row;
	int			i;

	for (row = 0; row < dlock_reply_rows(stats->counters); row++)
	{
		const char *name = dlock_reply_get(stats->counters, row, 0);
		int64_t		value = dlock_reply_int(stats->counters, row, 1);

		text_format(out, "%-16s ", name);
		if (strcmp(name, "stats_reset") == 0)
			text_time(out, value);
		else if (dlock_reply_bool(stats->counters, row, 2))
			text_duration(out, value);
		else
			text_format(out, "%lld", (long long) value);
		text_add(out, "\n");
	}
	for (i = 0; i < PERCENTS; i++)
	{
		int64_t		upper;

		if (!percentile(stats->times, percents[i], &upper))
			continue;
		text_format(out, "wait_p%-10d ", percents[i]);
		text_add(out, upper < 0 ? "more than " : "at most ");
		text_duration(out, upper < 0 ? 30 * 60 * 1000 : upper);
		text_add(out, "\n");
	}
	add_contended(out, options, stats->contended);
}

static void
add_json(Text *json, const Options *options, const Stats *stats)
{
	int			row;

	json_open(json, NULL, '{');
	for (row = 0; row < dlock_reply_rows(stats->counters); row++)
	{
		const char *name = dlock_reply_get(stats->counters, row, 0);
		int64_t		value = dlock_reply_int(stats->counters, row, 1);

		if (strcmp(name, "stats_reset") == 0)
			json_time(json, name, value);
		else if (dlock_reply_bool(stats->counters, row, 2))
			json_seconds(json, name, value);
		else
			json_number(json, name, value);
	}
	json_open(json, "wait_times", '[');
	for (row = 0; row < dlock_reply_rows(stats->times); row++)
	{
		json_open(json, NULL, '{');
		if (dlock_reply_get(stats->times, row, 0) != NULL)
			json_seconds(json, "upper", dlock_reply_int(stats->times, row, 0));
		else
			json_null(json, "upper");
		json_number(json, "count", dlock_reply_int(stats->times, row, 1));
		json_close(json, '}');
	}
	json_close(json, ']');
	json_open(json, "contended", '[');
	for (row = 0; row < shown_keys(options, stats->contended); row++)
	{
		json_open(json, NULL, '{');
		json_string(json, "key", dlock_reply_get(stats->contended, row, 0));
		json_number(json, "busy", dlock_reply_int(stats->contended, row, 1));
		json_number(json, "waits", dlock_reply_int(stats->contended, row, 2));
		json_seconds(json, "wait_time", dlock_reply_int(stats->contended, row, 3));
		json_close(json, '}');
	}
	json_close(json, ']');
	json_close(json, '}');
	text_add(json, "\n");
}

int
run_stats(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	Stats		stats = {0};
	Text		out = {0};
	dlock_status status = get_stats(handle, &stats, &err);

	if (status != DLOCK_OK)
	{
		free_stats(&stats);
		return give_up(handle, status, &err, NULL);
	}
	if (options->json)
		add_json(&out, options, &stats);
	else
		add_text(&out, options, &stats);
	finish_output(&out);
	free_stats(&stats);
	dlock_close(handle);
	return 0;
}
