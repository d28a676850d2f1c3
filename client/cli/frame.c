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

/*
 * A line of several parts.  If there is no room for all of them, those of the
 * highest rank are left out; rank 0 always stays.
 */
static void
add_parts(const Top *top, Text *out, Text *parts, const int *ranks, int count,
		  Colour colour)
{
	int			used;
	int			i;

	for (;;)
	{
		int			last = 0;

		used = 0;
		for (i = 0; i < count; i++)
		{
			if (parts[i].data == NULL)
				continue;
			used += shown_width(parts[i].data);
			if (ranks[i] > ranks[last])
				last = i;
		}
		if (top->width == 0 || used <= top->width || ranks[last] == 0)
			break;
		text_free(&parts[last]);
	}
	add_colour(top, out, colour);
	for (i = 0; i < count; i++)
	{
		if (parts[i].data != NULL)
			text_add(out, parts[i].data);
		text_free(&parts[i]);
		if (colour != REVERSE && i == 0)
			add_colour(top, out, PLAIN);
	}
	/* the bar extends over the whole width */
	if (colour == REVERSE && top->live && used < top->width)
		text_format(out, "%*s", top->width - used, "");
	if (colour == REVERSE)
		add_colour(top, out, PLAIN);
	text_add(out, "\n");
}

static void
add_title(const Top *top, Text *out)
{
	static const int ranks[4] = {0, 1, 2, 3};
	Text		parts[4] = {{0}};
	time_t		now = time(NULL);
	struct tm	tm;
	char		clock[16];

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &tm));
	text_add(&parts[0], " dlock top");
	text_format(&parts[1], "  %s", clock);
	text_format(&parts[2], "  order: %s", top->options.sort);
	if (top->live)
	{
		text_add(&parts[3], "  every ");
		text_duration(&parts[3], top->options.interval);
	}
	add_parts(top, out, parts, ranks, 4, REVERSE);
}

static void
add_summary(const Top *top, Text *out, const List *list)
{
	static const int ranks[6] = {0, 5, 1, 4, 2, 3};
	Text		parts[6] = {{0}};
	size_t		i;
	uint64_t	held = 0;
	uint64_t	preempting = 0;
	uint64_t	lapsed = 0;
	uint64_t	waiting = 0;
	uint64_t	watching = 0;
	int64_t		longest = 0;
	int64_t		next = -1;

	for (i = 0; i < list->count; i++)
	{
		const Entry *entry = &list->entries[i];

		waiting += (uint64_t) entry->waiting;
		watching += (uint64_t) entry->watching;
		if (entry->longest_wait > longest)
			longest = entry->longest_wait;
	}
	for (i = 0; i < list->info_count; i++)
	{
		const dlock_info *info = &list->infos[i];

		if (is_cooling(info))
			continue;
		held++;
		if (strcmp(info->state, "lapsed") == 0)
		{
			lapsed++;
			continue;
		}
		if (strcmp(info->state, "preempting") == 0)
			preempting++;
		if (next < 0 || info->remaining_ms < next)
			next = info->remaining_ms;
	}
	text_count(&parts[0], held);
	text_add(&parts[0], " held");
	if (preempting > 0)
	{
		text_add(&parts[1], " (");
		text_count(&parts[1], preempting);
		text_add(&parts[1], " asked to yield)");
	}
	if (lapsed > 0)
	{
		text_add(&parts[1], ", ");
		text_count(&parts[1], lapsed);
		text_add(&parts[1], " of them lapsed");
	}
	if (held < list->info_count)
	{
		text_add(&parts[1], ", ");
		text_count(&parts[1], list->info_count - held);
		text_add(&parts[1], " cooling");
	}
	text_add(&parts[2], ", ");
	text_count(&parts[2], waiting);
	text_add(&parts[2], " waiting");
	if (waiting > 0)
	{
		text_add(&parts[3], " (the longest for ");
		text_duration(&parts[3], longest);
		text_add(&parts[3], ")");
	}
	text_add(&parts[4], ", ");
	text_count(&parts[4], watching);
	text_add(&parts[4], " watching");
	if (next >= 0)
	{
		text_add(&parts[5], ", next expiry in ");
		text_duration(&parts[5], next);
	}
	add_parts(top, out, parts, ranks, 6, BOLD);
}

/* The position in the list, and the keys to move in it. */
static void
add_status(const Top *top, Text *out, size_t total)
{
	static const int ranks[7] = {0, 1, 2, 6, 3, 4, 5};
	Text		parts[7] = {{0}};
	size_t		last = top->first + top->page;

	if (last > total)
		last = total;
	text_add(&parts[0], " ");
	text_count(&parts[0], total > 0 ? top->first + 1 : 0);
	text_add(&parts[0], "-");
	text_count(&parts[0], last);
	text_add(&parts[0], " of ");
	text_count(&parts[0], total);
	text_add(&parts[1], "   q quit");
	text_format(&parts[2], "   %s",
				locale_is_utf8() ? "\xe2\x86\x91\xe2\x86\x93" : "j k");
	text_add(&parts[3], " PgUp PgDn Home End");
	text_add(&parts[4], " scroll");
	text_add(&parts[5], "   s order");
	text_add(&parts[6], "   +/- interval");
	add_parts(top, out, parts, ranks, 7, REVERSE);
}

/* At most so many keys.  Returns the number of lines. */
static int
add_hot_keys(Top *top, Text *out, List *list, int most)
{
	static const Column columns[HOT_COLUMNS] = {
		{"HOT KEY", false, 12, 0},
		{"WAITING", true, 0, 1},
		{"LONGEST", true, 0, 2},
		{"CHANGES/MIN", true, 0, 3},
	};
	Table	   *table = table_new(columns, HOT_COLUMNS);
	size_t		i;
	int			lines = 0;

	list_sort(list, "waiters");
	for (i = 0; i < list->count && table_rows(table) < most; i++)
	{
		const Entry *entry = &list->entries[i];

		if (entry->waiting == 0 && entry->changes < 0.5)
			continue;
		table_cell(table, CYAN, entry->key);
		table_number(table, entry->waiting > 0 ? YELLOW : PLAIN, entry->waiting);
		if (entry->waiting > 0)
			table_duration(table, PLAIN, entry->longest_wait);
		else
			table_cell(table, PLAIN, NULL);
		table_number(table, PLAIN, (int64_t) (entry->changes + 0.5));
	}
	if (table_rows(table) > 0)
	{
		text_add(out, "\n");
		table_text(table, out, top->width, top->live ? top->hot_widths : NULL,
				   top->coloured);
		lines = table_rows(table) + 2;
	}
	table_free(table);
	return lines;
}

static void
add_bar(Text *out, const dlock_info *info)
{
	bool		utf8 = locale_is_utf8();
	int64_t		full = 0;
	int			i;

	if (info->ttl_ms > 0)
		full = (info->remaining_ms * BAR_WIDTH + info->ttl_ms / 2) /
			info->ttl_ms;
	for (i = 0; i < BAR_WIDTH; i++)
		text_add(out, i < full ? (utf8 ? "\xe2\x96\x88" : "#") :
				 (utf8 ? "\xe2\x96\x91" : "."));
}

static void
add_lock(Table *table, const Entry *entry)
{
	const dlock_info *info = shown_grant(entry);
	Text		holders = {0};

	table_cell(table, CYAN, entry->key);
	if (info != NULL)
	{
		const char *state = entry_state(entry);
		Text		bar = {0};

		table_number(table, PLAIN, info->version);
		if (strcmp(state, "cooling") == 0 || strcmp(state, "lapsed") == 0)
			table_cell(table, DIM, state);
		else
		{
			add_bar(&bar, info);
			table_cell(table, strcmp(state, "held") != 0 ? RED : entry_colour(entry), bar.data);
			text_free(&bar);
		}
		table_duration(table, entry_colour(entry), entry_remaining(entry));
		table_duration(table, PLAIN, entry_held_for(entry));
	}
	else
	{
		table_cell(table, PLAIN, NULL);
		table_cell(table, DIM, "not held");
		table_cell(table, PLAIN, NULL);
		table_cell(table, PLAIN, NULL);
	}
	text_holders(&holders, entry);
	table_cell(table, PLAIN, holders.data);
	text_free(&holders);
	table_number(table, entry->waiting > 0 ? YELLOW : PLAIN, entry->waiting);
	if (info != NULL)
		table_number(table, PLAIN, info->priority);
	else
		table_cell(table, PLAIN, NULL);
	table_cell(table, PLAIN, entry_role(entry));
	table_cell(table, PLAIN, entry_owner(entry));
	table_cell(table, PLAIN, entry_value(entry));
}

/* The entries from first up to, but not including, last. */
static void
add_locks(Top *top, Text *out, const List *list, size_t first, size_t last)
{
	static const Column columns[LOCK_COLUMNS] = {
		{"KEY", false, 12, 0},
		{"VERSION", true, 0, 7},
		{"OF TTL", false, 0, 5},
		{"REMAINING", true, 0, 1},
		{"HELD FOR", true, 0, 4},
		{"HOLDERS", false, 0, 6},
		{"WAITING", true, 0, 2},
		{"PRIORITY", true, 0, 10},
		{"ROLE", false, 6, 8},
		{"OWNER", false, 6, 3},
		{"VALUE", false, 6, 9},
	};
	Table	   *table = table_new(columns, LOCK_COLUMNS);
	size_t		i;

	for (i = first; i < last; i++)
		add_lock(table, &list->entries[i]);
	table_text(table, out, top->width, top->live ? top->lock_widths : NULL,
			   top->coloured);
	table_free(table);
}

/*
 * Everything that fits on the screen, with the status in the last line.  A low
 * screen has neither gaps nor hot keys.
 */
static void
add_screen(Top *top, Text *out, List *list, size_t total)
{
	bool		low = top->height < 10;
	int			used = low ? 4 : 5; /* title, summary, gap, heading, status */
	size_t		last;

	add_summary(top, out, list);
	if (!low)
	{
		int			most = (top->height - 7) / 3;

		used += add_hot_keys(top, out, list, most < HOT_KEYS ? most : HOT_KEYS);
		text_add(out, "\n");
	}
	list_sort(list, top->options.sort);
	top->page = top->height > used ? (size_t) (top->height - used) : 1;
	if (top->first + top->page > total)
		top->first = total > top->page ? total - top->page : 0;
	last = top->first + top->page < total ? top->first + top->page : total;
	add_locks(top, out, list, top->first, last);
	for (; last < top->first + top->page; last++)
		text_add(out, "\n");
	add_status(top, out, total);
}

void
make_frame(Top *top, Text *out, List *list, const dlock_error *err)
{
	size_t		total = list->count;

	add_title(top, out);
	if (err != NULL)
	{
		Text		message = {0};

		text_message(&message, err->message);
		add_colour(top, out, RED);
		text_wrapped(out, message.data, 0, 0, top->width);
		add_colour(top, out, PLAIN);
		text_add(out, "\n");
		text_free(&message);
		return;
	}
	if (top->options.limit > 0 && (size_t) top->options.limit < total)
		total = (size_t) top->options.limit;
	if (top->live)
	{
		add_screen(top, out, list, total);
		return;
	}
	add_summary(top, out, list);
	add_hot_keys(top, out, list, HOT_KEYS);
	text_add(out, "\n");
	list_sort(list, top->options.sort);
	add_locks(top, out, list, 0, total);
	if (total < list->count)
	{
		text_add(out, "... and ");
		text_count(out, list->count - total);
		text_add(out, " more\n");
	}
}

void
json_frame(Text *json, const List *list)
{
	int64_t		held = 0;
	size_t		i;

	for (i = 0; i < list->count; i++)
		held += (int64_t) holder_count(&list->entries[i]);
	json_open(json, NULL, '{');
	json_time(json, "time", unix_now_ms());
	json_number(json, "held", held);
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
