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

static void
add_place(Text *line, int position)
{
	if (position == 1)
		text_add(line, ", next in the queue");
	else if (position > 1)
		text_format(line, ", number %d in the queue", position);
	else
		text_add(line, ", not in the queue: the server has no room for tickets, and is asked again and again");
}

static void
add_holder(Text *line, dlock_handle *handle, const Entry *entry)
{
	const dlock_info *info = shown_grant(entry);

	if (info == NULL)
		text_add(line, "nobody holds it");
	else if (is_pending(info))
		text_pending(line, handle, info->using_pid);
	else if (is_cooling(info))
		text_add(line, "nobody holds it, but it stays busy for a while");
	else
	{
		text_format(line, "held by role %s", info->role);
		if (info->owner != NULL)
			text_format(line, ", owner %s", info->owner);
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
add_queue(Waiting *waiting, Text *line)
{
	const char *key = waiting->hold->keys[0];
	Entry		nobody = {.key = key};
	List		list;
	dlock_error err = {0};
	bool		is_sure = true;
	dlock_status status = list_get_one(waiting->handle, key, LOOK_MS, &list, &err);

	text_format(line, "waiting for lock \"%s\": ", key);
	if (status == DLOCK_OK)
	{
		const Entry *entry = list.count > 0 ? list.entries : &nobody;

		add_holder(line, waiting->handle, entry);
		if (waiting->until > waiting->began)
		{
			is_sure = place(waiting, &list) > 0 || waiting->is_missing;
			waiting->is_missing = place(waiting, &list) == 0;
			add_place(line, place(waiting, &list));
		}
	}
	else
		text_add(line, err.message);
	list_free(&list);
	return is_sure;
}

static int
error_width(void)
{
	struct winsize size;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

/* It is time to tell; sets when it is time again. */
void
waiting_tell(Waiting *waiting)
{
	Text		line = {0};
	int64_t		now;

	if (waiting->hold->count > 1)
		text_format(&line, "waiting for %d locks", waiting->hold->count);
	else if (!add_queue(waiting, &line))
	{
		text_free(&line);
		waiting->tell_at = dlock_now() + TELL_WAIT_MS;
		return;
	}
	now = dlock_now();
	if (waiting->told || waiting->is_live)
	{
		text_add(&line, "; ");
		text_duration(&line, now - waiting->began);
		text_add(&line, " so far");
	}
	if (waiting->until != DLOCK_NEVER && waiting->until > now)
	{
		text_add(&line, waiting->told || waiting->is_live ? ", " : "; ");
		text_duration(&line, waiting->until - now);
		text_add(&line, " left");
	}
	if (waiting->is_live)
	{
		Text		cut = {0};

		text_add(&cut, "dlock: ");
		printable_cut(&cut, line.data, error_width() - 8);
		progress(cut.data);
		text_free(&cut);
	}
	else
		notice("%s", line.data);
	text_free(&line);
	waiting->told = true;
	waiting->tell_at = dlock_now() + (waiting->is_live ? LIVE_MS : TELL_AGAIN_MS);
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
