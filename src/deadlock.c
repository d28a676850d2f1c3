/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Finds processes that wait for each other.
 *
 * A waiter publishes what it waits for: a process whose open transaction has the
 * key, or whose session the grant ends with.  For a lease it publishes the role
 * and owner, because that owner may be waiting elsewhere under the same name.
 * If a process is not in our queue, PostgreSQL's lock manager is asked whether
 * it waits there.
 *
 * A ticket waits for its owner: whatever its owner holds is stuck if the ticket
 * is.  Its granter looks for circles on behalf of all tickets of the database.
 *
 * What a waiter has published was true when it last looked, and not every
 * change wakes it.  So a circle (circle.c) is only a suspicion, and all that it
 * depends on are woken to look again.  The circle is confirmed if it still exists
 * in what they have seen since, and nobody has changed those keys after that.
 * The process that confirms it gets the error.  Only one check runs at a time, and
 * that process withdraws what it has published, so the other processes find no
 * circle any more.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "circle.h"
#include "deadlock.h"
#include "lwlocks.h"
#include "stats.h"
#include "ticket.h"
#include "wait.h"

#define CONFIRM_US		INT64CONST(10000)
#define MAX_DOUBTS		5
#define MAX_PAUSE_US	INT64CONST(10000000)

/*
 * All that a circle depends on look again, so that what they have published is
 * true.  Those that merely wait for them need not: there may be thousands.
 */
static void
wake(const DlockCircle *circle)
{
	ListCell   *lc;

	foreach(lc, circle->depends_on)
	{
		const DlockWaiter *waiter = lfirst(lc);

		if (waiter->pid != MyProcPid)
			dlock_queue_wake_id(waiter->hash, dlock_waiter_id(waiter));
	}
}

/*
 * When to look
 */

void
dlock_deadlock_begin(DlockDeadlockWatch *watch, int64 since)
{
	memset(watch, 0, sizeof(*watch));
	watch->pause = DeadlockTimeout * INT64CONST(1000);
	watch->next = since + watch->pause;
}

/* A check has been made. */
static void
plan_next(DlockDeadlockWatch *watch, bool suspected, int64 now)
{
	/* not suspected at all, or not confirmed after several checks */
	if (!suspected && (watch->suspected_at == 0 || ++watch->doubts > MAX_DOUBTS))
	{
		watch->suspected_at = 0;
		watch->pause = Min(watch->pause * 2, MAX_PAUSE_US);
		watch->next = now + watch->pause;
		return;
	}
	if (watch->suspected_at == 0)
	{
		watch->suspected_at = now;
		watch->doubts = 0;
	}
	watch->next = now + CONFIRM_US;
}

/*
 * If it is time, look for a circle that we are in.  The first time a circle is
 * only suspected, and what it depends on is woken to look again.  After that,
 * only what they have seen since counts, and a circle raises the error.
 */
void
dlock_deadlock_watch(DlockDeadlockWatch *watch, int64 now)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	DlockCircle circle;
	bool		found;
	bool		is_certain;

	if (now < watch->next)
		return;

	context = AllocSetContextCreate(caller, "dlock deadlock check",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	LWLockAcquire(dlock_lwlock_deadlock(), LW_EXCLUSIVE);
	found = dlock_circle_find(&circle, watch->suspected_at);
	is_certain = found && watch->suspected_at != 0;
	if (is_certain)
		dlock_wait_withdraw();
	LWLockRelease(dlock_lwlock_deadlock());

	if (is_certain)
	{
		dlock_stats_count(DLOCK_STAT_DEADLOCKS);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 errdetail("%s", dlock_circle_describe(&circle)),
				 errhint("If you need several locks, always acquire them in the same order.")));
	}
	wake(&circle);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	plan_next(watch, found, now);
}

/*
 * The same for all tickets of this database at once.  Returns a ticket that has
 * to give up, or 0.
 */
int64
dlock_deadlock_watch_tickets(DlockDeadlockWatch *watch, int64 now)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	DlockCircle circle;
	bool		found;
	int64		ticket = 0;

	if (now < watch->next)
		return 0;

	context = AllocSetContextCreate(caller, "dlock deadlock check",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	LWLockAcquire(dlock_lwlock_deadlock(), LW_EXCLUSIVE);
	found = dlock_circle_find_ticket(&circle, watch->suspected_at);
	if (found && watch->suspected_at != 0)
	{
		ticket = (int64) circle.id;
		dlock_ticket_give_up(ticket);
	}
	LWLockRelease(dlock_lwlock_deadlock());

	if (ticket != 0)
		ereport(LOG,
				(errmsg("deadlock detected"),
				 errdetail("%s", dlock_circle_describe(&circle)),
				 errhint("If you need several locks, always acquire them in the same order.")));
	else
		wake(&circle);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	plan_next(watch, found, now);
	return ticket;
}
