/*
 * frame.c
 *	  What dlock top shows: one frame of it.
 */
#include "cli.h"
#include "top.h"

#include <string.h>
#include <time.h>

#define HOT_KEYS 5
#define BAR_WIDTH 10

static void
add_colour(const Top *top, Text *out, Colour colour)
{
	if (top->coloured)
		text_add(out, colour_code(colour));
}

static void
add_summary(const Top *top, Text *out, const List *list)
{
	size_t		i;
	int			preempting = 0;
	int			waiting = 0;
	int			watching = 0;
	int64_t		longest = 0;
	int64_t		next = -1;

	for (i = 0; i < list->count; i++)
	{
		const Entry *entry = &list->entries[i];

		waiting += entry->waiting;
		watching += entry->watching;
		if (entry->longest_wait > longest)
			longest = entry->longest_wait;
		if (entry->info == NULL)
			continue;
		if (strcmp(entry->info->state, "held") != 0)
			preempting++;
		if (next < 0 || entry->info->remaining_ms < next)
			next = entry->info->remaining_ms;
	}
	add_colour(top, out, BOLD);
	text_format(out, "%zu held", list->info_count);
	add_colour(top, out, PLAIN);
	if (preempting > 0)
		text_format(out, " (%d asked to yield)", preempting);
	text_format(out, ", %d waiting", waiting);
	if (waiting > 0)
	{
		text_add(out, " (the longest for ");
		text_duration(out, longest);
		text_add(out, ")");
	}
	text_format(out, ", %d watching", watching);
	if (next >= 0)
	{
		text_add(out, ", next expiry in ");
		text_duration(out, next);
	}
	text_add(out, "\n");
}

static void
cell_format(Table *table, Colour colour, const char *format, double number)
{
	char		buffer[64];

	snprintf(buffer, sizeof(buffer), format, number);
	table_cell(table, colour, buffer);
}

/* Returns the number of lines. */
static int
add_hot_keys(const Top *top, Text *out, List *list)
{
	static const Column columns[] = {
		{"HOT KEY", false, 12},
		{"WAITING", true, 0},
		{"LONGEST", true, 0},
		{"CHANGES/MIN", true, 0},
	};
	Table	   *table = table_new(columns, 4);
	Text		buffer = {0};
	size_t		i;
	int			lines = 0;

	list_sort(list, "waiters");
	for (i = 0; i < list->count && table_rows(table) < HOT_KEYS; i++)
	{
		const Entry *entry = &list->entries[i];

		if (entry->waiting == 0 && entry->changes < 0.5)
			continue;
		table_cell(table, CYAN, entry->key);
		cell_format(table, entry->waiting > 0 ? YELLOW : PLAIN, "%.0f", entry->waiting);
		table_cell(table, PLAIN, entry->waiting > 0 ?
				   duration_string(entry->longest_wait, &buffer) : NULL);
		cell_format(table, PLAIN, "%.0f", entry->changes);
	}
	if (table_rows(table) > 0)
	{
		text_add(out, "\n");
		table_text(table, out, top->width, 0, top->coloured);
		lines = table_rows(table) + 2;
	}
	text_free(&buffer);
	table_free(table);
	return lines;
}

static void
add_bar(const Top *top, Text *out, const dlock_info *info)
{
	int64_t		full = 0;
	int			i;

	if (info->ttl_ms > 0)
		full = (info->remaining_ms * BAR_WIDTH + info->ttl_ms / 2) /
			info->ttl_ms;
	for (i = 0; i < BAR_WIDTH; i++)
		text_add(out, i < full ? (top->utf8 ? "\xe2\x96\x88" : "#") :
				 (top->utf8 ? "\xe2\x96\x91" : "."));
}

static void
add_locks(const Top *top, Text *out, const List *list, int room)
{
	static const Column columns[] = {
		{"KEY", false, 12},
		{"VERSION", true, 0},
		{"", false, 0},
		{"REMAINING", true, 0},
		{"HELD FOR", true, 0},
		{"WAITING", true, 0},
		{"PRIORITY", true, 0},
		{"ROLE", false, 6},
		{"OWNER", false, 6},
		{"VALUE", false, 6},
	};
	Table	   *table = table_new(columns, 10);
	Text		buffer = {0};
	size_t		rows = list->count;
	size_t		i;

	if (top->options.limit > 0 && (size_t) top->options.limit < rows)
		rows = (size_t) top->options.limit;
	if (room > 0 && (size_t) room < rows)
		rows = room > 1 ? (size_t) room - 1 : 1;
	for (i = 0; i < rows; i++)
	{
		const Entry *entry = &list->entries[i];
		const dlock_info *info = entry->info;

		table_cell(table, CYAN, entry->key);
		if (info != NULL)
		{
			int64_t		held = held_for(info);
			bool		asked = strcmp(info->state, "held") != 0;

			cell_format(table, PLAIN, "%.0f", (double) info->version);
			text_clear(&buffer);
			add_bar(top, &buffer, info);
			table_cell(table, asked ? RED : remaining_colour(info), buffer.data);
			table_cell(table, remaining_colour(info),
					   duration_string(info->remaining_ms, &buffer));
			table_cell(table, PLAIN, duration_string(held, &buffer));
		}
		else
		{
			table_cell(table, PLAIN, NULL);
			table_cell(table, DIM, "not held");
			table_cell(table, PLAIN, NULL);
			table_cell(table, PLAIN, NULL);
		}
		cell_format(table, entry->waiting > 0 ? YELLOW : PLAIN, "%.0f", entry->waiting);
		if (info != NULL)
			cell_format(table, PLAIN, "%.0f", info->priority);
		else
			table_cell(table, PLAIN, NULL);
		table_cell(table, PLAIN, info != NULL ? info->role : NULL);
		table_cell(table, PLAIN, info != NULL ? info->owner : NULL);
		table_cell(table, PLAIN, info != NULL ? info->value : NULL);
	}
	text_add(out, "\n");
	table_text(table, out, top->width, 0, top->coloured);
	if (rows < list->count)
		text_format(out, "... and %zu more\n", list->count - rows);
	text_free(&buffer);
	table_free(table);
}

void
make_frame(const Top *top, Text *out, List *list, const dlock_error *err)
{
	time_t		now = time(NULL);
	struct tm	tm;
	char		clock[16];
	int			used = 5;		/* both first lines, heading, gap, last line */

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &tm));
	add_colour(top, out, REVERSE);
	text_format(out, " dlock top  %s  order: %s ", clock, top->options.sort);
	if (top->live)
	{
		text_add(out, " every ");
		text_duration(out, top->options.interval);
		text_add(out, "  q: quit  s: order  +/-: interval ");
	}
	add_colour(top, out, PLAIN);
	text_add(out, "\n");
	if (err != NULL)
	{
		add_colour(top, out, RED);
		text_printable(out, err->message, top->width);
		add_colour(top, out, PLAIN);
		text_add(out, "\n");
		return;
	}
	add_summary(top, out, list);
	used += add_hot_keys(top, out, list);
	list_sort(list, top->options.sort);
	add_locks(top, out, list,
			  top->live ? (top->height > used + 1 ? top->height - used : 1) : 0);
}

void
json_frame(Text *json, const List *list)
{
	size_t		i;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	json_open(json, NULL, '{');
	json_time(json, "time", (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000);
	json_number(json, "held", (int64_t) list->info_count);
	json_open(json, "locks", '[');
	for (i = 0; i < list->count; i++)
	{
		json_entry(json, NULL, &list->entries[i]);
		json_close(json, '}');
	}
	json_close(json, ']');
	json_open(json, "waiters", '[');
	for (i = 0; i < list->waiter_count; i++)
		json_waiter(json, &list->waiters[i]);
	json_close(json, ']');
	json_close(json, '}');
	text_add(json, "\n");
}
