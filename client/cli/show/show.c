/*
 * show.c
 *	  ls and info.
 */
#include "show/list.h"

#include <string.h>

static const Column lock_columns[] = {
	{"KEY", false, 12, 0},
	{"VERSION", true, 0, 7},
	{"STATE", false, 0, 4},
	{"HOLDERS", false, 0, 6},
	{"REMAINING", true, 0, 1},
	{"TTL", true, 0, 10},
	{"HELD FOR", true, 0, 5},
	{"WAITING", true, 0, 2},
	{"PRIORITY", true, 0, 11},
	{"ROLE", false, 6, 8},
	{"OWNER", false, 6, 3},
	{"VALUE", false, 6, 9},
};

#define LOCK_COLUMNS ((int) (sizeof(lock_columns) / sizeof(lock_columns[0])))

static void
empty_cells(Table *table, int count)
{
	while (count-- > 0)
		table_cell(table, PLAIN, NULL);
}

static void
add_lock(Table *table, const Entry *entry)
{
	const dlock_info *info = shown_grant(entry);
	Text		holders = {0};

	if (info != NULL && is_pending(info))
		info = NULL;
	table_cell(table, CYAN, entry->key);
	if (info != NULL)
		table_number(table, PLAIN, info->version);
	else
		empty_cells(table, 1);
	table_cell(table, state_colour(entry_state(entry)), entry_state(entry));
	text_holders(&holders, entry);
	table_cell(table, PLAIN, holders.data);
	text_free(&holders);
	if (info != NULL)
	{
		table_duration(table, entry_colour(entry), entry_remaining(entry));
		table_duration(table, PLAIN, info->ttl_ms);
		table_duration(table, PLAIN, entry_held_for(entry));
	}
	else
		empty_cells(table, 3);
	table_number(table, entry->waiting > 0 ? YELLOW : PLAIN, entry->waiting);
	if (info != NULL)
		table_number(table, PLAIN, info->priority);
	else
		empty_cells(table, 1);
	table_cell(table, PLAIN, entry_role(entry));
	table_cell(table, PLAIN, entry_owner(entry));
	table_cell(table, PLAIN, entry_value(entry));
}

static const Column holder_columns[] = {
	{"KEY", false, 12, 0},
	{"VERSION", true, 0, 0},
	{"STATE", false, 0, 4},
	{"HOLDS", false, 0, 6},
	{"REMAINING", true, 0, 1},
	{"TTL", true, 0, 9},
	{"HELD FOR", true, 0, 5},
	{"PRIORITY", true, 0, 10},
	{"ROLE", false, 6, 7},
	{"OWNER", false, 6, 3},
	{"VALUE", false, 6, 8},
};

#define HOLDER_COLUMNS ((int) (sizeof(holder_columns) / sizeof(holder_columns[0])))

static void
add_holder(Table *table, const dlock_info *info, bool with_key)
{
	Entry		alone = {.key = info->key,.grants = info,.grant_count = 1};
	Text		slots = {0};

	if (with_key)
		table_cell(table, CYAN, info->key);
	if (is_pending(info))
	{
		empty_cells(table, 1);
		table_cell(table, state_colour(info->state), info->state);
		empty_cells(table, HOLDER_COLUMNS - 3);
		return;
	}
	table_number(table, PLAIN, info->version);
	table_cell(table, state_colour(info->state), info->state);
	text_slots(&slots, info->slots);
	table_cell(table, PLAIN, slots.data);
	text_free(&slots);
	table_duration(table, entry_colour(&alone), info->remaining_ms);
	table_duration(table, PLAIN, info->ttl_ms);
	table_duration(table, PLAIN, entry_held_for(&alone));
	table_number(table, PLAIN, info->priority);
	table_cell(table, PLAIN, info->role);
	table_cell(table, PLAIN, shown_text(info->owner, info->hidden));
	table_cell(table, PLAIN, shown_text(info->value, info->hidden));
}

static const Column waiter_columns[] = {
	{"KEY", false, 12, 0},
	{"POSITION", true, 0, 2},
	{"WANTS", false, 0, 5},
	{"PRIORITY", true, 0, 7},
	{"WAITED", true, 0, 1},
	{"UNTIL", false, 0, 6},
	{"PID", true, 0, 4},
	{"OWNER", false, 6, 3},
};

#define WAITER_COLUMNS ((int) (sizeof(waiter_columns) / sizeof(waiter_columns[0])))

static void
add_waiter(Table *table, const dlock_waiter *waiter)
{
	table_cell(table, CYAN, waiter->key);
	if (waiter->watches)
	{
		table_cell(table, DIM, "watches");
		empty_cells(table, 2);
	}
	else
	{
		Text		slots = {0};

		table_number(table, PLAIN, waiter->position);
		text_slots(&slots, waiter->slots);
		table_cell(table, PLAIN, slots.data);
		text_free(&slots);
		table_number(table, PLAIN, waiter->priority);
	}
	table_duration(table, PLAIN, waiter->waited_ms);
	if (waiter->until_ms != 0)
	{
		Text		until = {0};

		text_time(&until, waiter->until_ms);
		table_cell(table, PLAIN, until.data);
		text_free(&until);
	}
	else
		table_cell(table, DIM, "forever");
	if (waiter->pid != 0)
		table_number(table, PLAIN, waiter->pid);
	else
		table_cell(table, DIM, "ticket");
	table_cell(table, PLAIN, shown_text(waiter->owner, waiter->hidden));
}

/* What "ls" has printed so far. */
typedef struct
{
	const Options *options;
	size_t		left;			/* rows that may still be printed */
	bool		begun;
	bool		has_rows;
	int			widths[LOCK_COLUMNS];	/* no table has more columns */
} Listing;

/* The rows of "ls --waiters", in a table or as JSON. */
static void
list_waiters(Listing *listing, const List *list, Table *table, Text *json)
{
	size_t		i;

	for (i = 0; i < list->waiter_count && listing->left > 0; i++, listing->left--)
		if (table != NULL)
			add_waiter(table, &list->waiters[i]);
		else
			json_waiter(json, &list->waiters[i]);
}

/* "ls --holders": one row for each grant, and none for a key that is only waited for. */
static void
list_holders(Listing *listing, const List *list, Table *table, Text *json)
{
	size_t		i;
	size_t		j;

	for (i = 0; i < list->count; i++)
		for (j = 0; j < list->entries[i].grant_count && listing->left > 0; j++, listing->left--)
		{
			const dlock_info *info = &list->entries[i].grants[j];

			if (table != NULL)
			{
				add_holder(table, info, true);
				continue;
			}
			json_open(json, NULL, '{');
			json_string(json, "key", info->key);
			json_grant(json, info);
			json_close(json, '}');
		}
}

/* "ls": one row for each key. */
static void
list_locks(Listing *listing, const List *list, Table *table, Text *json)
{
	size_t		i;

	for (i = 0; i < list->count && listing->left > 0; i++, listing->left--)
		if (table != NULL)
			add_lock(table, &list->entries[i]);
		else
		{
			json_entry(json, NULL, &list->entries[i]);
			json_close(json, '}');
		}
}

static Table *
new_table(const Options *options)
{
	return options->waiters ? table_new(waiter_columns, WAITER_COLUMNS) :
		options->holders ? table_new(holder_columns, HOLDER_COLUMNS) :
		table_new(lock_columns, LOCK_COLUMNS);
}

/*
 * Print a page of the list: rows of a table, or elements of an array.  On a terminal
 * each page has the heading, because its columns may be wider than those before.  False:
 * there is nobody who reads it, or nothing more to print.
 */
static bool
show_page(Listing *listing, const List *list)
{
	const Options *options = listing->options;
	Table	   *table = options->json ? NULL : new_table(options);
	size_t		left = listing->left;
	Text		json = {0};
	Text		out = {0};
	bool		has_rows;

	if (options->waiters)
		list_waiters(listing, list, table, &json);
	else if (options->holders)
		list_holders(listing, list, table, &json);
	else
		list_locks(listing, list, table, &json);
	has_rows = left != listing->left;
	if (table == NULL)
	{
		text_add(&out, !listing->begun ? "[" : listing->has_rows && has_rows ? "," : "");
		if (has_rows)
			text_add(&out, json.data);
		text_free(&json);
	}
	else
	{
		if (listing->begun && (terminal_width() == 0 || !has_rows))
			table_continue(table);
		table_text(table, &out, terminal_width(), listing->widths, colours_on(stdout));
		table_free(table);
	}
	listing->begun = true;
	listing->has_rows = listing->has_rows || has_rows;
	return finish_output(&out) && listing->left > 0;
}

/* In the order of the keys: page after page, printed as it comes. */
static dlock_status
show_pages(dlock_handle *handle, Listing *listing, List *list, dlock_error *err)
{
	dlock_status status;

	do
	{
		int64_t		max_keys = listing->left < LIST_PAGE ? (int64_t) listing->left : LIST_PAGE;

		status = list_get_page(handle, listing->options->key, max_keys, list, err);
	} while (status == DLOCK_OK && show_page(listing, list) && list->more);
	return status;
}

int
run_ls(const Options *options)
{
	dlock_handle *handle = connect_reader(options, NULL);
	Listing		listing = {.options = options};
	dlock_error err = {0};
	List		list;
	dlock_status status = list_get_waiters(handle, options->key, &list, &err);

	listing.left = options->limit > 0 ? (size_t) options->limit : SIZE_MAX;
	if (status == DLOCK_OK && options->waiters)
		(void) show_page(&listing, &list);
	else if (status == DLOCK_OK && (options->sort == NULL || strcmp(options->sort, "key") == 0))
		status = show_pages(handle, &listing, &list, &err);
	else if (status == DLOCK_OK)
	{
		status = list_get_all(handle, options->key, &list, &err);
		list_sort(&list, options->sort);
		if (status == DLOCK_OK)
			(void) show_page(&listing, &list);
	}
	list_free(&list);
	if (status != DLOCK_OK)
		return give_up(handle, status, &err, NULL);
	if (options->json)
	{
		Text		end = {0};

		text_add(&end, "]");
		finish_line(&end);
	}
	dlock_close(handle);
	return 0;
}

#define NAME_WIDTH 14

/* Long values are continued on the next line, not cut. */
static void
add_line(Text *out, const char *name, const char *value)
{
	bool		coloured = colours_on(stdout);
	Text		shown = {0};

	if (value == NULL)
		return;
	text_printable(&shown, value);
	text_format(out, "%s%-*s%s", coloured ? colour_code(BOLD) : "", NAME_WIDTH,
				name, coloured ? colour_code(PLAIN) : "");
	text_wrapped(out, shown.data, NAME_WIDTH, NAME_WIDTH, terminal_width());
	text_add(out, "\n");
	text_free(&shown);
}

static void
add_line_time(Text *out, const char *name, int64_t unix_ms)
{
	Text		buffer = {0};

	text_time(&buffer, unix_ms);
	add_line(out, name, buffer.data);
	text_free(&buffer);
}

static void
add_line_number(Text *out, const char *name, int64_t number)
{
	Text		buffer = {0};

	text_format(&buffer, "%lld", (long long) number);
	add_line(out, name, buffer.data);
	text_free(&buffer);
}

/* The grant of a key that has one. */
static void
add_grant(Text *out, const dlock_info *info)
{
	Entry		alone = {.key = info->key,.grants = info,.grant_count = 1};
	Text		buffer = {0};

	add_line_number(out, "version", info->version);
	text_slots(&buffer, info->slots);
	add_line(out, "kind", buffer.data);
	add_line(out, "role", info->role);
	add_line(out, "owner", shown_text(info->owner, info->hidden));
	add_line(out, "origin", info->origin);
	add_line(out, "value", shown_text(info->value, info->hidden));
	add_line_number(out, "priority", info->priority);
	add_line(out, "remaining", duration_string(info->remaining_ms, &buffer));
	add_line(out, "ttl", duration_string(info->ttl_ms, &buffer));
	if (entry_held_for(&alone) >= 0)
		add_line(out, "held for", duration_string(entry_held_for(&alone), &buffer));
	add_line_time(out, "acquired at", info->acquired_at_ms);
	add_line_time(out, "refreshed at", info->refreshed_at_ms);
	add_line_time(out, is_cooling(info) ? "busy until" :
				  strcmp(info->state, "lapsed") == 0 ? "lapsed at" : "expires at",
				  info->expires_at_ms);
	if (info->pid != 0)
		add_line_number(out, "session", info->pid);
	text_free(&buffer);
}

/* The open transactions that keep the key busy. */
static void
add_users(Text *out, const Entry *entry)
{
	Text		buffer = {0};
	size_t		i;

	for (i = 0; i < entry->grant_count; i++)
	{
		const dlock_info *info = &entry->grants[i];

		if (info->using_pid == 0)
			continue;
		text_clear(&buffer);
		text_format(&buffer, "an open transaction of process %d", (int) info->using_pid);
		add_line(out, "in use by", buffer.data);
	}
	text_free(&buffer);
}

static void
add_requestor(Text *out, const dlock_info *info)
{
	Text		buffer = {0};

	text_format(&buffer, "%s, priority %d; the holder has to yield within ",
				info->requestor_owner != NULL ?
				info->requestor_owner : "another client",
				info->requestor_priority);
	text_duration(&buffer, info->requestor_left_ms);
	add_line(out, "requested by", buffer.data);
	text_free(&buffer);
}

static void
add_table(Text *out, Table *table)
{
	text_add(out, "\n");
	table_text(table, out, terminal_width(), NULL, colours_on(stdout));
	table_free(table);
}

/* The grants of a key that has several. */
static void
add_holders(Text *out, const Entry *entry)
{
	/* without the key */
	Table	   *table = table_new(holder_columns + 1, HOLDER_COLUMNS - 1);
	size_t		i;

	for (i = 0; i < entry->grant_count; i++)
		add_holder(table, &entry->grants[i], false);
	add_table(out, table);
}

/* Everything about a key, as dlock info and dlock top show it. */
void
text_info(Text *out, const Entry *entry, const List *list)
{
	const dlock_info *asked = NULL;
	Text		buffer = {0};
	size_t		i;

	add_line(out, "key", entry->key);
	add_line(out, "state", entry_state(entry));
	if (entry->grant_count > 1)
	{
		text_holders(&buffer, entry);
		add_line(out, "holders", buffer.data);
		text_free(&buffer);
	}
	else if (entry->grant_count == 1 && !is_pending(entry->grants))
		add_grant(out, entry->grants);
	add_users(out, entry);
	for (i = 0; i < entry->grant_count && asked == NULL; i++)
		if (entry->grants[i].has_requestor)
			asked = &entry->grants[i];
	if (asked != NULL)
		add_requestor(out, asked);
	add_line_number(out, "waiting", entry->waiting);
	add_line_number(out, "watching", entry->watching);
	if (entry->grant_count > 1)
		add_holders(out, entry);
	if (list->waiter_count > 0)
	{
		Table	   *table = table_new(waiter_columns, WAITER_COLUMNS);

		for (i = 0; i < list->waiter_count; i++)
			add_waiter(table, &list->waiters[i]);
		add_table(out, table);
	}
}

int
run_info(const Options *options)
{
	dlock_handle *handle = connect_reader(options, NULL);
	dlock_error err = {0};
	List		list;
	Entry		nobody = {.key = options->key};
	const Entry *entry;
	dlock_status status = list_get_one(handle, options->key, -1, &list, &err);
	bool		busy;

	if (status != DLOCK_OK)
	{
		list_free(&list);
		return give_up(handle, status, &err, options->key);
	}
	entry = list.count > 0 ? &list.entries[0] : &nobody;
	busy = entry->grant_count > 0;
	if (options->json)
	{
		Text		json = {0};
		size_t		i;

		json_entry(&json, NULL, entry);
		json_open(&json, "waiters", '[');
		for (i = 0; i < list.waiter_count; i++)
			json_waiter(&json, &list.waiters[i]);
		json_close(&json, ']');
		json_close(&json, '}');
		finish_line(&json);
	}
	else
	{
		Text		out = {0};

		text_info(&out, entry, &list);
		finish_output(&out);
	}
	list_free(&list);
	dlock_close(handle);
	return busy ? 0 : EXIT_LOST;
}
