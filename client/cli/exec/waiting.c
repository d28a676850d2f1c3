/*
 * waiting.c
 *	  What is told to those who wait for a lock: where they stand.
 *
 * On a terminal it is one line, which is written anew each second.  Elsewhere, as in a
 * log, it is a line when the wait has begun, and another one now and then.  When the lock
 * is there, a line says how long it took.  Nothing is told of a short wait.
 */
#include "exec/hold.h"
#include "show/list.h"
#include "times.h"
#include "base/util.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void
waiting_begin(Waiting *waiting, dlock_handle *handle, const Hold *hold,
			  const dlock_options *options)
{
	int64_t		now = dlock_now();

	memset(waiting, 0, sizeof(*waiting));
	waiting->handle = handle;
	waiting->hold = hold;
	waiting->owner = options->owner;
	waiting->began = now;
	waiting->until = options->wait_ms < 0 ? DLOCK_NEVER : dlock_later(now, options->wait_ms);
	waiting->is_live = isatty(STDERR_FILENO) && !is_dumb_terminal();
	waiting->tell_at = is_quiet ? DLOCK_NEVER : now + TELL_WAIT_MS;
}

/* The place of our request; 0: it has none. */
static int
place(const Waiting *waiting, const List *list)
{
	for (size_t i = 0; i < list->waiter_count; i++)
		if (list->waiters[i].owner != NULL && strcmp(list->waiters[i].owner, waiting->owner) == 0)
			return list->waiters[i].position;
	return 0;
}

/* On a terminal, what matters most has to fit into one line. */
static void
add_place(const Waiting *waiting, Text *line, int position)
{
	const char *queue = waiting->is_live ? "" : " in the queue";

	if (position == 1)
		text_format(line, ", next%s", queue);
	else if (position > 1)
		text_format(line, ", number %d%s", position, queue);
	else
		text_add(line, ", not in the queue: the server has no room for tickets, and is asked again and again");
}

static void
add_holder(const Waiting *waiting, Text *line, const Entry *entry)
{
	const dlock_info *info = shown_grant(entry);

	if (info == NULL)
		text_add(line, "nobody holds it");
	else if (is_pending(info))
		text_pending(line, waiting->handle, info->using_pid);
	else if (is_cooling(info))
		text_add(line, "nobody holds it, but it stays busy for a while");
	else if (waiting->is_live)
		text_format(line, "%s has it", info->owner != NULL ? info->owner : info->role);
	else
	{
		text_format(line, "held by role %s", info->role);
		if (info->owner != NULL)
			text_format(line, ", owner %s", info->owner);
		else if (info->origin != NULL)
			text_format(line, ", %s", info->origin);
		if (holder_count(entry) > 1)
			text_format(line, " and %d more", (int) holder_count(entry) - 1);
		if (entry_held_for(entry) >= 0)
		{
			text_add(line, ", for ");
			text_duration(line, entry_held_for(entry));
		}
	}
}

/*
 * One key: its holder, and our place.  If no server answers, that is what is told.  False:
 * we are not in the queue, but may be on our way to it or from it.
 */
static bool
look(Waiting *waiting, Text *holder, Text *queue)
{
	const char *key = waiting->hold->keys[0];
	Entry		nobody = {.key = key};
	List		list;
	dlock_error err = {0};
	bool		is_sure = true;
	dlock_status status = list_get_one(waiting->handle, key, LOOK_MS, &list, &err);

	if (status == DLOCK_OK)
	{
		add_holder(waiting, holder, list.count > 0 ? list.entries : &nobody);
		if (waiting->until > waiting->began)
		{
			is_sure = place(waiting, &list) > 0 || waiting->is_missing;
			waiting->is_missing = place(waiting, &list) == 0;
			add_place(waiting, queue, place(waiting, &list));
		}
	}
	else
		text_add(holder, err.message);
	list_free(&list);
	return is_sure;
}

static int
error_width(void)
{
	struct winsize size;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

/* How long it has been, and how long it will be. */
static void
add_times(const Waiting *waiting, Text *line)
{
	int64_t		now = dlock_now();

	if (waiting->is_live || waiting->told)
	{
		text_add(line, waiting->is_live ? " " : "; ");
		text_duration(line, now - waiting->began);
		text_add(line, waiting->is_live ? "" : " so far");
	}
	if (waiting->until != DLOCK_NEVER && waiting->until > now)
	{
		text_add(line, waiting->is_live || waiting->told ? ", " : "; ");
		text_duration(line, waiting->until - now);
		text_add(line, " left");
	}
}

/* In one line of the terminal: the holder, which comes last, gets what room there is. */
static void
tell_live(const Waiting *waiting, const char *what, const char *holder, const char *queue)
{
	int			width = error_width() - 1;
	Text		line = {0};
	Text		shown = {0};

	text_format(&line, "dlock: %s", what);
	add_times(waiting, &line);
	text_add(&line, queue);
	width -= printable_cut(&shown, line.data, width);
	if (holder[0] != '\0' && width > 10)
	{
		text_add(&shown, "; ");
		(void) printable_cut(&shown, holder, width - 2);
	}
	progress(shown.data);
	text_free(&shown);
	text_free(&line);
}

static void
tell_log(const Waiting *waiting, const char *what, const char *holder, const char *queue)
{
	Text		times = {0};

	text_clear(&times);
	add_times(waiting, &times);
	notice("%s%s%s%s%s", what, holder[0] != '\0' ? ": " : "", holder, queue, times.data);
	text_free(&times);
}

/* It is time to tell; sets when it is time again. */
void
waiting_tell(Waiting *waiting)
{
	Text		what = {0};
	Text		holder = {0};
	Text		queue = {0};
	bool		is_sure = true;

	text_clear(&holder);
	text_clear(&queue);
	if (waiting->hold->count > 1)
		text_format(&what, "waiting for %d locks", waiting->hold->count);
	else
	{
		text_format(&what, "waiting for lock \"%s\"", waiting->hold->keys[0]);
		is_sure = look(waiting, &holder, &queue);
	}
	if (is_sure && waiting->is_live)
		tell_live(waiting, what.data, holder.data, queue.data);
	else if (is_sure)
		tell_log(waiting, what.data, holder.data, queue.data);
	waiting->told |= is_sure;
	waiting->tell_at = dlock_now() + (!is_sure ? TELL_WAIT_MS : waiting->is_live ? LIVE_MS : TELL_AGAIN_MS);
	text_free(&what);
	text_free(&holder);
	text_free(&queue);
}

void
waiting_end(Waiting *waiting, bool granted)
{
	Text		after = {0};

	progress(NULL);
	if (!waiting->told || !granted)
		return;
	text_duration(&after, dlock_now() - waiting->began);
	if (waiting->hold->count == 1)
		notice("got lock \"%s\" after %s", waiting->hold->keys[0], after.data);
	else
		notice("got %d locks after %s", waiting->hold->count, after.data);
	text_free(&after);
}
