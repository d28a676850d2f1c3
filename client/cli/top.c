/*
 * top.c
 *	  A live view of the locks, in a plain terminal.
 *
 * The server does not know how often a key changes hands.  We count the changes
 * between two looks, at most one each time, and fade them over a minute.
 */
#include "cli.h"
#include "child.h"
#include "times.h"
#include "top.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* so many keys are looked at, besides those that are waited for */
#define MAX_KEYS	500

static void
look_at_terminal(Top *top)
{
	if (top->live)
		screen_size(&top->width, &top->height);
	else
		top->width = terminal_width();
}

static int
compare_seen(const void *a, const void *b)
{
	return strcmp(((const Seen *) a)->key, ((const Seen *) b)->key);
}

static void
forget_seen(Top *top)
{
	size_t		i;

	for (i = 0; i < top->seen_count; i++)
		free(top->seen[i].key);
	free(top->seen);
	top->seen = NULL;
	top->seen_count = 0;
}

/* Which keys have changed hands since the last look? */
static void
count_changes(Top *top, List *list)
{
	int64_t		now = dlock_now();
	double		kept = 1.0 - (double) (now - top->seen_at) / FADE_MS;
	Seen	   *seen = allocate((list->count + 1) * sizeof(Seen));
	size_t		i;

	if (kept < 0)
		kept = 0;
	for (i = 0; i < list->count; i++)
	{
		Entry	   *entry = &list->entries[i];
		const dlock_info *shown = shown_grant(entry);
		int64_t		version = shown != NULL ? shown->version : 0;
		Seen		sought = {.key = (char *) entry->key};
		const Seen *before = NULL;

		if (top->seen_count > 0)
			before = bsearch(&sought, top->seen, top->seen_count,
							 sizeof(Seen), compare_seen);
		if (before != NULL)
			entry->changes = before->changes * kept +
				(version != 0 && version != before->version ? 1 : 0);
		seen[i].key = copy_string(entry->key);
		seen[i].version = version != 0 || before == NULL ? version :
			before->version;
		seen[i].changes = entry->changes;
	}
	if (list->count > 1)
		qsort(seen, list->count, sizeof(Seen), compare_seen);
	forget_seen(top);
	top->seen = seen;
	top->seen_count = list->count;
	top->seen_at = now;
}

static int
one_frame(Top *top, dlock_handle *handle)
{
	List		list;
	dlock_error err = {0};
	Text		out = {0};
	dlock_status status = list_get(handle, &top->options, MAX_KEYS, -1, &list, &err);

	if (status != DLOCK_OK)
	{
		list_free(&list);
		return report_status(status, &err, NULL);
	}
	look_at_terminal(top);
	if (top->options.json)
	{
		list_sort(&list, top->options.sort);
		json_frame(&out, &list);
	}
	else
		make_frame(top, &out, &list, NULL);
	finish_output(&out);
	list_free(&list);
	return 0;
}

static void
next_order(Top *top)
{
	static const char *const orders[] = {"waiters", "remaining", "held", "key"};
	int			i = 0;

	while (i < 3 && strcmp(orders[i], top->options.sort) != 0)
		i++;
	top->options.sort = orders[(i + 1) % 4];
}

/* Returns false at the end.  *look: ask the server now. */
static bool
take_key(Top *top, int key, bool *look)
{
	size_t		page = top->page > 0 ? top->page : 1;

	switch (key)
	{
		case 'q':
		case 'Q':
		case 4:					/* Ctrl-D */
			return false;
		case 26:				/* Ctrl-Z */
			screen_suspend();
			break;
		case 's':
			next_order(top);
			top->first = 0;
			break;
		case '+':
			if (top->options.interval < MAX_INTERVAL_MS)
				top->options.interval *= 2;
			break;
		case '-':
			if (top->options.interval >= 2 * MIN_INTERVAL_MS)
				top->options.interval /= 2;
			break;
		case 'j':
		case KEY_DOWN:
			top->first++;
			break;
		case 'k':
		case KEY_UP:
			top->first -= top->first > 0 ? 1 : 0;
			break;
		case 'f':
		case 6:					/* Ctrl-F */
		case KEY_PAGE_DOWN:
			top->first += page;
			break;
		case 'b':
		case 2:					/* Ctrl-B */
		case KEY_PAGE_UP:
			top->first -= top->first > page ? page : top->first;
			break;
		case 'g':
		case KEY_HOME:
			top->first = 0;
			break;
		case 'G':
		case KEY_END:
			top->first = SIZE_MAX / 2;
			break;
		default:
			*look = true;
	}
	return true;
}

static bool
take_keys(Top *top, bool *look)
{
	int			key;

	if (!screen_read())
		return false;
	while ((key = screen_key()) != 0)
		if (!take_key(top, key, look))
			return false;
	return true;
}

/* A signal, a key, or the time to look.  Returns false at the end. */
static bool
take_news(Top *top, int news, bool *look)
{
	switch (news)
	{
		case NEWS_NONE:
			*look = true;
			return true;
		case NEWS_INPUT:
			return take_keys(top, look);
		case SIGCONT:
			screen_take();
			return true;
		case SIGWINCH:
			memset(top->lock_widths, 0, sizeof(top->lock_widths));
			memset(top->hot_widths, 0, sizeof(top->hot_widths));
			screen_clear();
			return true;
	}
	if (is_ending_signal(news))
	{
		screen_restore();
		die_by_signal(news);
	}
	return true;
}

static void
live(Top *top, dlock_handle *handle)
{
	List		list = {0};
	dlock_error err = {0};
	dlock_status status = DLOCK_OK;
	int64_t		looked_at = 0;
	bool		look = true;
	bool		goes_on = true;

	news_start();
	news_add_input(STDIN_FILENO);
	screen_take();
	atexit(screen_restore);
	while (goes_on)
	{
		Text		frame = {0};

		/* moving in the list needs no new data */
		if (look)
		{
			list_free(&list);
			status = list_get(handle, &top->options, MAX_KEYS, MAX_ANSWER_MS,
							  &list, &err);
			if (status == DLOCK_OK)
				count_changes(top, &list);
			looked_at = dlock_now();
			look = false;
		}
		look_at_terminal(top);
		make_frame(top, &frame, &list, status == DLOCK_OK ? NULL : &err);
		goes_on = screen_paint(&frame, top->height) &&
			take_news(top, news_wait(looked_at + top->options.interval), &look);
		text_free(&frame);
	}
	screen_restore();
	list_free(&list);
	forget_seen(top);
}

int
run_top(const Options *options)
{
	Top			top = {.options = *options};
	dlock_handle *handle = connect_server(options);
	int			code = 0;

	top.coloured = colours_on(stdout);
	top.live = !options->once && !options->json && isatty(STDIN_FILENO) &&
		isatty(STDOUT_FILENO);
	if (top.options.sort == NULL)
		top.options.sort = "waiters";
	if (top.live)
		live(&top, handle);
	else
		code = one_frame(&top, handle);
	dlock_close(handle);
	return code;
}
