/*-------------------------------------------------------------------------
 *
 * wait_report.c
 *	  What a request that has to wait publishes: what keeps it waiting, whom it
 *	  has asked to yield, and when it will look again.
 *
 * A backend that waits (acquire.c) and a granter on behalf of a ticket
 * (ticket_grant.c) make the same report after each look at the row.  No LWLock is
 * held here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/snapmgr.h"

#include "clock.h"
#include "queue/wait_report.h"
#include "stats/stats.h"

/*
 * Which process is using a row: the one whose open transaction has written it, is
 * replacing it, or has locked it
 */

/* The process that runs this transaction, or 0. */
int
dlock_wait_report_user_of_xid(TransactionId xid)
{
	if (!TransactionIdIsValid(xid) || TransactionIdPrecedes(xid, TransactionXmin))
		return 0;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}

/*
 * The process that has locked this row or is replacing it, or 0.  If there are
 * several, as with several fences, it is one of them.
 */
int
dlock_wait_report_user_of_row(HeapTuple tuple)
{
	uint16		infomask = tuple->t_data->t_infomask;
	TransactionId xmax = HeapTupleHeaderGetRawXmax(tuple->t_data);
	MultiXactMember *members;
	int			nmembers;
	int			pid = 0;

	if ((infomask & HEAP_XMAX_INVALID) || HEAP_LOCKED_UPGRADED(infomask))
		return 0;
	if (!(infomask & HEAP_XMAX_IS_MULTI))
		return dlock_wait_report_user_of_xid(xmax);

	nmembers = GetMultiXactIdMembers(xmax, &members, false,
									 HEAP_XMAX_IS_LOCKED_ONLY(infomask));
	for (int i = 0; i < nmembers && pid == 0; i++)
		pid = dlock_wait_report_user_of_xid(members[i].xid);
	if (nmembers > 0)
		pfree(members);
	return pid;
}

/*
 * The report
 */

/*
 * What keeps a request waiting, for the deadlock check: the process that is
 * using a row or whose session the grant ends with, or else the owner of the
 * lease.  A row that a granter has written itself belongs to the owner for whom it
 * has granted it.  One of our own that cools is nobody's: it ends by time.  A request
 * that wants a grant anew knows nobody for the lease of its own owner: those that use
 * this name are not one holder, so it would seem to wait for itself.
 */
static void
find_blockers(const DlockRequest *request, const DlockRows *found, int64 now,
			  DlockWaitReport *report)
{
	report->must_end = dlock_rules_must_end(found->states, found->n, request, now);
	report->nblockers_all = 0;
	report->nblockers = 0;
	for (int i = 0; i < found->n; i++)
	{
		const DlockState *state = &found->states[i];
		const DlockRow *row = &found->rows[i];
		int			pid = 0;

		if (!dlock_rules_blocks(state, request, now) ||
			report->nblockers_all++ >= DLOCK_MAX_BLOCKERS)
			continue;
		if (state->held && !request->by_granter &&
			TransactionIdIsCurrentTransactionId(row->writer))
			pid = MyProcPid;
		else if (TransactionIdIsValid(row->pending))
			pid = dlock_wait_report_user_of_xid(row->pending);
		else if (state->held)
			pid = state->pid;
		report->blockers[report->nblockers++] = pid != 0 || !state->held ||
			dlock_terms_same_owner(&state->terms, &request->terms) ? (DlockBlocker) pid :
			dlock_queue_owner_name(state->terms.role, state->terms.owner);
	}
}

/*
 * A waiter that does not have the turn looks again after this long.  The one
 * before it wakes it when it leaves, so it need not look at all, but it has to
 * publish a time: a commit whose lease ends no sooner than that need not wake it.
 * The deadlock check wakes it more often (MAX_PAUSE_US), so this does not add to that.
 */
#define BEHIND_LOOK_US	INT64CONST(15000000)

/* For qsort(). */
static int
compare_times(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return (x > y) - (x < y);
}

/*
 * When enough of the grants that block us have expired, if none of them is renewed;
 * DLOCK_NEVER, if that depends on open transactions.  lock.c calls this, too.
 */
int64
dlock_wait_report_free_at(const DlockRequest *request, const DlockRows *found, int64 now)
{
	int			must_end = dlock_rules_must_end(found->states, found->n, request, now);
	int64	   *ends = palloc(found->n * sizeof(int64) + 1);
	int			n = 0;

	for (int i = 0; i < found->n; i++)
	{
		const DlockState *state = &found->states[i];

		if (!dlock_rules_blocks(state, request, now))
			continue;

		/* if it is in use, the end of that transaction wakes us */
		ends[n++] = TransactionIdIsValid(found->rows[i].pending) ||
			state->unsettled || state->used || !state->exists ?
			DLOCK_NEVER : dlock_rules_busy_until(state);
	}
	if (must_end == 0)
		return DLOCK_NEVER;
	qsort(ends, n, sizeof(int64), compare_times);
	return ends[must_end - 1];
}

/* When to look again if nobody wakes us. */
static int64
look_again_at(const DlockRequest *request, const DlockTurn *turn,
			  const DlockRows *found, const DlockResult *result,
			  int64 looked_at, int64 now)
{
	int64		until;

	if (turn->behind && result->answer != DLOCK_IS_ASKED)
		return looked_at + BEHIND_LOOK_US;

	until = dlock_wait_report_free_at(request, found, looked_at);
	if (result->answer == DLOCK_IS_ASKED)
		for (int i = 0; i < found->n; i++)
		{
			const DlockState *state = &found->states[i];

			if (!state->yields)
				continue;
			until = Min(until, state->expires);
			until = Min(until, dlock_rules_yield_by(state, &turn->asking,
													turn->until, now));
		}

	/* an upgrade comes first only as long as its owner has a place */
	if (result->upgrades)
		for (int i = 0; i < found->n; i++)
			if (found->states[i].ends && found->states[i].expires > looked_at)
				until = Min(until, found->states[i].expires);
	return until;
}

/*
 * Holders are to be asked to yield.  Those that have been asked before keep the time
 * since when; the others are asked from now on, and counted.
 */
static void
ask(const DlockRequest *request, DlockAsking *asking, const DlockRows *found,
	int64 now)
{
	DlockAsking before = *asking;

	memset(asking, 0, sizeof(*asking));
	if (request->terms.capacity == DLOCK_EXCLUSIVE)
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
 * The answer was "busy".  Does what we have asked of the holders still count?  It does
 * if one of them is still there: its open transaction, a fence or a refresh, gives it
 * no more time.  It does not if we have lost the turn.
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
		if (!state->held || state->terms.priority >= request->terms.priority)
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
 * Is no row that was found being changed by an open transaction?  The caller asks
 * before it decides that an upgrade has lost its place: a row that is being changed
 * may be that place.
 */
bool
dlock_wait_report_is_settled(const DlockRows *found)
{
	for (int i = 0; i < found->n; i++)
		if (found->states[i].unsettled)
			return false;
	return true;
}

/*
 * Make the report after a try that was answered "busy" or "asked".  "looked_at" is a
 * time from before the try.  Also updates turn->asking.
 */
void
dlock_wait_report_make(const DlockRequest *request, DlockTurn *turn,
					   const DlockRows *found, const DlockResult *result,
					   int64 looked_at, int64 now, DlockWaitReport *report)
{
	DlockRequest limited = *request;

	limited.max_hold = result->max_hold;
	if (result->answer == DLOCK_IS_ASKED)
		ask(request, &turn->asking, found, now);
	else if (!still_asking(request, turn, found))
		memset(&turn->asking, 0, sizeof(turn->asking));

	report->wake_at = look_again_at(&limited, turn, found, result, looked_at, now);
	report->asking = turn->asking;
	find_blockers(&limited, found, looked_at, report);
}
