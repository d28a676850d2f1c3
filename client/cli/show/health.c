/*
 * health.c
 *	  health: dlock_health(), with the exit codes of a Nagios plugin.
 */
#include "cli.h"
#include "api/inspect.h"
#include "base/sql.h"

#include <string.h>

/* of a plugin for Nagios, Icinga and the like */
#define PLUGIN_OK		0
#define PLUGIN_WARNING	1
#define PLUGIN_CRITICAL	2
#define PLUGIN_UNKNOWN	3

static int
plugin_code(const char *status)
{
	return strcmp(status, "ok") == 0 ? PLUGIN_OK :
		strcmp(status, "warning") == 0 ? PLUGIN_WARNING : PLUGIN_CRITICAL;
}

static const char *
plugin_word(int code)
{
	static const char *const words[] = {"OK", "WARNING", "CRITICAL", "UNKNOWN"};

	return words[code];
}

static void
add_advice(Text *out, const char *what_to_do)
{
	text_add(out, "         ");
	text_printable(out, what_to_do);
	text_add(out, "\n");
}

/* Could not find out: to a check, that is not a failure of the server. */
static int
unknown(const Options *options, dlock_status status, const dlock_error *err)
{
	const char *what_to_do = advice(status, err);
	Text		out = {0};

	if (options->json)
	{
		json_open(&out, NULL, '{');
		json_string(&out, "status", "unknown");
		json_string(&out, "detail", err->message);
		json_close(&out, '}');
		text_add(&out, "\n");
	}
	else
	{
		text_format(&out, "dlock %s: ", plugin_word(PLUGIN_UNKNOWN));
		text_printable(&out, err->message);
		text_add(&out, "\n");
		if (what_to_do != NULL)
			add_advice(&out, what_to_do);
	}
	finish_output(&out);
	return PLUGIN_UNKNOWN;
}

/* The first row is the verdict, and the first line is all that many checks show. */
static void
add_text(Text *out, const DlockReply *reply)
{
	int			row;

	for (row = 0; row < dlock_reply_rows(reply); row++)
	{
		const char *name = dlock_reply_text(reply, row, 0);
		const char *status = dlock_reply_text(reply, row, 1);
		const char *what_to_do = dlock_reply_get(reply, row, 3);

		if (row == 0)
			text_format(out, "dlock %s: ", plugin_word(plugin_code(status)));
		else
		{
			text_format(out, "%-8s ", status);
			text_printable(out, name);
			text_add(out, ": ");
		}
		text_printable(out, dlock_reply_text(reply, row, 2));
		text_add(out, "\n");
		if (what_to_do != NULL && strcmp(status, "ok") != 0)
			add_advice(out, what_to_do);
	}
}

static void
add_json(Text *json, const DlockReply *reply)
{
	static const char *const names[] = {"name", "status", "detail", "hint"};
	int			row;
	int			column;

	json_open(json, NULL, '{');
	json_string(json, "status", dlock_reply_get(reply, 0, 1));
	json_open(json, "checks", '[');
	for (row = 0; row < dlock_reply_rows(reply); row++)
	{
		json_open(json, NULL, '{');
		for (column = 0; column < 4; column++)
			json_string(json, names[column], dlock_reply_get(reply, row, column));
		json_close(json, '}');
	}
	json_close(json, ']');
	json_close(json, '}');
	text_add(json, "\n");
}

int
run_health(const Options *options)
{
	dlock_handle *handle = connect_reader(options, NULL);
	dlock_error err = {0};
	DlockReply *reply = NULL;
	Text		out = {0};
	int			code;
	dlock_status status = dlock_read(handle, dlock_sql_health, -1, &reply, &err);

	if (status != DLOCK_OK)
	{
		dlock_close(handle);
		return unknown(options, status, &err);
	}
	code = plugin_code(dlock_reply_text(reply, 0, 1));
	if (options->json)
		add_json(&out, reply);
	else
		add_text(&out, reply);
	finish_output(&out);
	dlock_reply_free(reply);
	dlock_close(handle);
	return code;
}
