/*
 * top.c
 *	  A live view of the locks and of what the server counts, in a plain terminal.
 */
#include "signals.h"
#include "times.h"
#include "top/top.h"
#include "api/inspect.h"
#include "base/util.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* how many keys are looked at, besides those that are waited for or contended */
#define MAX_KEYS	500

/* how much of the name of the database is shown */
#define SERVER_WIDTH 24

static void
look_at_terminal(Top *top)
{
	if (top->live)
		screen_size(&top->width, &top->height);
	else
		top->width = terminal_width();
}

/* Which server it is: the one that we are connected to may change. */
static void
look_who(Top *top, dlock_handle *handle, int64_t timeout)
{
	DlockReply *reply = NULL;

	text_clear(&top->server);
	if (dlock_read(handle, "SELECT pg_catalog.current_database(),"
				   " COALESCE(pg_catalog.host(pg_catalog.inet_server_addr()), 'local'::pg_catalog.text),"
				   " pg_catalog.current_setting('port')", timeout, &reply, NULL) == DLOCK_OK)
	{
		(void) printable_cut(&top->server, dlock_reply_text(reply, 0, 0), SERVER_WIDTH);
		text_add(&top->server, " on ");
		text_printable(&top->server, dlock_reply_text(reply, 0, 1));
		text_add(&top->server, ":");
		text_printable(&top->server, dlock_reply_text(reply, 0, 2));
	}
	dlock_reply_free(reply);
}

/* Ask the server for everything that a frame shows. */
static dlock_status
look_at_server(Top *top, dlock_handle *handle, int64_t timeout, List *list,
			   dlock_error *err)
{
	Numbers		numbers;
	dlock_status status;

	list_free(&top->hot);
	list_free(list);
	if (top->server.len == 0)
		look_who(top, handle, timeout);
	status = numbers_get(handle, timeout, &numbers, err);
	if (status == DLOCK_OK)
		status = list_get_hot(handle, top->filter, MAX_KEYS, timeout, list, err);
	if (status == DLOCK_OK && top->opened != NULL)
		status = look_at_lock(top, handle, err);
	if (status == DLOCK_OK)
		samples_add(&top->samples, &numbers);
	else
	{
		list_free(list);
		text_clear(&top->server);
	}
	numbers_free(&numbers);
	return status;
}

static int
one_frame(Top *top, dlock_handle *handle)
{
	List		list = {0};
	dlock_error err = {0};
	Text		out = {0};
	dlock_status status = look_at_server(top, handle, -1, &list, &err);

	if (status != DLOCK_OK)
		return report_status(status, &err, NULL);
	look_at_terminal(top);
	samples_count_keys(&top->samples, &list, top->filter, &top->hot);
	if (top->options.json)
	{
		list_sort(&list, top->options.sort);
		json_frame(top, &out, &list);
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
	static const char *const orders[] = {"waiters", "busy", "remaining", "held", "key"};
	int			i = 0;

	while (i < 4 && strcmp(orders[i], top->options.sort) != 0)
		i++;
	top->options.sort = orders[(i + 1) % 5];
	top->first = 0;
}

static void
forget_widths(Top *top)
{
	memset(top->lock_widths, 0, sizeof(top->lock_widths));
	memset(top->hot_widths, 0, sizeof(top->hot_widths));
}

/* What was typed is how keys begin. */
static void
set_filter(Top *top)
{
	free(top->filter);
	top->filter = NULL;
	if (top->typed.len > 0)
	{
		text_add(&top->typed, "*");
		top->filter = text_take(&top->typed);
	}
	top->first = 0;
	forget_widths(top);
}

/* Take the last character away, which may have several bytes. */
static void
erase(Text *text)
{
	while (text->len > 0 && ((unsigned char) text->data[text->len - 1] & 0xc0) == 0x80)
		text->len--;
	if (text->len > 0)
		text->len--;
	text->data[text->len] = '\0';
}

static void
ask(Top *top, Question question)
{
	text_clear(&top->typed);
	top->asking = question;
}

/* What was typed is complete.  A release needs a reason, and a second thought. */
static void
end_question(Top *top)
{
	Question	question = top->asking;

	top->asking = ASK_NOTHING;
	if (question == ASK_FILTER)
		set_filter(top);
	else if (question == ASK_KEY)
		open_lock(top);
	else if (question == ASK_REASON && top->typed.len > 0)
	{
		free(top->reason);
		top->reason = text_take(&top->typed);
		ask(top, ASK_SURE);
	}
	else if (question == ASK_SURE)
		top->release = top->typed.len == 1 && top->typed.data[0] == 'y';
}

/* While something is typed.  *sample: ask the server now. */
static void
take_typed(Top *top, int key, bool *sample)
{
	char		byte = (char) key;

	switch (key)
	{
		case '\n':
		case '\r':
			end_question(top);
			*sample = true;
			break;
		case KEY_ESCAPE:
		case 7:					/* Ctrl-G */
			top->asking = ASK_NOTHING;
			break;
		case 8:					/* Ctrl-H */
		case 127:
			erase(&top->typed);
			break;
		case 21:				/* Ctrl-U */
			text_clear(&top->typed);
			break;
		default:
			/* a key is never longer */
			if (key >= ' ' && key < KEY_UP && top->typed.len < 1024)
				text_add_bytes(&top->typed, &byte, 1);
	}
}

/* False: the key is not one that moves. */
static bool
move(Top *top, int key)
{
	size_t		page = top->page > 0 ? top->page : 1;

	switch (key)
	{
		case 'j':
		case KEY_DOWN:
			top->first++;
			return true;
		case 'k':
		case KEY_UP:
			top->first -= top->first > 0 ? 1 : 0;
			return true;
		case 'f':
		case 6:					/* Ctrl-F */
		case KEY_PAGE_DOWN:
			top->first += page;
			return true;
		case 'b':
		case 2:					/* Ctrl-B */
		case KEY_PAGE_UP:
			top->first -= top->first > page ? page : top->first;
			return true;
		case 'g':
		case KEY_HOME:
			top->first = 0;
			return true;
		case 'G':
		case KEY_END:
			top->first = SIZE_MAX / 2;
			return true;
	}
	return false;
}

static void
take_command(Top *top, int key, bool *sample)
{
	switch (key)
	{
		case '?':
		case 'h':
			top->help = true;
			break;
		case '/':
			ask(top, ASK_FILTER);
			break;
		case '\n':
		case '\r':
			ask(top, ASK_KEY);
			break;
		case 'c':
			top->hot_only = !top->hot_only;
			top->first = 0;
			break;
		case 's':
			next_order(top);
			break;
		case '+':
			if (top->options.interval < MAX_INTERVAL_MS)
				top->options.interval *= 2;
			break;
		case '-':
			if (top->options.interval >= 2 * MIN_INTERVAL_MS)
				top->options.interval /= 2;
			break;
		default:
			if (!move(top, key))
				*sample = true;
	}
}

/* Returns false at the end. */
static bool
take_key(Top *top, int key, bool *sample)
{
	if (key == 26)				/* Ctrl-Z */
		screen_suspend();
	else if (top->asking != ASK_NOTHING)
		take_typed(top, key, sample);
	else if (key == 'q' || key == 'Q' || key == 4)	/* Ctrl-D */
		return false;
	else if (top->help)
		top->help = false;
	else if (top->opened != NULL && key == 'x')
		ask(top, ASK_REASON);
	else if (top->opened != NULL && (key == KEY_ESCAPE || key == '\r' || key == '\n'))
		close_lock(top);
	else if (top->opened != NULL)
		*sample = true;
	else
		take_command(top, key, sample);
	return true;
}

static bool
take_keys(Top *top, bool *sample)
{
	int			key;

	if (!screen_read())
		return false;
	while ((key = screen_key()) != 0)
		if (!take_key(top, key, sample))
			return false;
	return true;
}

/*
 * ESC is a key of its own only where it means something, and if nothing follows
 * soon that makes it the first byte of another key.
 */
static bool
wants_escape(const Top *top)
{
	return (top->asking != ASK_NOTHING || top->help || top->opened != NULL) && screen_in_escape();
}

/* A signal, a key, or the time to look.  Returns false at the end. */
static bool
take_news(Top *top, int news, bool *sample)
{
	switch (news)
	{
		case NEWS_NONE:
			if (wants_escape(top))
			{
				screen_end_escape();
				return take_key(top, KEY_ESCAPE, sample);
			}
			*sample = true;
			return true;
		case NEWS_INPUT:
			return take_keys(top, sample);
		case SIGCONT:
			screen_take();
			return true;
		case SIGWINCH:
			forget_widths(top);
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
	bool		sample = true;
	bool		goes_on = true;

	/* only until the end of this function */
	/* cppcheck-suppress autoVariables */
	top->list = &list;
	news_start();
	news_add_input(STDIN_FILENO);
	screen_take();
	atexit(screen_restore);
	while (goes_on)
	{
		Text		frame = {0};
		int64_t		until;

		/* moving in the list needs no new data */
		if (sample)
		{
			int64_t		began = dlock_now();

			status = look_at_server(top, handle, MAX_ANSWER_MS, &list, &err);
			if (status == DLOCK_OK)
				samples_count_keys(&top->samples, &list, top->filter, &top->hot);
			looked_at = dlock_now();
			top->pause = status == DLOCK_OK ? (looked_at - began) * LOOK_REST : 0;
			sample = false;
		}
		look_at_terminal(top);
		make_frame(top, &frame, &list, status == DLOCK_OK ? NULL : &err);
		until = looked_at + (top->pause > top->options.interval ?
							 top->pause : top->options.interval);
		if (wants_escape(top))
			until = dlock_now() + ESCAPE_MS;
		goes_on = screen_paint(&frame, top->height) &&
			take_news(top, news_wait(until), &sample);
		text_free(&frame);
	}
	screen_restore();
	list_free(&list);
}

int
run_top(const Options *options)
{
	Top			top = {.options = *options};
	dlock_handle *handle = connect_reader(options, NULL);
	int			code = 0;

	top.coloured = colours_on(stdout);
	top.live = !options->once && !options->json && isatty(STDIN_FILENO) &&
		isatty(STDOUT_FILENO);
	if (top.options.sort == NULL)
		top.options.sort = "waiters";
	if (options->key != NULL)
		top.filter = copy_string(options->key);
	if (top.live)
		live(&top, handle);
	else
		code = one_frame(&top, handle);
	list_free(&top.hot);
	close_lock(&top);
	samples_free(&top.samples);
	text_free(&top.typed);
	text_free(&top.server);
	free(top.filter);
	dlock_close(handle);
	return code;
}
