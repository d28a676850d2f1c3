/*-------------------------------------------------------------------------
 *
 * background.c
 *	  What a handle does without being asked: it renews locks, asks about tickets
 *	  and events, and takes back what was granted to abandoned requests.
 *
 * One statement at a time is sent for this, on a connection that listens for events
 * where that is possible.  The thread that runs the loop sends it when
 * handle->background_at has come (dlock_background_look()).
 *
 * One statement renews all locks of a handle that are due, and asks for the others
 * whether they are still ours.  handle->renewing is what was sent.
 *
 * A lock that is released soon needs none of this, so there is no connection for it
 * until it has been held for a moment.
 *
 * The background thread runs the loop when no other thread does, and it alone calls the
 * program back (callbacks.c).
 *
 *-------------------------------------------------------------------------
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/*
 * Renewals
 */

static bool
may_ask_about(const dlock_lock *lock)
{
	return lock->hold == DLOCK_HOLD_OURS && lock->held_off == 0 && !lock->freed;
}

/*
 * Choose the locks of the next statement: those that an event has named, and if
 * any lock is due, all that will be due soon, so that they are due together the
 * next time.  Locks of a statement that failed follow one by one, when there are
 * no others.
 */
static bool
choose_locks(dlock_handle *handle, int64_t now)
{
	dlock_lock *alone = NULL;
	bool		any = false;
	bool		any_due = false;
	int			n = 0;

	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		n++;
		if (!may_ask_about(lock) || (lock->due > now && !dlock_events_ripe(lock, now)))
			continue;
		if (!lock->alone)
			any = true;
		else if (alone == NULL || lock->deadline < alone->deadline)
			alone = lock;
		any_due = any_due || (!lock->alone && lock->due <= now);
	}
	if (!any && alone == NULL)
		return false;
	n = n < DLOCK_MAX_RENEWED ? n : DLOCK_MAX_RENEWED;
	handle->renewing = calloc((size_t) n, sizeof(dlock_lock *));
	handle->nrenewing = 0;
	if (handle->renewing == NULL)
		return false;
	for (dlock_lock *lock = handle->locks; lock != NULL && handle->nrenewing < n; lock = lock->next)
	{
		bool		is_due = lock->due <= (any_due ? now + dlock_batch_ms(lock->ttl_ms) : now);

		if (any ? may_ask_about(lock) && !lock->alone &&
			(is_due || dlock_events_ripe(lock, now)) : lock == alone)
		{
			lock->renewing = is_due;
			lock->index = handle->nrenewing;
			handle->renewing[handle->nrenewing++] = lock;
		}
	}
	dlock_events_asked(handle, handle->renewing, handle->nrenewing, now);
	return handle->nrenewing > 0;
}

/* The parameters for what was chosen; returns how long the answer may take. */
static int64_t
renewal_params(dlock_handle *handle, DlockParamList *list)
{
	int			n = handle->nrenewing;
	int64_t		patience = DLOCK_NEVER;

	dlock_params_add_array(list, DLOCK_TYPE_TEXT, n);
	for (int i = 0; i < n; i++)
		dlock_params_add_element(list, DLOCK_TYPE_TEXT, handle->renewing[i]->key);
	dlock_params_add_array(list, DLOCK_TYPE_INT8, n);
	for (int i = 0; i < n; i++)
		dlock_params_add_number(list, handle->renewing[i]->version);
	dlock_params_add_array(list, DLOCK_TYPE_TEXT, n);
	for (int i = 0; i < n; i++)
		dlock_params_add_element(list, DLOCK_TYPE_TEXT, handle->renewing[i]->owner);
	dlock_params_add_array(list, DLOCK_TYPE_BOOL, n);
	for (int i = 0; i < n; i++)
	{
		const dlock_lock *lock = handle->renewing[i];

		dlock_params_add_element(list, DLOCK_TYPE_BOOL, dlock_lease_renews(lock) && lock->renewing ? "t" : "f");
		patience = dlock_min(patience, dlock_answer_ms(lock->ttl_ms));
	}
	snprintf(handle->background_text, sizeof(handle->background_text), "%lldms",
			 (long long) dlock_row_ms(patience));
	dlock_params_add_text(list, handle->background_text);
	handle->jitter = (int) (dlock_random() % DLOCK_JITTER);
	return patience;
}

static void
renewal_answered(dlock_handle *handle, const DlockReply *reply, int64_t sent_at, int64_t now)
{
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int			i = dlock_reply_index(reply, row, 0, handle->nrenewing);
		const char *state = dlock_reply_get(reply, row, 2);
		dlock_lock *lock;

		if (i < 0 || state == NULL)
			continue;
		lock = handle->renewing[i];
		if (lock == NULL || dlock_lease_overdue(lock, now))
			continue;
		lock->alone = false;
		if (strcmp(state, "held") != 0 && strcmp(state, "preempting") != 0)
		{
			dlock_lease_gone(lock, state);
			continue;
		}
		dlock_events_refuted(lock);
		if (dlock_lease_answered(lock, reply, row, 1))
			dlock_lease_renewed(lock, sent_at);
		else if (lock->renewing)
			lock->due = dlock_lease_next_due(lock, sent_at);

		if (strcmp(state, "held") == 0)
			lock->asked = false;
		else if (!lock->asked)
		{
			lock->asked = true;
			dlock_lease_ask(lock, DLOCK_REASON_NONE, now + dlock_reply_amount(reply, row, 3));
		}
	}
}

/*
 * The server is there but refused the statement, perhaps because of one lock
 * of many.  So each is renewed on its own next, and not at once.
 */
static void
renewal_refused(dlock_handle *handle, int64_t now)
{
	for (int i = 0; i < handle->nrenewing; i++)
	{
		dlock_lock *lock = handle->renewing[i];

		if (lock == NULL)
			continue;
		if (lock->alone || handle->nrenewing == 1)
			lock->due = now + dlock_refused_ms(lock->ttl_ms);
		lock->alone = true;
	}
}

/* The statement has ended; callers that waited for that may continue. */
static void
renewal_ended(dlock_handle *handle)
{
	for (int i = 0; i < handle->nrenewing; i++)
		if (handle->renewing[i] != NULL)
		{
			handle->renewing[i]->index = -1;
			dlock_events_unanswered(handle->renewing[i]);
		}
	free(handle->renewing);
	handle->renewing = NULL;
	handle->nrenewing = 0;
	dlock_op_step_releases(handle);
}

/*
 * The statement
 */

/* Its connection did not break, so the server has refused it. */
static bool
was_refused(const DlockRequest *request)
{
	return request->reply == NULL && !request->in_doubt && request->error.status != DLOCK_NO_MEMORY;
}

/* Called by the engine when the statement is answered, or will not be. */
static void
statement_done(dlock_handle *handle, DlockRequest *request)
{
	int64_t		now = dlock_now();
	const DlockReply *reply = request->reply;

	/* a lock whose deadline has passed is lost, whatever the answer is */
	dlock_lease_check_all(handle, now);
	if (reply != NULL)
		handle->alive_at = now;
	if (request->sql == dlock_sql_renew)
	{
		if (reply != NULL)
			renewal_answered(handle, reply, request->sent_at, now);
		else if (was_refused(request))
			renewal_refused(handle, now);
		renewal_ended(handle);
	}
	else if (request->sql == dlock_sql_tickets && reply != NULL)
		dlock_tickets_answered(handle, reply, now);
	else if (request->sql == dlock_sql_abandoned)
		dlock_abandoned_answered(handle, reply, now);
	dlock_reply_free(request->reply);
	request->reply = NULL;
	dlock_params_free(&handle->background_params);
	dlock_loop_due(handle, &handle->background_at, 0);
	dlock_loop_changed(handle);
}

static void
send(dlock_handle *handle, DlockLink *link, const char *sql, int64_t patience)
{
	DlockRequest *request = &handle->background_request;

	dlock_request_init(request, sql, 0, NULL, patience);
	dlock_request_use_list(request, &handle->background_params);
	request->use = DLOCK_USE_BACKGROUND;
	request->once = true;
	request->silent_until = DLOCK_NEVER;
	request->done = statement_done;
	dlock_error_clear(&request->error);
	if (!dlock_params_finish(&handle->background_params))
	{
		dlock_fail(&request->error, DLOCK_NO_MEMORY, "out of memory");
		dlock_request_finish(handle, request);
		return;
	}
	dlock_links_bind(handle, link, request);
}

/* Send what is due, one statement at a time. */
static void
send_due(dlock_handle *handle, DlockLink *link, int64_t now)
{
	DlockParamList *list = &handle->background_params;
	bool		listens = link->conn->listens;

	if (link->is_new && listens)
		dlock_events_missed(handle);
	if (link->is_new)
		handle->tickets_at = 0;
	link->is_new = false;
	dlock_error_clear(&handle->background_error);
	dlock_abandoned_drop(handle, now);
	dlock_params_init(list);
	if (choose_locks(handle, now))
		send(handle, link, dlock_sql_renew, renewal_params(handle, list));
	else if (dlock_tickets_due(handle, listens) <= now && dlock_tickets_params(handle, list, now) > 0)
		send(handle, link, dlock_sql_tickets, dlock_answer_ms(handle->ttl_ms));
	else if (dlock_abandoned_due(handle) <= now && dlock_abandoned_params(handle, list, now) > 0)
		send(handle, link, dlock_sql_abandoned, dlock_answer_ms(handle->ttl_ms));
	else
		dlock_params_free(list);
}

/* When a connection is needed. */
static int64_t
needed_at(dlock_handle *handle, int64_t now)
{
	int64_t		at = handle->nwaits > 0 ? now : DLOCK_NEVER;

	for (const dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (dlock_lock_is_active(lock))
			at = dlock_min(at, lock->connect_at);
	return handle->abandoned != NULL ? now : at;
}

/* The shortest TTL says how long it may take to connect. */
static int64_t
patience_to_connect(const dlock_handle *handle)
{
	int64_t		ttl = handle->ttl_ms;

	for (const dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->hold == DLOCK_HOLD_OURS)
			ttl = dlock_min(ttl, lock->ttl_ms);
	return dlock_connect_ms(ttl);
}

/* When there is something to do for the locks, with a connection that is ready or without. */
static int64_t
locks_due(const dlock_handle *handle, bool ready)
{
	int64_t		until = DLOCK_NEVER;

	for (const dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		if (!dlock_lock_is_active(lock))
			continue;
		until = dlock_min(until, lock->deadline);
		if (dlock_lease_renews(lock))
			until = dlock_min(until, dlock_min(lock->danger_at, dlock_lease_renews_until(lock)));
		if (ready && lock->held_off == 0)
			until = dlock_min(until, lock->heard ?
							  dlock_min(lock->due, dlock_events_ripe_at(handle)) : lock->due);
	}
	return until;
}

/*
 * Look at all locks, tickets and abandoned requests: send what is due, and set the time of
 * the next look.  Called by the thread that runs the loop, when background_at has come.
 */
void
dlock_background_look(dlock_handle *handle, int64_t now)
{
	DlockLink  *link = NULL;
	int64_t		at;
	bool		is_idle;

	handle->background_at = DLOCK_NEVER;
	dlock_lease_check_all(handle, now);
	dlock_abandoned_drop(handle, now);
	at = needed_at(handle, now);
	if (at <= now)
		link = dlock_links_for_background(handle, patience_to_connect(handle), now);
	if (link != NULL)
		send_due(handle, link, now);
	is_idle = link != NULL && link->use == DLOCK_USE_NONE;
	if (is_idle)
	{
		at = dlock_min(dlock_tickets_due(handle, link->conn->listens), dlock_abandoned_due(handle));
		dlock_loop_due(handle, &handle->background_at, dlock_max(at, now + 1));
	}
	else if (at > now)
		dlock_loop_due(handle, &handle->background_at, at);
	/* otherwise it is due when the link is ready */
	at = locks_due(handle, is_idle);
	dlock_loop_due(handle, &handle->background_at, is_idle ? dlock_max(at, now + 1) : at);
	handle->watch_fd = -1;
	if (is_idle && link->conn->listens)
	{
		short		events;

		handle->watch_fd = dlock_conn_fd(link->conn, &events);
	}
}

/* What belongs to a statement that was not answered; the handle is being freed. */
void
dlock_background_free(dlock_handle *handle)
{
	DlockRequestState state = handle->background_request.state;

	if (state == DLOCK_REQUEST_QUEUED || state == DLOCK_REQUEST_SENT)
		dlock_params_free(&handle->background_params);
	free(handle->renewing);
}

/*
 * The thread
 */

static void *
background_main(void *arg)
{
	dlock_handle *handle = arg;
	bool		was_read = false;
	bool		closing;

	pthread_mutex_lock(&handle->mutex);
	while (!handle->stopping)
		if (!dlock_callbacks_next(handle, dlock_now()))
			was_read = dlock_loop_run_background(handle, was_read);
	closing = handle->closing;
	pthread_mutex_unlock(&handle->mutex);
	if (closing)
	{
		/* nobody waits for this thread or may use the handle any more */
		pthread_detach(pthread_self());
		dlock_handle_destroy(handle);
	}
	return NULL;
}

/* Unless it is there.  The caller does not have the mutex. */
dlock_status
dlock_background_start(dlock_handle *handle, dlock_error *err)
{
	sigset_t	all;
	sigset_t	before;
	int			failed = 0;

	if (__atomic_load_n(&handle->has_background, __ATOMIC_ACQUIRE))
		return DLOCK_OK;
	pthread_mutex_lock(&handle->mutex);
	if (!handle->has_background)
	{
		/* leave signals to the threads of the program */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		failed = pthread_create(&handle->thread, NULL, background_main, handle);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		__atomic_store_n(&handle->has_background, failed == 0, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&handle->mutex);
	if (failed)
		return dlock_fail(err, DLOCK_NO_MEMORY, "could not start the background thread: %s",
						  strerror(failed));
	return DLOCK_OK;
}

/* For good.  The caller does not have the mutex. */
void
dlock_background_stop(dlock_handle *handle)
{
	bool		running;

	pthread_mutex_lock(&handle->mutex);
	running = handle->has_background;
	handle->stopping = true;
	dlock_loop_wake_background(handle);
	pthread_mutex_unlock(&handle->mutex);
	if (running)
		pthread_join(handle->thread, NULL);
}

/* In a callback: when it returns, the thread ends and frees the handle. */
void
dlock_background_stop_later(dlock_handle *handle)
{
	pthread_mutex_lock(&handle->mutex);
	handle->stopping = true;
	handle->closing = true;
	pthread_mutex_unlock(&handle->mutex);
}

/* Is this the background thread?  Then the program is in a callback. */
bool
dlock_background_is_here(dlock_handle *handle)
{
	return __atomic_load_n(&handle->has_background, __ATOMIC_ACQUIRE) &&
		pthread_equal(handle->thread, pthread_self());
}
