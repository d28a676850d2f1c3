/*
 * stats.c
 *	  stats: the counters, the waits, and the contended keys.
 */
#include "show/list.h"
#include "show/numbers.h"

#include <string.h>

#define DEFAULT_KEYS	10

static int64_t
max_keys(const Options *options)
{
	return options->limit > 0 ? options->limit : DEFAULT_KEYS;
}

static void
add_contended(Text *out, const Options *options, const DlockReply *contended)
{
	static const Column columns[] = {
		{"CONTENDED KEY", false, 12, 0},
		{"BUSY", true, 0, 1},
		{"WAITS", true, 0, 2},
		{"WAITED FOR", true, 0, 3},
		{"LOST", true, 0, 4},
	};
	Table	   *table;
	int			row;

	if (dlock_reply_rows(contended) == 0)
		return;
	text_add(out, "\n");
	table = table_new(columns, 5);
	for (row = 0; row < dlock_reply_rows(contended) && row < max_keys(options); row++)
	{
		table_cell(table, CYAN, dlock_reply_get(contended, row, 0));
		table_number(table, PLAIN, dlock_reply_amount(contended, row, 1));
		table_number(table, PLAIN, dlock_reply_amount(contended, row, 2));
		table_duration(table, PLAIN, dlock_reply_amount(contended, row, 3));
		table_number(table, PLAIN, dlock_reply_amount(contended, row, 4));
	}
	table_text(table, out, terminal_width(), NULL, colours_on(stdout));
	table_free(table);
}

static void
add_percentile(Text *out, const Numbers *numbers, int percent)
{
	Percentile	result;

	if (!numbers_percentile(numbers, NULL, percent, &result))
		return;
	text_format(out, "wait_p%-10d ", percent);
	text_percentile(out, &result);
	text_add(out, "\n");
}

static void
add_text(Text *out, const Options *options, const Numbers *numbers)
{
	int			row;

	for (row = 0; row < dlock_reply_rows(numbers->counters); row++)
	{
		const char *name = dlock_reply_text(numbers->counters, row, 0);
		int64_t		value = dlock_reply_amount(numbers->counters, row, 1);

		text_format(out, "%-16s ", name);
		if (strcmp(name, "stats_reset") == 0)
			text_time(out, value);
		else if (dlock_reply_bool(numbers->counters, row, 2))
			text_duration(out, value);
		else
			text_format(out, "%lld", (long long) value);
		text_add(out, "\n");
	}
	add_percentile(out, numbers, 50);
	add_percentile(out, numbers, 90);
	add_percentile(out, numbers, 99);
	add_contended(out, options, numbers->contended);
}

int
run_stats(const Options *options)
{
	dlock_handle *handle = connect_reader(options, NULL);
	dlock_error err = {0};
	Numbers		numbers;
	Text		out = {0};
	dlock_status status = numbers_get(handle, -1, &numbers, &err);

	if (status != DLOCK_OK)
	{
		numbers_free(&numbers);
		return give_up(handle, status, &err, NULL);
	}
	if (options->json)
	{
		json_open(&out, NULL, '{');
		json_numbers(&out, &numbers, max_keys(options));
		json_close(&out, '}');
		text_add(&out, "\n");
	}
	else
		add_text(&out, options, &numbers);
	finish_output(&out);
	numbers_free(&numbers);
	dlock_close(handle);
	return 0;
}
