/*-------------------------------------------------------------------------
 *
 * record.c
 *	  What the commit of a change counts and logs: how a grant ends.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "ends.h"
#include "queue.h"
#include "record.h"
#include "stats.h"
#include "xact.h"

static void
record(const DlockEnding *ending, DlockStat stat, DlockEnd how, int64 asked_at)
{
	dlock_xact_count_change(ending->change, stat);
	dlock_ends_note(ending->store, ending->key, ending->row->tuple, ending->state,
					how, ending->request->role, asked_at, ending->now);
}

/* When the holder of this grant was asked to yield, or 0. */
static int64
when_asked(const DlockEnding *ending)
{
	DlockNamedWaiter *asking;
	int64		asked_at = 0;

	if (!dlock_queue_asked(ending->key, ending->state, NULL))
		return 0;
	asking = palloc(sizeof(DlockNamedWaiter));
	if (dlock_queue_asked(ending->key, ending->state, asking))
		asked_at = dlock_fsm_asked_since(ending->state, &asking->waiter.asking, ending->now);
	pfree(asking);
	return asked_at;
}

/* Does the requester end its own place, in favour of an exclusive grant? */
static bool
is_upgrade(const DlockEnding *ending)
{
	const DlockState *state = ending->state;
	const DlockRequest *request = ending->request;

	return state->slot != DLOCK_HEAD && request->slots == DLOCK_EXCLUSIVE &&
		state->role == request->role && state->owner != NULL &&
		request->owner != NULL && strcmp(state->owner, request->owner) == 0 &&
		dlock_fsm_is_held(state, ending->now);
}

/* Another grant takes its place, or ends it. */
void
dlock_record_taken(const DlockEnding *ending)
{
	const DlockState *state = ending->state;

	if (!state->held)
		return;
	if (is_upgrade(ending))
	{
		record(ending, DLOCK_STAT_RELEASES, DLOCK_END_UPGRADED, 0);
		return;
	}
	switch (dlock_fsm_phase(state, ending->now))
	{
		case DLOCK_PHASE_LIVE:
			record(ending, DLOCK_STAT_PREEMPTED, DLOCK_END_PREEMPTED, 0);
			break;
		case DLOCK_PHASE_LAPSED:
			record(ending, DLOCK_STAT_LAPSED_TAKEN, DLOCK_END_LAPSED, 0);
			break;
		default:
			record(ending, DLOCK_STAT_EXPIRED,
				   state->gone ? DLOCK_END_SESSION_GONE : DLOCK_END_EXPIRED, 0);
			break;
	}
}

/* It is released, forcibly released or reaped. */
void
dlock_record_ended(const DlockEnding *ending, DlockAnswer answer)
{
	const DlockState *state = ending->state;

	if (!state->held)
		return;					/* a free row, or the end of cooling */
	if (answer == DLOCK_IS_EXPIRED)
		record(ending, DLOCK_STAT_EXPIRED,
			   state->gone ? DLOCK_END_SESSION_GONE : DLOCK_END_EXPIRED, 0);
	else if (ending->request->op == DLOCK_FORCE)
		record(ending, DLOCK_STAT_FORCED, DLOCK_END_FORCED, 0);
	else if (ending->request->pid != 0)
		record(ending, DLOCK_STAT_RELEASES, DLOCK_END_DISCONNECTED, 0);
	else
		record(ending, DLOCK_STAT_RELEASES, DLOCK_END_RELEASED, when_asked(ending));
}
