/*
 * top.c
 *	  A live view of the locks, in a plain terminal.
 *
 * How often a key changes hands is not known to the server: it is what we
 * see from one look to the next, a change a look at most, faded over a minute.
 */
#include "cli.h"
#include "child.h"
#include "top.h"

#include <langinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define FADE_MS 60000.0
#define MAX_ANSWER_MS 3000

static struct termios old_terminal;
static bool terminal_changed = false;

static void
restore_terminal(void)
{
	if (!terminal_changed)
		return;
	terminal_changed = false;
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &old_terminal);
	fputs("\033[?25h\033[?1049l", stdout);
	fflush(stdout);
}

/* Also when we go on after Ctrl-Z: the shell has set it back. */
static void
take_terminal(void)
{
	struct termios raw;

	if (tcgetattr(STDIN_FILENO, &raw) != 0)
		return;
	if (!terminal_changed)
		old_terminal = raw;
	raw.c_lflag &= ~(tcflag_t) (ICANON | ECHO);
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
	terminal_changed = true;
	fputs("\033[?1049h\033[?25l\033[2J", stdout);
}

static void
look_at_terminal(Top *top)
{
	struct winsize size;

	if (!top->live)
	{
		top->width = terminal_width();
		return;
	}
	top->width = 80;
	top->height = 24;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 &&
		size.ws_row > 0)
	{
		top->width = size.ws_col;
		top->height = size.ws_row;
	}
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

/* Who has changed hands since the last look? */
static void
count_changes(Top *top, List *list)
{
	int64_t		now = now_ms();
	double		kept = 1.0 - (double) (now - top->seen_at) / FADE_MS;
	Seen	   *seen = allocate((list->count + 1) * sizeof(Seen));
	size_t		i;

	if (kept < 0)
		kept = 0;
	for (i = 0; i < list->count; i++)
	{
		Entry	   *entry = &list->entries[i];
		int64_t		version = entry->info != NULL ? entry->info->version : 0;
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

/* Over the old frame, line by line: clearing it first would flicker. */
static void
paint(const Top *top, const Text *frame)
{
	const char *line = frame->data;
	int			row;

	fputs("\033[H", stdout);
	for (row = 0; row < top->height && *line != '\0'; row++)
	{
		size_t		length = strcspn(line, "\n");

		if (row > 0)
			fputs("\r\n", stdout);
		fwrite(line, 1, length, stdout);
		fputs("\033[K", stdout);
		line += length + (line[length] == '\n' ? 1 : 0);
	}
	fputs("\033[J", stdout);
	fflush(stdout);
}

static int
one_frame(Top *top, dlock_handle *handle)
{
	List		list;
	dlock_error err = {0};
	Text		out = {0};
	dlock_status status = list_get(handle, &top->options, -1, &list, &err);

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

/* Returns false when it is time to go. */
static bool
take_key(Top *top)
{
	char		key;

	if (read(STDIN_FILENO, &key, 1) != 1)
		return false;
	switch (key)
	{
		case 'q':
		case 'Q':
		case 4:					/* Ctrl-D */
			return false;
		case 's':
			next_order(top);
			break;
		case '+':
			if (top->options.interval < 60000)
				top->options.interval *= 2;
			break;
		case '-':
			if (top->options.interval >= 200)
				top->options.interval /= 2;
			break;
	}
	return true;
}

static void
live(Top *top, dlock_handle *handle)
{
	bool		goes_on = true;

	news_start();
	news_add_input(STDIN_FILENO);
	take_terminal();
	atexit(restore_terminal);
	while (goes_on)
	{
		List		list;
		dlock_error err = {0};
		Text		frame = {0};
		int64_t		until;
		int			news;
		dlock_status status = list_get(handle, &top->options, MAX_ANSWER_MS,
									   &list, &err);

		look_at_terminal(top);
		if (status == DLOCK_OK)
			count_changes(top, &list);
		make_frame(top, &frame, &list, status == DLOCK_OK ? NULL : &err);
		paint(top, &frame);
		text_free(&frame);
		list_free(&list);

		until = now_ms() + top->options.interval;
		news = news_wait(until);
		if (news == NEWS_INPUT)
			goes_on = take_key(top);
		else if (news == SIGCONT)
			take_terminal();
		else if (is_ending_signal(news))
		{
			restore_terminal();
			die_by_signal(news);
		}
	}
	restore_terminal();
	forget_seen(top);
}

int
run_top(const Options *options)
{
	Top			top = {.options = *options};
	dlock_handle *handle = connect_server(options);
	int			code = 0;

	top.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
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
