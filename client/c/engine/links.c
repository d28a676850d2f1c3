/*-------------------------------------------------------------------------
 *
 * links.c
 *	  The connections of a handle: what each is used for, and what becomes of it.
 *
 * There are at most max_connections: one for batches, one for the background
 * (renewals, tickets, events), and the rest ("spare") for requests that need one of
 * their own and for a second batch.  So neither of the first two ever has to wait for
 * one.  Those of session locks do not count.
 *
 * An idle connection is used before one is opened.  So a handle with one lock needs
 * only one connection, even if the server has no other left: the connection of the
 * background, which listens, is lent to a batch, if
 *
 *	  it has nothing to renew, as when the last lock is released, or
 *	  the server accepts no more connections.
 *
 * The thread that runs the loop calls these functions.  Only that thread touches the
 * list of links and their connections.  It lets go of the mutex while it connects,
 * because libpq may read files and ask other services for that.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "engine/engine.h"

/*
 * Making and dropping
 */

static DlockConnState
state_of(const DlockLink *link)
{
	return link->conn != NULL ? link->conn->state : DLOCK_CONN_CLOSED;
}

/* One more, which is not connected yet.  NULL: no memory. */
static DlockLink *
new_link(dlock_handle *handle)
{
	DlockLink  *link = calloc(1, sizeof(DlockLink));

	if (link == NULL)
		return NULL;
	link->conn = dlock_conn_new(handle->conninfo);
	if (link->conn == NULL)
	{
		free(link);
		return NULL;
	}
	link->backoff = DLOCK_BACKOFF_FIRST_MS;
	link->poll_index = -1;
	link->next = handle->links;
	handle->links = link;
	handle->nlinks++;
	return link;
}

/* It is used for something else from here on. */
static void
set_use(dlock_handle *handle, DlockLink *link, DlockUse use)
{
	handle->nspare -= link->use == DLOCK_USE_OWN || link->use == DLOCK_USE_SECOND;
	handle->nlinks += link->use == DLOCK_USE_SESSION;
	if (handle->main == link)
		handle->main = NULL;
	if (handle->second == link)
		handle->second = NULL;
	link->use = use;
	link->used_since = dlock_now();
	handle->nspare += use == DLOCK_USE_OWN || use == DLOCK_USE_SECOND;
	handle->nlinks -= use == DLOCK_USE_SESSION;
	if (use != DLOCK_USE_NONE)
		link->is_for_batch = use == DLOCK_USE_BATCH;
	if (use == DLOCK_USE_BATCH)
		handle->main = link;
	if (use == DLOCK_USE_SECOND)
		handle->second = link;
}

/*
 * Close it.  What was sent on it has been taken away.  It stays in the list until the
 * next sweep(), so that nobody who walks through the list loses the way.
 */
static void
drop_link(dlock_handle *handle, DlockLink *link)
{
	set_use(handle, link, DLOCK_USE_NONE);
	if (handle->background == link)
	{
		handle->background = NULL;
		dlock_loop_due(handle, &handle->background_at, 0);
	}
	if (link->probe.state == DLOCK_REQUEST_QUEUED || link->probe.state == DLOCK_REQUEST_SENT)
		dlock_request_leave(handle, &link->probe);
	handle->nlinks--;
	dlock_conn_free(link->conn);
	link->conn = NULL;
	link->is_dropped = true;
}

static void
sweep(dlock_handle *handle)
{
	DlockLink **at = &handle->links;

	while (*at != NULL)
	{
		DlockLink  *link = *at;

		if (link->is_dropped)
		{
			*at = link->next;
			free(link);
		}
		else
			at = &link->next;
	}
}

static int
count_idle(const dlock_handle *handle)
{
	int			n = 0;

	for (const DlockLink *link = handle->links; link != NULL; link = link->next)
		n += link->use == DLOCK_USE_NONE && !link->is_dropped;
	return n;
}

/*
 * It has nothing to do.  It is kept for what comes next, if it is connected.  There is
 * one that listens; if another one has taken its place, this one is not read any more.
 */
static void
release_link(dlock_handle *handle, DlockLink *link)
{
	DlockLink  *background = handle->background;
	bool		listens;

	if (state_of(link) != DLOCK_CONN_READY || link->is_for_probe)
	{
		drop_link(handle, link);
		return;
	}
	if (link->probe.state == DLOCK_REQUEST_QUEUED || link->probe.state == DLOCK_REQUEST_SENT)
		dlock_request_leave(handle, &link->probe);
	set_use(handle, link, DLOCK_USE_NONE);
	listens = link->conn->listens;
	if (listens && background != link)
	{
		if (background != NULL && background->use == DLOCK_USE_BACKGROUND &&
			state_of(background) < DLOCK_CONN_READY && background->bound == NULL)
		{
			drop_link(handle, background);
			background = NULL;
		}
		if (background == NULL)
		{
			handle->background = link;
			link->is_new = true;
		}
	}
	if (handle->background == link)
		dlock_loop_due(handle, &handle->background_at, 0);
	else if (listens || count_idle(handle) > DLOCK_MAX_IDLE)
		drop_link(handle, link);
}

/*
 * There was no answer on a connection.  The idle ones lead to the same server, and each
 * of them would cost another timeout.
 */
static void
drop_idle(dlock_handle *handle)
{
	for (DlockLink *link = handle->links; link != NULL; link = link->next)
		if (link->use == DLOCK_USE_NONE && link != handle->background && !link->is_dropped)
			drop_link(handle, link);
}

/*
 * Finding one
 */

/*
 * One that is idle, and does not listen; NULL: none.  If possible, batches have always the
 * same one, where their statements are prepared.
 */
static DlockLink *
find_idle(const dlock_handle *handle, DlockUse use)
{
	DlockLink  *found = NULL;

	for (DlockLink *link = handle->links; link != NULL; link = link->next)
		if (link->use == DLOCK_USE_NONE && link != handle->background &&
			state_of(link) == DLOCK_CONN_READY &&
			(found == NULL || link->is_for_batch == (use == DLOCK_USE_BATCH)))
			found = link;
	return found;
}

/* That of the background, if it is idle; NULL: none. */
static DlockLink *
idle_background(const dlock_handle *handle)
{
	DlockLink  *link = handle->background;

	return link != NULL && link->use == DLOCK_USE_NONE && state_of(link) == DLOCK_CONN_READY ? link : NULL;
}

static bool
has_active_lock(const dlock_handle *handle)
{
	for (const dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (dlock_lock_is_active(lock))
			return true;
	return false;
}

/*
 * Will the only connection be back in a moment?  The background uses it, and has nothing to
 * renew: it listens, or asks whether it has missed events.
 */
static bool
is_coming_back(const dlock_handle *handle, int64_t now)
{
	const DlockLink *link = handle->background;

	return link != NULL && link->use == DLOCK_USE_BACKGROUND && link->is_used &&
		state_of(link) != DLOCK_CONN_CLOSED && now < link->used_since + DLOCK_LEND_MS &&
		find_idle(handle, DLOCK_USE_BATCH) == NULL && !has_active_lock(handle);
}

/* One that is ready, or a new one; NULL: there can be none now. */
static DlockLink *
find_link(dlock_handle *handle, DlockUse use, bool may_borrow)
{
	DlockLink  *link = find_idle(handle, use);

	if (link == NULL && may_borrow && idle_background(handle) != NULL &&
		(!has_active_lock(handle) || handle->nlinks >= handle->max_connections))
		link = idle_background(handle);
	if (link == NULL && handle->nlinks < handle->max_connections)
		link = new_link(handle);
	return link;
}

/* It will be sent when the link is connected. */
void
dlock_links_bind(dlock_handle *handle, DlockLink *link, DlockRequest *request)
{
	set_use(handle, link, request->use);
	link->bound = request;
	request->state = DLOCK_REQUEST_QUEUED;
	request->link = link;
}

static bool
may_have_spare(const dlock_handle *handle)
{
	return handle->nspare < handle->max_connections - DLOCK_MIN_CONNECTIONS;
}

/* May there be a second batch?  It leaves a spare connection to requests that need one. */
static bool
may_have_second(const dlock_handle *handle, int64_t now)
{
	return handle->second == NULL && handle->main != NULL && handle->main->nsent > 0 &&
		handle->second_retry_at <= now &&
		handle->nspare + 1 < handle->max_connections - DLOCK_MIN_CONNECTIONS;
}

/* If there is no connection for it, it takes its turn among the batches. */
static void
go_with_batches(dlock_handle *handle, DlockRequest *request, int64_t now)
{
	request->use = DLOCK_USE_BATCH;
	if (request->waits_for_row)
		request->ready_at = now + DLOCK_POLL_MS;
	if (request->ready_at >= request->until)
		dlock_request_fail(handle, request, &request->error);
	else
		dlock_request_requeue(handle, request);
}

/* A connection for one request, which is in handle->others. */
static void
start_own(dlock_handle *handle, DlockRequest *request, int64_t now)
{
	bool		is_session = request->use == DLOCK_USE_SESSION;
	DlockLink  *link = NULL;

	dlock_request_take_out(handle, request);
	if (is_session)
	{
		link = find_idle(handle, DLOCK_USE_SESSION);
		if (link == NULL)
			link = new_link(handle);
	}
	else if (may_have_spare(handle))
		link = find_link(handle, DLOCK_USE_OWN, request->wait_param == 0);
	if (link != NULL)
		dlock_links_bind(handle, link, request);
	else if (is_session)
	{
		dlock_fail(&request->error, DLOCK_NO_MEMORY, "out of memory");
		dlock_request_finish(handle, request);
	}
	else
		go_with_batches(handle, request, now);
}

/*
 * The connection for what background.c sends, if it is ready; otherwise it is opened, and
 * handle->background_at says when to ask again.
 */
DlockLink  *
dlock_links_for_background(dlock_handle *handle, int64_t connect_ms, int64_t now)
{
	DlockLink  *link = handle->background;

	if (link != NULL && link->use != DLOCK_USE_NONE && link->use != DLOCK_USE_BACKGROUND)
	{
		/* it is lent, and will be back in a moment */
		if (now < link->sent_at + DLOCK_BACKOFF_FIRST_MS)
		{
			dlock_loop_due(handle, &handle->background_at, link->sent_at + DLOCK_BACKOFF_FIRST_MS);
			return NULL;
		}
		link = handle->background = NULL;
	}
	if (link != NULL)
		return link->use == DLOCK_USE_NONE && state_of(link) == DLOCK_CONN_READY ? link : NULL;
	link = find_idle(handle, DLOCK_USE_BACKGROUND);
	if (link == NULL)
	{
		if (now < handle->background_retry_at)
		{
			dlock_loop_due(handle, &handle->background_at, handle->background_retry_at);
			return NULL;
		}
		handle->background_retry_at = now + dlock_jitter(handle->background_backoff);
		handle->background_backoff = dlock_min(2 * handle->background_backoff, DLOCK_BACKOFF_LAST_MS);
		if (handle->nlinks < handle->max_connections)
			link = new_link(handle);
	}
	if (link == NULL)
	{
		dlock_loop_due(handle, &handle->background_at, handle->background_retry_at);
		return NULL;
	}
	handle->background = link;
	link->is_new = true;
	link->connect_ms = connect_ms;
	set_use(handle, link, DLOCK_USE_BACKGROUND);
	link->connects = state_of(link) == DLOCK_CONN_READY;
	dlock_conn_listen(link->conn, dlock_events_hear, handle, connect_ms, now);
	if (state_of(link) != DLOCK_CONN_READY)
		return NULL;
	link->connects = false;
	set_use(handle, link, DLOCK_USE_NONE);
	return link;
}

/*
 * What has become of it
 */

/* A server that turns us away is there, so it is not silent. */
static void
note_life(DlockRequest *request, int64_t turned_away_at)
{
	if (turned_away_at > 0)
		request->silent_until = dlock_max(request->silent_until,
										  dlock_later(turned_away_at, request->timeout_ms));
}

static void
note_signs_of_life(dlock_handle *handle, DlockLink *link)
{
	int64_t		turned_away_at = link->conn->turned_away_at;

	if (link->use == DLOCK_USE_BATCH)
	{
		handle->main_error = link->conn->error;
		for (DlockRequest *request = handle->queue.first; request != NULL && turned_away_at > 0;
			 request = request->next)
			note_life(request, turned_away_at);
	}
	else if (link->use == DLOCK_USE_BACKGROUND)
	{
		handle->alive_at = dlock_max(handle->alive_at, turned_away_at);
		handle->background_error = link->conn->error;
	}
	else if (link->bound != NULL)
		note_life(link->bound, turned_away_at);
}

/*
 * When to connect again.  Many clients may be turned away at the same time, and must not
 * all come back at the same time.  The pause is well below the time after which a server
 * counts as silent.
 */
static int64_t
next_try_at(bool turned_away, int64_t backoff, int64_t timeout_ms)
{
	if (!turned_away)
		return dlock_now() + dlock_jitter(backoff);
	backoff = dlock_max(dlock_min(backoff, timeout_ms / 2), 1);
	return dlock_now() + backoff / 2 + dlock_random() % backoff;
}

/* The connection for batches could not be made, or broke: pause before the next try. */
static void
pause_main(const dlock_handle *handle, DlockLink *link)
{
	bool		turned_away = link->conn->turned_away_at > 0;
	int64_t		timeout_ms = DLOCK_NEVER;

	for (const DlockRequest *request = handle->queue.first; request != NULL; request = request->next)
		timeout_ms = dlock_min(timeout_ms, request->timeout_ms);
	link->retry_at = next_try_at(turned_away, link->backoff, timeout_ms);
	link->backoff = dlock_min(2 * link->backoff, turned_away ? DLOCK_BACKOFF_FULL_MS : DLOCK_BACKOFF_LAST_MS);
}

static void
main_unconnected(dlock_handle *handle, DlockLink *link)
{
	bool		full = link->conn->full_host >= 0;
	DlockRequest *next;

	for (DlockRequest *request = handle->queue.first; request != NULL; request = next)
	{
		next = request->next;
		if (!link->conn->retry || request->once || (request->is_probe && full))
		{
			request->full = full;
			request->host = link->conn->full_host;
			dlock_request_take_out(handle, request);
			dlock_request_fail(handle, request, &handle->main_error);
		}
		else
			request->error = handle->main_error;
	}
	link->is_full = full;
	pause_main(handle, link);
}

/* If the server is full, a request that could go elsewhere does. */
static void
own_unconnected(dlock_handle *handle, DlockLink *link, int64_t now)
{
	DlockRequest *request = link->bound;
	bool		full = link->conn->full_host >= 0;
	bool		retry = link->conn->retry;

	link->bound = NULL;
	request->error = link->conn->error;
	request->ready_at = next_try_at(link->conn->turned_away_at > 0, request->backoff, request->timeout_ms);
	request->backoff = dlock_min(2 * request->backoff, DLOCK_BACKOFF_LAST_MS);
	drop_link(handle, link);
	if (full && request->use == DLOCK_USE_OWN)
	{
		request->ready_at = 0;
		go_with_batches(handle, request, now);
	}
	else if (!retry || request->ready_at >= dlock_request_limit(request))
		dlock_request_fail(handle, request, &request->error);
	else
		dlock_request_requeue(handle, request);
}

/* No host has accepted us.  Batches can do without a second connection. */
static void
not_connected(dlock_handle *handle, DlockLink *link, int64_t now)
{
	link->connects = false;
	note_signs_of_life(handle, link);
	if (link->use == DLOCK_USE_SECOND)
		handle->second_retry_at = now + dlock_jitter(DLOCK_SECOND_PAUSE_MS);
	if (link->use == DLOCK_USE_BATCH)
		main_unconnected(handle, link);
	else if (link->bound != NULL)
		own_unconnected(handle, link, now);
	else
		drop_link(handle, link);
}

/* The connection broke while a statement was under way. */
static void
broken(dlock_handle *handle, DlockLink *link, const dlock_error *error, bool try_at_once, int64_t now)
{
	dlock_batch_broken(handle, link, error);
	if (link->use == DLOCK_USE_SECOND)
		handle->second_retry_at = now + dlock_jitter(DLOCK_SECOND_PAUSE_MS);
	if (link->use != DLOCK_USE_BATCH)
		drop_link(handle, link);
	else
	{
		if (handle->background == link)
			handle->background = NULL;
		if (try_at_once || link->was_used)
			link->retry_at = now;
		else
			pause_main(handle, link);
	}
}

/* Another connection may work better than one that does not answer. */
static void
give_up(dlock_handle *handle, DlockLink *link, int64_t now)
{
	dlock_error error;

	dlock_fail(&error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
			   (long long) (now - link->sent_at));
	dlock_conn_close(link->conn);
	drop_idle(handle);
	broken(handle, link, &error, true, now);
}

/*
 * A probe has been answered, or not.  TCP does not notice that a server is gone if a
 * machine in between stays alive; and another server may have taken its place.
 */
static void
probe_done(dlock_handle *handle, DlockRequest *probe)
{
	DlockLink  *link = probe->arg;
	DlockRequest *request = link->nsent > 0 ? link->sent[0] : NULL;
	int64_t		now = dlock_now();
	bool		there = probe->reply != NULL || probe->full;

	(void) handle;
	if (there && probe->host != link->conn->host)
	{
		dlock_fail(&probe->error, DLOCK_UNREACHABLE, "another server has taken over");
		there = false;
	}
	dlock_reply_free(probe->reply);
	probe->reply = NULL;
	if (request == NULL)
		return;
	link->probe_at = dlock_later(now, dlock_probe_ms(request->timeout_ms));
	if (!there)
		/* dlock_links_settle() finds it closed, with that error */
		dlock_conn_abort(link->conn, &probe->error);
}

/* The server waits: ask whether it is still there, with the next batch. */
static void
send_probe(dlock_handle *handle, DlockLink *link, int64_t now)
{
	const DlockRequest *request = link->sent[0];

	link->probe_at = DLOCK_NEVER;
	dlock_request_init(&link->probe, dlock_sql_probe, 0, NULL,
					   dlock_min(request->timeout_ms, dlock_max(link->answer_by - now, 0)));
	link->probe.use = DLOCK_USE_BATCH;
	link->probe.is_probe = true;
	link->probe.done = probe_done;
	link->probe.arg = link;
	dlock_request_submit(handle, &link->probe);
}

/* There is no answer yet. */
static void
still_busy(dlock_handle *handle, DlockLink *link, int64_t now)
{
	bool		is_batch = link->use == DLOCK_USE_BATCH || link->use == DLOCK_USE_SECOND;

	/* quick requests need not wait for it */
	int			waiting = handle->queue.n;

	if (handle->second != NULL || may_have_second(handle, now))
		waiting -= handle->queue.nquick;
	/* the server may still execute it, and others wait for the connection */
	if (now >= link->answer_by || dlock_batch_is_deserted(link) ||
		(is_batch && waiting > 0 && now >= link->sent_at + dlock_probe_ms(handle->timeout_ms)))
		give_up(handle, link, now);
	else if (!is_batch && now >= link->probe_at)
		send_probe(handle, link, now);
}

static void
take_reply(dlock_handle *handle, DlockLink *link, int64_t now)
{
	DlockReply *reply = dlock_conn_take(link->conn);

	if (reply != NULL)
		dlock_batch_answered(handle, link, reply);
	else if (state_of(link) == DLOCK_CONN_READY)
		dlock_batch_refused(handle, link);
	else
		broken(handle, link, &link->conn->error, false, now);
}

static void
settle(dlock_handle *handle, DlockLink *link, int64_t now)
{
	dlock_error error;

	switch (state_of(link))
	{
		case DLOCK_CONN_DONE:
			take_reply(handle, link, now);
			break;
		case DLOCK_CONN_BUSY:
			still_busy(handle, link, now);
			break;
		case DLOCK_CONN_READY:
			if (link->nsent > 0)
			{
				dlock_fail(&error, DLOCK_NO_MEMORY, "out of memory");
				for (int i = 0; i < link->nsent; i++)
					if (link->sent[i] != NULL)
						link->sent[i]->once = true;
				dlock_batch_broken(handle, link, &error);
			}
			if (link->connects)
			{
				link->connects = false;
				link->is_full = false;
				if (link->use == DLOCK_USE_BACKGROUND)
					handle->background_backoff = DLOCK_BACKOFF_FIRST_MS;
				if (link->use == DLOCK_USE_BATCH)
					dlock_error_clear(&handle->main_error);
			}
			break;
		case DLOCK_CONN_CLOSED:
			if (link->nsent > 0)
				broken(handle, link, &link->conn->error, false, now);
			else if (link->connects)
				not_connected(handle, link, now);
			else if (link->use == DLOCK_USE_NONE)
				drop_link(handle, link);	/* the server has closed it */
			break;
		default:
			note_signs_of_life(handle, link);
			break;
	}
}

/* Look at what the connections have come to, and hand out answers. */
void
dlock_links_settle(dlock_handle *handle, int64_t now)
{
	for (DlockLink *link = handle->links; link != NULL; link = link->next)
	{
		if (!link->is_dropped)
			settle(handle, link, now);
		/* one that has done its duty is there for what is queued */
		if ((link->use == DLOCK_USE_BACKGROUND || link->use == DLOCK_USE_OWN) &&
			state_of(link) == DLOCK_CONN_READY && link->nsent == 0 && link->bound == NULL)
			release_link(handle, link);
	}
	sweep(handle);
}

/*
 * What can be sent
 */

/* Resolving and connecting may take a while, so it is done without the mutex. */
static void
start_connecting(dlock_handle *handle, DlockLink *link, int64_t now)
{
	link->connects = true;
	link->is_used = link->was_used = false;
	link->is_for_probe = link->use == DLOCK_USE_BATCH;
	pthread_mutex_unlock(&handle->mutex);
	dlock_conn_start(link->conn, link->connect_ms, now);
	pthread_mutex_lock(&handle->mutex);
	if (state_of(link) == DLOCK_CONN_CLOSED)
		not_connected(handle, link, now);
}

static int64_t
next_ready(const dlock_handle *handle)
{
	int64_t		at = DLOCK_NEVER;

	for (const DlockRequest *request = handle->queue.first; request != NULL; request = request->next)
		at = dlock_min(at, request->ready_at);
	return at;
}

/* Is there anything that it would carry, now or later? */
static bool
is_wanted(const dlock_handle *handle, const DlockLink *link)
{
	switch (link->use)
	{
		case DLOCK_USE_BATCH:
			return handle->queue.first != NULL;
		case DLOCK_USE_SECOND:
			return true;		/* if not this time, then the next */
		case DLOCK_USE_OWN:
		case DLOCK_USE_SESSION:
			return link->bound != NULL;
		case DLOCK_USE_BACKGROUND:
			return link->bound != NULL || link->connects || state_of(link) == DLOCK_CONN_CLOSED;
		case DLOCK_USE_NONE:
			break;
	}
	return false;
}

/* It is connected: send what is there. */
static void
send(dlock_handle *handle, DlockLink *link, int64_t now)
{
	if (link->bound != NULL)
		dlock_batch_send_bound(handle, link);
	else if (link->use == DLOCK_USE_BATCH || link->use == DLOCK_USE_SECOND)
		dlock_batch_send(handle, link, now);
	if (link->nsent == 0)
		release_link(handle, link);
}

/*
 * Let it continue.  Returns when to look at it again at the latest.  *again: something
 * has changed, which may allow more.
 */
static int64_t
advance(dlock_handle *handle, DlockLink *link, int64_t now, bool *again)
{
	DlockLink  *lent;

	if (link->nsent > 0)
	{
		int64_t		until = dlock_min(link->answer_by, link->probe_at > 0 ? link->probe_at : DLOCK_NEVER);
		int64_t		patience = link->sent_at + dlock_probe_ms(handle->timeout_ms);

		/*
		 * a connection that could not be used for sending is looked at at
		 * once
		 */
		if (state_of(link) != DLOCK_CONN_BUSY)
			return 0;
		return patience > now ? dlock_min(until, patience) : until;
	}
	if (link->use == DLOCK_USE_NONE)
		return DLOCK_NEVER;
	if (state_of(link) == DLOCK_CONN_READY)
	{
		send(handle, link, now);
		*again = true;
		return DLOCK_NEVER;
	}
	if (!is_wanted(handle, link))
	{
		drop_link(handle, link);
		return DLOCK_NEVER;
	}
	if (state_of(link) != DLOCK_CONN_CLOSED)
		return dlock_conn_until(link->conn);
	lent = link->is_full ? idle_background(handle) : NULL;
	if (lent != NULL && link->use == DLOCK_USE_BATCH)
	{
		drop_link(handle, link);
		set_use(handle, lent, DLOCK_USE_BATCH);
		lent->is_for_probe = false;
		*again = true;
		return DLOCK_NEVER;
	}
	if (link->retry_at > now)
		return link->retry_at;
	start_connecting(handle, link, now);
	*again = true;
	return DLOCK_NEVER;
}

/* Assign links to what is queued. */
static int64_t
assign(dlock_handle *handle, int64_t now)
{
	int64_t		until = DLOCK_NEVER;
	DlockRequest *next;
	DlockLink  *link;

	for (DlockRequest *request = handle->others.first; request != NULL; request = next)
	{
		next = request->next;
		if (request->ready_at > now)
			until = dlock_min(until, request->ready_at);
		else
			start_own(handle, request, now);
	}
	if (handle->queue.first == NULL)
		return until;
	if (handle->main == NULL && is_coming_back(handle, now))
		until = dlock_min(until, handle->background->used_since + DLOCK_LEND_MS);
	else if (handle->main == NULL && dlock_batch_has(handle, false, now))
	{
		link = find_link(handle, DLOCK_USE_BATCH, true);
		if (link == NULL)
			link = idle_background(handle);
		if (link != NULL)
		{
			set_use(handle, link, DLOCK_USE_BATCH);
			link->is_for_probe = false;
			link->retry_at = 0;
		}
		else
			until = dlock_min(until, now + DLOCK_BACKOFF_FIRST_MS);
	}
	else if (handle->main == NULL)
		until = dlock_min(until, dlock_max(next_ready(handle), now + 1));
	if (may_have_second(handle, now) && dlock_batch_has(handle, true, now))
	{
		link = find_idle(handle, DLOCK_USE_SECOND);
		if (link == NULL && handle->nlinks < handle->max_connections)
			link = new_link(handle);
		if (link != NULL)
			set_use(handle, link, DLOCK_USE_SECOND);
		else
			handle->second_retry_at = now + DLOCK_SECOND_PAUSE_MS;
	}
	return until;
}

/* Connect and send.  Returns when there is something to do again at the latest. */
int64_t
dlock_links_schedule(dlock_handle *handle, int64_t now)
{
	int64_t		until;
	bool		again;

	do
	{
		again = false;
		until = assign(handle, now);
		for (DlockLink *link = handle->links; link != NULL; link = link->next)
			if (!link->is_dropped)
				until = dlock_min(until, advance(handle, link, now, &again));
	} while (again);
	return until;
}

/*
 * Could it be sent at once, by the thread that runs the loop and sleeps?  If not, that
 * thread finds it when the batch that is under way is answered.
 */
bool
dlock_links_could_send(const dlock_handle *handle, const DlockRequest *request)
{
	int64_t		now = dlock_now();

	return request->use != DLOCK_USE_BATCH || request->ready_at > now || handle->main == NULL ||
		(may_have_second(handle, now) && dlock_batch_has(handle, true, now));
}

/* Does a connection need the loop, or wait for it? */
bool
dlock_links_in_use(const dlock_handle *handle)
{
	if (handle->queue.first != NULL || handle->others.first != NULL)
		return true;
	for (const DlockLink *link = handle->links; link != NULL; link = link->next)
		if (link->use != DLOCK_USE_NONE)
			return true;
	return false;
}

/* Is there something to wait for at its connection? */
bool
dlock_links_is_waiting(const DlockLink *link)
{
	return link->conn != NULL &&
		(dlock_conn_connecting(link->conn) || link->conn->state == DLOCK_CONN_BUSY ||
		 (link->use == DLOCK_USE_NONE && link->conn->listens));
}

/*
 * The end
 */

/* Close them all. */
void
dlock_links_free(dlock_handle *handle)
{
	for (DlockLink *link = handle->links; link != NULL; link = link->next)
		if (!link->is_dropped)
		{
			link->nsent = 0;
			drop_link(handle, link);
		}
	sweep(handle);
}

/* In a child; the parent continues to use them. */
void
dlock_links_disown(dlock_handle *handle)
{
	while (handle->links != NULL)
	{
		DlockLink  *link = handle->links;

		handle->links = link->next;
		if (link->conn != NULL)
			dlock_conn_disown(link->conn, link->use == DLOCK_USE_NONE && !handle->running);
		free(link);
	}
}
