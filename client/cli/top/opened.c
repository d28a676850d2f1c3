/*
 * opened.c
 *	  One lock that was opened in dlock top: all that is known of it and of its sessions,
 *	  and its release by force.
 */
#include "times.h"
#include "top/top.h"
#include "api/inspect.h"

#include <stdlib.h>
#include <string.h>

/* the names before what is known, as in dlock info */
#define NAME_WIDTH 14

/* The first key of those that are shown that begins with what was typed; NULL: there is none. */
static const char *
find_key(const Top *top)
{
	const List *list = top->hot_only ? &top->hot : top->list;
	const char *typed = top->typed.data != NULL ? top->typed.data : "";
	size_t		i;

	for (i = 0; i < list->count; i++)
		if (strncmp(list->entries[i].key, typed, strlen(typed)) == 0)
			return list->entries[i].key;
	return NULL;
}

void
open_lock(Top *top)
{
	const char *key = find_key(top);

	close_lock(top);
	if (key != NULL)
		top->opened = copy_string(key);
}

void
close_lock(Top *top)
{
	free(top->opened);
	free(top->reason);
	top->opened = top->reason = NULL;
	top->release = false;
	list_free(&top->detail);
	text_free(&top->sessions);
	text_free(&top->said);
}

/* What pg_stat_activity knows of a session. */
static void
look_at_session(Top *top, dlock_handle *handle, const char *what, int32_t pid)
{
	char		sql[600];
	DlockReply *reply = NULL;
	static const char *const names[] = {"", ", ", " from ", ", ", ", transaction since "};
	Text		line = {0};
	int			column;

	snprintf(sql, sizeof(sql),
			 "SELECT a.pid, a.application_name, pg_catalog.host(a.client_addr),"
			 " pg_catalog.concat(a.state, CASE WHEN a.wait_event IS NOT NULL THEN"
			 " pg_catalog.concat(', waits for ', a.wait_event) END), a.xact_start::pg_catalog.text"
			 " FROM pg_catalog.pg_stat_activity a WHERE a.pid OPERATOR(pg_catalog.=) %d::pg_catalog.int4", (int) pid);
	if (dlock_read(handle, sql, MAX_ANSWER_MS, &reply, NULL) != DLOCK_OK || dlock_reply_rows(reply) == 0)
		return;
	text_format(&top->sessions, "%-*s", NAME_WIDTH, what);
	for (column = 0; column < 5; column++)
	{
		const char *value = dlock_reply_get(reply, 0, column);

		if (value == NULL || value[0] == '\0')
			continue;
		text_add(&line, names[column]);
		text_printable(&line, value);
	}
	text_wrapped(&top->sessions, line.data, NAME_WIDTH, NAME_WIDTH, top->width);
	text_add(&top->sessions, "\n");
	text_free(&line);
	dlock_reply_free(reply);
}

static void
force(Top *top, dlock_handle *handle)
{
	dlock_error err = {0};
	int64_t		taken = 0;
	dlock_status status = dlock_force_release(handle, top->opened, 0, top->reason,
											  MAX_ANSWER_MS, &taken, &err);

	top->release = false;
	text_clear(&top->said);
	if (status == DLOCK_OK)
		text_format(&top->said, "version %lld was taken away", (long long) taken);
	else
		text_message(&top->said, err.message);
}

/* Ask the server for what is shown of it; before that, release it if that is wanted. */
dlock_status
look_at_lock(Top *top, dlock_handle *handle, dlock_error *err)
{
	dlock_status status;
	size_t		i;

	if (top->release)
		force(top, handle);
	list_free(&top->detail);
	text_clear(&top->sessions);
	status = list_get_one(handle, top->opened, MAX_ANSWER_MS, &top->detail, err);
	for (i = 0; status == DLOCK_OK && i < top->detail.info_count && i < MAX_SESSIONS; i++)
	{
		const dlock_info *info = &top->detail.infos[i];

		if (info->pid != 0)
			look_at_session(top, handle, "session", info->pid);
		if (info->using_pid != 0)
			look_at_session(top, handle, "in use by", info->using_pid);
	}
	return status;
}

/* Instead of the list: what fits between the title and the last line. */
void
add_opened(const Top *top, Text *out)
{
	Entry		nobody = {.key = top->opened};
	Text		body = {0};
	const char *line;
	int			row;

	text_add(&body, "\n");
	text_info(&body, top->detail.count > 0 ? top->detail.entries : &nobody, &top->detail);
	if (top->sessions.len > 0)
		text_format(&body, "\n%s", top->sessions.data);
	line = body.data;
	for (row = 0; row < top->height - 2; row++)
	{
		size_t		length = strcspn(line, "\n");

		text_add_bytes(out, line, length);
		text_add(out, "\n");
		line += length + (line[length] == '\n' ? 1 : 0);
	}
	add_opened_status(top, out);
	text_free(&body);
}
