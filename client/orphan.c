/*-------------------------------------------------------------------------
 *
 * orphan.c
 *	  Requests that may have been granted without our knowledge.
 *
 * If an acquire ends without an answer, it may have been granted, and nobody
 * would release the lock before its TTL ends.  The renewal thread does so when
 * it has a connection.  It names the owner, which is unique to the request, so
 * it can release no other grant.  If the request may still be in the queue, it
 * is withdrawn first.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "clock.h"
#include "orphan.h"
#include "roster.h"
#include "sql.h"
#include "util.h"

/*
 * Add a request that may have been granted, to be released when there is a
 * connection.  Without memory it is left to its TTL.
 */
void
dlock_orphans_add(dlock_handle *handle, const char *key, const char *owner,
				  int64_t ttl_ms, bool in_queue)
{
	DlockOrphan *orphan = calloc(1, sizeof(DlockOrphan));

	if (orphan == NULL)
		return;
	orphan->key = dlock_strdup(key);
	orphan->owner = dlock_strdup(owner);
	orphan->due = dlock_now();
	orphan->pause = DLOCK_ORPHAN_PAUSE_MS;
	orphan->in_queue = in_queue;
	orphan->until = dlock_later(orphan->due, dlock_min(ttl_ms, DLOCK_ORPHAN_LAST_MS));
	if (orphan->key == NULL || orphan->owner == NULL)
	{
		free(orphan->key);
		free(orphan->owner);
		free(orphan);
		return;
	}
	orphan->next = handle->orphans;
	handle->orphans = orphan;
	dlock_roster_wake(handle);
}

/* It was released, or its TTL has ended. */
static void
drop(DlockOrphan **at)
{
	DlockOrphan *orphan = *at;

	*at = orphan->next;
	free(orphan->key);
	free(orphan->owner);
	free(orphan);
}

void
dlock_orphans_drop(dlock_handle *handle, int64_t now)
{
	DlockOrphan **at = &handle->orphans;

	while (*at != NULL)
		if (now >= (*at)->until)
			drop(at);
		else
			at = &(*at)->next;
}

/*
 * The same owner asks for the key again and wants to keep it, so do not release
 * it any more.  Returns false if a release is in flight, which might be executed
 * after the new grant: the caller waits for its end.
 */
bool
dlock_orphans_forget(dlock_handle *handle, const char *key, const char *owner)
{
	DlockOrphan **at = &handle->orphans;

	while (*at != NULL)
		if (strcmp((*at)->key, key) != 0 || strcmp((*at)->owner, owner) != 0)
			at = &(*at)->next;
		else if ((*at)->in_flight)
			return false;
		else
			drop(at);
	return true;
}

/*
 * The statement is no longer in flight.  A grant that was not there may still
 * be made, if its request is slower than our release, so try again later.
 */
void
dlock_orphans_landed(dlock_handle *handle, const DlockReply *reply, int64_t now)
{
	DlockOrphan **at = &handle->orphans;
	int			row = 0;

	while (*at != NULL)
	{
		DlockOrphan *orphan = *at;
		const char *said;

		if (!orphan->in_flight)
		{
			at = &orphan->next;
			continue;
		}
		orphan->in_flight = false;
		orphan->due = now + orphan->pause;
		orphan->pause = 2 * orphan->pause;
		said = reply != NULL ? dlock_reply_get(reply, row, 0) : NULL;
		row++;
		if (said != NULL && strcmp(said, "released") == 0)
			drop(at);
		else
			at = &orphan->next;
	}
}

/*
 * Send what is due.  Returns false if there is nothing, or if it could not be
 * sent.
 */
bool
dlock_orphans_send(dlock_handle *handle, DlockConn *conn, int64_t now)
{
	PQExpBufferData keys;
	PQExpBufferData owners;
	PQExpBufferData queued;
	const char *params[3];
	bool		good;
	bool		sent = false;
	int			n = 0;

	initPQExpBuffer(&keys);
	initPQExpBuffer(&owners);
	initPQExpBuffer(&queued);
	for (DlockOrphan *orphan = handle->orphans; orphan != NULL && n < DLOCK_MAX_BATCH;
		 orphan = orphan->next)
	{
		if (orphan->due > now)
			continue;
		dlock_array_text(&keys, orphan->key);
		dlock_array_text(&owners, orphan->owner);
		dlock_array_text(&queued, orphan->in_queue ? "t" : "f");
		orphan->in_flight = true;
		n++;
	}
	good = dlock_array_end(&keys);
	good = dlock_array_end(&owners) && good;
	good = dlock_array_end(&queued) && good;
	params[0] = keys.data;
	params[1] = owners.data;
	params[2] = queued.data;
	if (n > 0 && good)
		sent = dlock_conn_send(conn, dlock_sql_orphans, 3, params);
	termPQExpBuffer(&keys);
	termPQExpBuffer(&owners);
	termPQExpBuffer(&queued);
	if (n > 0 && !sent)
		dlock_orphans_landed(handle, NULL, now);
	return sent;
}

/* When to look again. */
int64_t
dlock_orphans_due(const dlock_handle *handle)
{
	int64_t		due = DLOCK_NEVER;

	for (const DlockOrphan *orphan = handle->orphans; orphan != NULL; orphan = orphan->next)
		due = dlock_min(due, dlock_min(orphan->due, orphan->until));
	return due;
}
