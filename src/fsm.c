/*-------------------------------------------------------------------------
 *
 * fsm.c
 *	  The rules of the lock as a pure function.
 *
 * A row is in one of three states: free (it is not held), expired (held, but
 * its time is up) and live.  Free and expired differ only for the reaper.  To
 * everyone else an expired grant is gone at the very instant its time is up.  A
 * key without a row is free.
 *
 * A row that is unsettled shows the last committed state of a row that another
 * open transaction is changing.  An acquire must not wait for that transaction,
 * so the key is busy.  The reaper skips it, and comes again.  The holder's
 * own operations decide on the committed row.  If it says that the caller is
 * not the holder, no outcome of the other transaction makes it the holder.  If
 * it says that the caller is, the writer waits for the row and asks again.
 *
 * Preemption.  A request with a strictly higher priority than the holder's asks
 * the holder to yield.  The holder has its cleanup time for that, or the rest
 * of the time that the requester waits, whichever is shorter.  When that time
 * is up, a request with force takes the lock, and any other is refused.  A
 * holder that needs no cleanup loses the lock at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fsm.h"

static bool
same_owner(const char *a, const char *b)
{
	return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/*
 * Does the request name this grant?  The role always counts.  The version, the
 * owner and the session count if they are given.
 */
static bool
names_grant(const DlockRequest *request, const DlockState *row)
{
	if (request->role != row->role)
		return false;
	if (request->by_version && request->version != row->version)
		return false;
	if (request->owner != NULL && !same_owner(request->owner, row->owner))
		return false;
	if (request->pid != 0 && request->pid != row->pid)
		return false;
	return request->by_version || request->owner != NULL || request->pid != 0;
}

static DlockVerdict
verdict(DlockAction action, DlockAnswer answer, int row)
{
	DlockVerdict v;

	v.action = action;
	v.answer = answer;
	v.preempts = false;
	v.row = row;
	return v;
}

static DlockVerdict
nothing(DlockAnswer answer, int row)
{
	return verdict(DLOCK_DO_NOTHING, answer, row);
}

/* When the holder's time to yield is up, if it is asked at the latest now. */
int64
dlock_fsm_yield_by(const DlockState *row, const DlockTurn *turn, int64 now)
{
	int64		asked_at = now;

	if (turn->asked_version == row->version)
		asked_at = turn->asked_at;
	return Min(asked_at + row->cleanup, turn->until);
}

bool
dlock_fsm_is_live(const DlockState *row, int64 now)
{
	return row->exists && row->held && !row->gone && now < row->expires;
}

/* An acquire of a key that is held by another grant. */
static DlockVerdict
preempt(const DlockState *rows, int holder, const DlockRequest *request,
		const DlockTurn *turn, int64 now)
{
	const DlockState *row = &rows[holder];
	DlockVerdict takes = verdict(DLOCK_DO_GRANT, DLOCK_IS_GRANTED, holder);

	takes.preempts = true;
	if (request->priority <= row->priority)
		return nothing(DLOCK_IS_BUSY, holder);
	if (row->cleanup == 0)
		return takes;
	if (now < dlock_fsm_yield_by(row, turn, now))
		return nothing(DLOCK_IS_ASKED, holder);
	if (request->force)
		return takes;
	return nothing(DLOCK_IS_REFUSED, holder);
}

static DlockVerdict
acquire(const DlockState *rows, int nrows, const DlockRequest *request,
		const DlockTurn *turn, int64 now)
{
	int			holder = DLOCK_NO_ROW;

	for (int i = 0; i < nrows; i++)
		if (rows[i].unsettled)
			return nothing(DLOCK_IS_BUSY, i);

	for (int i = 0; i < nrows; i++)
	{
		if (!dlock_fsm_is_live(&rows[i], now))
			continue;

		/* a retry of the same request: the same grant again */
		if (request->role == rows[i].role &&
			same_owner(request->owner, rows[i].owner))
			return verdict(DLOCK_DO_RENEW, DLOCK_IS_GRANTED, i);
		if (holder == DLOCK_NO_ROW)
			holder = i;
	}

	if (turn->behind)
		return nothing(DLOCK_IS_BUSY, holder);
	if (holder != DLOCK_NO_ROW)
		return preempt(rows, holder, request, turn, now);
	return verdict(DLOCK_DO_GRANT, DLOCK_IS_GRANTED,
				   nrows > 0 && rows[0].exists ? 0 : DLOCK_NO_ROW);
}

static DlockVerdict
reap(const DlockState *rows, int nrows, const DlockRequest *request, int64 now)
{
	for (int i = 0; i < nrows; i++)
	{
		const DlockState *row = &rows[i];

		if (!row->exists || row->unsettled || dlock_fsm_is_live(row, now))
			continue;
		if (row->held)
			return verdict(DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED, i);
		if (now - row->idle_since >= request->linger)
			return verdict(DLOCK_DO_REMOVE, DLOCK_IS_IDLE, i);
	}
	return nothing(DLOCK_IS_BUSY, DLOCK_NO_ROW);
}

/* The holder's own operations. */
static DlockVerdict
own(const DlockState *row, int i, const DlockRequest *request)
{
	switch (request->op)
	{
		case DLOCK_REFRESH:
			return verdict(DLOCK_DO_RENEW, DLOCK_IS_HELD, i);
		case DLOCK_RELEASE:
			return verdict(DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, i);
		case DLOCK_FENCE:
			return verdict(DLOCK_DO_PIN, DLOCK_IS_HELD, i);
		default:
			return nothing(row->asked ? DLOCK_IS_PREEMPTING : DLOCK_IS_HELD, i);
	}
}

DlockVerdict
dlock_fsm_decide(const DlockState *rows, int nrows, const DlockRequest *request,
				 const DlockTurn *turn, int64 now)
{
	int			live = DLOCK_NO_ROW;

	if (request->op == DLOCK_ACQUIRE)
		return acquire(rows, nrows, request, turn, now);
	if (request->op == DLOCK_REAP)
		return reap(rows, nrows, request, now);

	for (int i = 0; i < nrows; i++)
	{
		if (!dlock_fsm_is_live(&rows[i], now))
			continue;
		if (request->op == DLOCK_FORCE)
			return verdict(DLOCK_DO_CLEAR, DLOCK_IS_RELEASED, i);
		if (names_grant(request, &rows[i]))
			return own(&rows[i], i, request);
		live = i;
	}
	return nothing(live == DLOCK_NO_ROW || request->op == DLOCK_FORCE ?
				   DLOCK_IS_NOT_HELD : DLOCK_IS_HELD_BY_OTHER, live);
}
