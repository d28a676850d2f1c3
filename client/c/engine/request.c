/*-------------------------------------------------------------------------
 *
 * request.c
 *	  One statement, sent until it is answered.
 *
 * Every statement of the library can be sent twice: an acquire has an owner,
 * which gets the same grant again, and the others name their grant.  So when a
 * connection breaks, a server goes down or an answer does not arrive, the
 * statement is sent to the next host that accepts us, until its time is up.
 * Nothing is ever cancelled.
 *
 * A server that is full, starting or shutting down is not silent: a request that
 * waits for a lock retries until its wait is over.
 *
 * A short request goes together with others (batch.c).  One that may take long has
 * a connection of its own, if the bound of the handle leaves one.  Otherwise it takes
 * its turn among the batches, where it does not wait on the server: it is asked again
 * a few times a second.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"

/* The caller sets what else it needs.  It goes by itself unless it has a kind. */
void
dlock_request_init(DlockRequest *request, const char *sql, int nparams,
				   const char **params, int64_t timeout_ms)
{
	memset(request, 0, sizeof(*request));
	request->sql = sql;
	request->nparams = nparams;
	request->params = params;
	request->kind = DLOCK_OTHER;
	request->use = DLOCK_USE_OWN;
	request->timeout_ms = timeout_ms;
	request->until = dlock_later(dlock_now(), timeout_ms);
}

/* Its parameters are those of the list, which must remain as long as the request. */
void
dlock_request_use_list(DlockRequest *request, DlockParamList *list)
{
	request->nparams = list->n;
	request->params = list->values;
	request->lengths = list->lengths;
	request->formats = list->formats;
}

/*
 * Does the server answer it without a flush?  A check, a release, mostly a refresh.
 * Such requests may be sent beside a batch that waits for one (links.c).
 */
bool
dlock_request_is_quick(const DlockRequest *request)
{
	return request->kind <= DLOCK_LAST_QUICK;
}

/* Set those parameters that are known only when it is sent. */
void
dlock_request_set_params(DlockRequest *request, const DlockConn *conn, int64_t now,
						 const char *row_limit, bool may_wait)
{
	if (request->ttl_param > 0)
	{
		if (*request->ttl_ms == 0)
			*request->ttl_ms = dlock_max(conn->default_ttl, request->ttl_least);
		snprintf(request->ttl_text, sizeof(request->ttl_text), "%lld ms", (long long) *request->ttl_ms);
		request->params[request->ttl_param - 1] = request->ttl_text;
	}
	if (request->again_param > 0 && request->in_doubt)
		request->params[request->again_param - 1] = "t";
	if (request->row_param > 0)
		request->params[request->row_param - 1] = row_limit;
	if (request->wait_param > 0)
	{
		int64_t		wait = may_wait ? dlock_max(request->wait_until - now, 0) : 0;

		snprintf(request->wait_text, sizeof(request->wait_text), "%lld ms", (long long) wait);
		request->params[request->wait_param - 1] =
			may_wait && request->wait_until == DLOCK_NEVER ? NULL : request->wait_text;
		request->polled = !may_wait;
	}
}

static bool
fits(const char *text, size_t max)
{
	return text == NULL || strlen(text) <= max;
}

/*
 * Would the server accept it?  If not, it goes by itself, so that it fails by itself
 * at once.  All but those about a ticket alone have the key as their first parameter
 * and the owner as their third; that of an acquire with all its terms, the value as
 * its fourth.
 */
static bool
is_sound(const DlockRequest *request)
{
	return request->kind == DLOCK_OTHER || request->kind == DLOCK_DEQUEUES ||
		(request->params[0][0] != '\0' && fits(request->params[0], DLOCK_MAX_KEY_BYTES) &&
		 fits(request->params[2], DLOCK_MAX_OWNER_BYTES) &&
		 (request->kind != DLOCK_TRIES || fits(request->params[3], DLOCK_MAX_VALUE_BYTES)));
}

/*
 * Queues
 */

static DlockQueue *
queue_of(dlock_handle *handle, const DlockRequest *request)
{
	return request->use == DLOCK_USE_BATCH ? &handle->queue : &handle->others;
}

/* Put it behind "before", or at the beginning if that is NULL. */
static void
insert(dlock_handle *handle, DlockRequest *request, DlockRequest *before)
{
	DlockQueue *queue = queue_of(handle, request);
	DlockRequest *after = before != NULL ? before->next : queue->first;

	request->state = DLOCK_REQUEST_QUEUED;
	request->link = NULL;
	request->prev = before;
	request->next = after;
	if (before != NULL)
		before->next = request;
	else
		queue->first = request;
	if (after != NULL)
		after->prev = request;
	else
		queue->last = request;
	queue->n++;
	queue->nquick += dlock_request_is_quick(request);
	dlock_loop_due(handle, &handle->expire_at, dlock_request_limit(request));
}

/* Out of its queue, to be sent or to end. */
void
dlock_request_take_out(dlock_handle *handle, DlockRequest *request)
{
	DlockQueue *queue = queue_of(handle, request);

	if (request->prev != NULL)
		request->prev->next = request->next;
	else
		queue->first = request->next;
	if (request->next != NULL)
		request->next->prev = request->prev;
	else
		queue->last = request->prev;
	queue->n--;
	queue->nquick -= dlock_request_is_quick(request);
}

/*
 * Send it as soon as possible.  The caller runs the loop, or waits; if the thread that
 * runs it sleeps, it is woken if it has something to do now.
 */
void
dlock_request_submit(dlock_handle *handle, DlockRequest *request)
{
	request->reply = NULL;
	request->in_doubt = false;
	request->alone = request->alone || !is_sound(request);
	request->backoff = DLOCK_BACKOFF_FIRST_MS;
	if (request->use == DLOCK_USE_OWN && (request->kind != DLOCK_OTHER || request->once))
		request->use = DLOCK_USE_BATCH;
	dlock_error_clear(&request->error);
	request->silent_until = request->once ? DLOCK_NEVER :
		dlock_later(dlock_max(dlock_now(), request->ready_at), request->timeout_ms);
	insert(handle, request, queue_of(handle, request)->last);
	if (handle->running && handle->polls && dlock_links_could_send(handle, request))
		dlock_loop_wake(handle);
}

/* It goes again, before those that came later. */
void
dlock_request_requeue(dlock_handle *handle, DlockRequest *request)
{
	insert(handle, request, NULL);
}

/*
 * The end
 */

void
dlock_request_finish(dlock_handle *handle, DlockRequest *request)
{
	request->state = DLOCK_REQUEST_DONE;
	request->link = NULL;
	if (request->reply == NULL && request->error.status == DLOCK_OK)
		request->error.status = DLOCK_UNREACHABLE;
	if (request->done != NULL)
		request->done(handle, request);
	else if (request->sleeper != NULL)
		dlock_loop_signal(handle, request->sleeper);
}

void
dlock_request_fail(dlock_handle *handle, DlockRequest *request, const dlock_error *error)
{
	if (error != &request->error)
		request->error = *error;
	dlock_request_finish(handle, request);
}

/* When its time is up. */
int64_t
dlock_request_limit(const DlockRequest *request)
{
	return dlock_min(request->until, request->silent_until);
}

/*
 * Its time is up, or nobody wants it any more: take it away from where it is, and say
 * why it has no answer.  Does not finish it.
 */
void
dlock_request_leave(dlock_handle *handle, DlockRequest *request)
{
	if (request->state == DLOCK_REQUEST_SENT)
	{
		DlockLink  *link = request->link;

		for (int i = 0; i < link->nsent; i++)
			if (link->sent[i] == request)
				link->sent[i] = NULL;
		request->in_doubt = true;
		dlock_fail(&request->error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
				   (long long) (dlock_now() - request->sent_at));
	}
	else if (request->state == DLOCK_REQUEST_QUEUED)
	{
		const DlockLink *busy = request->link == NULL ? handle->main : NULL;
		bool		is_batch = request->use == DLOCK_USE_BATCH;

		if (request->link == NULL)
			dlock_request_take_out(handle, request);
		else
		{
			request->error = request->link->conn->error;
			request->link->bound = NULL;
		}
		/* the error of an earlier try says more than a timeout */
		if (request->error.message[0] == '\0' && is_batch && busy != NULL && busy->nsent > 0)
			dlock_fail(&request->error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
					   (long long) request->timeout_ms);
		else if (request->error.message[0] == '\0' && is_batch && handle->main_error.message[0] != '\0')
			request->error = handle->main_error;
		else if (request->error.message[0] == '\0')
			dlock_fail(&request->error, DLOCK_UNREACHABLE, "could not reach a server in %lld ms",
					   (long long) request->timeout_ms);
	}
	request->state = DLOCK_REQUEST_DONE;
	request->link = NULL;
	/* what nobody waits for is not left half open */
	dlock_loop_wake(handle);
}

static void
expire_one(dlock_handle *handle, DlockRequest *request, int64_t now)
{
	if (dlock_request_limit(request) <= now)
	{
		dlock_request_leave(handle, request);
		dlock_request_finish(handle, request);
	}
	else
		dlock_loop_due(handle, &handle->expire_at, dlock_request_limit(request));
}

/*
 * End those whose time is up, and continue acquires and releases whose pause is over.
 * The thread that runs the loop calls this when handle->expire_at has come, or another
 * one that waits, in case that one is held up.
 */
void
dlock_request_expire(dlock_handle *handle, int64_t now)
{
	DlockRequest *next;
	dlock_op   *next_op;

	handle->expire_at = DLOCK_NEVER;
	for (DlockRequest *request = handle->queue.first; request != NULL; request = next)
	{
		next = request->next;
		expire_one(handle, request, now);
	}
	for (DlockRequest *request = handle->others.first; request != NULL; request = next)
	{
		next = request->next;
		expire_one(handle, request, now);
	}
	for (DlockLink *link = handle->links; link != NULL; link = link->next)
	{
		if (link->bound != NULL)
			expire_one(handle, link->bound, now);
		for (int i = 0; i < link->nsent; i++)
			if (link->sent[i] != NULL)
				expire_one(handle, link->sent[i], now);
	}
	for (dlock_op *op = handle->ops; op != NULL; op = next_op)
	{
		next_op = op->next;
		if (dlock_op_due(op) <= now)
			dlock_op_step(op);
		else
			dlock_loop_due(handle, &handle->expire_at, dlock_op_due(op));
	}
}

static bool
is_done(const void *arg)
{
	return ((const DlockRequest *) arg)->state == DLOCK_REQUEST_DONE;
}

/*
 * Send it, and wait until it is done.  DLOCK_OK: the caller frees request->reply.  The
 * caller does not have the mutex.
 */
dlock_status
dlock_request_call(dlock_handle *handle, DlockRequest *request, dlock_error *err)
{
	pthread_mutex_lock(&handle->mutex);
	dlock_request_submit(handle, request);
	dlock_loop_wait(handle, is_done, request, &request->sleeper);
	if (request->reply == NULL)
		return dlock_error_copy(err, &request->error);
	dlock_error_clear(err);
	return DLOCK_OK;
}
