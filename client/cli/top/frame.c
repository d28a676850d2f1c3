/*
 * frame.c
 *	  What dlock top shows: one frame of it.
 */
#include "top/top.h"

#include <string.h>

#define HOT_KEYS 5
#define BAR_WIDTH 10

static void
add_hot_key(Table *table, const Entry *entry)
{
	Text		holders = {0};

	table_cell(table, CYAN, entry->key);
	table_number(table, entry->waiting > 0 ? YELLOW : PLAIN, entry->waiting);
	table_duration(table, PLAIN, entry->waiting > 0 ? entry->longest_wait : -1);
	table_number(table, PLAIN, entry->busy);
	table_number(table, PLAIN, entry->waits);
	table_duration(table, PLAIN, entry->wait_time);
	text_holders(&holders, entry);
	table_cell(table, PLAIN, holders.data);
	text_free(&holders);
	table_cell(table, PLAIN, entry_owner(entry));
}

/*
 * The hot keys from first up to, but not including, last.  Their counts are of
 * the last minute, or without a look before this one, since the reset.
 */
static void
add_hot_keys(Top *top, Text *out, size_t first, size_t last)
{
	static const Column lately[HOT_COLUMNS] = {
		{"HOT KEY", false, 12, 0},
		{"WAITING", true, 0, 2},
		{"LONGEST", true, 0, 4},
		{"BUSY/MIN", true, 0, 1},
		{"WAITS/MIN", true, 0, 3},
		{"WAITED/MIN", true, 0, 5},
		{"HOLDERS", false, 0, 7},
		{"OWNER", false, 6, 6},
	};
	static const Column ever[HOT_COLUMNS] = {
		{"HOT KEY", false, 12, 0},
		{"WAITING", true, 0, 2},
		{"LONGEST", true, 0, 4},
		{"BUSY", true, 0, 1},
		{"WAITS", true, 0, 3},
		{"WAITED", true, 0, 5},
		{"HOLDERS", false, 0, 7},
		{"OWNER", false, 6, 6},
	};
	Table	   *table = table_new(samples_before(&top->samples) != NULL ? lately : ever,
								  HOT_COLUMNS);
	size_t		i;

	for (i = first; i < last; i++)
		add_hot_key(table, &top->hot.entries[i]);
	table_text(table, out, top->width, top->live ? top->hot_widths : NULL,
			   top->coloured);
	table_free(table);
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
	if (info != NULL && is_pending(info))
		info = NULL;
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
		table_cell(table, entry->grant_count > 0 ? RED : DIM, entry_state(entry));
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
 * The lines above the table.  A low screen has fewer of them.  Returns how many.
 */
static int
add_heading(const Top *top, Text *out, const List *list, int most)
{
	int			lines = 1;

	add_summary(top, out, list);
	if (most > lines++)
		add_rates(top, out);
	if (most > lines++)
		add_waits(top, out);
	if (most > lines++)
		add_events(top, out);
	return lines < most ? lines : most;
}

/* Keep the position in range.  Returns the end of what is shown. */
static size_t
find_page(Top *top, int used, size_t total)
{
	top->page = top->height > used ? (size_t) (top->height - used) : 1;
	if (top->first + top->page > total)
		top->first = total > top->page ? total - top->page : 0;
	return top->first + top->page < total ? top->first + top->page : total;
}

/*
 * Everything that fits on the screen, with the status in the last line.  A low
 * screen has neither gaps nor hot keys beside the locks.
 */
static void
add_screen(Top *top, Text *out, List *list, size_t total)
{
	size_t		hot = top->hot.count;
	int			used = 3;		/* title, the table's heading, status */
	size_t		last;

	used += add_heading(top, out, list, top->height < 10 ? 1 : top->height < 16 ? 2 : 4);
	if (top->height >= 10)
	{
		text_add(out, "\n");
		used++;
	}
	if (top->hot_only)
	{
		total = hot;
		last = find_page(top, used, total);
		add_hot_keys(top, out, top->first, last);
	}
	else
	{
		if (top->height >= 20 && hot > 0)
		{
			size_t		most = (size_t) top->height / 6;

			if (most > HOT_KEYS)
				most = HOT_KEYS;
			add_hot_keys(top, out, 0, hot < most ? hot : most);
			text_add(out, "\n");
			used += (int) (hot < most ? hot : most) + 2;
		}
		list_sort(list, top->options.sort);
		last = find_page(top, used, total);
		add_locks(top, out, list, top->first, last);
	}
	for (; last < top->first + top->page; last++)
		text_add(out, "\n");
	add_status(top, out, total, list->more && !top->hot_only);
}

/* A frame that is not for a screen. */
static void
add_page(Top *top, Text *out, List *list, size_t total)
{
	size_t		hot = top->hot.count;

	(void) add_heading(top, out, list, 4);
	if (hot > 0)
	{
		text_add(out, "\n");
		add_hot_keys(top, out, 0, hot < HOT_KEYS ? hot : HOT_KEYS);
	}
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

static void
add_error(const Top *top, Text *out, const dlock_error *err)
{
	Text		message = {0};

	text_message(&message, err->message);
	add_colour(top, out, RED);
	text_wrapped(out, message.data, 0, 0, top->width);
	add_colour(top, out, PLAIN);
	text_add(out, "\n");
	text_free(&message);
	if (top->asking)
		add_status(top, out, 0, false);
}

void
make_frame(Top *top, Text *out, List *list, const dlock_error *err)
{
	size_t		total = list->count;

	if (top->options.limit > 0 && (size_t) top->options.limit < total)
		total = (size_t) top->options.limit;
	add_title(top, out);
	if (top->help)
		add_help(top, out);
	else if (err != NULL)
		add_error(top, out, err);
	else if (top->opened != NULL)
		add_opened(top, out);
	else if (top->live)
		add_screen(top, out, list, total);
	else
		add_page(top, out, list, total);
}

void
json_frame(const Top *top, Text *json, const List *list)
{
	int64_t		held = 0;
	size_t		i;

	for (i = 0; i < list->count; i++)
		held += (int64_t) holder_count(&list->entries[i]);
	json_open(json, NULL, '{');
	json_time(json, "time", unix_now_ms());
	json_number(json, "held", held);
	json_bool(json, "more", list->more);
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
	json_open(json, "stats", '{');
	json_numbers(json, samples_now(&top->samples), MAX_CONTENDED);
	json_close(json, '}');
	json_close(json, '}');
	text_add(json, "\n");
}
