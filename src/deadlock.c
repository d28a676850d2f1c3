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
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "deadlock.h"
#include "lwlocks.h"
#include "stats.h"
#include "ticket.h"
#include "wait.h"

#define CONFIRM_US		INT64CONST(10000)
#define MAX_DOUBTS		5
#define MAX_PAUSE_US	INT64CONST(10000000)

/*
 * A process or a ticket that waits, or a process that another one waits for.
 * What is said of processes below holds for tickets, too.
 */
typedef struct Process
{
	uint64		id;				/* its hash key: dlock_waiter_id() */
	DlockWaiter *waiter;		/* NULL: not in our queue */
	bool		is_known;		/* it is in the list of the search */
	struct Process *first;		/* the first in line, if that is another one */
	List	  **blockers;		/* for each: the processes that may be it */
	int			nblockers;
	bool		is_stuck;
	struct Process *reached_from;	/* on a way from us */
} Process;

/* The waiters that share something. */
typedef struct Group
{
	uint64		name;			/* of an owner, or the hash of a key */
	List	   *waiters;
} Group;

typedef struct Search
{
	DlockWaiter *waiters;		/* as they were at one moment */
	int			nwaiters;
	int64		believe_since;	/* what was seen before that does not count */
	HTAB	   *by_id;
	HTAB	   *by_owner;
	HTAB	   *firsts;			/* those that have the turn, by key */
	List	   *processes;		/* those that matter */
} Search;

static HTAB *
make_table(const char *name, Size entrysize)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64),.entrysize = entrysize};

	ctl.hcxt = CurrentMemoryContext;
	return hash_create(name, 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static Group *
get_group(HTAB *table, uint64 name)
{
	bool		found;
	Group	   *group = hash_search(table, &name, HASH_ENTER, &found);

	if (!found)
		group->waiters = NIL;
	return group;
}

static Process *
get_entry(Search *search, uint64 id)
{
	bool		found;
	Process    *process = hash_search(search->by_id, &id, HASH_ENTER, &found);

	if (!found)
	{
		memset(process, 0, sizeof(*process));
		process->id = id;
	}
	return process;
}

static bool
wait_for_same(const DlockWaiter *a, const DlockWaiter *b)
{
	return a->dboid == b->dboid && strcmp(a->key, b->key) == 0;
}

/* The waiter that has the turn for the key that this one waits for, if known. */
static const DlockWaiter *
first_in_line(const Search *search, const DlockWaiter *waiter)
{
	const Group *group = get_group(search->firsts, waiter->hash);
	ListCell   *lc;

	foreach(lc, group->waiters)
		if (wait_for_same(lfirst(lc), waiter))
		return lfirst(lc);
	return NULL;
}

static void
begin_search(Search *search, int64 believe_since)
{
	search->believe_since = believe_since;
	search->processes = NIL;
	search->by_id = make_table("dlock waiting processes", sizeof(Process));
	search->by_owner = make_table("dlock waiting owners", sizeof(Group));
	search->firsts = make_table("dlock turns", sizeof(Group));
	search->waiters = dlock_queue_copy_all(&search->nwaiters);
	for (int i = 0; i < search->nwaiters; i++)
	{
		DlockWaiter *waiter = &search->waiters[i];
		Group	   *group;

		get_entry(search, dlock_waiter_id(waiter))->waiter = waiter;
		if (waiter->kind != DLOCK_WAIT_TURN)
			continue;
		if (waiter->owner_name != 0)
		{
			group = get_group(search->by_owner, waiter->owner_name);
			group->waiters = lappend(group->waiters, waiter);
		}

		/* the copies are in the order of their queue */
		if (first_in_line(search, waiter) == NULL)
		{
			group = get_group(search->firsts, waiter->hash);
			group->waiters = lappend(group->waiters, waiter);
		}
	}
}

/* A process that matters. */
static Process *
get_process(Search *search, uint64 id)
{
	Process    *process = get_entry(search, id);

	if (!process->is_known)
		search->processes = lappend(search->processes, process);
	process->is_known = true;
	return process;
}

/* A blocker is a process, or whatever waits in the name of an owner. */
static List *
find_blocker(Search *search, const DlockWaiter *waiter, DlockBlocker blocker)
{
	List	   *processes = NIL;
	ListCell   *lc;

	if (blocker == 0)
		return NIL;
	if (!(blocker & DLOCK_OWNER_BIT))
		return list_make1(get_process(search, blocker));
	foreach(lc, get_group(search->by_owner, blocker)->waiters)
	{
		const DlockWaiter *other = lfirst(lc);

		if (other->dboid == waiter->dboid)
			processes = lappend(processes,
								get_process(search, dlock_waiter_id(other)));
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
	if (waiter->must_end == 0 && first != waiter)
		process->first = get_process(search, dlock_waiter_id(first));
	process->blockers = palloc0((waiter->nblockers + 1) * sizeof(List *));
	process->nblockers = waiter->nblockers;
	for (int i = 0; i < waiter->nblockers; i++)
		process->blockers[i] = find_blocker(search, waiter, waiter->blockers[i]);
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
												Int32GetDatum((int) process->id)));
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
	for (int i = 0; i < list_length(reached); i++)
		((Process *) list_nth(reached, i))->reached_from = NULL;
	return false;
}

static const char *
name_process(const Process *process)
{
	if (process->waiter != NULL && process->waiter->ticket != 0)
		return psprintf("ticket %lld", (long long) process->id);
	return psprintf("process %d", (int) process->id);
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
		appendStringInfo(&step, "%s waits for %s, blocked by %s.",
						 name_process(from),
						 from->waiter != NULL ?
						 psprintf("lock \"%s\"", from->waiter->key) :
						 "a PostgreSQL lock",
						 name_process(process));
		step.data[0] = pg_toupper(step.data[0]);
		if (path.len > 0)
			appendStringInfo(&step, "\n%s", path.data);
		path = step;
		process = from;
	} while (process != us);
	return path.data;
}

/* Those that are stuck look again, so that what they have published is true. */
static void
wake_stuck(const Search *search, uint64 us)
{
	ListCell   *lc;

	foreach(lc, search->processes)
	{
		const Process *process = lfirst(lc);

		if (process->is_stuck && process->waiter != NULL && process->id != us)
			dlock_queue_wake_id(process->id);
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
	if (watch->suspected_at == 0 ? !suspected : ++watch->doubts > MAX_DOUBTS)
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
 * only suspected, and the waiters in it are woken to look again.  After that,
 * only what they have seen since counts, and a circle raises the error.
 */
void
dlock_deadlock_watch(DlockDeadlockWatch *watch, int64 now)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	Search		search;
	Process    *us;
	bool		found;
	bool		is_certain;

	if (now < watch->next)
		return;

	context = AllocSetContextCreate(caller, "dlock deadlock check",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	LWLockAcquire(dlock_lwlock_deadlock(), LW_EXCLUSIVE);
	begin_search(&search, watch->suspected_at);
	us = get_process(&search, MyProcPid);
	find_stuck(&search);
	found = us->is_stuck && find_circle(us);
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
				 errdetail("%s", describe_circle(us)),
				 errhint("If you need several locks, always acquire them in the same order.")));
	}
	if (found)
		wake_stuck(&search, us->id);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	plan_next(watch, found, now);
}

/* A ticket of this database that is in a circle, or NULL. */
static Process *
find_ticket_in_circle(const Search *search)
{
	for (int i = 0; i < list_length(search->processes); i++)
	{
		Process    *process = list_nth(search->processes, i);

		if (process->waiter != NULL && process->waiter->ticket != 0 &&
			process->waiter->dboid == MyDatabaseId && process->is_stuck &&
			find_circle(process))
			return process;
	}
	return NULL;
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
	Search		search;
	Process    *victim;
	int64		ticket = 0;

	if (now < watch->next)
		return 0;

	context = AllocSetContextCreate(caller, "dlock deadlock check",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	LWLockAcquire(dlock_lwlock_deadlock(), LW_EXCLUSIVE);
	begin_search(&search, watch->suspected_at);
	for (int i = 0; i < search.nwaiters; i++)
		if (search.waiters[i].ticket != 0 && search.waiters[i].dboid == MyDatabaseId)
			(void) get_process(&search, dlock_waiter_id(&search.waiters[i]));
	find_stuck(&search);
	victim = find_ticket_in_circle(&search);
	if (victim != NULL && watch->suspected_at != 0)
	{
		ticket = (int64) victim->id;
		dlock_ticket_give_up(ticket);
	}
	LWLockRelease(dlock_lwlock_deadlock());

	if (ticket != 0)
		ereport(LOG,
				(errmsg("deadlock detected"),
				 errdetail("%s", describe_circle(victim)),
				 errhint("If you need several locks, always acquire them in the same order.")));
	else if (victim != NULL)
		wake_stuck(&search, 0);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	plan_next(watch, victim != NULL, now);
	return ticket;
}
