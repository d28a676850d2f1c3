/*
 * show.c
 *	  ls and info.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* A key without a visible grant may be in use by an open transaction. */
static const char *
state_name(const Entry *entry)
{
	return entry->holder_count > 0 ? first_holder(entry)->state : "not held";
}

static void
print_table(Table *table)
{
	Text		out = {0};

	table_text(table, &out, terminal_width(), NULL, colours_on(stdout));
	finish_output(&out);
	table_free(table);
}

static const Column lock_columns[] = {
	{"KEY", false, 12, 0},
	{"VERSION", true, 0, 6},
	{"STATE", false, 0, 4},
	{"REMAINING", true, 0, 1},
	{"TTL", true, 0, 9},
	{"HELD FOR", true, 0, 5},
	{"WAITING", true, 0, 2},
	{"PRIORITY", true, 0, 10},
	{"ROLE", false, 6, 7},
	{"OWNER", false, 6, 3},
	{"VALUE", false, 6, 8},
};

#define LOCK_COLUMNS ((int) (sizeof(lock_columns) / sizeof(lock_columns[0])))

static void
add_lock(Table *table, const Entry *entry)
{
	const dlock_info *info = first_holder(entry);
	bool		asked = info != NULL && strcmp(info->state, "held") != 0;

	table_cell(table, CYAN, entry->key);
	if (info != NULL)
		table_number(table, PLAIN, info->version);
	else
		table_cell(table, PLAIN, NULL);
	table_cell(table, asked ? YELLOW : PLAIN, state_name(entry));
	if (info != NULL)
	{
		table_duration(table, remaining_colour(info), info->remaining_ms);
		table_duration(table, PLAIN, info->ttl_ms);
		table_duration(table, PLAIN, held_for(info));
	}
	else
	{
		table_cell(table, PLAIN, NULL);
		table_cell(table, PLAIN, NULL);
		table_cell(table, PLAIN, NULL);
	}
	table_number(table, entry->waiting > 0 ? YELLOW : PLAIN, entry->waiting);
	if (info != NULL)
	{
		table_number(table, PLAIN, info->priority);
		table_cell(table, PLAIN, info->role);
		table_cell(table, PLAIN, info->owner);
		table_cell(table, PLAIN, info->value);
	}
	else
	{
		table_cell(table, PLAIN, NULL);
		table_cell(table, PLAIN, NULL);
		table_cell(table, PLAIN, NULL);
		table_cell(table, PLAIN, NULL);
	}
}

static const Column waiter_columns[] = {
	{"KEY", false, 12, 0},
	{"POSITION", true, 0, 2},
	{"PRIORITY", true, 0, 6},
	{"WAITED", true, 0, 1},
	{"UNTIL", false, 0, 5},
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
		table_cell(table, PLAIN, NULL);
	}
	else
	{
		table_number(table, PLAIN, waiter->position);
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
	table_number(table, PLAIN, waiter->pid);
	table_cell(table, PLAIN, waiter->owner);
}

static void
show_waiters(const Options *options, const List *list, Text *json)
{
	Table	   *table = table_new(waiter_columns, WAITER_COLUMNS);
	size_t		i;
	size_t		limit = list->waiter_count;

	if (options->limit > 0 && (size_t) options->limit < limit)
		limit = (size_t) options->limit;
	for (i = 0; i < limit; i++)
	{
		if (options->json)
			json_waiter(json, &list->waiters[i]);
		else
			add_waiter(table, &list->waiters[i]);
	}
	if (options->json)
		table_free(table);
	else
		print_table(table);
}

static void
show_locks(const Options *options, const List *list, Text *json)
{
	Table	   *table = table_new(lock_columns, LOCK_COLUMNS);
	size_t		i;
	size_t		limit = list->count;

	if (options->limit > 0 && (size_t) options->limit < limit)
		limit = (size_t) options->limit;
	for (i = 0; i < limit; i++)
	{
		if (options->json)
		{
			json_entry(json, NULL, &list->entries[i]);
			json_close(json, '}');
		}
		else
			add_lock(table, &list->entries[i]);
	}
	if (options->json)
		table_free(table);
	else
		print_table(table);
}

int
run_ls(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	List		list;
	Text		json = {0};
	dlock_status status = list_get(handle, options, -1, &list, &err);

	if (status != DLOCK_OK)
	{
		list_free(&list);
		return give_up(handle, status, &err, NULL);
	}
	list_sort(&list, options->sort != NULL ? options->sort : "key");
	if (options->json)
		json_open(&json, NULL, '[');
	if (options->waiters)
		show_waiters(options, &list, &json);
	else
		show_locks(options, &list, &json);
	if (options->json)
	{
		json_close(&json, ']');
		text_add(&json, "\n");
		finish_output(&json);
	}
	list_free(&list);
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

static void
show_info(const Entry *entry, const List *list)
{
	const dlock_info *info = first_holder(entry);
	Text		out = {0};
	Text		buffer = {0};

	add_line(&out, "key", entry->key);
	add_line(&out, "state", state_name(entry));
	if (info != NULL)
	{
		add_line_number(&out, "version", info->version);
		add_line(&out, "role", info->role);
		add_line(&out, "owner", info->owner);
		add_line(&out, "value", info->value);
		add_line_number(&out, "priority", info->priority);
		add_line(&out, "remaining", duration_string(info->remaining_ms, &buffer));
		add_line(&out, "ttl", duration_string(info->ttl_ms, &buffer));
		add_line(&out, "held for", duration_string(held_for(info), &buffer));
		add_line_time(&out, "acquired at", info->acquired_at_ms);
		add_line_time(&out, "refreshed at", info->refreshed_at_ms);
		add_line_time(&out, "expires at", info->expires_at_ms);
		if (info->pid != 0)
			add_line_number(&out, "session", info->pid);
		if (info->has_requestor)
		{
			text_clear(&buffer);
			text_format(&buffer, "%s, priority %d; the holder has to yield within ",
						info->requestor_owner != NULL ?
						info->requestor_owner : "another client",
						info->requestor_priority);
			text_duration(&buffer, info->requestor_left_ms);
			add_line(&out, "requested by", buffer.data);
		}
	}
	add_line_number(&out, "waiting", entry->waiting);
	add_line_number(&out, "watching", entry->watching);
	text_free(&buffer);
	if (list->waiter_count > 0)
	{
		Table	   *table = table_new(waiter_columns, WAITER_COLUMNS);
		size_t		i;

		for (i = 0; i < list->waiter_count; i++)
			add_waiter(table, &list->waiters[i]);
		text_add(&out, "\n");
		table_text(table, &out, terminal_width(), NULL, colours_on(stdout));
		table_free(table);
	}
	finish_output(&out);
}

/* A pattern that matches only this key. */
static char *
literal_pattern(const char *key)
{
	Text		pattern = {0};

	text_clear(&pattern);
	for (; *key != '\0'; key++)
	{
		if (strchr("*?\\", *key) != NULL)
			text_add(&pattern, "\\");
		text_add_bytes(&pattern, key, 1);
	}
	return text_take(&pattern);
}

int
run_info(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	List		list;
	Options		this_one = *options;
	Entry		nobody = {.key = options->key};
	const Entry *entry;
	dlock_status status;
	char	   *pattern = literal_pattern(options->key);
	bool		held;

	this_one.key = pattern;
	status = list_get(handle, &this_one, -1, &list, &err);
	if (status != DLOCK_OK)
	{
		list_free(&list);
		free(pattern);
		return give_up(handle, status, &err, options->key);
	}
	entry = list.count > 0 ? &list.entries[0] : &nobody;
	held = entry->holder_count > 0;
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
		text_add(&json, "\n");
		finish_output(&json);
	}
	else
		show_info(entry, &list);
	list_free(&list);
	free(pattern);
	dlock_close(handle);
	return held ? 0 : EXIT_LOST;
}
