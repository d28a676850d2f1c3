/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Requests that wait by ticket.
 *
 * A request that finds its key busy gets a ticket, which stands in the queue of
 * the server by itself, so it takes no connection to wait.  The renewal thread
 * listens for all of them.  When it hears of a ticket, the owner of the request
 * is woken and asks the server.  Events may be false or lost, so
 *
 *	  an event only leads to a question, and after one that was in vain, events
 *	  of this ticket are not acted upon for a while (DLOCK_POLL_MS);
 *
 *	  the renewal thread asks for all tickets together, by one statement: now and
 *	  then, after each time that it did not listen, and every DLOCK_POLL_MS where
 *	  it cannot listen, which is behind a pooler; there it also asks soon after
 *	  this handle has released something.
 *
 * These questions also tell whether there is a server.  If none has answered for
 * as long as a request allows, it ends.
 *
 *-------------------------------------------------------------------------
 */
#include "arrays.h"
#include "clock.h"
#include "errors.h"
#include "roster.h"
#include "wait.h"
#include "waker.h"

static DlockOp **
bucket(dlock_handle *handle, int64_t ticket)
{
	return &handle->waits[(uint64_t) ticket % DLOCK_WAIT_BUCKETS];
}

static void
wake(DlockOp *op)
{
	op->heard = true;
	dlock_wake(&op->waker);
}

/*
 * It has a ticket.  The event may have come before the answer with its number:
 * the last ones that nobody was waiting for are kept for that.
 */
void
dlock_wait_add(DlockOp *op)
{
	dlock_handle *handle = op->handle;

	op->heard = false;
	op->said_missed = false;
	for (int i = 0; i < DLOCK_MAX_EARLY; i++)
		if (handle->early[i] == op->ticket)
			op->heard = true;
	op->prev = NULL;
	op->next = *bucket(handle, op->ticket);
	if (op->next != NULL)
		op->next->prev = op;
	*bucket(handle, op->ticket) = op;
	handle->nwaits++;
	op->listed = true;
	if (op->heard)
		dlock_wake(&op->waker);
	dlock_roster_wake(handle);
}

void
dlock_wait_remove(DlockOp *op)
{
	if (!op->listed)
		return;
	op->listed = false;
	if (op->prev != NULL)
		op->prev->next = op->next;
	else
		*bucket(op->handle, op->ticket) = op->next;
	if (op->next != NULL)
		op->next->prev = op->prev;
	op->handle->nwaits--;
}

/* Has no server shown up for too long? */
bool
dlock_wait_is_silent(const DlockOp *op, int64_t now)
{
	return now >= dlock_later(dlock_max(op->asked_at, op->handle->alive_at), op->timeout_ms);
}

/* An event has named a ticket. */
void
dlock_wait_hear(dlock_handle *handle, const DlockHeard *heard)
{
	bool		known = false;

	for (DlockOp *op = *bucket(handle, heard->ticket); op != NULL; op = op->next)
		if (op->ticket == heard->ticket)
		{
			op->said_missed = heard->missed;
			if (heard->missed)
				dlock_error_make(&op->error, heard->code, heard->reason, NULL, NULL);
			wake(op);
			known = true;
		}
	if (!known)
		handle->early[handle->nearly++ % DLOCK_MAX_EARLY] = heard->ticket;
}

/* We did not listen for a while and may have missed events. */
void
dlock_wait_missed(dlock_handle *handle)
{
	handle->ask_at = 0;
}

/* A lock was released, and another request of this handle may wait for it. */
void
dlock_wait_nudge(dlock_handle *handle)
{
	if (handle->nwaits == 0 || handle->nudge_at != 0)
		return;
	handle->nudge_at = dlock_now() + DLOCK_NUDGE_MS;
	if (handle->nudge_at < handle->sleeps_until)
		dlock_roster_wake(handle);
}

/* When to ask for all of them. */
int64_t
dlock_wait_ask_at(const dlock_handle *handle, bool listens)
{
	int64_t		pause = DLOCK_NEVER;
	int64_t		at;

	for (int i = 0; i < DLOCK_WAIT_BUCKETS && handle->nwaits > 0; i++)
		for (const DlockOp *op = handle->waits[i]; op != NULL; op = op->next)
			pause = dlock_min(pause, dlock_probe_ms(op->timeout_ms));
	if (pause == DLOCK_NEVER)
		return DLOCK_NEVER;
	at = dlock_min(handle->ask_at, handle->asked_at + (listens ? pause : DLOCK_POLL_MS));
	return listens || handle->nudge_at == 0 ? at : dlock_min(at, handle->nudge_at);
}

/* Ask.  Returns false if it could not be sent, or there is nothing to ask. */
bool
dlock_wait_send(dlock_handle *handle, DlockConn *conn, int64_t now)
{
	PQExpBufferData tickets;
	const char *params[1];
	bool		sent = false;
	int			n = 0;

	initPQExpBuffer(&tickets);
	for (int i = 0; i < DLOCK_WAIT_BUCKETS; i++)
		for (const DlockOp *op = handle->waits[i]; op != NULL && n < DLOCK_MAX_BATCH; op = op->next)
		{
			dlock_array_next(&tickets);
			appendPQExpBuffer(&tickets, "%lld", (long long) op->ticket);
			n++;
		}
	handle->ask_at = DLOCK_NEVER;
	handle->nudge_at = 0;
	handle->asked_at = now;
	if (dlock_array_end(&tickets) && n > 0)
	{
		params[0] = tickets.data;
		sent = dlock_conn_send(conn, dlock_sql_tickets, 1, params);
	}
	termPQExpBuffer(&tickets);
	return sent;
}

/* Wake those whose tickets do not wait any more; the rest need nothing. */
void
dlock_wait_answered(dlock_handle *handle, const DlockReply *reply, int64_t now)
{
	handle->alive_at = now;
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int64_t		ticket = dlock_reply_int(reply, row, 0);

		for (DlockOp *op = *bucket(handle, ticket); op != NULL; op = op->next)
			if (op->ticket == ticket)
			{
				op->quiet_until = 0;
				wake(op);
			}
	}
}
