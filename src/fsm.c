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
 * Does the claim name this grant?  The role always counts; the version and
 * the owner count when they are given.
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
	return claim->by_version || claim->owner != NULL;
}

static DlockVerdict
verdict(DlockAction action, DlockAnswer answer)
{
	DlockVerdict v;

	v.action = action;
	v.answer = answer;
	return v;
}

DlockVerdict
dlock_fsm_decide(const DlockState *state, const DlockClaim *claim, int64 now)
{
	bool		live = state->exists && state->held && now < state->expires;

	switch (claim->op)
	{
		case DLOCK_ACQUIRE:
			if (state->unsettled)
				return verdict(DLOCK_DO_NOTHING, DLOCK_IS_BUSY);
			if (!live)
				return verdict(DLOCK_DO_GRANT, DLOCK_IS_GRANTED);

			/* a retry of the same request: the same grant again */
			if (claim->role == state->role &&
				same_owner(claim->owner, state->owner))
				return verdict(DLOCK_DO_RENEW, DLOCK_IS_GRANTED);
			return verdict(DLOCK_DO_NOTHING, DLOCK_IS_BUSY);

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
			return verdict(DLOCK_DO_NOTHING, DLOCK_IS_HELD);
	}
}
