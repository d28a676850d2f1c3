/*-------------------------------------------------------------------------
 *
 * op.c
 *	  Acquires and releases, step by step, without blocking.
 *
 * An acquire is a few requests:
 *
 *	  TRY -> granted
 *	   |
 *	  busy -> ENQUEUE -> WAIT -> CLAIM -> granted, or missed
 *						  ^--------'
 *
 * and from the beginning if the server does not know the ticket any more.  A session
 * lock, several locks at once, and a request with a long value cannot wait by ticket:
 * their TRY is a statement that waits on the server.  To adopt a grant is a TRY, too.  The
 * portable edition has no tickets: there, a wait is a TRY now and then.
 *
 * A release is one request, after a renewal that was sent has been answered.
 *
 * dlock_op_step() looks at the answer and sends the next request.  The thread that runs
 * the loop calls it when a request is done, an event has come or a pause is over.  A
 * blocking call starts an op and sleeps until it has ended (dlock_op_run()); that of a
 * program with an event loop is told by dlock_handle_process().
 *
 * A grant is ours from the moment before the request was sent.  If that was long ago, it
 * is confirmed by a refresh.  A claim is a refresh at the same time.  The TTL of a grant
 * by ticket is short until then, so that a client which is gone when its turn comes does
 * not keep the others waiting for long.
 *
 * A request that ends without an answer may have been granted, or still be in the
 * queue: it is abandoned (abandoned.c), and taken back in the background.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "net/errors.h"

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

/*
 * May it have the grant that its owner has already?  A random owner is that of one request,
 * which has a grant only if it got no answer before.
 */
static bool
may_adopt(const dlock_options *options)
{
	return options->adopt || options->owner == NULL;
}

/* Has it no more than a key, a TTL and an owner? */
static bool
is_simple(const dlock_options *options)
{
	return options->value == NULL && options->priority == 0 && options->cleanup_ms == 0 &&
		!options->force && options->slots == 1 &&
		options->at_least_ms == 0 && options->delay_ms == 0 && !options->lazy && may_adopt(options);
}

static void
request_done(dlock_handle *handle, DlockRequest *request)
{
	dlock_op   *op = request->arg;

	(void) handle;
	dlock_op_step(op);
}

/* A request that the caller completes and submits; its answer belongs to that stage. */
static void
prepare(dlock_op *op, DlockStage stage, DlockKind kind, const char *sql, int nparams)
{
	DlockRequest *request = &op->request;

	dlock_request_init(request, sql, nparams, op->params, op->timeout_ms);
	request->kind = kind;
	request->until = op->until;
	request->done = request_done;
	request->arg = op;
	op->stage = stage;
}

static void
submit(dlock_op *op)
{
	dlock_request_submit(op->handle, &op->request);
}

/* The server's default may have to be put in its place. */
static void
set_ttl_param(dlock_op *op, int param)
{
	op->request.ttl_param = param;
	op->request.ttl_ms = &op->lock->ttl_ms;
	op->request.ttl_least = op->options.at_least_ms;
}

/* What a try and an enqueue have in common. */
static void
set_terms(dlock_op *op)
{
	const dlock_options *options = &op->options;

	op->params[0] = op->lock->key;
	op->params[2] = op->lock->owner;
	op->params[3] = options->value;
	op->params[4] = number_text(op->texts[PRIORITY], options->priority);
	op->params[6] = options->slots == DLOCK_SHARED ? NULL : number_text(op->texts[SLOTS], options->slots);
	op->params[7] = ms_text(op->texts[CLEANUP], options->cleanup_ms);
	op->params[8] = options->force ? "t" : "f";
	op->params[9] = ms_text(op->texts[AT_LEAST], options->at_least_ms);
	op->params[10] = ms_text(op->texts[DELAY], options->delay_ms);
	op->params[11] = options->lazy ? "t" : "f";
	op->params[12] = may_adopt(options) || op->in_doubt ? "t" : "f";
}

/* The first three parameters of a statement about the grant, or about the first n of several. */
static void
set_grants(dlock_op *op, size_t n)
{
	if (!op->several)
	{
		op->params[0] = op->lock->key;
		op->params[1] = number_text(op->texts[NUMBER], op->lock->version);
		op->params[2] = op->lock->owner;
		return;
	}
	dlock_params_init(op->list);
	dlock_params_add_array(op->list, DLOCK_TYPE_TEXT, (int) n);
	for (size_t i = 0; i < n; i++)
		dlock_params_add_element(op->list, DLOCK_TYPE_TEXT, op->locks[i]->key);
	dlock_params_add_array(op->list, DLOCK_TYPE_INT8, (int) n);
	for (size_t i = 0; i < n; i++)
		dlock_params_add_number(op->list, op->locks[i]->version);
	dlock_params_add_array(op->list, DLOCK_TYPE_TEXT, (int) n);
	for (size_t i = 0; i < n; i++)
		dlock_params_add_element(op->list, DLOCK_TYPE_TEXT, op->locks[i]->owner);
}

/* Send a request; the parameters of one about several locks are in op->list. */
static void
submit_list(dlock_op *op)
{
	if (op->several)
	{
		bool		good = dlock_params_finish(op->list);

		dlock_request_use_list(&op->request, op->list);
		if (!good)
		{
			dlock_fail(&op->request.error, DLOCK_NO_MEMORY, "out of memory");
			dlock_request_finish(op->handle, &op->request);
			return;
		}
	}
	submit(op);
}

static void
ask_try(dlock_op *op)
{
	set_terms(op);
	op->params[5] = "f";
	prepare(op, DLOCK_STAGE_TRY, is_simple(&op->options) ? DLOCK_TRIES_FOR_KEY : DLOCK_TRIES,
			dlock_sql_try, 13);
	set_ttl_param(op, 2);
	op->request.again_param = 13;
	submit(op);
}

/* One lock or several, by a statement that waits on the server. */
static void
ask_statement(dlock_op *op)
{
	bool		waits = op->options.wait_ms != 0;

	set_terms(op);
	op->params[5] = op->options.session ? "t" : "f";
	if (op->several)
	{
		dlock_params_init(op->list);
		dlock_params_add_array(op->list, DLOCK_TYPE_TEXT, (int) op->n);
		for (size_t i = 0; i < op->n; i++)
			dlock_params_add_element(op->list, DLOCK_TYPE_TEXT, op->locks[i]->key);
		for (int i = 1; i <= 5; i++)
			dlock_params_add_text(op->list, op->params[i]);
		dlock_params_add_array(op->list, DLOCK_TYPE_INT4, (int) op->n);
		for (size_t i = 0; i < op->n; i++)
		{
			char		number[16];

			snprintf(number, sizeof(number), "%d", (int) dlock_max(op->locks[i]->slots, 1));
			dlock_params_add_element(op->list, DLOCK_TYPE_INT4, number);
		}
		dlock_params_add_array(op->list, DLOCK_TYPE_BOOL, (int) op->n);
		for (size_t i = 0; i < op->n; i++)
			dlock_params_add_element(op->list, DLOCK_TYPE_BOOL,
									 op->locks[i]->slots == DLOCK_SHARED ? "t" : "f");
		if (waits)
			dlock_params_add_text(op->list, NULL);
		prepare(op, DLOCK_STAGE_TRY, DLOCK_OTHER, waits ? dlock_sql_wait_all : dlock_sql_try_all, 0);
	}
	else
		prepare(op, DLOCK_STAGE_TRY, DLOCK_OTHER, waits ? dlock_sql_wait : dlock_sql_try, waits ? 14 : 13);
	set_ttl_param(op, 2);
	if (waits)
	{
		op->request.wait_param = op->several ? 9 : 14;
		op->request.wait_until = op->wait_until;
	}
	if (!op->several)
		op->request.again_param = 13;
	if (op->options.session)
		op->request.use = DLOCK_USE_SESSION;
	op->request.ready_at = dlock_min(op->due, op->wait_until);
	submit_list(op);
}

static void
ask_adopt(dlock_op *op)
{
	set_grants(op, 1);
	op->params[3] = op->lock->ttl_ms > 0 ? ms_text(op->texts[CLEANUP], op->lock->ttl_ms) : NULL;
	prepare(op, DLOCK_STAGE_TRY, DLOCK_OTHER, dlock_sql_adopt, 5);
	op->request.row_param = 5;
	submit(op);
}

static void
ask_enqueue(dlock_op *op)
{
	int64_t		ttl_ms = dlock_max(dlock_min(op->lock->ttl_ms, DLOCK_CLAIM_MS),
								   op->options.at_least_ms);

	op->ticket = 0;
	set_terms(op);
	op->params[1] = ttl_ms > 0 ? ms_text(op->texts[NUMBER], ttl_ms) : NULL;
	prepare(op, DLOCK_STAGE_ENQUEUE, DLOCK_ENQUEUES, dlock_sql_enqueue, 13);
	op->request.again_param = 13;
	op->request.wait_param = 6;
	op->request.wait_until = op->wait_until;
	submit(op);
}

/* What has become of it?  If it was granted, keep it. */
static void
ask_claim(dlock_op *op)
{
	op->heard = false;
	op->params[0] = op->lock->key;
	op->params[1] = number_text(op->texts[NUMBER], op->ticket);
	op->params[2] = op->lock->owner;
	prepare(op, DLOCK_STAGE_CLAIM, DLOCK_CLAIMS, dlock_sql_claim, 5);
	set_ttl_param(op, 4);
	op->request.row_param = 5;
	submit(op);
}

static void
ask_dequeue(dlock_op *op)
{
	op->params[0] = number_text(op->texts[NUMBER], op->ticket);
	prepare(op, DLOCK_STAGE_DEQUEUE, DLOCK_DEQUEUES, dlock_sql_dequeue, 1);
	submit(op);
}

/* Refresh what was granted, because that was long ago. */
static void
ask_confirm(dlock_op *op)
{
	set_grants(op, op->n);
	if (op->several)
	{
		dlock_params_add_array(op->list, DLOCK_TYPE_BOOL, (int) op->n);
		for (size_t i = 0; i < op->n; i++)
			dlock_params_add_element(op->list, DLOCK_TYPE_BOOL, "t");
		dlock_params_add_text(op->list, NULL);
		prepare(op, DLOCK_STAGE_CONFIRM, DLOCK_OTHER, dlock_sql_renew, 0);
	}
	else
	{
		op->params[3] = NULL;
		prepare(op, DLOCK_STAGE_CONFIRM, DLOCK_REFRESHES, dlock_sql_refresh, 5);
	}
	op->request.row_param = 5;
	submit_list(op);
}

/* Are there none?  Known when the first connection is there. */
static bool
has_no_tickets(const dlock_op *op)
{
	return __atomic_load_n(&op->handle->conninfo->portable, __ATOMIC_RELAXED);
}

/* Begin again after a pause. */
static void
begin_later(dlock_op *op)
{
	op->stage = DLOCK_STAGE_START;
	op->due = dlock_min(dlock_now() + dlock_jitter(DLOCK_POLL_MS), op->wait_until);
	dlock_loop_due(op->handle, &op->handle->expire_at, op->due);
}

/*
 * The first request, and after that whenever nothing is known of it.  A try that has a
 * priority would not give the holder the time to yield, so it goes into the queue at
 * once.  There, too, the same owner has the same grant.
 */
static void
begin(dlock_op *op)
{
	if (op->kind == DLOCK_OP_ADOPT)
		ask_adopt(op);
	else if (op->kind == DLOCK_OP_STATEMENT)
		ask_statement(op);
	else if (op->options.priority > 0 && dlock_now() < op->wait_until && !has_no_tickets(op))
		ask_enqueue(op);
	else
		ask_try(op);
}

/*
 * The end
 */

/*
 * It may have been granted, or partly, or stand in the queue: have it taken back.  Another
 * request may have a grant of a name that the program chose, so what is not known by its
 * ticket is left to its TTL then.
 */
static void
take_back(dlock_op *op, bool in_queue)
{
	int64_t		ttl_ms = op->lock->ttl_ms;
	int64_t		ticket = in_queue ? op->ticket : 0;

	if (!may_adopt(&op->options) && ticket == 0)
		return;
	/* a lock that was adopted may not know the owner */
	for (size_t i = 0; i < op->n; i++)
		if (op->locks[i]->owner != NULL)
			dlock_abandoned_add(op->handle, op->locks[i]->key, op->locks[i]->owner,
								ttl_ms > 0 ? ttl_ms : op->handle->ttl_ms, in_queue,
								may_adopt(&op->options), ticket);
}

/* Tell the thread or the program that waits for it. */
static void
end(dlock_op *op)
{
	dlock_handle *handle = op->handle;

	dlock_tickets_remove(op);
	op->stage = DLOCK_STAGE_END;
	if (op->status != DLOCK_OK && (op->in_doubt || op->in_queue) && op->kind != DLOCK_OP_RELEASE)
		take_back(op, op->in_queue);
	if (op->prev != NULL)
		op->prev->next = op->next;
	else
		handle->ops = op->next;
	if (op->next != NULL)
		op->next->prev = op->prev;
	op->next = NULL;
	if (op->done == NULL)
	{
		dlock_loop_signal(handle, op->sleeper);
		return;
	}
	if (handle->done == NULL)
	{
		handle->done = op;
		dlock_wakeup_ring(&handle->done_wakeup);
	}
	else
		handle->last_done->next = op;	/* the program will look */
	handle->last_done = op;
}

static void
end_with(dlock_op *op, const dlock_error *error)
{
	op->error = *error;
	op->status = error->status == DLOCK_OK ? DLOCK_UNREACHABLE : error->status;
	end(op);
}

static void
end_busy(dlock_op *op)
{
	if (op->several)
		op->status = dlock_fail(&op->error, DLOCK_BUSY, "one of %d locks is held by another client", (int) op->n);
	else
		op->status = dlock_fail(&op->error, DLOCK_BUSY, "lock \"%s\" is held by another client", op->lock->key);
	end(op);
}

/*
 * What is possible after a request without an answer.  A try may have been granted, and
 * what was to be confirmed has been; an enqueue may be in the queue.
 */
static void
note_doubt(dlock_op *op)
{
	bool		in_doubt = op->request.in_doubt;

	if (op->kind == DLOCK_OP_ADOPT)
		return;
	if (op->stage == DLOCK_STAGE_CONFIRM || (op->stage == DLOCK_STAGE_TRY && in_doubt))
		op->in_doubt = true;
	if (op->stage == DLOCK_STAGE_ENQUEUE && in_doubt)
		op->in_queue = true;
}

/* Nobody wants it any more. */
void
dlock_op_abandon(dlock_op *op, dlock_status status, const char *why)
{
	if (op->request.state == DLOCK_REQUEST_QUEUED || op->request.state == DLOCK_REQUEST_SENT)
		dlock_request_leave(op->handle, &op->request);
	note_doubt(op);
	op->status = dlock_fail(&op->error, status, "%s", why);
	end(op);
}

/*
 * Answers.  In each of these, the call is done.
 */

/*
 * The server granted it.  It counts as ours only if we know when the lease started, so a
 * grant that took long is confirmed first.
 */
static void
granted(dlock_op *op, int64_t sent_at)
{
	if (dlock_now() - sent_at > dlock_confirm_ms(op->lock->ttl_ms))
	{
		ask_confirm(op);
		return;
	}
	op->in_queue = false;
	dlock_error_clear(&op->error);
	for (size_t i = 0; i < op->n; i++)
	{
		dlock_lease_renewed(op->locks[i], sent_at);
		dlock_lock_list_add(op->locks[i]);
	}
	op->status = DLOCK_OK;
	end(op);
}

/* The connections of session locks that were granted and lost. */
static void
drop_session(dlock_op *op)
{
	for (size_t i = 0; i < op->n; i++)
	{
		dlock_conn_free(op->locks[i]->conn);
		op->locks[i]->conn = NULL;
	}
}

/* It was granted, and is not ours any more: ask again in the time that is left. */
static void
lost(dlock_op *op)
{
	/* of several, some may still be ours */
	op->in_doubt = op->several;
	op->in_queue = false;
	dlock_tickets_remove(op);
	drop_session(op);
	if (dlock_now() < op->until && op->kind != DLOCK_OP_ADOPT)
	{
		begin(op);
		return;
	}
	if (op->several)
		op->status = dlock_fail(&op->error, DLOCK_LOST,
								"%d locks were granted, but one was lost before the answer arrived",
								(int) op->n);
	else
		op->status = dlock_fail(&op->error, DLOCK_LOST,
								"lock \"%s\" was granted but lost before the answer arrived",
								op->lock->key);
	end(op);
}

/*
 * The lock, of the first n, that a row of an answer is about.  An answer about several begins
 * with their number; what it says is in *column.  NULL: none, so the server is not ours.
 */
static dlock_lock *
lock_of(const dlock_op *op, size_t n, const DlockReply *reply, int row, int *column)
{
	int			i = op->several ? dlock_reply_index(reply, row, 0, (int) n) : 0;

	*column = op->several ? 1 : 0;
	return i >= 0 ? op->locks[i] : NULL;
}

/* Take the versions out of the reply.  False: it was not granted. */
static bool
take_versions(dlock_op *op, const DlockReply *reply)
{
	size_t		n = 0;

	for (size_t i = 0; i < op->n; i++)
		op->locks[i]->version = 0;
	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int			column;
		dlock_lock *lock = lock_of(op, op->n, reply, row, &column);

		if (lock == NULL || lock->version > 0)
			continue;
		lock->version = dlock_reply_int(reply, row, column);
		lock->ttl_ms = op->lock->ttl_ms;
		n += lock->version > 0;
	}
	return n == op->n;
}

static void
tried(dlock_op *op, const DlockReply *reply)
{
	if (take_versions(op, reply))
	{
		/* the connection of session locks is closed with the last of them */
		op->lock->conn = op->request.conn;
		for (size_t i = 1; i < op->n; i++)
			op->locks[i]->conn = dlock_conn_share(op->lock->conn);
		granted(op, op->request.sent_at);
	}
	else if (op->kind == DLOCK_OP_STATEMENT && op->request.polled && op->request.sent_at < op->wait_until)
	{
		/* the server did not wait, so we do */
		op->due = op->request.sent_at + DLOCK_POLL_MS;
		ask_statement(op);
	}
	else if (op->kind == DLOCK_OP_STATEMENT || dlock_now() >= op->wait_until)
	{
		dlock_conn_free(op->request.conn);
		end_busy(op);
	}
	else if (has_no_tickets(op))
		begin_later(op);
	else
		ask_enqueue(op);
}

static void
adopted(dlock_op *op, const DlockReply *reply)
{
	if (dlock_reply_get(reply, 0, 0) == NULL)
	{
		op->status = dlock_fail(&op->error, DLOCK_LOST, "lock \"%s\" is not held by version %lld",
								op->lock->key, (long long) op->lock->version);
		end(op);
		return;
	}
	if (op->lock->ttl_ms == 0)
		op->lock->ttl_ms = dlock_max(dlock_reply_amount(reply, 0, 0), 1);
	op->lock->slots = dlock_reply_slots(reply, 0, 1);
	granted(op, op->request.sent_at);
}

/* Were all of them refreshed? */
static void
confirmed(dlock_op *op, const DlockReply *reply)
{
	size_t		ours = 0;

	for (int row = 0; row < dlock_reply_rows(reply); row++)
	{
		int			column;

		dlock_lock *lock = lock_of(op, op->n, reply, row, &column);

		ours += lock != NULL && dlock_lease_answered(lock, reply, row, column);
	}
	if (ours == op->n)
		granted(op, op->request.sent_at);
	else
		lost(op);
}

static void
enqueued(dlock_op *op, const DlockReply *reply)
{
	op->ticket = dlock_reply_int(reply, 0, 0);
	op->in_queue = true;
	op->asked_at = dlock_now();
	op->quiet_until = 0;
	op->stage = DLOCK_STAGE_WAIT;
	op->due = op->wait_until;
	dlock_tickets_add(op);
}

/*
 * The server says that the wait has come to an end.  The event says why; it may
 * be false, but that it was missed is true.  Without the event: if the request was
 * to take the lock from a lower priority, that one did not yield.  If it ended
 * before its time was up, a try is told what is wrong.  If nothing is, it was in a
 * deadlock.
 */
static void
missed(dlock_op *op)
{
	bool		early = dlock_now() < op->wait_until;

	op->in_queue = false;
	dlock_tickets_remove(op);
	if (op->said_missed && op->error.sqlstate[0] != '\0')
	{
		(void) dlock_error_classify(&op->error);
		op->status = op->error.status;
		end(op);
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
		end(op);
	}
}

static void
claimed(dlock_op *op, const DlockReply *reply)
{
	const char *state = dlock_reply_get(reply, 0, 0);
	int64_t		now = dlock_now();

	op->asked_at = now;
	if (state == NULL)
	{
		/* the server was restarted, or it is another one */
		op->in_queue = false;
		dlock_tickets_remove(op);
		begin(op);
	}
	else if (strcmp(state, "granted") == 0)
	{
		op->lock->version = dlock_reply_int(reply, 0, 1);
		if (!dlock_lease_answered(op->lock, reply, 0, 2) || op->lock->version <= 0)
			lost(op);
		else
		{
			dlock_tickets_remove(op);
			granted(op, op->request.sent_at);
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
		dlock_loop_due(op->handle, &op->handle->expire_at, dlock_op_due(op));
	}
}

static void
dequeued(dlock_op *op, const DlockReply *reply)
{
	if (dlock_reply_bool(reply, 0, 0))
	{
		op->in_queue = false;
		end_busy(op);
	}
	else
		ask_claim(op);			/* it has been granted or missed just now */
}

/* The request has ended without an answer. */
static void
failed(dlock_op *op)
{
	const DlockRequest *request = &op->request;

	note_doubt(op);
	/* there is no room for a ticket now */
	if (op->stage == DLOCK_STAGE_ENQUEUE && strcmp(request->error.sqlstate, "53400") == 0 &&
		dlock_now() < op->wait_until)
		begin_later(op);

	/*
	 * the connection that was made for it has found the portable edition: a
	 * try says what is wrong
	 */
	else if (op->stage == DLOCK_STAGE_ENQUEUE && strcmp(request->error.sqlstate, "0A000") == 0 &&
			 has_no_tickets(op))
		ask_try(op);
	else
		end_with(op, &request->error);
}

/*
 * Releases
 */

/* Can it be asked now, or does a renewal or a callback have to end before? */
static bool
is_held_up(const dlock_op *op)
{
	for (size_t i = 0; i < op->nasked; i++)
		if (op->locks[i]->index >= 0 || op->locks[i]->in_callback)
			return true;
	return false;
}

/* Keep the first failure. */
static void
note_failure(dlock_op *op, dlock_status status, const dlock_error *error)
{
	if (status == DLOCK_OK || op->status != DLOCK_OK)
		return;
	op->status = status;
	op->error = *error;
}

/*
 * Count down; of those that are released for the last time, stop the renewals.  These are
 * the first nasked of op->locks afterwards.
 */
static void
stop_renewals(dlock_op *op)
{
	dlock_error error;

	op->stopped = true;
	op->nasked = 0;
	for (size_t i = 0; i < op->n; i++)
	{
		dlock_lock *lock = op->locks[i];

		if (lock->holds > 1)
		{
			lock->holds--;
			if (dlock_lease_overdue(lock, dlock_now()))
				note_failure(op, dlock_lock_lost(lock, &error), &error);
			continue;
		}
		lock->holds = 0;
		lock->silent = true;
		if (lock->hold == DLOCK_HOLD_RELEASED)
		{
			note_failure(op, dlock_fail(&error, DLOCK_NOT_HELD, "lock \"%s\" has been released already",
										lock->key), &error);
			continue;
		}
		lock->held_off++;
		op->locks[op->nasked++] = lock;
	}
}

/* Stop the renewals, wait for one that was sent, and ask the server. */
static void
begin_release(dlock_op *op)
{
	dlock_error error;

	if (!op->stopped)
		stop_renewals(op);
	if (op->nasked == 0)
	{
		end(op);
		return;
	}
	if (is_held_up(op))
	{
		if (dlock_now() >= op->until)
		{
			note_failure(op, dlock_fail(&error, DLOCK_TIMEOUT, "the server did not answer a renewal"), &error);
			end(op);
			return;
		}
		op->due = op->until;
		dlock_loop_due(op->handle, &op->handle->expire_at, op->due);
		return;
	}
	for (size_t i = 0; i < op->nasked; i++)
		op->locks[i]->ours_until = op->locks[i]->hold == DLOCK_HOLD_OURS ? op->locks[i]->deadline : 0;
	set_grants(op, op->nasked);
	if (op->several)
	{
		dlock_params_add_text(op->list, NULL);
		prepare(op, DLOCK_STAGE_RELEASE, DLOCK_OTHER, dlock_sql_release_all, 0);
	}
	else
		prepare(op, DLOCK_STAGE_RELEASE, DLOCK_RELEASES, dlock_sql_release, 4);
	op->request.row_param = 4;
	submit_list(op);
}

/* The server has answered the release of a lock. */
static void
released(dlock_op *op, dlock_lock *lock, const char *answer)
{
	dlock_error error;
	dlock_status status = DLOCK_OK;

	if (answer != NULL && strcmp(answer, "released") == 0)
		status = DLOCK_OK;
	else if (op->request.in_doubt && dlock_now() < lock->ours_until)
		status = DLOCK_OK;		/* the try that got no answer released it */
	else if (answer != NULL && strcmp(answer, "held_by_other") == 0)
		status = dlock_fail(&error, DLOCK_HELD_BY_OTHER,
							"lock \"%s\" was lost and is held by another client", lock->key);
	else
		status = dlock_fail(&error, DLOCK_NOT_HELD, "lock \"%s\" had expired", lock->key);
	note_failure(op, status, &error);
	lock->hold = DLOCK_HOLD_RELEASED;
	dlock_conn_free(lock->conn);
	lock->conn = NULL;
	dlock_tickets_poll_early(op->handle);
}

static void
release_answered(dlock_op *op, const DlockReply *reply)
{
	if (reply == NULL)
		note_failure(op, op->request.error.status, &op->request.error);
	for (int row = 0; reply != NULL && row < dlock_reply_rows(reply); row++)
	{
		int			column;
		dlock_lock *lock = lock_of(op, op->nasked, reply, row, &column);

		if (lock != NULL)
			released(op, lock, dlock_reply_get(reply, row, column));
	}
	/* each has a row, unless a function of the server is not ours */
	for (size_t i = 0; reply != NULL && i < op->nasked; i++)
		if (op->locks[i]->hold != DLOCK_HOLD_RELEASED)
			released(op, op->locks[i], NULL);
	end(op);
}

/*
 * A renewal or a callback has ended: continue the releases that have waited for that.
 */
void
dlock_op_step_releases(dlock_handle *handle)
{
	dlock_op   *next;

	for (dlock_op *op = handle->ops; op != NULL; op = next)
	{
		next = op->next;
		if (op->kind == DLOCK_OP_RELEASE && op->stage == DLOCK_STAGE_START && !is_held_up(op))
			begin_release(op);
	}
}

/*
 * Steps
 */

/* Look at the answer, and send the next request. */
static void
answered(dlock_op *op)
{
	DlockReply *reply = op->request.reply;
	DlockStage	stage = op->stage;

	op->request.reply = NULL;
	op->request.state = DLOCK_REQUEST_NEW;
	if (op->list != NULL)
		dlock_params_free(op->list);
	/* if it is busy, the holder may be our own first try, which got no answer */
	if (stage == DLOCK_STAGE_TRY && op->request.in_doubt && op->kind != DLOCK_OP_ADOPT)
		op->in_doubt = true;
	if (stage == DLOCK_STAGE_RELEASE)
		release_answered(op, reply);
	else if (reply == NULL)
		failed(op);
	else if (stage == DLOCK_STAGE_TRY && op->kind == DLOCK_OP_ADOPT)
		adopted(op, reply);
	else if (stage == DLOCK_STAGE_TRY)
		tried(op, reply);
	else if (stage == DLOCK_STAGE_ENQUEUE)
		enqueued(op, reply);
	else if (stage == DLOCK_STAGE_CLAIM)
		claimed(op, reply);
	else if (stage == DLOCK_STAGE_DEQUEUE)
		dequeued(op, reply);
	else
		confirmed(op, reply);
	dlock_reply_free(reply);
}

/* When to step it even if nothing happens; a request has a limit of its own. */
int64_t
dlock_op_due(const dlock_op *op)
{
	if (op->stage == DLOCK_STAGE_START)
		return op->due;
	if (op->stage != DLOCK_STAGE_WAIT)
		return DLOCK_NEVER;
	if (op->heard)
		return op->quiet_until;
	return dlock_min(op->due, dlock_later(dlock_max(op->asked_at, op->handle->alive_at),
										  op->timeout_ms));
}

/* Begin, unless a release of the same owner's earlier request could come later. */
static void
start(dlock_op *op, int64_t now)
{
	for (size_t i = 0; i < op->n; i++)
		if (op->options.owner != NULL && op->kind != DLOCK_OP_ADOPT &&
			!dlock_abandoned_forget(op->handle, op->locks[i]->key, op->locks[i]->owner))
		{
			if (now >= op->until)
			{
				op->status = dlock_fail(&op->error, DLOCK_TIMEOUT,
										"the server did not answer an earlier release of lock \"%s\"",
										op->locks[i]->key);
				end(op);
				return;
			}
			op->due = now + DLOCK_BACKOFF_FIRST_MS;
			dlock_loop_due(op->handle, &op->handle->expire_at, op->due);
			return;
		}
	op->due = 0;
	begin(op);
}

/* A ticket waits: ask about it, or end if there is no server. */
static void
wait_on(dlock_op *op, int64_t now)
{
	if ((op->heard && now >= op->quiet_until) || now >= op->due)
		ask_claim(op);
	else if (dlock_tickets_is_silent(op, now))
	{
		if (op->handle->background_error.message[0] == '\0')
			dlock_fail(&op->handle->background_error, DLOCK_UNREACHABLE,
					   "no answer from a server in %lld ms", (long long) op->timeout_ms);
		end_with(op, &op->handle->background_error);
	}
}

/* Go as far as possible without waiting. */
void
dlock_op_step(dlock_op *op)
{
	int64_t		now = dlock_now();

	if (op->request.state == DLOCK_REQUEST_DONE)
		answered(op);
	else if (op->stage == DLOCK_STAGE_START && op->kind == DLOCK_OP_RELEASE)
		begin_release(op);
	else if (op->stage == DLOCK_STAGE_START && now >= op->due)
		start(op, now);
	else if (op->stage == DLOCK_STAGE_WAIT)
		wait_on(op, now);
}

/*
 * What the api uses
 */

void
dlock_op_init(dlock_op *op, dlock_handle *handle, DlockOpKind kind, int64_t timeout_ms,
			  int64_t wait_until)
{
	memset(op, 0, sizeof(*op));
	op->handle = handle;
	op->kind = kind;
	op->timeout_ms = timeout_ms < 0 ? handle->timeout_ms : timeout_ms;
	op->wait_until = wait_until;
	op->until = dlock_later(wait_until, op->timeout_ms);
}

/* What it is about: one lock, or an array that the op may change, and a list for it. */
void
dlock_op_set_lock(dlock_op *op, dlock_lock *lock)
{
	op->lock = lock;
	op->locks = &op->lock;
	op->n = 1;
}

void
dlock_op_set_locks(dlock_op *op, dlock_lock **locks, size_t n, DlockParamList *list)
{
	op->lock = locks[0];
	op->locks = locks;
	op->n = n;
	op->several = true;
	op->list = list;
}

/* Can it wait by ticket, if it has to? */
bool
dlock_op_can_wait(const dlock_options *options)
{
	return options->wait_ms == 0 || options->value == NULL ||
		strlen(options->value) <= DLOCK_MAX_TICKET_BYTES;
}

/* It is under way from here on. */
void
dlock_op_start(dlock_op *op)
{
	dlock_handle *handle = op->handle;

	op->prev = NULL;
	op->next = handle->ops;
	if (op->next != NULL)
		op->next->prev = op;
	handle->ops = op;
	dlock_op_step(op);
	if (op->done != NULL && !handle->running)
		dlock_loop_wake(handle);
}

static bool
has_ended(const void *arg)
{
	return ((const dlock_op *) arg)->stage == DLOCK_STAGE_END;
}

/* To its end: start, and sleep.  The caller does not have the mutex. */
dlock_status
dlock_op_run(dlock_op *op, dlock_error *err)
{
	dlock_handle *handle = op->handle;

	pthread_mutex_lock(&handle->mutex);
	dlock_op_start(op);
	dlock_loop_wait(handle, has_ended, op, &op->sleeper);
	dlock_error_copy(err, &op->error);
	return op->status;
}
