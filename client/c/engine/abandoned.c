/*-------------------------------------------------------------------------
 *
 * abandoned.c
 *	  Requests that may have been granted without our knowledge.
 *
 * If an acquire ends without an answer, it may have been granted, and nobody
 * would release the lock before its TTL ends.  The background does so when it
 * has a connection (background.c).  It names the owner, if that is unique to the request,
 * so it can release no other grant; otherwise the ticket.  If the request may still be in
 * the queue, it is withdrawn first.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/* A request that may have been granted without our knowledge. */
typedef struct DlockAbandoned
{
	struct DlockAbandoned *next;
	char	   *key;
	char	   *owner;
	int64_t		until;			/* by then it has ended by itself */
	int64_t		due;			/* next try to release it */
	int64_t		pause;
	bool		in_queue;		/* its ticket may still wait */
	bool		by_owner;		/* who has no other request */
	int64_t		ticket;			/* 0: not known */
	bool		is_sent;
} DlockAbandoned;

/*
 * Add a request that may have been granted, to be released when there is a
 * connection.  Without memory it is left to its TTL.
 */
void
dlock_abandoned_add(dlock_handle *handle, const char *key, const char *owner,
					int64_t ttl_ms, bool in_queue, bool by_owner, int64_t ticket)
{
	DlockAbandoned *request = calloc(1, sizeof(DlockAbandoned));

	if (request == NULL)
		return;
	request->key = strdup(key);
	request->owner = strdup(owner);
	request->due = dlock_now();
	request->pause = DLOCK_ABANDONED_PAUSE_MS;
	request->in_queue = in_queue;
	request->by_owner = by_owner;
	request->ticket = ticket;
	request->until = dlock_later(request->due, dlock_min(ttl_ms, DLOCK_ABANDONED_LAST_MS));
	if (request->key == NULL || request->owner == NULL)
	{
		free(request->key);
		free(request->owner);
		free(request);
		return;
	}
	request->next = handle->abandoned;
	handle->abandoned = request;
	dlock_loop_due(handle, &handle->background_at, 0);
}

/* It was released, or its TTL has ended. */
static void
drop(DlockAbandoned **at)
{
	DlockAbandoned *request = *at;

	*at = request->next;
	free(request->key);
	free(request->owner);
	free(request);
}

void
dlock_abandoned_drop(dlock_handle *handle, int64_t now)
{
	DlockAbandoned **at = &handle->abandoned;

	while (*at != NULL)
		if (now >= (*at)->until)
			drop(at);
		else
			at = &(*at)->next;
}

/*
 * The same owner asks for the key again and wants to keep it, so do not release
 * it any more.  Returns false if a release was sent, which might be executed
 * after the new grant: the caller waits for its end.
 */
bool
dlock_abandoned_forget(dlock_handle *handle, const char *key, const char *owner)
{
	DlockAbandoned **at = &handle->abandoned;

	while (*at != NULL)
		if (strcmp((*at)->key, key) != 0 || strcmp((*at)->owner, owner) != 0)
			at = &(*at)->next;
		else if ((*at)->is_sent)
			return false;
		else
			drop(at);
	return true;
}

/*
 * The statement has ended, with a reply or without.  A grant that was not there may still
 * be made, if its request is slower than our release, so try again later.
 */
void
dlock_abandoned_answered(dlock_handle *handle, const DlockReply *reply, int64_t now)
{
	DlockAbandoned **at = &handle->abandoned;
	int			row = 0;

	while (*at != NULL)
	{
		DlockAbandoned *request = *at;
		const char *said;

		if (!request->is_sent)
		{
			at = &request->next;
			continue;
		}
		request->is_sent = false;
		request->due = now + request->pause;
		request->pause = 2 * request->pause;
		said = reply != NULL ? dlock_reply_get(reply, row, 0) : NULL;
		row++;
		if (said != NULL && strcmp(said, "released") == 0)
			drop(at);
		else
			at = &request->next;
	}
}

static bool
is_due(const DlockAbandoned *request, int64_t now)
{
	return request->due <= now;
}

/* The parameters for those that are due; returns how many there are. */
int
dlock_abandoned_params(dlock_handle *handle, DlockParamList *list, int64_t now)
{
	int			n = 0;

	for (DlockAbandoned *request = handle->abandoned; request != NULL && n < DLOCK_MAX_RENEWED;
		 request = request->next)
	{
		request->is_sent = is_due(request, now);
		n += request->is_sent;
	}
	dlock_params_add_array(list, DLOCK_TYPE_TEXT, n);
	for (const DlockAbandoned *request = handle->abandoned; request != NULL; request = request->next)
		if (request->is_sent)
			dlock_params_add_element(list, DLOCK_TYPE_TEXT, request->key);
	dlock_params_add_array(list, DLOCK_TYPE_TEXT, n);
	for (const DlockAbandoned *request = handle->abandoned; request != NULL; request = request->next)
		if (request->is_sent)
			dlock_params_add_element(list, DLOCK_TYPE_TEXT, request->owner);
	dlock_params_add_array(list, DLOCK_TYPE_BOOL, n);
	for (const DlockAbandoned *request = handle->abandoned; request != NULL; request = request->next)
		if (request->is_sent)
			dlock_params_add_element(list, DLOCK_TYPE_BOOL,
									 !request->by_owner ? NULL : request->in_queue ? "t" : "f");
	dlock_params_add_array(list, DLOCK_TYPE_INT8, n);
	for (const DlockAbandoned *request = handle->abandoned; request != NULL; request = request->next)
		if (request->is_sent)
			dlock_params_add_number(list, request->ticket);
	return n;
}

/* When to look again. */
int64_t
dlock_abandoned_due(const dlock_handle *handle)
{
	int64_t		due = DLOCK_NEVER;

	for (const DlockAbandoned *request = handle->abandoned; request != NULL; request = request->next)
		due = dlock_min(due, dlock_min(request->due, request->until));
	return due;
}
