/*-------------------------------------------------------------------------
 *
 * op.c
 *	  One acquire, step by step, without blocking.
 *
 * An acquire is a few questions, each of which goes with a flight:
 *
 *	  TRY -> granted
 *	   |
 *	  busy -> ENQUEUE -> WAIT -> CLAIM -> granted, or missed
 *						  ^--------'
 *
 * and from the beginning if the server does not know the ticket any more.
 *
 * dlock_op_step() looks at the answer and asks the next question.  A blocking
 * acquire waits for each answer in its own thread (dlock_op_run()); that of a
 * program with an event loop is stepped by the library (async.c).
 *
 * A grant is ours from the moment before the question was sent.  If that was long
 * ago, it is confirmed by a refresh.  A claim is a refresh at the same time.  The
 * TTL of a grant by ticket is short until then, so that a client which is gone
 * when its turn comes does not keep the others waiting for long.
 *
 * A request that ends without an answer may have been granted, or still be in the
 * queue: it becomes an orphan (orphan.c), which the renewal thread takes back.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "errors.h"
#include "flight.h"
#include "lease.h"
#include "op.h"
#include "orphan.h"
#include "request.h"
#include "roster.h"
#include "util.h"
#include "wait.h"
#include "waker.h"

/* op->texts */
enum
{
	PRIORITY, SLOTS, CLEANUP, AT_LEAST, DELAY, NUMBER
};

/*
 * Questions
 */

/* A time as a parameter; most are 0. */
static const char *
ms_text(char *to, int64_t ms)
{
	if (ms == 0)
		return "0";
	snprintf(to, 32, "%lld ms", (long long) ms);
	return to;
}

static const char *
number_text(char *to, int64_t number)
{
	if (number == 0 || number == 1)
		return number == 0 ? "0" : "1";
	snprintf(to, 32, "%lld", (long long) number);
	return to;
}

/* Has it no more than a key, a TTL and an owner? */
static bool
is_simple(const dlock_options *options)
{
	return options->value == NULL && options->priority == 0 && options->cleanup_ms == 0 &&
		!options->force && (options->slots == DLOCK_EXCLUSIVE || options->slots == 1) &&
		options->at_least_ms == 0 && options->delay_ms == 0 && !options->lazy;
}

void
dlock_op_ask(DlockOp *op, DlockStage stage, DlockKind kind, const char *sql, int nparams)
{
	DlockCall  *call = &op->call;

	dlock_call_init(call, sql, nparams, op->params, op->timeout_ms);
	call->kind = kind;
	call->until = op->until;
	op->stage = stage;
}

void
dlock_op_submit(DlockOp *op)
{
	/* a thread waits for its call, not for the op */
	op->call.waker = op->waker.list != NULL ? &op->waker : NULL;
	dlock_flight_add(op->handle, &op->call);
}

/* What a try and an enqueue have in common. */
void
dlock_op_set_terms(DlockOp *op)
{
	const dlock_options *options = &op->options;

	op->params[0] = op->lock->key;
	op->params[2] = op->lock->owner;
	op->params[3] = options->value;
	op->params[4] = number_text(op->texts[PRIORITY], options->priority);
	op->params[6] = options->slots == DLOCK_SHARED ? NULL :
		number_text(op->texts[SLOTS], dlock_max(options->slots, 1));
	op->params[7] = ms_text(op->texts[CLEANUP], options->cleanup_ms);
	op->params[8] = options->force ? "t" : "f";
	op->params[9] = ms_text(op->texts[AT_LEAST], options->at_least_ms);
	op->params[10] = ms_text(op->texts[DELAY], options->delay_ms);
	op->params[11] = options->lazy ? "t" : "f";
}

static void
ask_try(DlockOp *op)
{
	dlock_op_set_terms(op);
	op->params[5] = "f";
	dlock_op_ask(op, DLOCK_STAGE_TRY, is_simple(&op->options) ? DLOCK_TRIES_FOR_KEY : DLOCK_TRIES,
				 dlock_sql_try, 12);
	op->call.ttl_param = 2;
	op->call.ttl_ms = &op->lock->ttl_ms;
	op->call.ttl_least = op->options.at_least_ms;
	dlock_op_submit(op);
}

static void
ask_enqueue(DlockOp *op)
{
	int64_t		ttl_ms = dlock_max(dlock_min(op->lock->ttl_ms, DLOCK_CLAIM_MS),
								   op->options.at_least_ms);

	dlock_op_set_terms(op);
	op->params[1] = ttl_ms > 0 ? ms_text(op->texts[NUMBER], ttl_ms) : NULL;
	dlock_op_ask(op, DLOCK_STAGE_ENQUEUE, DLOCK_ENQUEUES, dlock_sql_enqueue, 12);
	op->call.wait_param = 6;
	op->call.wait_until = op->wait_until;
	dlock_op_submit(op);
}

/* What has become of it?  If it was granted, keep it. */
static void
ask_claim(DlockOp *op)
{
	op->heard = false;
	op->params[0] = op->lock->key;
	op->params[1] = number_text(op->texts[NUMBER], op->ticket);
	op->params[2] = op->lock->owner;
	dlock_op_ask(op, DLOCK_STAGE_CLAIM, DLOCK_CLAIMS, dlock_sql_claim, 5);
	op->call.ttl_param = 4;
	op->call.ttl_ms = &op->lock->ttl_ms;
	op->call.ttl_least = op->options.at_least_ms;
	op->call.row_param = 5;
	dlock_op_submit(op);
}

static void
ask_dequeue(DlockOp *op)
{
	op->params[0] = number_text(op->texts[NUMBER], op->ticket);
	dlock_op_ask(op, DLOCK_STAGE_DEQUEUE, DLOCK_DEQUEUES, dlock_sql_dequeue, 1);
	dlock_op_submit(op);
}

static void
ask_refresh(DlockOp *op)
{
	op->params[0] = op->lock->key;
	op->params[1] = number_text(op->texts[NUMBER], op->lock->version);
	op->params[2] = op->lock->owner;
	op->params[3] = NULL;
	dlock_op_ask(op, DLOCK_STAGE_CONFIRM, DLOCK_REFRESHES, dlock_sql_refresh, 5);
	op->call.row_param = 5;
	dlock_op_submit(op);
}

/*
 * The first question, and after that whenever nothing is known of the request.  A
 * try that has a priority would not give the holder the time to yield, so it goes
 * into the queue at once.  There, too, the same owner has the same grant.
 */
static void
begin(DlockOp *op)
{
	if (op->options.priority > 0 && dlock_now() < op->wait_until)
		ask_enqueue(op);
	else
		ask_try(op);
}

/*
 * The end
 */

void
dlock_op_end(DlockOp *op)
{
	dlock_wait_remove(op);
	op->stage = DLOCK_STAGE_END;
	/* a release of a lock that was adopted may not know the owner */
	if (op->status != DLOCK_OK && (op->in_doubt || op->in_queue) && op->lock->owner != NULL)
		dlock_orphans_add(op->handle, op->lock->key, op->lock->owner,
						  op->lock->ttl_ms > 0 ? op->lock->ttl_ms : op->handle->ttl_ms,
						  op->in_queue);
}

void
dlock_op_end_with(DlockOp *op, const dlock_error *error)
{
	op->error = *error;
	op->status = error->status == DLOCK_OK ? DLOCK_UNREACHABLE : error->status;
	dlock_op_end(op);
}

static void
end_busy(DlockOp *op)
{
	op->status = dlock_fail(&op->error, DLOCK_BUSY, "lock \"%s\" is held by another client",
							op->lock->key);
	dlock_op_end(op);
}

/*
 * What is possible after a call without an answer.  A try may have been granted, and
 * what was to be confirmed has been; an enqueue may be in the queue.
 */
static void
note_doubt(DlockOp *op)
{
	if (op->stage == DLOCK_STAGE_CONFIRM || (op->stage == DLOCK_STAGE_TRY && op->call.in_doubt))
		op->in_doubt = true;
	if (op->stage == DLOCK_STAGE_ENQUEUE && op->call.in_doubt)
		op->in_queue = true;
}

/*
 * Its owner does not want it any more.  It may have come to another end before.
 * This may let go of the mutex for a moment, in which nobody else may step it.
 */
void
dlock_op_abandon(DlockOp *op, dlock_status status, const char *why)
{
	/* an answer that is there counts, even if it came in that moment */
	do
	{
		if (dlock_op_step(op))
			return;
		if (op->call.state == DLOCK_CALL_QUEUED || op->call.state == DLOCK_CALL_FLYING)
			dlock_flight_leave(op->handle, &op->call);
	} while (op->call.reply != NULL);
	note_doubt(op);
	op->status = dlock_fail(&op->error, status, "%s", why);
	dlock_op_end(op);
}

/*
 * Answers.  In each of these, the call is done.
 */

/* It was granted.  Ours it is if we know from when. */
static void
granted(DlockOp *op, int64_t sent_at)
{
	if (dlock_now() - sent_at > dlock_confirm_ms(op->lock->ttl_ms))
	{
		ask_refresh(op);
		return;
	}
	op->in_queue = false;
	dlock_error_clear(&op->error);
	dlock_lease_renewed(op->lock, sent_at);
	dlock_roster_add(op->lock);
	op->status = DLOCK_OK;
	dlock_op_end(op);
}

/* It was granted, and is not ours any more: ask again in the time that is left. */
static void
lost(DlockOp *op)
{
	op->in_doubt = false;
	op->in_queue = false;
	dlock_wait_remove(op);
	if (dlock_now() < op->until)
		begin(op);
	else
	{
		op->status = dlock_fail(&op->error, DLOCK_LOST,
								"lock \"%s\" was granted but lost before the answer arrived",
								op->lock->key);
		dlock_op_end(op);
	}
}

static void
tried(DlockOp *op, const DlockReply *reply)
{
	op->lock->version = dlock_reply_int(reply, 0, 0);
	if (op->lock->version != 0)
		granted(op, op->call.sent_at);
	else if (dlock_now() >= op->wait_until)
		end_busy(op);
	else
		ask_enqueue(op);
}

static void
enqueued(DlockOp *op, const DlockReply *reply)
{
	op->ticket = dlock_reply_int(reply, 0, 0);
	op->in_queue = true;
	op->asked_at = dlock_now();
	op->quiet_until = 0;
	op->stage = DLOCK_STAGE_WAIT;
	op->due = op->wait_until;
	dlock_wait_add(op);
}

/*
 * The server says that the wait has come to an end.  The event says why; it may
 * be false, but that it was missed is true.  Without the event: if the request was
 * to take the lock from a lower priority, that one did not yield.  If it ended
 * before its time was up, a try is told what is wrong.  If nothing is, it was in a
 * deadlock.
 */
static void
missed(DlockOp *op)
{
	bool		early = dlock_now() < op->wait_until;

	op->in_queue = false;
	dlock_wait_remove(op);
	if (op->said_missed && op->error.sqlstate[0] != '\0')
	{
		(void) dlock_error_classify(&op->error);
		op->status = op->error.status;
		dlock_op_end(op);
	}
	else if (op->said_missed || (!early && op->options.priority == 0))
		end_busy(op);
	else if (early && op->options.priority == 0 && op->missed++ == 0)
		ask_try(op);
	else
	{
		bool		refused = op->options.priority > 0;

		op->status = dlock_fail(&op->error, refused ? DLOCK_REFUSED : DLOCK_SERVER_ERROR,
								refused ? "the holder of lock \"%s\" did not yield" :
								"deadlock detected while waiting for lock \"%s\"", op->lock->key);
		strcpy(op->error.sqlstate, refused ? "55P03" : "40P01");
		dlock_op_end(op);
	}
}

static void
claimed(DlockOp *op, const DlockReply *reply)
{
	const char *state = dlock_reply_get(reply, 0, 0);
	int64_t		now = dlock_now();

	op->asked_at = now;
	if (state == NULL)
	{
		/* the server was restarted, or it is another one */
		op->in_queue = false;
		dlock_wait_remove(op);
		begin(op);
	}
	else if (strcmp(state, "granted") == 0)
	{
		op->lock->version = dlock_reply_int(reply, 0, 1);
		if (!dlock_reply_bool(reply, 0, 2))
			lost(op);
		else
		{
			dlock_wait_remove(op);
			granted(op, op->call.sent_at);
		}
	}
	else if (strcmp(state, "missed") == 0)
		missed(op);
	else if (now >= dlock_later(op->wait_until, DLOCK_OVERDUE_MS))
		ask_dequeue(op);
	else
	{
		/* when the time is over, the server has a moment to say so */
		op->stage = DLOCK_STAGE_WAIT;
		op->quiet_until = dlock_min(now + DLOCK_POLL_MS, op->wait_until);
		op->due = now < op->wait_until ? op->wait_until : now + DLOCK_POLL_MS / 5;
	}
}

static void
dequeued(DlockOp *op, const DlockReply *reply)
{
	if (dlock_reply_bool(reply, 0, 0))
	{
		op->in_queue = false;
		end_busy(op);
	}
	else
		ask_claim(op);			/* it has been granted or missed just now */
}

/* The call has ended without an answer. */
static void
failed(DlockOp *op)
{
	const DlockCall *call = &op->call;

	if (call->blocked && dlock_now() < op->until)
	{
		/* a row is in use for a while */
		op->call.ready_at = dlock_now() + DLOCK_POLL_MS;
		dlock_op_submit(op);
		return;
	}
	note_doubt(op);
	if (op->stage == DLOCK_STAGE_ENQUEUE && strcmp(call->error.sqlstate, "53400") == 0 &&
		dlock_now() < op->wait_until)
	{
		/* there is no room for a ticket now */
		op->stage = DLOCK_STAGE_START;
		op->due = dlock_min(dlock_now() + DLOCK_POLL_MS, op->wait_until);
		return;
	}
	dlock_op_end_with(op, &call->error);
}

/* Look at the answer, and ask the next question. */
static void
answered(DlockOp *op)
{
	DlockReply *reply = op->call.reply;
	DlockStage	stage = op->stage;

	op->call.reply = NULL;
	op->call.state = DLOCK_CALL_NEW;
	/* if it is busy, the holder may be our own first try, which got no answer */
	if (stage == DLOCK_STAGE_TRY && op->call.in_doubt)
		op->in_doubt = true;
	if (reply == NULL)
		failed(op);
	else if (stage == DLOCK_STAGE_TRY)
		tried(op, reply);
	else if (stage == DLOCK_STAGE_ENQUEUE)
		enqueued(op, reply);
	else if (stage == DLOCK_STAGE_CLAIM)
		claimed(op, reply);
	else if (stage == DLOCK_STAGE_DEQUEUE)
		dequeued(op, reply);
	else if (dlock_reply_bool(reply, 0, 0))
		granted(op, op->call.sent_at);
	else
		lost(op);
	dlock_reply_free(reply);
}

/* When to step it even if nothing happens. */
int64_t
dlock_op_due(const DlockOp *op)
{
	if (op->stage == DLOCK_STAGE_START)
		return op->due;
	if (op->stage != DLOCK_STAGE_WAIT)
		return dlock_flight_limit(&op->call);
	if (op->heard)
		return op->quiet_until;
	return dlock_min(op->due, dlock_later(dlock_max(op->asked_at, op->handle->alive_at),
										  op->timeout_ms));
}

/*
 * Go as far as possible without waiting.  True: it has ended, see status and
 * error; lock has its grant, or is to be destroyed.
 */
bool
dlock_op_step(DlockOp *op)
{
	int64_t		now = dlock_now();

	if (op->is_release)
		return dlock_op_step_release(op);
	if (op->stage == DLOCK_STAGE_START && now >= op->due)
	{
		/* a release of the same owner's earlier request must not come later */
		if (op->options.owner == NULL ||
			dlock_orphans_forget(op->handle, op->lock->key, op->lock->owner))
			begin(op);
		else if (now < op->until)
			op->due = now + DLOCK_BACKOFF_FIRST_MS;
		else
		{
			op->status = dlock_fail(&op->error, DLOCK_TIMEOUT,
									"the server did not answer an earlier release of lock \"%s\"",
									op->lock->key);
			dlock_op_end(op);
		}
	}
	else if (op->stage == DLOCK_STAGE_WAIT)
	{
		if ((op->heard && now >= op->quiet_until) || now >= op->due)
			ask_claim(op);
		else if (dlock_wait_is_silent(op, now))
		{
			if (op->handle->keeper_error.message[0] == '\0')
				dlock_fail(&op->handle->keeper_error, DLOCK_UNREACHABLE,
						   "no answer from a server in %lld ms", (long long) op->timeout_ms);
			dlock_op_end_with(op, &op->handle->keeper_error);
		}
	}
	while (op->call.state == DLOCK_CALL_DONE && op->stage != DLOCK_STAGE_END)
		answered(op);
	return op->stage == DLOCK_STAGE_END;
}

/* Can it wait by ticket, if it has to? */
bool
dlock_op_can_wait(const dlock_options *options)
{
	return options->wait_ms == 0 || options->value == NULL ||
		strlen(options->value) <= DLOCK_MAX_TICKET_BYTES;
}

/* Everything that may run out of memory comes before the grant. */
dlock_status
dlock_op_init(DlockOp *op, dlock_handle *handle, const char *key,
			  const dlock_options *options, int64_t wait_until, dlock_error *err)
{
	char		owner[DLOCK_OWNER_SIZE];

	memset(op, 0, sizeof(*op));
	op->handle = handle;
	op->options = *options;
	op->timeout_ms = dlock_timeout(handle, options->timeout_ms);
	op->wait_until = wait_until;
	op->until = dlock_later(wait_until, op->timeout_ms);
	if (options->owner != NULL || dlock_random_owner(owner))
		op->lock = dlock_request_lock(handle, key, options->owner != NULL ? options->owner : owner,
									  options);
	if (op->lock == NULL)
		return dlock_fail(err, DLOCK_NO_MEMORY, "out of memory");
	return DLOCK_OK;
}

/* To its end, in this thread. */
dlock_status
dlock_op_run(DlockOp *op, dlock_error *err)
{
	dlock_handle *handle = op->handle;

	pthread_mutex_lock(&handle->mutex);
	while (!dlock_op_step(op))
	{
		int64_t		until;

		if (op->stage != DLOCK_STAGE_WAIT && op->stage != DLOCK_STAGE_START)
		{
			dlock_flight_wait(handle, &op->call);
			continue;
		}
		/* those whose flight we have launched wait for us no longer */
		dlock_flight_hand_over(handle, NULL);
		dlock_waker_prepare(&op->waker, NULL);
		until = dlock_op_due(op);
		pthread_mutex_unlock(&handle->mutex);
		dlock_waker_sleep(&op->waker, DLOCK_WOKEN_LOOK, until);
		pthread_mutex_lock(&handle->mutex);
	}
	dlock_flight_hand_over(handle, NULL);
	pthread_mutex_unlock(&handle->mutex);
	dlock_error_copy(err, &op->error);
	return op->status;
}
