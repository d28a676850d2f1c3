/*
 * calls.c
 *	  The commands that make one call: acquire, refresh, release, check, handover
 *	  and force-release.
 */
#include "exec/hold.h"
#include "show/list.h"
#include "signals.h"

#include <errno.h>
#include <string.h>

static const char *
answer_name(dlock_status status, const char *ok)
{
	switch (status)
	{
		case DLOCK_OK:
			return ok;
		case DLOCK_PREEMPTING:
			return "preempting";
		case DLOCK_HELD_BY_OTHER:
			return "held_by_other";
		case DLOCK_BUSY:
			return "busy";
		case DLOCK_REFUSED:
			return "refused";
		case DLOCK_LOST:
			return "lost";
		default:
			return "not_held";
	}
}

/* Is it an answer, if only a negative one, and not an error? */
static bool
is_answer(dlock_status status)
{
	return status <= DLOCK_REFUSED;
}

/* {"key": ..., "result": ...} is left open for more */
static void
start_json(Text *json, const Options *options, dlock_status status,
		   const char *ok)
{
	json_open(json, NULL, '{');
	json_string(json, "key", options->key);
	json_string(json, "result", answer_name(status, ok));
}

static bool
end_json(Text *json)
{
	json_close(json, '}');
	return finish_line(json);
}

/*
 * The lock was granted, but its version could not be written, so nobody could
 * release it: release it here.  A lock with a given owner stays, because it can
 * be released by that owner, and may have been held before.
 */
static int
give_back(dlock_handle *handle, const Options *options, Hold *hold)
{
	int			i;

	if (output_unread())
		error("could not write to standard output: %s", strerror(EPIPE));
	if (options->owner == NULL && hold_release(hold, -1, NULL) == DLOCK_OK)
		for (i = 0; i < hold->count; i++)
			detail("Lock \"%s\" was released again.", hold->keys[i]);
	hold_free(hold);
	dlock_close(handle);
	return EXIT_INTERNAL;
}

/* The versions in the order of the keys, one per line. */
static bool
print_versions(const Hold *hold)
{
	Text		lines = {0};
	int			i;

	for (i = 0; i < hold->count; i++)
		text_format(&lines, "%lld\n", (long long) dlock_version(hold->locks[i]));
	return finish_output(&lines);
}

static bool
print_acquired(const Options *options, dlock_status status, const Hold *hold)
{
	Text		json = {0};
	int			i;

	start_json(&json, options, status, "granted");
	if (status == DLOCK_OK)
	{
		json_number(&json, "version", dlock_version(hold->locks[0]));
		json_string(&json, "owner", dlock_owner(hold->locks[0]));
		json_seconds(&json, "ttl", dlock_ttl_ms(hold->locks[0]));
	}
	if (status == DLOCK_OK && hold->count > 1)
	{
		json_open(&json, "locks", '[');
		for (i = 0; i < hold->count; i++)
		{
			json_open(&json, NULL, '{');
			json_string(&json, "key", hold->keys[i]);
			json_number(&json, "version", dlock_version(hold->locks[i]));
			json_close(&json, '}');
		}
		json_close(&json, ']');
	}
	return end_json(&json);
}

int
run_acquire(const Options *options)
{
	dlock_handle *handle;
	dlock_options lock_options;
	Hold		hold;
	dlock_error err = {0};
	dlock_status status;
	int			signo;
	bool		told = true;

	news_start();
	handle = connect_server(options);
	fill_lock_options(options, &lock_options);
	lock_options.renew = 0;
	hold_init(&hold, options);
	status = hold_acquire(&hold, handle, options, &lock_options, HOLD_ACQUIRE, &err,
						  &signo);
	if (signo != 0)
		die_by_signal(signo);
	if (!is_answer(status))
		return give_up(handle, status, &err, options->key);

	if (options->json)
		told = print_acquired(options, status, &hold);
	else if (status == DLOCK_OK)
		told = print_versions(&hold);
	else
		report_denied(handle, status, &err, &hold, options);
	if (status == DLOCK_OK && !told)
		return give_back(handle, options, &hold);

	/* the locks stay when we exit */
	hold_free(&hold);
	dlock_close(handle);
	return exit_code(status);
}

int
run_refresh(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	int64_t		expires_at = 0;
	dlock_status status = dlock_refresh_key(handle, options->key,
											options->version, options->owner,
											options->ttl, -1, &expires_at,
											&err);

	if (!is_answer(status))
		return give_up(handle, status, &err, options->key);
	if (options->json)
	{
		Text		json = {0};

		start_json(&json, options, status, "refreshed");
		if (status == DLOCK_OK)
			json_time(&json, "expires_at", expires_at);
		end_json(&json);
	}
	else if (status == DLOCK_OK)
	{
		Text		line = {0};

		text_time(&line, expires_at);
		finish_line(&line);
	}
	else
		report_lost(handle, options);
	dlock_close(handle);
	return exit_code(status);
}

/* Print the answer, which is one word. */
static int
one_word(dlock_handle *handle, const Options *options, dlock_status status,
		 const dlock_error *err, const char *ok)
{
	if (!is_answer(status))
		return give_up(handle, status, err, options->key);
	if (options->json)
	{
		Text		json = {0};

		start_json(&json, options, status, ok);
		end_json(&json);
	}
	else
	{
		Text		line = {0};

		text_add(&line, answer_name(status, ok));
		finish_line(&line);
	}
	dlock_close(handle);
	return exit_code(status);
}

int
run_release(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	dlock_status status = dlock_release_key(handle, options->key,
											options->version, options->owner,
											-1, &err);

	return one_word(handle, options, status, &err, "released");
}

int
run_check(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	dlock_status status = dlock_check_key(handle, options->key,
										  options->version, options->owner,
										  -1, &err);

	return one_word(handle, options, status, &err, "held");
}

/* Print the answer, which is a version. */
static int
one_version(dlock_handle *handle, const Options *options, dlock_status status,
			const dlock_error *err, const char *ok, int64_t version)
{
	if (!is_answer(status))
		return give_up(handle, status, err, options->key);
	if (options->json)
	{
		Text		json = {0};

		start_json(&json, options, status, ok);
		if (status == DLOCK_OK)
			json_number(&json, "version", version);
		end_json(&json);
	}
	else if (status == DLOCK_OK)
	{
		Text		line = {0};

		text_format(&line, "%lld", (long long) version);
		finish_line(&line);
	}
	else if (status == DLOCK_LOST)
		report_lost(handle, options);
	else
		report_status(status, err, options->key);
	dlock_close(handle);
	return exit_code(status);
}

int
run_handover(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	int64_t		version = 0;
	dlock_status status = dlock_handover_key(handle, options->key, options->version,
											 options->next_owner, options->ttl, -1,
											 &version, &err);

	return one_version(handle, options, status, &err, "handed_over", version);
}

int
run_force_release(const Options *options)
{
	dlock_handle *handle = connect_server(options);
	dlock_error err = {0};
	int64_t		version = 0;
	dlock_status status = dlock_force_release(handle, options->key,
											  options->version,
											  options->reason, -1, &version,
											  &err);

	return one_version(handle, options, status, &err, "released", version);
}
