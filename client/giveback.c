/*-------------------------------------------------------------------------
 *
 * giveback.c
 *	  One release, step by step, without blocking.
 *
 * For programs with an event loop; dlock_release() in lock.c does the same in
 * the thread of its caller, and waits for a row that is in use on a connection of
 * its own, where this asks again now and then.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "lease.h"
#include "lock.h"
#include "op.h"
#include "util.h"

void
dlock_op_init_release(DlockOp *op, dlock_lock *lock, int64_t timeout_ms)
{
	op->is_release = true;
	op->handle = lock->handle;
	op->lock = lock;
	op->timeout_ms = dlock_timeout(lock->handle, timeout_ms);
	op->until = dlock_later(dlock_now(), op->timeout_ms);
}

static void
end_as(DlockOp *op, dlock_status status)
{
	op->status = status;
	op->stage = DLOCK_STAGE_END;
}

/* Count down, or stop its renewals and ask the server. */
static void
begin(DlockOp *op, int64_t now)
{
	dlock_lock *lock = op->lock;

	if (!op->stopped && lock->holds > 1)
	{
		lock->holds--;
		end_as(op, dlock_lease_overdue(lock, now) ?
			   dlock_fail(&op->error, DLOCK_LOST, "lock \"%s\" is lost (%s)", lock->key,
						  dlock_reason_name(lock->reason)) : DLOCK_OK);
		return;
	}
	if (!op->stopped)
	{
		lock->holds = 0;
		lock->silent = true;
		lock->held_off++;
		op->stopped = true;
	}
	if (lock->hold == DLOCK_HOLD_RELEASED)
		end_as(op, dlock_fail(&op->error, DLOCK_NOT_HELD, "lock \"%s\" has been released already",
							  lock->key));
	else if ((lock->index >= 0 || lock->in_callback) && now >= op->until)
		end_as(op, dlock_fail(&op->error, DLOCK_TIMEOUT, "the server did not answer a renewal"));
	else if (lock->index >= 0 || lock->in_callback)
		op->due = now + DLOCK_PILOT_MS;
	else
	{
		op->deadline = lock->hold == DLOCK_HOLD_OURS ? lock->deadline : 0;
		snprintf(op->texts[0], sizeof(op->texts[0]), "%lld", (long long) lock->version);
		op->params[0] = lock->key;
		op->params[1] = op->texts[0];
		op->params[2] = lock->owner;
		dlock_op_ask(op, DLOCK_STAGE_TRY, DLOCK_RELEASES, dlock_sql_release, 4);
		op->call.row_param = 4;
		dlock_op_submit(op);
	}
}

bool
dlock_op_step_release(DlockOp *op)
{
	int64_t		now = dlock_now();
	DlockCall  *call = &op->call;

	if (op->stage == DLOCK_STAGE_START && now >= op->due)
		begin(op, now);
	if (op->stage == DLOCK_STAGE_TRY && call->state == DLOCK_CALL_DONE)
	{
		op->in_doubt = op->in_doubt || call->in_doubt;
		if (call->reply != NULL)
			end_as(op, dlock_lock_released(op->lock, dlock_reply_get(call->reply, 0, 0),
										   op->in_doubt, op->deadline, &op->error));
		else if (call->blocked && now + DLOCK_POLL_MS < op->until)
		{
			call->ready_at = now + DLOCK_POLL_MS;
			dlock_op_submit(op);
		}
		else
		{
			op->error = call->error;
			end_as(op, call->error.status != DLOCK_OK ? call->error.status : DLOCK_UNREACHABLE);
		}
		dlock_reply_free(op->stage == DLOCK_STAGE_END ? call->reply : NULL);
	}
	return op->stage == DLOCK_STAGE_END;
}
