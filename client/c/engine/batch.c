/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  Requests that go together: one statement for many, and its replies.
 *
 * Requests of one kind are the rows of one SELECT, whose parameters are arrays.
 * Several kinds are joined by UNION ALL.  So a batch is always one statement, which
 * is one transaction, also through a pooler.  A pipeline would do the same with
 * several statements, but older libpq loses count when the commit at its end fails.
 * The kinds are executed in the order of DlockKind: what is released first can be
 * acquired by a neighbour.
 *
 * An error concerns only the request that caused it.  If the server refuses a batch,
 * nothing of it has taken effect, except through a router, where each request takes
 * effect by itself.  Then its requests go again, each in a statement of its own.  A
 * request that waits for a row which an open transaction is using would hold up the
 * others.  So lock_timeout ends such a batch (DLOCK_ROW_WAIT), and the request that
 * is left with that error by itself gets a connection of its own.
 *
 * The thread that runs the loop calls these functions, with the mutex.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/*
 * Which requests are sent
 */

typedef enum Which
{
	NONE, QUICK, SLOW, ALL
} Which;

/*
 * The rule of the scheduler.  A batch carries all that is queued.  While it waits for
 * its flush, neither the server nor the client has much to do, so a second batch may
 * leave on another connection.
 *
 * The second batch carries quick requests, which need no flush, so that they never wait
 * for one.  While it is under way, the main batch leaves such requests to it, if it has
 * others to carry.  If that takes long, something is wrong with it, and the main batch
 * takes them along.
 *
 * If none of the queued requests is quick, the second batch carries them all, if there
 * are twice as many as in the main one.  If the server flushes nothing, no request is
 * quicker than others, and as many are enough.
 */
static Which
which_for(const dlock_handle *handle, bool is_second, int64_t now)
{
	const DlockQueue *queue = &handle->queue;
	const DlockLink *second = handle->second;
	int			in_main = handle->main != NULL ? handle->main->nsent : 0;
	int64_t		worth = dlock_max(in_main, DLOCK_SECOND_LEAST);

	if (__atomic_load_n(&handle->conninfo->unflushed, __ATOMIC_RELAXED))
		return !is_second || queue->n >= worth ? ALL : NONE;
	if (!is_second)
		return second != NULL && second->nsent > 0 && second->is_quick &&
			now < second->sent_at + DLOCK_SECOND_HOLD_MS &&
			queue->n > queue->nquick ? SLOW : ALL;
	if (queue->nquick > 0)
		return QUICK;
	return queue->n >= 2 * worth ? ALL : NONE;
}

static bool
is_one_of(const DlockRequest *request, Which which)
{
	return which == ALL || (which != NONE && (which == QUICK) == dlock_request_is_quick(request));
}

/* Would a batch on such a link carry anything now? */
bool
dlock_batch_has(const dlock_handle *handle, bool is_second, int64_t now)
{
	Which		which = which_for(handle, is_second, now);

	for (const DlockRequest *request = handle->queue.first; request != NULL; request = request->next)
		if (request->ready_at <= now && is_one_of(request, which))
			return true;
	return false;
}

/* About how many bytes it adds; only a value is long. */
static size_t
size_of(const DlockRequest *request)
{
	return request->kind == DLOCK_TRIES && request->params[3] != NULL ? strlen(request->params[3]) : 0;
}

/* Those of one kind together, in the order in which they came. */
static void
sort(DlockLink *link)
{
	DlockRequest *sorted[DLOCK_MAX_BATCH] = {0};
	int			at = 0;

	for (DlockKind kind = 0; kind < DLOCK_KINDS; kind++)
	{
		link->first[kind] = at;
		for (int i = 0; i < link->nsent; i++)
			if (link->sent[i]->kind == kind)
				sorted[at++] = link->sent[i];
	}
	memcpy(link->sent, sorted, (size_t) at * sizeof(DlockRequest *));
}

/* Take those that go together out of the queue. */
static void
choose(dlock_handle *handle, DlockLink *link, int64_t now)
{
	Which		which = which_for(handle, link->use == DLOCK_USE_SECOND, now);
	DlockRequest *next;
	size_t		size = 0;

	link->is_quick = true;
	link->nsent = 0;
	for (DlockRequest *request = handle->queue.first;
		 request != NULL && link->nsent < DLOCK_MAX_BATCH; request = next)
	{
		bool		alone = request->alone || request->kind == DLOCK_OTHER;

		next = request->next;
		if (request->ready_at > now || (alone && link->nsent > 0) || !is_one_of(request, which))
			continue;
		dlock_request_take_out(handle, request);
		link->is_quick = link->is_quick && dlock_request_is_quick(request);
		link->sent[link->nsent++] = request;
		size += size_of(request);
		if (alone || size > DLOCK_MAX_BATCH_BYTES)
			break;
	}
	if (link->nsent > 1)
		sort(link);
}

/*
 * The statement
 */

/* A part of it; its parameters come after those of earlier parts. */
static void
append_part(PQExpBuffer text, DlockKind kind, int before)
{
	const char *at = dlock_sql_parts[kind].text;

	appendPQExpBuffer(text, "%sSELECT %d, ", text->len > 0 ? " UNION ALL " : "", (int) kind);
	for (;;)
	{
		size_t		n = strcspn(at, "$");
		char	   *end;
		long		number;

		appendBinaryPQExpBuffer(text, at, n);
		at += n;
		if (*at == '\0')
			break;
		number = strtol(at + 1, &end, 10);
		appendPQExpBuffer(text, "$%ld", number + before);
		at = end;
	}
}

/*
 * Several requests, which are sorted, as one statement.  Its rows are the kind, the
 * number of a request of that kind, from 1, and its columns.  False: it could not be
 * sent.
 */
static bool
send_several(DlockLink *link)
{
	PQExpBufferData text;
	DlockParamList list;
	bool		sent = false;

	initPQExpBuffer(&text);
	dlock_params_init(&list);
	for (int first = 0; first < link->nsent;)
	{
		DlockKind	kind = link->sent[first]->kind;
		const DlockPart *part = &dlock_sql_parts[kind];
		int			after = first;

		while (after < link->nsent && link->sent[after]->kind == kind)
			after++;
		append_part(&text, kind, list.n);
		for (int p = 0; part->types[p] != DLOCK_TYPE_NONE; p++)
		{
			dlock_params_add_array(&list, part->types[p], after - first);
			for (int i = first; i < after; i++)
				dlock_params_add_element(&list, part->types[p], link->sent[i]->params[p]);
		}
		if (part->is_limited)
			dlock_params_add_text(&list, DLOCK_ROW_WAIT);
		first = after;
	}
	if (dlock_params_finish(&list) && !PQExpBufferDataBroken(text))
	{
		DlockParams params = {
			.n = list.n,.values = list.values,.lengths = list.lengths,.formats = list.formats
		};

		sent = dlock_conn_send(link->conn, text.data, &params);
	}
	dlock_params_free(&list);
	termPQExpBuffer(&text);
	return sent;
}

static bool
send_one(DlockLink *link)
{
	const DlockRequest *request = link->sent[0];
	DlockParams params = {
		.n = request->nparams,.values = request->params,.lengths = request->lengths,
		.formats = request->formats
	};

	return dlock_conn_send(link->conn, request->sql, &params);
}

/*
 * Send what was chosen.  If that fails, the state of the connection tells, and
 * dlock_links_settle() looks at it.
 */
static void
send_chosen(dlock_handle *handle, DlockLink *link, const char *row_limit, bool may_wait)
{
	int64_t		now = dlock_now();

	link->sent_at = now;
	link->answer_by = 0;
	link->was_used = link->is_used;
	link->is_used = true;
	for (int i = 0; i < link->nsent; i++)
	{
		DlockRequest *request = link->sent[i];

		link->is_for_probe = link->is_for_probe && request->is_probe;
		request->state = DLOCK_REQUEST_SENT;
		request->link = link;
		request->sent_at = now;
		if (!request->once)
			request->silent_until = dlock_later(now, request->timeout_ms);
		dlock_request_set_params(request, link->conn, now, row_limit,
								 may_wait || request->kind != DLOCK_OTHER);
		link->answer_by = dlock_max(link->answer_by, dlock_request_limit(request));
		dlock_loop_due(handle, &handle->expire_at, dlock_request_limit(request));
	}
	if (link->nsent == 1)
		(void) send_one(link);
	else
		(void) send_several(link);
}

/* The connection of a batch is ready: send what is queued, if it carries that. */
void
dlock_batch_send(dlock_handle *handle, DlockLink *link, int64_t now)
{
	choose(handle, link, now);
	if (link->nsent > 0)
		send_chosen(handle, link, DLOCK_ROW_WAIT, false);
}

/*
 * The connection of one request is ready.  Here the server may wait, for as long as the
 * request wants and the server is there.
 */
void
dlock_batch_send_bound(dlock_handle *handle, DlockLink *link)
{
	DlockRequest *request = link->bound;

	link->bound = NULL;
	link->sent[0] = request;
	link->nsent = 1;
	link->is_quick = false;
	link->probe_at = DLOCK_NEVER;
	send_chosen(handle, link, "0", true);
	if (request->wait_param > 0)
	{
		request->silent_until = dlock_later(dlock_max(request->wait_until, link->sent_at), request->timeout_ms);
		link->answer_by = dlock_request_limit(request);
		link->probe_at = dlock_later(link->sent_at, dlock_probe_ms(request->timeout_ms));
	}
}

/*
 * The replies
 */

/* Does nobody wait for what was sent? */
bool
dlock_batch_is_deserted(const DlockLink *link)
{
	for (int i = 0; i < link->nsent; i++)
		if (link->sent[i] != NULL)
			return false;
	return true;
}

/* The requests that are still wanted; returns how many. */
static int
take_sent(DlockLink *link, DlockRequest **requests)
{
	int			n = 0;

	for (int i = 0; i < link->nsent; i++)
		if (link->sent[i] != NULL)
			requests[n++] = link->sent[i];
	link->nsent = 0;
	return n;
}

/* In their order, before those that came later. */
static void
requeue(dlock_handle *handle, DlockRequest **requests, int n)
{
	while (n > 0)
		dlock_request_requeue(handle, requests[--n]);
}

static void
answer(dlock_handle *handle, DlockLink *link, DlockRequest *request, DlockReply *reply)
{
	request->reply = reply;
	request->host = link->conn->host;
	if (reply == NULL)
	{
		request->in_doubt = true;
		dlock_fail(&request->error, DLOCK_NO_MEMORY, "out of memory");
	}
	else if (request->use == DLOCK_USE_SESSION)
	{
		/* from here on it is the request's */
		request->conn = link->conn;
		link->conn = NULL;
	}
	dlock_request_finish(handle, request);
}

/* Hand out the answers. */
void
dlock_batch_answered(dlock_handle *handle, DlockLink *link, DlockReply *reply)
{
	DlockRequest *requests[DLOCK_MAX_BATCH];
	int			n = link->nsent;

	link->backoff = DLOCK_BACKOFF_FIRST_MS;
	if (n == 1)
	{
		link->nsent = 0;
		if (link->sent[0] != NULL)
			answer(handle, link, link->sent[0], reply);
		else
			dlock_reply_free(reply);
		return;
	}
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int64_t		kind = dlock_reply_int(reply, row, 0);
		int			i = dlock_reply_index(reply, row, 1, n);
		DlockRequest *request;

		if (kind < 0 || kind >= DLOCK_KINDS || i < 0)
			continue;
		i += link->first[kind];
		request = i < n ? link->sent[i] : NULL;
		if (request == NULL || request->kind != (DlockKind) kind)
			continue;
		link->sent[i] = NULL;
		answer(handle, link, request, dlock_reply_row(reply, row, 2));
	}
	dlock_reply_free(reply);

	/* each has a row, unless a function of the server is not ours */
	n = take_sent(link, requests);
	for (int i = 0; i < n; i++)
		requests[i]->alone = true;
	requeue(handle, requests, n);
}

/*
 * One request was refused by itself.  A timeout of the server is no answer.  If it waits
 * for a row, it does so on a connection of its own, where that holds up no other one.
 */
static void
refuse_one(dlock_handle *handle, const DlockLink *link, DlockRequest *request, const dlock_error *error)
{
	if (!link->conn->timed_out || request->once)
	{
		dlock_request_fail(handle, request, error);
		return;
	}
	request->error = *error;
	if (request->use == DLOCK_USE_BATCH && request->row_param > 0 && strcmp(error->sqlstate, "55P03") == 0)
	{
		request->use = DLOCK_USE_OWN;
		request->waits_for_row = true;
	}
	else
	{
		/* perhaps a very short one */
		request->ready_at = link->sent_at + dlock_jitter(DLOCK_TIMED_OUT_PAUSE_MS);
	}
	dlock_request_requeue(handle, request);
}

/* The server has refused the statement, and the connection is as good as before. */
void
dlock_batch_refused(dlock_handle *handle, DlockLink *link)
{
	DlockRequest *requests[DLOCK_MAX_BATCH];
	bool		together = link->nsent > 1;
	const dlock_error *error = &link->conn->error;
	int			n = take_sent(link, requests);

	if (!together)
	{
		if (n > 0)
			refuse_one(handle, link, requests[0], error);
		return;
	}
	for (int i = 0; i < n; i++)
	{
		requests[i]->alone = true;
		requests[i]->in_doubt = requests[i]->in_doubt || link->conn->routed;
	}
	requeue(handle, requests, n);
}

/* The connection is gone, and nobody knows what the server did. */
void
dlock_batch_broken(dlock_handle *handle, DlockLink *link, const dlock_error *error)
{
	DlockRequest *requests[DLOCK_MAX_BATCH];
	dlock_error why = *error;
	int			n = take_sent(link, requests);
	int			again = 0;

	for (int i = 0; i < n; i++)
	{
		DlockRequest *request = requests[i];

		request->in_doubt = true;
		if (request->once)
			dlock_request_fail(handle, request, &why);
		else
		{
			request->error = why;
			request->silent_until = dlock_later(dlock_now(), request->timeout_ms);
			/* an old connection may have been closed by the server meanwhile */
			if (request->use != DLOCK_USE_BATCH && !link->was_used)
				request->ready_at = dlock_now() + dlock_jitter(request->backoff);
			requests[again++] = request;
		}
	}
	requeue(handle, requests, again);
}
