/*-------------------------------------------------------------------------
 *
 * renewal.c
 *	  The statement that renews locks.
 *
 * One statement renews all locks of a handle that are due, and asks for the
 * others whether they are still ours.  handle->batch is what is in flight.  The
 * renewal thread is the only caller, with the mutex of the handle.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "clock.h"
#include "events.h"
#include "lease.h"
#include "renewal.h"
#include "sql.h"
#include "util.h"

/*
 * Renewals.  The caller has the mutex.
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
bool
dlock_renewal_choose(dlock_handle *handle, int64_t now)
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
	n = n < DLOCK_MAX_BATCH ? n : DLOCK_MAX_BATCH;
	handle->batch = calloc((size_t) n, sizeof(dlock_lock *));
	handle->nbatch = 0;
	if (handle->batch == NULL)
		return false;
	for (dlock_lock *lock = handle->locks; lock != NULL && handle->nbatch < n;
		 lock = lock->next)
	{
		bool		is_due = lock->due <= (any_due ? now + dlock_batch_ms(lock->ttl_ms) : now);

		if (any ? may_ask_about(lock) && !lock->alone &&
			(is_due || dlock_events_ripe(lock, now)) : lock == alone)
		{
			lock->renewing = is_due;
			lock->index = handle->nbatch;
			handle->batch[handle->nbatch++] = lock;
		}
	}
	dlock_events_asked(handle, handle->batch, handle->nbatch, now);
	return handle->nbatch > 0;
}

bool
dlock_renewal_send(dlock_handle *handle, DlockConn *conn, int64_t *sent_at,
				   int64_t *answer_by)
{
	DlockArrays arrays;
	PQExpBufferData renew;
	char		number[32];
	const char *params[5];
	int64_t		patience = DLOCK_NEVER;
	bool		good;
	bool		sent = false;

	dlock_arrays_init(&arrays);
	initPQExpBuffer(&renew);
	for (int i = 0; i < handle->nbatch; i++)
	{
		const dlock_lock *lock = handle->batch[i];

		dlock_arrays_add(&arrays, lock);
		dlock_array_next(&renew);
		appendPQExpBufferChar(&renew, lock->renew && lock->renewing ? 't' : 'f');
		patience = dlock_min(patience, dlock_answer_ms(lock->ttl_ms));
	}
	good = dlock_arrays_params(&arrays, params);
	good = dlock_array_end(&renew) && good;
	snprintf(number, sizeof(number), "%lldms", (long long) dlock_row_ms(patience));
	params[3] = renew.data;
	params[4] = number;

	/* the clock is read before it is sent, but after it was built */
	*sent_at = dlock_now();
	*answer_by = *sent_at + patience;
	handle->jitter = (int) (dlock_random() % DLOCK_JITTER);
	if (good)
		sent = dlock_conn_send(conn, dlock_sql_renew, 5, params);
	dlock_arrays_free(&arrays);
	termPQExpBuffer(&renew);
	return sent;
}

void
dlock_renewal_answered(dlock_handle *handle, const DlockReply *reply,
					   int64_t sent_at, int64_t now)
{
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int64_t		i = dlock_reply_int(reply, row, 0) - 1;
		const char *state = dlock_reply_get(reply, row, 2);
		dlock_lock *lock;

		if (i < 0 || i >= handle->nbatch || state == NULL)
			continue;
		lock = handle->batch[i];
		if (lock == NULL || dlock_lease_overdue(lock, now))
			continue;
		lock->alone = false;
		if (strcmp(state, "held") != 0 && strcmp(state, "preempting") != 0)
		{
			dlock_lease_gone(lock, state);
			continue;
		}
		dlock_events_refuted(lock);
		if (dlock_reply_bool(reply, row, 1))
			dlock_lease_renewed(lock, sent_at);
		else if (lock->renewing)
			lock->due = dlock_lease_next_due(lock, sent_at);

		if (strcmp(state, "held") == 0)
			lock->asked = false;
		else if (!lock->asked)
		{
			lock->asked = true;
			lock->tell_preempted = true;
			lock->yield_until = now + dlock_reply_int(reply, row, 3);
		}
	}
}

/*
 * The server is there but refused the statement, perhaps because of one lock
 * of many.  So each is renewed on its own next, and not at once.
 */
void
dlock_renewal_refused(dlock_handle *handle, int64_t now)
{
	for (int i = 0; i < handle->nbatch; i++)
	{
		dlock_lock *lock = handle->batch[i];

		if (lock == NULL)
			continue;
		if (lock->alone || handle->nbatch == 1)
			lock->due = now + dlock_refused_ms(lock->ttl_ms);
		lock->alone = true;
	}
}

/* The statement is no longer in flight, whatever became of it. */
void
dlock_renewal_landed(dlock_handle *handle)
{
	for (int i = 0; i < handle->nbatch; i++)
		if (handle->batch[i] != NULL)
		{
			handle->batch[i]->index = -1;
			dlock_events_unanswered(handle->batch[i]);
		}
	free(handle->batch);
	handle->batch = NULL;
	handle->nbatch = 0;
}
