/*-------------------------------------------------------------------------
 *
 * fsm.c
 *	  The rules of the lock as a pure function.
 *
 * A key is in one of three states: free (no row, or a row that is not held),
 * expired (held, but its time is up) and live.  Free and expired differ for
 * the reaper alone; to everybody else an expired grant is gone at the very
 * instant that its time is up.
 *
 * A state that is unsettled shows the last committed row of a key that
 * another open transaction is changing.  An acquire must not wait for that
 * transaction and takes it for busy; so does the reaper, which comes again.
 * The others decide on the committed row: if it says that the caller is not
 * the holder, no outcome of the other transaction makes him one; if it says
 * that he is, the writer waits for the row and asks again here.
 *
 * Preemption.  A request of a strictly higher priority than the holder's asks
 * him to yield.  He has his cleanup time for it, or the rest of the time that
 * the requester waits, if that is shorter.  When that is up, a request with
 * force takes the lock, and any other is refused.  A holder that needs no
 * cleanup loses the lock at once.
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
 * Does the claim name this grant?  The role always counts; the version, the
 * owner and the session count when they are given.
 */
static bool
names_grant(const DlockClaim *claim, const DlockState *state)
{
	if (claim->role != state->role)
		return false;
	if (claim->by_version && claim->version != state->version)
		return false;
	if (claim->owner != NULL && !same_owner(claim->owner, state->owner))
		return false;
	if (claim->pid != 0 && claim->pid != state->pid)
		return false;
	return claim->by_version || claim->owner != NULL || claim->pid != 0;
}

static DlockVerdict
verdict(DlockAction action, DlockAnswer answer)
{
	DlockVerdict v;

	v.action = action;
	v.answer = answer;
	v.preempts = false;
	return v;
}

/* Until when the holder has time to yield, if he is asked at the latest now. */
int64
dlock_fsm_yield_by(const DlockState *state, const DlockClaim *claim, int64 now)
{
	int64		asked_at = now;

	if (claim->asked_version == state->version)
		asked_at = claim->asked_at;
	return Min(asked_at + state->cleanup, claim->until);
}

/* An acquire of a key that somebody else holds. */
static DlockVerdict
preempt(const DlockState *state, const DlockClaim *claim, int64 now)
{
	DlockVerdict v = verdict(DLOCK_DO_GRANT, DLOCK_IS_GRANTED);

	v.preempts = true;
	if (claim->priority <= state->priority)
		return verdict(DLOCK_DO_NOTHING, DLOCK_IS_BUSY);
	if (state->cleanup == 0)
		return v;
	if (now < dlock_fsm_yield_by(state, claim, now))
		return verdict(DLOCK_DO_NOTHING, DLOCK_IS_ASKED);
	if (claim->force)
		return v;
	return verdict(DLOCK_DO_NOTHING, DLOCK_IS_REFUSED);
}

bool
dlock_fsm_is_live(const DlockState *state, int64 now)
{
	return state->exists && state->held && !state->gone && now < state->expires;
}

DlockVerdict
dlock_fsm_decide(const DlockState *state, const DlockClaim *claim, int64 now)
{
	bool		live = dlock_fsm_is_live(state, now);

	switch (claim->op)
	{
		case DLOCK_ACQUIRE:
			if (state->unsettled)
				return verdict(DLOCK_DO_NOTHING, DLOCK_IS_BUSY);

			/* a retry of the same request: the same grant again */
			if (live && claim->role == state->role &&
				same_owner(claim->owner, state->owner))
				return verdict(DLOCK_DO_RENEW, DLOCK_IS_GRANTED);
			if (claim->behind)
				return verdict(DLOCK_DO_NOTHING, DLOCK_IS_BUSY);
			if (!live)
				return verdict(DLOCK_DO_GRANT, DLOCK_IS_GRANTED);
			return preempt(state, claim, now);

		case DLOCK_FORCE:
			if (!live)
				return verdict(DLOCK_DO_NOTHING, DLOCK_IS_NOT_HELD);
			return verdict(DLOCK_DO_CLEAR, DLOCK_IS_RELEASED);

		case DLOCK_REAP:
			if (!state->exists || state->unsettled || live)
				return verdict(DLOCK_DO_NOTHING, DLOCK_IS_BUSY);
			if (state->held)
				return verdict(DLOCK_DO_REMOVE, DLOCK_IS_EXPIRED);
			if (now - state->idle_since >= claim->linger)
				return verdict(DLOCK_DO_REMOVE, DLOCK_IS_IDLE);
			return verdict(DLOCK_DO_NOTHING, DLOCK_IS_BUSY);

		case DLOCK_REFRESH:
		case DLOCK_RELEASE:
		case DLOCK_CHECK:
		case DLOCK_FENCE:
			break;
	}

	/* the holder's own operations */
	if (!live)
		return verdict(DLOCK_DO_NOTHING, DLOCK_IS_NOT_HELD);
	if (!names_grant(claim, state))
		return verdict(DLOCK_DO_NOTHING, DLOCK_IS_HELD_BY_OTHER);

	switch (claim->op)
	{
		case DLOCK_REFRESH:
			return verdict(DLOCK_DO_RENEW, DLOCK_IS_HELD);
		case DLOCK_RELEASE:
			return verdict(DLOCK_DO_CLEAR, DLOCK_IS_RELEASED);
		case DLOCK_FENCE:
			return verdict(DLOCK_DO_PIN, DLOCK_IS_HELD);
		default:
			return verdict(DLOCK_DO_NOTHING,
						   state->asked ? DLOCK_IS_PREEMPTING : DLOCK_IS_HELD);
	}
}
