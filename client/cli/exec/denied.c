/*
 * denied.c
 *	  Messages about a key that we did not get, or have lost: who holds it, and
 *	  what to do.
 */
#include "exec/hold.h"
#include "show/list.h"
#include "times.h"
#include "api/inspect.h"
#include "base/util.h"

#include <string.h>

/*
 * What keeps a key busy that nobody holds.  It may be our own request, if a standby that
 * has to confirm its commit is gone.
 */
void
text_pending(Text *line, dlock_handle *handle, int32_t pid)
{
	char		sql[400];
	DlockReply *reply = NULL;

	snprintf(sql, sizeof(sql),
			 "SELECT pg_catalog.current_setting('synchronous_standby_names')"
			 " FROM pg_catalog.pg_stat_activity a WHERE a.pid OPERATOR(pg_catalog.=) %d::pg_catalog.int4"
			 " AND a.wait_event OPERATOR(pg_catalog.=) 'SyncRep'::pg_catalog.text", (int) pid);
	if (dlock_read(handle, sql, LOOK_MS, &reply, NULL) == DLOCK_OK && dlock_reply_rows(reply) > 0)
		text_format(line, "the commit of process %d waits for a synchronous standby (synchronous_standby_names is \"%s\")",
					(int) pid, dlock_reply_text(reply, 0, 0));
	else
		text_format(line, "an open transaction of process %d keeps it busy", (int) pid);
	dlock_reply_free(reply);
}

/* Who holds a busy key, or what else keeps it busy. */
static void
text_holder(Text *line, dlock_handle *handle, const char *key, bool name_it,
			const dlock_info *infos, size_t n)
{
	Entry		entry = {.key = key,.grants = infos,.grant_count = n};
	const dlock_info *info = shown_grant(&entry);

	if (name_it)
		text_format(line, "\"%s\"", key);
	else
		text_add(line, "It");
	if (is_pending(info))
	{
		text_add(line, " is held by nobody, but ");
		text_pending(line, handle, info->using_pid);
		text_add(line, ".");
		return;
	}
	if (is_cooling(info))
	{
		text_format(line, " is held by nobody, but stays busy after version %lld for ",
					(long long) info->version);
		text_duration(line, info->remaining_ms);
		text_add(line, ".");
		return;
	}
	if (holder_count(&entry) > 1)
		text_format(line, " is held by %d clients, the last of which has version %lld, role ",
					(int) holder_count(&entry), (long long) info->version);
	else
		text_format(line, " is held with version %lld by role ", (long long) info->version);
	text_add(line, info->role);
	if (info->owner != NULL)
	{
		text_add(line, ", owner ");
		text_add(line, info->owner);
	}
	else if (info->origin != NULL)
		text_format(line, ", %s", info->origin);
	text_add(line, ", and expires in ");
	text_duration(line, info->remaining_ms);
	text_add(line, " unless renewed.");
}

/*
 * Report who holds them, unless the server takes too long to tell.  Returns whether that
 * owner (NULL: none) is one of the holders.
 */
static bool
report_holders(dlock_handle *handle, dlock_status status, const char *const *keys,
			   int count, const char *owner)
{
	int64_t		until = dlock_now() + HOLDER_MS;
	bool		is_ours = false;
	int			i;

	/* one without an answer may wait for a standby */
	if ((exit_code(status) != EXIT_BUSY && status != DLOCK_TIMEOUT) || is_quiet)
		return false;
	for (i = 0; i < count && dlock_now() < until; i++)
	{
		dlock_info *infos = NULL;
		size_t		n = 0;
		Text		line = {0};

		if (dlock_get_info(handle, keys[i], until - dlock_now(), &infos, &n, NULL) == DLOCK_OK &&
			n > 0)
		{
			text_holder(&line, handle, keys[i], count > 1, infos, n);
			detail("%s", line.data);
		}
		for (size_t j = 0; j < n && owner != NULL; j++)
			is_ours |= infos[j].owner != NULL && strcmp(infos[j].owner, owner) == 0;
		text_free(&line);
		dlock_list_free(infos, n);
	}
	return is_ours;
}

/* We did not get them. */
int
report_denied(dlock_handle *handle, dlock_status status, const dlock_error *err,
			  const Hold *hold, const Options *options)
{
	int			code = report_status(status, err, hold_name(hold));
	bool		is_ours = report_holders(handle, status, hold->keys, hold->count, options->owner);

	if (is_ours && !options->adopt)
		hint("An owner names one request, and that one has the lock.  Use --adopt to take it over, or another name.");
	else if (status == DLOCK_BUSY && options->wait == 0 && !is_quiet)
		hint("Use --wait to queue.");
	return code;
}

/* Is it the grant that was asked for?  Then only its role can be another. */
static bool
is_named(const dlock_info *info, const Options *options)
{
	return !is_pending(info) && !is_cooling(info) &&
		(options->version == 0 || options->version == info->version) &&
		(options->owner == NULL ||
		 (info->owner != NULL && strcmp(options->owner, info->owner) == 0));
}

/* A grant is not ours: whose is it? */
void
report_lost(dlock_handle *handle, const Options *options)
{
	dlock_info *infos = NULL;
	size_t		n = 0;
	Text		line = {0};
	const dlock_info *named = NULL;
	bool		is_known = dlock_get_info(handle, options->key, HOLDER_MS, &infos, &n,
										  NULL) == DLOCK_OK;
	bool		is_held = false;
	size_t		i;

	for (i = 0; i < n; i++)
	{
		is_held |= !is_pending(&infos[i]) && !is_cooling(&infos[i]);
		if (is_named(&infos[i], options))
			named = &infos[i];
	}

	text_format(&line, "lock \"%s\" is not held", options->key);
	if (options->version != 0)
		text_format(&line, " with version %lld", (long long) options->version);
	if (options->owner != NULL)
		text_format(&line, " by owner \"%s\"", options->owner);
	if (named != NULL)
		text_add(&line, options->owner == NULL ? " by this role" : ", as this role");
	error("%s", line.data);

	text_clear(&line);
	if (n > 0)
		text_holder(&line, handle, options->key, false, infos, n);
	else if (is_known)
		text_add(&line, "It has expired, was released, or was never acquired.");
	if (line.len > 0)
		detail("%s", line.data);
	if (named != NULL)
		hint("Connect as role \"%s\" (-U): a lock belongs to the role that acquired it.",
			 named->role);
	else if (is_held)
		hint("If that grant is yours, name its version or owner; if not, stop the work that the lock protects.");
	else
		hint("Stop the work that the lock protects, and acquire the lock again.");
	text_free(&line);
	dlock_list_free(infos, n);
}
