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
 * Several processes may keep a waiter from a key, and it need not be necessary
 * that all of them go on: one of several places is free as soon as one of the
 * holders is.  So we do not just follow who waits for whom.  All processes that
 * we wait for, directly or not, count as stuck at first.  Then those are taken
 * out that wait for nothing, or for enough processes that are not stuck, until
 * there are no more.  What is left never goes on by itself.  It is our deadlock
 * if there is a circle in it that we are part of.  Otherwise we merely wait for
 * processes that have a deadlock, and one of these finds it.
 *
 * A waiter that nobody keeps from the key, but that is not the first in line,
 * waits for the first one.  Two readers fit beside each other, but not if a
 * writer waits between them.
 *
 * What a waiter has published was true when it last looked, and not every
 * change wakes it.  So a circle is only a suspicion, and those that are stuck
 * are woken to look again.  The circle is confirmed if it still exists in what
 * they have seen since, and nobody has changed those keys after that.  The
 * process that confirms it gets the error.  Only one check runs at a time, and
 * that process withdraws what it has published, so the other processes find no
 * circle any more.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"

#include "deadlock.h"
#include "lwlocks.h"
#include "stats.h"
#include "wait.h"

/* A process that waits, or that another one waits for. */
typedef struct Process
{
	int			pid;
	DlockWaiter *waiter;		/* NULL: not in our queue */
	struct Process *first;		/* the first in line, if that is another one */
	List	  **blockers;		/* for each: the processes that may be it */
	int			nblockers;
	bool		is_stuck;
	struct Process *reached_from;	/* on a way from us */
} Process;

typedef struct Search
{
	DlockWaiter *waiters;		/* as they were at one moment */
	int			nwaiters;
	int64		believe_since;	/* what was seen before that does not count */
	List	   *processes;		/* we are the first one */
} Search;

static DlockWaiter *
find_waiter(const Search *search, int pid)
{
	for (int i = 0; i < search->nwaiters; i++)
		if (search->waiters[i].pid == pid)
			return &search->waiters[i];
	return NULL;
}

/* The waiter that has the turn for the key that this one waits for. */
static const DlockWaiter *
first_in_line(const Search *search, const DlockWaiter *waiter)
{
	/* the copies are in the order of their queue */
	for (int i = 0; i < search->nwaiters; i++)
	{
		const DlockWaiter *other = &search->waiters[i];

		if (other->kind == DLOCK_WAIT_TURN && other->dboid == waiter->dboid &&
			other->hash == waiter->hash && strcmp(other->key, waiter->key) == 0)
			return other;
	}
	return waiter;
}

/* The process with this pid, which is added if it is new. */
static Process *
get_process(Search *search, int pid)
{
	Process    *process;
	ListCell   *lc;

	foreach(lc, search->processes)
	{
		process = lfirst(lc);
		if (process->pid == pid)
			return process;
	}
	process = palloc0(sizeof(Process));
	process->pid = pid;
	process->waiter = find_waiter(search, pid);
	search->processes = lappend(search->processes, process);
	return process;
}

/* A blocker is a process, or whatever waits in the name of an owner. */
static List *
find_blocker(Search *search, const DlockWaiter *waiter, const DlockBlocker *blocker)
{
	List	   *processes = NIL;

	if (blocker->pid != 0)
		return list_make1(get_process(search, blocker->pid));
	if (blocker->owner == 0)
		return NIL;
	for (int i = 0; i < search->nwaiters; i++)
	{
		const DlockWaiter *other = &search->waiters[i];

		if (other->kind == DLOCK_WAIT_TURN && other->dboid == waiter->dboid &&
			other->role == blocker->role && other->owner_hash == blocker->owner)
			processes = lappend(processes, get_process(search, other->pid));
	}
	return processes;
}

/* What a process in our queue waits for. */
static void
find_blockers(Search *search, Process *process)
{
	DlockWaiter *waiter = process->waiter;
	const DlockWaiter *first;

	if (waiter->kind != DLOCK_WAIT_TURN)
		return;
	if (search->believe_since != 0 &&
		(waiter->looked_at < search->believe_since ||
		 pg_atomic_read_u32(&waiter->stale) != 0))
		return;

	/* if anything else keeps it from the key, that comes first */
	first = first_in_line(search, waiter);
	if (waiter->must_end == 0 && first->pid != waiter->pid)
		process->first = get_process(search, first->pid);
	process->blockers = palloc0((waiter->nblockers + 1) * sizeof(List *));
	process->nblockers = waiter->nblockers;
	for (int i = 0; i < waiter->nblockers; i++)
		process->blockers[i] = find_blocker(search, waiter, &waiter->blockers[i]);
	process->is_stuck = true;
}

/* What a process that is not in our queue waits for. */
static void
find_lock_blockers(Search *search, Process *process)
{
	ArrayType  *array;
	Datum	   *pids;
	int			npids;

	array = DatumGetArrayTypeP(OidFunctionCall1(F_PG_BLOCKING_PIDS,
												Int32GetDatum(process->pid)));
	deconstruct_array(array, INT4OID, sizeof(int32), true, TYPALIGN_INT,
					  &pids, NULL, &npids);
	process->blockers = palloc0((npids + 1) * sizeof(List *));
	for (int i = 0; i < npids; i++)
		if (DatumGetInt32(pids[i]) != 0)
			process->blockers[process->nblockers++] =
				list_make1(get_process(search, DatumGetInt32(pids[i])));
	process->is_stuck = process->nblockers > 0;
}

static bool
is_any_stuck(const List *processes)
{
	ListCell   *lc;

	foreach(lc, processes)
		if (((Process *) lfirst(lc))->is_stuck)
		return true;
	return false;
}

/*
 * Is this process stuck, given those that are?  For a whole key, or for a lock
 * of PostgreSQL, any blocker is enough; for one of several places it takes so
 * many that the others are too few.
 */
static bool
is_stuck(const Process *process)
{
	int			allowed = 0;
	int			nstuck = 0;

	if (process->first != NULL && process->first->is_stuck)
		return true;
	if (process->waiter != NULL)
		allowed = process->waiter->nblockers_all - process->waiter->must_end;
	for (int i = 0; i < process->nblockers; i++)
		if (is_any_stuck(process->blockers[i]))
			nstuck++;
	return nstuck > allowed;
}

/* Find out who is stuck. */
static void
find_stuck(Search *search)
{
	ListCell   *lc;
	bool		changed;

	/* the list grows while we go through it */
	for (int i = 0; i < list_length(search->processes); i++)
	{
		Process    *process = list_nth(search->processes, i);

		if (process->waiter != NULL)
			find_blockers(search, process);
		else
			find_lock_blockers(search, process);
	}

	do
	{
		changed = false;
		foreach(lc, search->processes)
		{
			Process    *process = lfirst(lc);

			if (process->is_stuck && !is_stuck(process))
			{
				process->is_stuck = false;
				changed = true;
			}
		}
	} while (changed);
}

/* Take a step on the way back to us.  True: that was the last one. */
static bool
reach(const Process *us, Process *from, Process *process, List **reached)
{
	if (!process->is_stuck || (process != us && process->reached_from != NULL))
		return false;
	process->reached_from = from;
	*reached = lappend(*reached, process);
	return process == us;
}

/* A shortest circle from us to us, all of it stuck. */
static bool
find_circle(Process *us)
{
	List	   *reached = list_make1(us);

	/* the list grows while we go through it */
	for (int i = 0; i < list_length(reached); i++)
	{
		Process    *process = list_nth(reached, i);

		for (int j = 0; j < process->nblockers; j++)
		{
			ListCell   *lc;

			foreach(lc, process->blockers[j])
				if (reach(us, process, lfirst(lc), &reached))
				return true;
		}
		if (process->first != NULL && reach(us, process, process->first, &reached))
			return true;
	}
	return false;
}

/* The circle in words, beginning with us. */
static char *
describe_circle(const Process *us)
{
	const Process *process = us;
	StringInfoData path;

	initStringInfo(&path);
	do
	{
		const Process *from = process->reached_from;
		StringInfoData step;

		initStringInfo(&step);
		appendStringInfo(&step, "Process %d waits for %s, blocked by process %d.",
						 from->pid,
						 from->waiter != NULL ?
						 psprintf("lock \"%s\"", from->waiter->key) :
						 "a PostgreSQL lock",
						 process->pid);
		if (path.len > 0)
			appendStringInfo(&step, "\n%s", path.data);
		path = step;
		process = from;
	} while (process != us);
	return path.data;
}

/*
 * Look for a circle that we are in.  If believe_since is 0, a circle is only
 * suspected, and the waiters in it are woken to look again.  Otherwise only what
 * was seen since that lease time counts, and a circle raises the error.
 */
void
dlock_deadlock_check(int64 believe_since, bool *suspected)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "dlock deadlock check",
												  ALLOCSET_DEFAULT_SIZES);
	Search		search = {0};
	Process    *us;
	ListCell   *lc;

	MemoryContextSwitchTo(context);
	search.believe_since = believe_since;

	LWLockAcquire(dlock_lwlock_deadlock(), LW_EXCLUSIVE);
	search.waiters = dlock_wait_copy_all(&search.nwaiters);
	us = get_process(&search, MyProcPid);
	find_stuck(&search);
	*suspected = us->is_stuck && find_circle(us);
	if (*suspected && believe_since != 0)
		dlock_wait_withdraw();
	LWLockRelease(dlock_lwlock_deadlock());

	if (*suspected && believe_since != 0)
	{
		dlock_stats_count(DLOCK_STAT_DEADLOCKS);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 errdetail("%s", describe_circle(us)),
				 errhint("If you need several locks, always acquire them in the same order.")));
	}

	if (*suspected)
		foreach(lc, search.processes)
	{
		const Process *process = lfirst(lc);

		if (process->is_stuck && process->waiter != NULL && process != us)
			dlock_wait_wake_pid(process->pid);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}
