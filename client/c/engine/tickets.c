/*-------------------------------------------------------------------------
 *
 * tickets.c
 *	  Requests that wait by ticket.
 *
 * A request that finds its key busy gets a ticket, which stands in the queue of
 * the server by itself, so it takes no connection to wait.  The connection of the
 * background listens for all of them.  When an event names a ticket, the request asks
 * the server.  Events may be false or lost, so
 *
 *	  an event only leads to a question, and after one without effect, events
 *	  of this ticket are not acted upon for a while (DLOCK_POLL_MS);
 *
 *	  all tickets are asked for together, by one statement: now and then, after
 *	  each time that nobody listened, and every DLOCK_POLL_MS where that is not
 *	  possible, which is behind a pooler; there, they are also asked for soon after
 *	  this handle has released something.
 *
 * These questions also tell whether there is a server.  If none has answered for
 * as long as a request allows, it ends.
 *
 *-------------------------------------------------------------------------
 */
#include "engine/engine.h"
#include "net/errors.h"

static dlock_op **
bucket(dlock_handle *handle, int64_t ticket)
{
	return &handle->waits[(uint64_t) ticket % DLOCK_WAIT_BUCKETS];
}

/* Its turn may have come: it asks now, or when it may ask again. */
static void
ask(dlock_op *op)
{
	op->heard = true;
	if (dlock_now() >= op->quiet_until)
		dlock_op_step(op);
	else
		dlock_loop_due(op->handle, &op->handle->expire_at, op->quiet_until);
}

/*
 * It has a ticket.  The event may have come before the answer with its number:
 * the last ones that nobody was waiting for are kept for that.
 */
void
dlock_tickets_add(dlock_op *op)
{
	dlock_handle *handle = op->handle;

	op->heard = false;
	op->said_missed = false;
	for (int i = 0; i < DLOCK_MAX_EARLY; i++)
		if (handle->early[i] == op->ticket)
			op->heard = true;
	op->prev_wait = NULL;
	op->next_wait = *bucket(handle, op->ticket);
	if (op->next_wait != NULL)
		op->next_wait->prev_wait = op;
	*bucket(handle, op->ticket) = op;
	handle->nwaits++;
	op->waits = true;
	dlock_loop_due(handle, &handle->expire_at, dlock_op_due(op));
	dlock_loop_due(handle, &handle->background_at, 0);
}

void
dlock_tickets_remove(dlock_op *op)
{
	if (!op->waits)
		return;
	op->waits = false;
	if (op->prev_wait != NULL)
		op->prev_wait->next_wait = op->next_wait;
	else
		*bucket(op->handle, op->ticket) = op->next_wait;
	if (op->next_wait != NULL)
		op->next_wait->prev_wait = op->prev_wait;
	op->handle->nwaits--;
}

/* Has no server shown up for too long? */
bool
dlock_tickets_is_silent(const dlock_op *op, int64_t now)
{
	return now >= dlock_later(dlock_max(op->asked_at, op->handle->alive_at), op->timeout_ms);
}

/* An event has named a ticket. */
void
dlock_tickets_hear(dlock_handle *handle, const DlockEvent *event)
{
	bool		known = false;

	for (dlock_op *op = *bucket(handle, event->ticket); op != NULL; op = op->next_wait)
		if (op->ticket == event->ticket)
		{
			op->said_missed = event->missed;
			if (event->missed)
				dlock_error_make(&op->error, event->code, event->reason, NULL, NULL);
			ask(op);
			known = true;
		}
	if (!known)
		handle->early[handle->nearly++ % DLOCK_MAX_EARLY] = event->ticket;
}

/* A lock was released, and another request of this handle may wait for it. */
void
dlock_tickets_poll_early(dlock_handle *handle)
{
	if (handle->nwaits == 0 || handle->early_poll_at != 0)
		return;
	handle->early_poll_at = dlock_now() + DLOCK_EARLY_POLL_MS;
	dlock_loop_due(handle, &handle->background_at, handle->early_poll_at);
}

/* When to ask for all of them. */
int64_t
dlock_tickets_due(const dlock_handle *handle, bool listens)
{
	int64_t		pause = DLOCK_NEVER;
	int64_t		at;

	for (int i = 0; i < DLOCK_WAIT_BUCKETS && handle->nwaits > 0; i++)
		for (const dlock_op *op = handle->waits[i]; op != NULL; op = op->next_wait)
			pause = dlock_min(pause, dlock_probe_ms(op->timeout_ms));
	if (pause == DLOCK_NEVER)
		return DLOCK_NEVER;
	at = dlock_min(handle->tickets_at, handle->tickets_asked_at + (listens ? pause : DLOCK_POLL_MS));
	return listens || handle->early_poll_at == 0 ? at : dlock_min(at, handle->early_poll_at);
}

/* The parameters of the question; returns how many tickets it is about. */
int
dlock_tickets_params(dlock_handle *handle, DlockParamList *list, int64_t now)
{
	int			n = dlock_min(handle->nwaits, DLOCK_MAX_RENEWED);
	int			left = n;

	dlock_params_add_array(list, DLOCK_TYPE_INT8, n);
	for (int i = 0; i < DLOCK_WAIT_BUCKETS; i++)
		for (const dlock_op *op = handle->waits[i]; op != NULL && left > 0; op = op->next_wait)
		{
			dlock_params_add_number(list, op->ticket);
			left--;
		}
	handle->tickets_at = DLOCK_NEVER;
	handle->early_poll_at = 0;
	handle->tickets_asked_at = now;
	return n;
}

/* Those whose tickets do not wait any more ask what has become of them. */
void
dlock_tickets_answered(dlock_handle *handle, const DlockReply *reply, int64_t now)
{
	handle->alive_at = now;
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int64_t		ticket = dlock_reply_int(reply, row, 0);

		for (dlock_op *op = *bucket(handle, ticket); op != NULL; op = op->next_wait)
			if (op->ticket == ticket)
			{
				op->quiet_until = 0;
				ask(op);
			}
	}
}
