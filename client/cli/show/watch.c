/*
 * watch.c
 *	  Printing a line for each change of a key.
 */
#include "show/list.h"
#include "times.h"

#include <poll.h>
#include <string.h>

/* Continuation lines are indented, so that changes stand out. */
#define INDENT 4

static bool
print_change(const Options *options, int64_t version, bool cools, const dlock_info *info)
{
	const char *event = version != 0 ? "held" : cools ? "cooling" : "free";
	Text		line = {0};
	int64_t		now_unix = unix_now_ms();

	if (options->json)
	{
		json_open(&line, NULL, '{');
		json_time(&line, "time", now_unix);
		json_string(&line, "key", options->key);
		json_string(&line, "event", event);
		if (version != 0)
			json_number(&line, "version", version);
		if (info != NULL)
		{
			json_string(&line, "role", info->role);
			json_string(&line, "owner", info->owner);
			json_string(&line, "value", info->value);
			json_number(&line, "priority", info->priority);
			json_seconds(&line, "ttl", info->ttl_ms);
		}
		json_close(&line, '}');
	}
	else
	{
		Text		whole = {0};

		text_time(&line, now_unix);
		text_add(&line, "  ");
		text_printable(&line, options->key);
		if (version == 0)
			text_format(&line, "  %s", event);
		else
			text_format(&line, "  version %lld", (long long) version);
		if (info != NULL)
		{
			text_add(&line, "  role ");
			text_printable(&line, info->role);
			if (info->owner != NULL)
			{
				text_add(&line, "  owner ");
				text_printable(&line, info->owner);
			}
			if (info->value != NULL)
			{
				text_add(&line, "  value ");
				text_printable(&line, info->value);
			}
		}
		whole = line;
		memset(&line, 0, sizeof(line));
		text_wrapped(&line, whole.data, 0, INDENT, terminal_width());
		text_free(&whole);
	}
	return finish_line(&line);
}

/* What a look at the key has found. */
typedef struct
{
	dlock_info *infos;
	size_t		count;
	const dlock_info *holder;	/* NULL: nobody has it */
	int64_t		cools_for;		/* but it stays busy for so long */
} Seen;

static void
forget(Seen *seen)
{
	dlock_list_free(seen->infos, seen->count);
	memset(seen, 0, sizeof(*seen));
}

static dlock_status
look(dlock_handle *handle, const Options *options, Seen *seen, dlock_error *err)
{
	dlock_status status;
	Entry		entry = {.key = options->key};

	forget(seen);
	status = dlock_get_info(handle, options->key, -1, &seen->infos, &seen->count, err);
	entry.grants = seen->infos;
	entry.grant_count = seen->count;
	seen->holder = shown_grant(&entry);
	if (seen->holder != NULL && is_cooling(seen->holder))
		seen->cools_for = seen->holder->remaining_ms + 1;
	if (seen->holder != NULL && (is_cooling(seen->holder) || is_pending(seen->holder)))
		seen->holder = NULL;
	return status;
}

/* A standby is not told of changes, so we look until there is one. */
static dlock_status
look_again(dlock_handle *handle, const Options *options, Seen *seen, int64_t *version,
		   dlock_error *err)
{
	int64_t		before = *version;
	bool		cooled = seen->cools_for > 0;
	dlock_status status;

	do
	{
		poll(NULL, 0, STANDBY_LOOK_MS);
		status = look(handle, options, seen, err);
		*version = seen->holder != NULL ? seen->holder->version : 0;
	} while (status == DLOCK_OK && *version == before && cooled == (seen->cools_for > 0));
	return status;
}

/*
 * Print the current state, then each change.  A watch that was interrupted is
 * resumed with the version that it knows, so a failover does not end it.  The
 * server does not report the end of a cooling, so we look when it is due.
 */
int
run_watch(const Options *options)
{
	bool		on_standby;
	dlock_handle *handle = connect_reader(options, &on_standby);
	dlock_error err = {0};
	dlock_status status;
	int64_t		version;
	int64_t		lines = 0;
	bool		told = true;
	Seen		seen = {0};

	status = look(handle, options, &seen, &err);
	version = seen.holder != NULL ? seen.holder->version : 0;
	while (status == DLOCK_OK)
	{
		/* an observer of an election is not interested in the gaps */
		if (!options->observe || version != 0)
		{
			told = print_change(options, version, seen.cools_for > 0, seen.holder);
			lines++;
		}
		if (!told || (options->until_free && version == 0 && seen.cools_for == 0) ||
			(options->count > 0 && lines >= options->count))
			break;
		if (on_standby)
		{
			status = look_again(handle, options, &seen, &version, &err);
			continue;
		}
		status = dlock_watch(handle, options->key, &version,
							 seen.cools_for > 0 ? seen.cools_for : -1, &err);
		if (status != DLOCK_OK && status != DLOCK_UNCHANGED)
			break;
		status = look(handle, options, &seen, &err);

		/* it has changed again meanwhile, which is the next line */
		if (seen.holder != NULL && seen.holder->version != version)
			seen.holder = NULL;
	}
	forget(&seen);
	if (status != DLOCK_OK)
		return give_up(handle, status, &err, options->key);
	dlock_close(handle);
	return 0;
}
