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
 * What a waiter has published was true when it last looked, and not every
 * change wakes it.  So a circle is only a suspicion, and the waiters in it are
 * woken to look again.  The circle is confirmed if it still exists in what they
 * have seen since, and nobody has changed those keys after that.  The process
 * that confirms it gets the error.  Only one check runs at a time, and that
 * process withdraws what it has published, so the other processes find no circle
 * any more.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "deadlock.h"
#include "lwlocks.h"
#include "stats.h"
#include "wait.h"

/* What is known about a process. */
typedef struct Visited
{
	int			pid;
	bool		is_stuck;		/* false also while we are looking at it */
} Visited;

typedef struct Search
{
	DlockWaiter *waiters;		/* as they were at one moment */
	int			nwaiters;
	int64		believe_since;	/* what was seen before that does not count */
	Visited    *visited;
	int			nvisited;
	StringInfoData path;		/* the circle, last step first */
	int			nsuspects;
	int		   *suspects;		/* pids in the circle */
} Search;

static bool is_stuck(Search *search, int pid);

static DlockWaiter *
find_waiter(Search *search, int pid)
{
	for (int i = 0; i < search->nwaiters; i++)
		if (search->waiters[i].pid == pid)
			return &search->waiters[i];
	return NULL;
}

static void
add_step(Search *search, int pid, const char *what, int blocker)
{
	StringInfoData step;

	initStringInfo(&step);
	appendStringInfo(&step, "Process %d waits for %s, blocked by process %d.",
					 pid, what, blocker);
	if (search->path.len > 0)
		appendStringInfo(&step, "\n%s", search->path.data);
	search->path = step;
	search->suspects[search->nsuspects++] = pid;
}

/* The process that makes this blocker stuck, or 0. */
static int
stuck_process(Search *search, const DlockWaiter *waiter,
			  const DlockBlocker *blocker)
{
	if (blocker->pid != 0)
		return is_stuck(search, blocker->pid) ? blocker->pid : 0;
	if (blocker->owner == 0)
		return 0;

	for (int i = 0; i < search->nwaiters; i++)
	{
		DlockWaiter *other = &search->waiters[i];

		if (other->kind == DLOCK_WAIT_TURN && other->dboid == waiter->dboid &&
			other->role == blocker->role && other->owner_hash == blocker->owner &&
			is_stuck(search, other->pid))
			return other->pid;
	}
	return 0;
}

/*
 * A waiter is stuck if so many of its blockers are that the others are too few.
 * For a whole key that is any of them; for one of several places, which any of
 * the holders may free, it is all.
 */
static bool
is_waiter_stuck(Search *search, DlockWaiter *waiter)
{
	int			nstuck = 0;
	int			first = 0;

	if (waiter->kind != DLOCK_WAIT_TURN)
		return false;
	if (search->believe_since != 0 &&
		(waiter->looked_at < search->believe_since ||
		 pg_atomic_read_u32(&waiter->stale) != 0))
		return false;
	for (int i = 0; i < waiter->nblockers; i++)
	{
		int			process = stuck_process(search, waiter, &waiter->blockers[i]);

		if (process == 0)
			continue;
		if (first == 0)
			first = process;
		if (++nstuck > waiter->nblockers_all - waiter->must_end)
		{
			add_step(search, waiter->pid, psprintf("lock \"%s\"", waiter->key), first);
			return true;
		}
	}
	return false;
}

/* A process that waits for something other than our locks. */
static bool
is_process_stuck(Search *search, int pid)
{
	ArrayType  *blockers;
	Datum	   *pids;
	int			npids;

	blockers = DatumGetArrayTypeP(OidFunctionCall1(F_PG_BLOCKING_PIDS,
												   Int32GetDatum(pid)));
	deconstruct_array(blockers, INT4OID, sizeof(int32), true, TYPALIGN_INT,
					  &pids, NULL, &npids);
	for (int i = 0; i < npids; i++)
		if (DatumGetInt32(pids[i]) != 0 && is_stuck(search, DatumGetInt32(pids[i])))
		{
			add_step(search, pid, "a PostgreSQL lock", DatumGetInt32(pids[i]));
			return true;
		}
	return false;
}

/* Does the process wait for us, directly or not? */
static bool
is_stuck(Search *search, int pid)
{
	DlockWaiter *waiter;
	Visited    *visited;

	if (pid == MyProcPid)
		return true;
	for (int i = 0; i < search->nvisited; i++)
		if (search->visited[i].pid == pid)
			return search->visited[i].is_stuck;
	if (search->nvisited == MaxBackends)
		return false;
	visited = &search->visited[search->nvisited++];
	visited->pid = pid;
	visited->is_stuck = false;

	waiter = find_waiter(search, pid);
	visited->is_stuck = waiter != NULL ?
		is_waiter_stuck(search, waiter) : is_process_stuck(search, pid);
	return visited->is_stuck;
}

/*
 * Look for a circle that we are in.  If believe_since is 0, a circle is only
 * suspected, and the waiters in it are woken to look again.  Otherwise only what
 * was seen since that lease time counts, and a circle raises the error.
 */
void
dlock_deadlock_check(int64 believe_since, bool *suspected)
{
	Search		search;
	DlockWaiter *self;

	memset(&search, 0, sizeof(search));
	search.believe_since = believe_since;
	search.visited = palloc(MaxBackends * sizeof(Visited));
	search.suspects = palloc((MaxBackends + 1) * sizeof(int));

	LWLockAcquire(dlock_lwlock_deadlock(), LW_EXCLUSIVE);
	search.waiters = dlock_wait_copy_all(&search.nwaiters);
	self = find_waiter(&search, MyProcPid);
	*suspected = self != NULL && is_waiter_stuck(&search, self);
	if (*suspected && believe_since != 0)
		dlock_wait_withdraw();
	LWLockRelease(dlock_lwlock_deadlock());

	if (*suspected && believe_since != 0)
	{
		dlock_stats_count(DLOCK_STAT_DEADLOCKS);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 errdetail("%s", search.path.data),
				 errhint("If you need several locks, always acquire them in the same order.")));
	}

	for (int i = 0; i < search.nsuspects; i++)
		if (search.suspects[i] != MyProcPid)
			dlock_wait_wake_pid(search.suspects[i]);

	pfree(search.waiters);
	pfree(search.suspects);
	pfree(search.visited);
}
