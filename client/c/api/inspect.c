/*-------------------------------------------------------------------------
 *
 * inspect.c
 *	  Looking at keys, and at grants that have no dlock_lock.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/inspect.h"

static dlock_status
ask(dlock_handle *handle, DlockRequest *request, const char *sql, int nparams,
	const char **params, int64_t timeout_ms, dlock_error *err)
{
	dlock_status status = dlock_handle_may_ask(handle, err);

	memset(request, 0, sizeof(*request));
	if (status != DLOCK_OK)
		return status;
	dlock_request_init(request, sql, nparams, params, dlock_handle_timeout(handle, timeout_ms));
	return dlock_request_call(handle, request, err);
}

dlock_status
dlock_read(dlock_handle *handle, const char *sql, int64_t timeout_ms,
		   DlockReply **reply, dlock_error *err)
{
	DlockRequest request;
	dlock_status status = ask(handle, &request, sql, 0, NULL, timeout_ms, err);

	*reply = request.reply;
	return status;
}

/*
 * The same about one key, which is the first parameter.  All but a check may wait
 * for its row, and have lock_timeout as their last one.
 */
static dlock_status
ask_about_key(dlock_handle *handle, DlockRequest *request, DlockKind kind, const char *sql,
			  int nparams, const char **params, int64_t timeout_ms, dlock_error *err)
{
	dlock_status status = dlock_handle_may_ask(handle, err);

	memset(request, 0, sizeof(*request));
	if (params[0] == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key must not be null");
	if (status != DLOCK_OK)
		return status;
	dlock_request_init(request, sql, nparams, params, dlock_handle_timeout(handle, timeout_ms));
	request->kind = kind;
	request->row_param = kind == DLOCK_CHECKS ? 0 : nparams;
	return dlock_request_call(handle, request, err);
}

/* A number as a parameter; 0 stands for null. */
static const char *
number_param(int64_t number, char *text, size_t size)
{
	if (number == 0)
		return NULL;
	snprintf(text, size, "%lld", (long long) number);
	return text;
}

/*
 * Rows
 */

/* A column as a text, to be freed.  NULL for null. */
static char *
copy(const DlockReply *reply, int row, int column, bool *ok)
{
	const char *text = dlock_reply_get(reply, row, column);
	char	   *made = text != NULL ? strdup(text) : NULL;

	*ok = *ok && (text == NULL || made != NULL);
	return made;
}

/* The same of a column that no server of ours leaves null, for programs that rely on that. */
static char *
copy_some(const DlockReply *reply, int row, int column, bool *ok)
{
	char	   *made = copy(reply, row, column, ok);

	if (made == NULL)
		made = strdup("");
	*ok = *ok && made != NULL;
	return made;
}

static bool
fill_info(dlock_info *info, const DlockReply *reply, int row)
{
	bool		ok = true;

	info->key = copy_some(reply, row, 0, &ok);
	info->version = dlock_max(dlock_reply_int(reply, row, 1), 0);
	info->owner = copy(reply, row, 2, &ok);
	info->role = info->version != 0 ? copy_some(reply, row, 3, &ok) : copy(reply, row, 3, &ok);
	info->value = copy(reply, row, 4, &ok);
	info->state = copy_some(reply, row, 5, &ok);
	info->priority = (int32_t) dlock_reply_int(reply, row, 6);
	info->acquired_at_ms = dlock_reply_amount(reply, row, 7);
	info->refreshed_at_ms = dlock_reply_amount(reply, row, 8);
	info->expires_at_ms = dlock_reply_amount(reply, row, 9);
	info->remaining_ms = dlock_reply_amount(reply, row, 10);
	info->ttl_ms = dlock_reply_amount(reply, row, 11);
	info->pid = (int32_t) dlock_reply_int(reply, row, 12);
	info->has_requestor = dlock_reply_bool(reply, row, 13);
	info->requestor_owner = copy(reply, row, 14, &ok);
	info->requestor_priority = (int32_t) dlock_reply_int(reply, row, 15);
	info->requestor_since_ms = dlock_reply_amount(reply, row, 16);
	info->requestor_deadline_ms = dlock_reply_amount(reply, row, 17);
	info->requestor_left_ms = dlock_reply_amount(reply, row, 18);
	if (info->version != 0)
	{
		info->slots = dlock_reply_slots(reply, row, 19);
		info->shared = info->slots == DLOCK_SHARED;
	}
	info->using_pid = (int32_t) dlock_reply_int(reply, row, 20);
	info->hidden = dlock_reply_bool(reply, row, 21);
	info->origin = copy(reply, row, 22, &ok);
	return ok;
}

static void
clear_info(dlock_info *info)
{
	free(info->key);
	free(info->owner);
	free(info->role);
	free(info->value);
	free(info->state);
	free(info->requestor_owner);
	free(info->origin);
}

void
dlock_list_free(dlock_info *infos, size_t n)
{
	for (size_t i = 0; i < n && infos != NULL; i++)
		clear_info(&infos[i]);
	free(infos);
}

void
dlock_info_free(dlock_info *info)
{
	dlock_list_free(info, 1);
}

static dlock_status
make_infos(DlockReply *reply, dlock_info **infos, size_t *n, dlock_error *err)
{
	size_t		rows = (size_t) dlock_reply_rows(reply);
	dlock_info *made = calloc(rows > 0 ? rows : 1, sizeof(dlock_info));
	bool		ok = made != NULL;

	for (size_t i = 0; i < rows && ok; i++)
		ok = fill_info(&made[i], reply, (int) i);
	dlock_reply_free(reply);
	if (!ok)
	{
		dlock_list_free(made, rows);
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	}
	*infos = made;
	*n = rows;
	return DLOCK_OK;
}

static dlock_status
infos_until(dlock_handle *handle, const char *key, int64_t timeout_ms,
			int64_t until, dlock_info **infos, size_t *n, dlock_error *err)
{
	DlockRequest request;
	const char *params[1];
	dlock_status status;

	*infos = NULL;
	*n = 0;
	params[0] = key;
	dlock_request_init(&request, dlock_sql_info, 1, params, timeout_ms);
	request.until = until;
	status = dlock_request_call(handle, &request, err);
	if (status == DLOCK_OK)
		status = make_infos(request.reply, infos, n, err);
	return status;
}

/*
 * The grant with the highest version that is held, which is what dlock_watch() sees;
 * returns n if none is.
 */
static size_t
find_leader(const dlock_info *infos, size_t n)
{
	size_t		leader = n;

	for (size_t i = 0; i < n; i++)
		if (infos[i].version != 0 && strcmp(infos[i].state, "cooling") != 0)
			leader = i;
	return leader;
}

dlock_status
dlock_get_info(dlock_handle *handle, const char *key, int64_t timeout_ms,
			   dlock_info **infos, size_t *n, dlock_error *err)
{
	dlock_status status;

	if (infos == NULL || n == NULL || key == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key and list must not be null");
	*infos = NULL;
	*n = 0;
	status = dlock_handle_may_ask(handle, err);
	if (status != DLOCK_OK)
		return status;
	timeout_ms = dlock_handle_timeout(handle, timeout_ms);
	return infos_until(handle, key, timeout_ms, dlock_later(dlock_now(), timeout_ms), infos, n, err);
}

/*
 * The same pattern for LIKE: a star is a percent sign, a question mark is an underscore.
 * NULL stands for all keys; the result is NULL if memory is exhausted.
 */
static char *
like_pattern(const char *pattern)
{
	char	   *like;
	char	   *to;

	if (pattern == NULL)
		pattern = "*";
	to = like = malloc(strlen(pattern) * 2 + 1);
	for (; like != NULL && *pattern != '\0'; pattern++)
	{
		if (*pattern == '*' || *pattern == '?')
		{
			*to++ = *pattern == '*' ? '%' : '_';
			continue;
		}
		if (*pattern == '\\' && pattern[1] != '\0')
			pattern++;
		if (strchr("%_\\", *pattern) != NULL)
			*to++ = '\\';
		*to++ = *pattern;
	}
	if (like != NULL)
		*to = '\0';
	return like;
}

dlock_status
dlock_list_by(dlock_handle *handle, const char *sql, const char *pattern, const char *after,
			  int64_t limit, int64_t timeout_ms, dlock_info **infos, size_t *n,
			  dlock_error *err)
{
	bool		with_like = sql == dlock_sql_list_hot;
	DlockRequest request;
	char		text[24];
	const char *params[4];
	char	   *like;
	dlock_status status;

	if (infos == NULL || n == NULL)
		return dlock_fail(err, DLOCK_INVALID, "list must not be null");
	*infos = NULL;
	*n = 0;
	like = like_pattern(pattern);
	if (like == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	params[0] = pattern != NULL ? pattern : "*";
	params[1] = after;
	params[2] = number_param(limit < INT32_MAX ? limit : 0, text, sizeof(text));
	params[3] = like;
	status = ask(handle, &request, sql, with_like ? 4 : 3, params, timeout_ms, err);
	free(like);
	if (status == DLOCK_OK)
		status = make_infos(request.reply, infos, n, err);
	return status;
}

dlock_status
dlock_list(dlock_handle *handle, const char *pattern, const char *after, int64_t limit,
		   int64_t timeout_ms, dlock_info **infos, size_t *n, dlock_error *err)
{
	return dlock_list_by(handle, dlock_sql_list, pattern, after, limit, timeout_ms, infos, n, err);
}

void
dlock_waiters_free(dlock_waiter *waiters, size_t n)
{
	for (size_t i = 0; i < n && waiters != NULL; i++)
	{
		free(waiters[i].key);
		free(waiters[i].owner);
	}
	free(waiters);
}

dlock_status
dlock_list_waiters(dlock_handle *handle, const char *pattern, int64_t limit,
				   int64_t timeout_ms, dlock_waiter **waiters, size_t *n,
				   dlock_error *err)
{
	DlockRequest request;
	char		text[24];
	const char *params[2];
	char	   *like;
	dlock_waiter *made;
	size_t		rows;
	bool		ok;
	dlock_status status;

	if (waiters == NULL || n == NULL)
		return dlock_fail(err, DLOCK_INVALID, "list must not be null");
	*waiters = NULL;
	*n = 0;
	like = like_pattern(pattern);
	if (like == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	params[0] = like;
	params[1] = number_param(limit, text, sizeof(text));
	status = ask(handle, &request, dlock_sql_waiters, 2, params, timeout_ms, err);
	free(like);
	if (status != DLOCK_OK)
		return status;

	rows = (size_t) dlock_reply_rows(request.reply);
	made = calloc(rows > 0 ? rows : 1, sizeof(dlock_waiter));
	ok = made != NULL;
	for (size_t i = 0; i < rows && ok; i++)
	{
		const DlockReply *reply = request.reply;
		int			row = (int) i;

		made[i].key = copy_some(reply, row, 0, &ok);
		made[i].pid = (int32_t) dlock_reply_int(reply, row, 1);
		made[i].owner = copy(reply, row, 2, &ok);
		made[i].watches = dlock_reply_bool(reply, row, 3);
		made[i].priority = (int32_t) dlock_reply_int(reply, row, 4);
		made[i].position = (int32_t) dlock_reply_int(reply, row, 5);
		made[i].since_ms = dlock_reply_amount(reply, row, 6);
		made[i].until_ms = dlock_reply_amount(reply, row, 7);
		made[i].waited_ms = dlock_reply_amount(reply, row, 8);
		if (!made[i].watches)
		{
			made[i].slots = dlock_reply_slots(reply, row, 9);
			made[i].shared = made[i].slots == DLOCK_SHARED;
		}
		made[i].hidden = dlock_reply_bool(reply, row, 10);
		made[i].ticket = dlock_reply_int(reply, row, 11);
	}
	dlock_reply_free(request.reply);
	if (!ok)
	{
		dlock_waiters_free(made, rows);
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	}
	*waiters = made;
	*n = rows;
	return DLOCK_OK;
}

/*
 * Watching
 */

static dlock_status
watch_until(dlock_handle *handle, const char *key, int64_t *version,
			int64_t wait_until, dlock_error *err)
{
	char		text[24];
	const char *params[3];
	int64_t		ready_at = 0;
	dlock_status status;

	params[0] = key;
	params[1] = number_param(*version, text, sizeof(text));
	for (;;)
	{
		DlockRequest request;
		int64_t		now_version;

		dlock_request_init(&request, dlock_sql_watch, 3, params, handle->timeout_ms);
		request.wait_param = 3;
		request.wait_until = dlock_min(wait_until, dlock_now() + DLOCK_WATCH_SLICE_MS);
		request.until = dlock_later(wait_until, handle->timeout_ms);
		request.ready_at = dlock_min(ready_at, wait_until);
		status = dlock_request_call(handle, &request, err);
		if (status != DLOCK_OK)
			return status;
		if (request.polled)
			ready_at = dlock_now() + DLOCK_POLL_MS;
		now_version = dlock_max(dlock_reply_int(request.reply, 0, 0), 0);
		dlock_reply_free(request.reply);
		if (now_version != *version)
		{
			*version = now_version;
			return DLOCK_OK;
		}
		if (dlock_now() >= wait_until)
			return DLOCK_UNCHANGED;
	}
}

static dlock_status
check_watch(dlock_handle *handle, const char *key, const void *to,
			int64_t wait_ms, dlock_error *err)
{
	if (key == NULL || to == NULL)
		return dlock_fail(err, DLOCK_INVALID, "key and result must not be null");
	if (wait_ms < -1)
		return dlock_fail(err, DLOCK_INVALID, "wait_ms must be -1 or more");
	dlock_error_clear(err);
	return dlock_handle_may_ask(handle, err);
}

dlock_status
dlock_watch(dlock_handle *handle, const char *key, int64_t *version,
			int64_t wait_ms, dlock_error *err)
{
	dlock_status status = check_watch(handle, key, version, wait_ms, err);

	if (status != DLOCK_OK)
		return status;
	return watch_until(handle, key, version,
					   wait_ms < 0 ? DLOCK_NEVER : dlock_later(dlock_now(), wait_ms),
					   err);
}

dlock_status
dlock_observe(dlock_handle *handle, const char *key, int64_t version,
			  int64_t wait_ms, dlock_info **leader, dlock_error *err)
{
	int64_t		wait_until;
	dlock_status status = check_watch(handle, key, leader, wait_ms, err);

	if (status != DLOCK_OK)
		return status;
	*leader = NULL;
	wait_until = wait_ms < 0 ? DLOCK_NEVER : dlock_later(dlock_now(), wait_ms);
	for (;;)
	{
		dlock_info *infos;
		size_t		n;
		size_t		found;
		int64_t		seen;

		status = infos_until(handle, key, handle->timeout_ms,
							 dlock_later(wait_until, handle->timeout_ms), &infos, &n, err);
		if (status != DLOCK_OK)
			return status;
		found = find_leader(infos, n);
		seen = found < n ? infos[found].version : 0;
		if (seen != 0 && seen != version)
		{
			dlock_info	kept = infos[found];

			/* the caller frees one */
			for (size_t i = 0; i < n; i++)
				if (i != found)
					clear_info(&infos[i]);
			infos[0] = kept;
			*leader = infos;
			return DLOCK_OK;
		}
		dlock_list_free(infos, n);

		/* if it has changed since we looked, this returns at once */
		status = watch_until(handle, key, &seen, wait_until, err);
		if (status != DLOCK_OK)
			return status;
	}
}

/*
 * Rates
 */

dlock_status
dlock_limit(dlock_handle *handle, const char *key, int32_t n, int64_t per_ms,
			int64_t wait_ms, int32_t priority, int64_t timeout_ms,
			int64_t *again_ms, dlock_error *err)
{
	int64_t		wait_until = wait_ms < 0 ? DLOCK_NEVER : dlock_later(dlock_now(), wait_ms);
	int64_t		ready_at = 0;
	int64_t		again = 0;
	char		number[24];
	char		per[32];
	char		rank[24];
	const char *params[5] = {key, number, per, rank, "0"};
	dlock_status status = check_watch(handle, key, key, wait_ms, err);

	if (status != DLOCK_OK)
		return status;
	timeout_ms = dlock_handle_timeout(handle, timeout_ms);
	snprintf(number, sizeof(number), "%d", (int) n);
	snprintf(per, sizeof(per), "%lld ms", (long long) per_ms);
	snprintf(rank, sizeof(rank), "%d", (int) priority);
	for (;;)
	{
		DlockRequest request;

		dlock_request_init(&request, dlock_sql_limit, 5, params, timeout_ms);
		request.wait_param = wait_ms != 0 ? 5 : 0;
		request.wait_until = wait_until;
		request.until = dlock_later(wait_until, timeout_ms);
		request.ready_at = ready_at;
		status = dlock_request_call(handle, &request, err);
		if (status != DLOCK_OK)
			return status;
		again = dlock_max(dlock_reply_int(request.reply, 0, 0), 0);
		dlock_reply_free(request.reply);
		if (again == 0 || !request.polled || dlock_now() >= wait_until)
			break;
		ready_at = dlock_min(dlock_later(dlock_now(), again), wait_until);
	}
	if (again_ms != NULL)
		*again_ms = again;
	return again == 0 ? DLOCK_OK :
		dlock_fail(err, DLOCK_BUSY, "the rate of \"%s\" is used up for %lld ms", key, (long long) again);
}

/*
 * Grants by version or owner
 */

dlock_status
dlock_check_key(dlock_handle *handle, const char *key, int64_t version,
				const char *owner, int64_t timeout_ms, dlock_error *err)
{
	DlockRequest request;
	char		text[24];
	const char *params[] = {key, number_param(version, text, sizeof(text)), owner};
	dlock_status status = ask_about_key(handle, &request, DLOCK_CHECKS, dlock_sql_check, 3,
										params, timeout_ms, err);

	if (status == DLOCK_OK)
		status = dlock_lock_checked(dlock_reply_get(request.reply, 0, 0));
	dlock_reply_free(request.reply);
	return status;
}

dlock_status
dlock_refresh_key(dlock_handle *handle, const char *key, int64_t version,
				  const char *owner, int64_t ttl_ms, int64_t timeout_ms,
				  int64_t *expires_at_ms, dlock_error *err)
{
	DlockRequest request;
	char		text[24];
	char		ttl[32];
	const char *params[] = {key, number_param(version, text, sizeof(text)), owner, NULL, NULL};
	dlock_status status;

	if (ttl_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must not be negative");
	snprintf(ttl, sizeof(ttl), "%lld ms", (long long) ttl_ms);
	if (ttl_ms > 0)
		params[3] = ttl;
	status = ask_about_key(handle, &request, DLOCK_OTHER, dlock_sql_refresh_key, 5, params,
						   timeout_ms, err);
	if (status == DLOCK_OK && dlock_reply_get(request.reply, 0, 0) == NULL)
		status = dlock_fail(err, DLOCK_LOST, "lock \"%s\" is not held by that version or owner", key);
	if (status == DLOCK_OK && expires_at_ms != NULL)
		*expires_at_ms = dlock_reply_amount(request.reply, 0, 0);
	dlock_reply_free(request.reply);
	return status;
}

dlock_status
dlock_handover_key(dlock_handle *handle, const char *key, int64_t version,
				   const char *owner, int64_t ttl_ms, int64_t timeout_ms,
				   int64_t *new_version, dlock_error *err)
{
	DlockRequest request;
	char		text[24];
	char		ttl[32];
	const char *params[] = {key, number_param(version, text, sizeof(text)), owner, NULL, NULL};
	int			column = 0;
	dlock_status status;

	if (version <= 0 || owner == NULL)
		return dlock_fail(err, DLOCK_INVALID, "a handover needs the version and the next owner");
	if (ttl_ms < 0)
		return dlock_fail(err, DLOCK_INVALID, "ttl_ms must not be negative");
	snprintf(ttl, sizeof(ttl), "%lld ms", (long long) ttl_ms);
	if (ttl_ms > 0)
		params[3] = ttl;
	status = ask_about_key(handle, &request, DLOCK_OTHER, dlock_sql_handover, 5, params,
						   timeout_ms, err);
	/* the try that got no answer may have done it */
	if (status == DLOCK_OK && request.in_doubt && dlock_reply_get(request.reply, 0, 0) == NULL)
		column = 1;
	if (status == DLOCK_OK && dlock_reply_get(request.reply, 0, column) == NULL)
		status = dlock_fail(err, DLOCK_LOST, "lock \"%s\" is not held by that version", key);
	if (status == DLOCK_OK && new_version != NULL)
		*new_version = dlock_reply_int(request.reply, 0, column);
	dlock_reply_free(request.reply);
	return status;
}

dlock_status
dlock_release_key(dlock_handle *handle, const char *key, int64_t version,
				  const char *owner, int64_t timeout_ms, dlock_error *err)
{
	DlockRequest request;
	char		text[24];
	const char *params[] = {key, number_param(version, text, sizeof(text)), owner, NULL};
	const char *answer;
	dlock_status status = ask_about_key(handle, &request, DLOCK_RELEASES, dlock_sql_release, 4,
										params, timeout_ms, err);

	if (status == DLOCK_OK)
	{
		answer = dlock_reply_get(request.reply, 0, 0);
		if (request.in_doubt && answer != NULL && strcmp(answer, "not_held") == 0)
			status = DLOCK_OK;	/* the try that got no answer released it */
		else if (answer == NULL || strcmp(answer, "not_held") == 0)
			status = dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" is free", key);
		else if (strcmp(answer, "released") != 0)
			status = dlock_fail(err, DLOCK_HELD_BY_OTHER,
								"lock \"%s\" is held by another client", key);
	}
	dlock_reply_free(request.reply);
	return status;
}

dlock_status
dlock_force_release(dlock_handle *handle, const char *key, int64_t version,
					const char *reason, int64_t timeout_ms, int64_t *taken,
					dlock_error *err)
{
	DlockRequest request;
	char		text[24];
	const char *params[] = {key, reason, number_param(version, text, sizeof(text)), NULL};
	dlock_status status;

	status = ask_about_key(handle, &request, DLOCK_OTHER, dlock_sql_force_release, 4, params,
						   timeout_ms, err);
	if (status == DLOCK_OK && dlock_reply_get(request.reply, 0, 0) == NULL)
		status = dlock_fail(err, DLOCK_NOT_HELD, "lock \"%s\" is %s", key,
							version == 0 ? "free" : "not held by that version");
	if (status == DLOCK_OK && taken != NULL)
		*taken = dlock_reply_int(request.reply, 0, 0);
	dlock_reply_free(request.reply);
	return status;
}
