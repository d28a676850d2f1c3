/*-------------------------------------------------------------------------
 *
 * outlook.c
 *	  What a request that has to wait tells the others: what keeps it waiting,
 *	  whom it has asked to yield, and when it will look again.
 *
 * A backend that waits (await.c) and a granter that looks at a ticket (serve.c)
 * publish the same.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"

#include "clock.h"
#include "outlook.h"
#include "stats.h"
#include "using.h"

/*
 * What keeps a request waiting, for the deadlock check: the process that is
 * using a row or whose session the grant ends with, or else the owner of the
 * lease.  What a granter has written itself is its requester's in a moment.
 */
static void
find_blockers(const DlockRequest *request, const DlockRows *found, int64 now,
			  DlockOutlook *outlook)
{
	outlook->must_end = dlock_fsm_must_end(found->states, found->n, request, now);
	outlook->nblockers_all = 0;
	outlook->nblockers = 0;
	for (int i = 0; i < found->n; i++)
	{
		const DlockState *state = &found->states[i];
		const DlockRow *row = &found->rows[i];
		int			pid = 0;

		if (!dlock_fsm_blocks(state, request, now) ||
			outlook->nblockers_all++ >= DLOCK_MAX_BLOCKERS)
			continue;
		if (!request->by_granter && TransactionIdIsCurrentTransactionId(row->writer))
			pid = MyProcPid;
		else if (TransactionIdIsValid(row->pending))
			pid = dlock_using_xid(row->pending);
		else if (state->held)
			pid = state->pid;
		outlook->blockers[outlook->nblockers++] =
			pid != 0 || !state->held ? (DlockBlocker) pid :
			dlock_waiter_owner(state->role, state->owner);
	}
}

/*
 * A waiter that does not have the turn looks again after this long.  The one
 * before it passes the turn on, so it need not look at all, but it has to say
 * when it will: a commit whose lease ends no sooner than that need not wake it.
 */
#define BEHIND_LOOK_US	INT64CONST(10000000)

static int
compare_times(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return (x > y) - (x < y);
}

/* When enough of what blocks us has ended, if all of it just runs out. */
static int64
free_at(const DlockRequest *request, const DlockRows *found, int64 now)
{
	int			must_end = dlock_fsm_must_end(found->states, found->n, request, now);
	int64	   *ends = palloc(found->n * sizeof(int64) + 1);
	int			n = 0;

	for (int i = 0; i < found->n; i++)
	{
		const DlockState *state = &found->states[i];

		if (!dlock_fsm_blocks(state, request, now))
			continue;

		/* if it is in use, the end of that transaction wakes us */
		ends[n++] = TransactionIdIsValid(found->rows[i].pending) ||
			state->unsettled || state->used || !state->exists ?
			DLOCK_NEVER : dlock_fsm_busy_until(state);
	}
	if (must_end == 0)
		return DLOCK_NEVER;
	qsort(ends, n, sizeof(int64), compare_times);
	return ends[must_end - 1];
}

/* When the waiter should look again by itself, if nobody wakes it. */
static int64
look_again_at(const DlockRequest *request, const DlockTurn *turn,
			  const DlockRows *found, const DlockResult *result,
			  int64 looked_at, int64 now)
{
	int64		until;

	if (turn->behind && result->answer != DLOCK_IS_ASKED)
		return looked_at + BEHIND_LOOK_US;

	until = free_at(request, found, looked_at);
	if (result->answer == DLOCK_IS_ASKED)
		for (int i = 0; i < found->n; i++)
		{
			const DlockState *state = &found->states[i];

			if (!state->yields)
				continue;
			until = Min(until, state->expires);
			until = Min(until, dlock_fsm_yield_by(state, &turn->asking,
												  turn->until, now));
		}

	/* it comes first only as long as it has its place */
	if (result->upgrades)
		for (int i = 0; i < found->n; i++)
			if (found->states[i].ends && found->states[i].expires > looked_at)
				until = Min(until, found->states[i].expires);
	return until;
}

/* A holder is asked once; another holder is asked from now on. */
static void
ask(const DlockRequest *request, DlockAsking *asking, const DlockRows *found,
	int64 now)
{
	DlockAsking before = *asking;

	memset(asking, 0, sizeof(*asking));
	if (request->slots == DLOCK_EXCLUSIVE)
	{
		asking->all = true;
		asking->since = before.all ? before.since : now;
		for (int i = 0; i < found->n && !before.all; i++)
			if (found->states[i].yields)
				dlock_stats_count(DLOCK_STAT_ASKED);
		return;
	}
	for (int i = 0; i < found->n && asking->n < DLOCK_MAX_ASKED; i++)
	{
		const DlockState *state = &found->states[i];
		bool		is_new = true;

		if (!state->yields)
			continue;
		asking->one[asking->n].version = state->version;
		asking->one[asking->n].since = now;
		for (int j = 0; j < before.n; j++)
			if (before.one[j].version == state->version)
			{
				asking->one[asking->n].since = before.one[j].since;
				is_new = false;
			}
		asking->n++;
		if (is_new)
			dlock_stats_count(DLOCK_STAT_ASKED);
	}
}

/*
 * Busy, but by nothing that withdraws what we have asked of the holders: an open
 * transaction of a holder, a fence or a refresh, buys it no more time.
 */
static bool
still_asking(const DlockRequest *request, const DlockTurn *turn,
			 const DlockRows *found)
{
	if (turn->behind)
		return false;
	for (int i = 0; i < found->n; i++)
	{
		const DlockState *state = &found->states[i];

		if (state->unsettled)
			return true;
		if (!state->held || state->priority >= request->priority)
			continue;
		if (turn->asking.all)
			return true;
		for (int j = 0; j < turn->asking.n; j++)
			if (state->version == turn->asking.one[j].version)
				return true;
	}
	return false;
}

/*
 * Is all settled that was found?  If a request that wanted to upgrade has no place
 * any more, what is not settled may be that place.
 */
bool
dlock_outlook_is_settled(const DlockRows *found)
{
	for (int i = 0; i < found->n; i++)
		if (found->states[i].unsettled)
			return false;
	return true;
}

/*
 * A try has been answered "busy" or "asked".  "looked_at" is a time from before
 * it.
 */
void
dlock_outlook_make(const DlockRequest *request, DlockTurn *turn,
				   const DlockRows *found, const DlockResult *result,
				   int64 looked_at, int64 now, DlockOutlook *outlook)
{
	if (result->answer == DLOCK_IS_ASKED)
		ask(request, &turn->asking, found, now);
	else if (!still_asking(request, turn, found))
		memset(&turn->asking, 0, sizeof(turn->asking));

	outlook->wake_at = look_again_at(request, turn, found, result, looked_at, now);
	outlook->asking = turn->asking;
	find_blockers(request, found, looked_at, outlook);
}
