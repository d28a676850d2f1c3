/*-------------------------------------------------------------------------
 *
 * orphan.c
 *	  Requests that may have been granted without our knowledge.
 *
 * If an acquire ends without an answer, it may have been granted, and nobody
 * would release the lock before its TTL ends.  The renewal thread does so when
 * it has a connection.  It names the owner, which is unique to the request, so
 * it can release no other grant.
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
				  int64_t ttl_ms)
{
	DlockOrphan *orphan = calloc(1, sizeof(DlockOrphan));

	if (orphan == NULL)
		return;
	orphan->key = dlock_strdup(key);
	orphan->owner = dlock_strdup(owner);
	orphan->due = dlock_now();
	orphan->pause = DLOCK_ORPHAN_PAUSE_MS;
	orphan->until = dlock_later(orphan->due, dlock_min(ttl_ms, DLOCK_ORPHAN_LAST_MS));
	if (orphan->key == NULL || orphan->owner == NULL)
	{
		free(orphan->key);
		free(orphan->owner);
		free(orphan);
		return;
	}
	pthread_mutex_lock(&handle->mutex);
	orphan->next = handle->orphans;
	handle->orphans = orphan;
	dlock_roster_wake(handle);
	pthread_mutex_unlock(&handle->mutex);
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
 * it any more.  A release in flight might be executed after the new grant, so
 * wait for its end.  Returns false if the time is up.
 */
bool
dlock_orphans_forget(dlock_handle *handle, const char *key, const char *owner,
					 int64_t until)
{
	DlockOrphan **at;
	bool		good = true;

	pthread_mutex_lock(&handle->mutex);
	for (at = &handle->orphans; good && *at != NULL;)
		if (strcmp((*at)->key, key) != 0 || strcmp((*at)->owner, owner) != 0)
			at = &(*at)->next;
		else if ((*at)->in_flight)
		{
			good = dlock_roster_wait(handle, until);
			at = &handle->orphans;
		}
		else
			drop(at);
	pthread_mutex_unlock(&handle->mutex);
	return good;
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
	const char *params[2];
	bool		good;
	bool		sent = false;
	int			n = 0;

	initPQExpBuffer(&keys);
	initPQExpBuffer(&owners);
	for (DlockOrphan *orphan = handle->orphans; orphan != NULL && n < DLOCK_MAX_BATCH;
		 orphan = orphan->next)
	{
		if (orphan->due > now)
			continue;
		dlock_array_text(&keys, orphan->key);
		dlock_array_text(&owners, orphan->owner);
		orphan->in_flight = true;
		n++;
	}
	good = dlock_array_end(&keys);
	good = dlock_array_end(&owners) && good;
	params[0] = keys.data;
	params[1] = owners.data;
	if (n > 0 && good)
		sent = dlock_conn_send(conn, dlock_sql_orphans, 2, params);
	termPQExpBuffer(&keys);
	termPQExpBuffer(&owners);
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
