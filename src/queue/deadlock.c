/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Finds processes and tickets that wait for each other.
 *
 * Each waiter publishes what it waits for, as of its last look at the key
 * (wait_report.c): processes whose open transaction or session has the key, or
 * the role and owner of a lease, because that owner may be waiting elsewhere under
 * the same name.  If a process is not in our queue, PostgreSQL's lock manager is
 * asked what it waits for.  A ticket waits for its owner: whatever that owner holds
 * is stuck if the ticket is.  In this file a ticket counts as a process.
 *
 * A check has three steps.
 *
 * 1. Collect the processes that we wait for, directly or not.
 *
 * 2. Find out which of them are stuck.  Several processes may keep a waiter from
 *	  a key, and not all of them have to end: one of several places is free as soon
 *	  as one of the holders leaves.  So at first all that wait count as stuck.
 *	  Then every process is taken out that waits for enough processes that are not
 *	  stuck, until there are no more.  What is left cannot continue by itself.
 *
 * 3. Look for a circle in what is left.  It is our deadlock if we are in a circle.
 *	  Otherwise we merely wait for others that have a deadlock, and one of these
 *	  finds it.
 *
 * A circle is only a suspicion, because what was published may be old.  So all
 * that the circle depends on are woken to look again.  The circle is confirmed
 * if it still exists in what they have published since, and nobody has changed
 * those keys after that (is_stale).  The process that confirms it gives up.  Only
 * one check runs at a time (the LWLock "deadlock"), and the process that gives up
 * withdraws what it has published before the next check, so nobody else finds
 * the same circle.
 *
 * Backends check for each other.  A thousand may wait, and a graph of all of them takes a
 * millisecond, so a check that a backend makes is about all backends.  Those that it
 * finds in a circle, one of each, are told to check at once.  The others need not check for
 * a while, unless what they wait for has changed since (check_counts()).
 *
 * A role that may take tickets can make chains of thousands that wait for each
 * other, and other checks wait for this one.  So every step takes time in
 * proportion to the number of waiters and of what they wait for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "clock.h"
#include "queue/backend_wait.h"
#include "queue/deadlock.h"
#include "queue/queue.h"
#include "shmem.h"
#include "stats/stats.h"

#define CONFIRM_US		INT64CONST(10000)	/* between suspicion and check */
#define MAX_DOUBTS		5
#define MAX_PAUSE_US	INT64CONST(10000000)

/*
 * A process or a ticket that waits, or a process that others wait for.
 */
typedef struct Process
{
	uint64		id;				/* the hash key: dlock_queue_entry_id() */
	DlockQueueEntry *entry;		/* a copy; NULL: not in our queue */
	bool		is_listed;		/* in the list of the graph */
	bool		is_stuck;
	bool		is_told;		/* it is in a circle, and has to check */
	struct Group **blockers;	/* one of each group keeps it waiting */
	int			nblockers;
	int			spare;			/* blockers that need not end */
	int			nstuck;			/* blockers that are stuck */
	struct Group *alone;		/* a group of this process only, or NULL */
	List	   *groups;			/* those that it is in and others wait for */
	int			walk;			/* the walk that came here; 0: none */
	struct Process *reached_from;	/* on the way from the one that gives up */
} Process;

/*
 * The processes that one blocker may be: one process, or all that wait in the
 * name of an owner.  Thousands may wait for an owner that waits thousands of times,
 * so what is known of a group is kept here, and not found out for each of those
 * that wait for it.
 */
typedef struct Group
{
	uint64		name;			/* of an owner: the hash key */
	List	   *processes;
	bool		is_listed;		/* all of them are in the list of the graph */
	bool		is_reached;
	int			nstuck;			/* how many of them are stuck */
	int			skip;			/* so far the first ones are not stuck */
	List	   *waiters;		/* the processes that wait for one of them */
} Group;

/* The process that has the turn for a key. */
typedef struct First
{
	const DlockQueueEntry *entry;	/* the hash key: its database and key */
	Process    *process;
} First;

typedef struct Graph
{
	DlockQueueEntry *entries;	/* copies, as they were at one moment */
	int			nentries;
	int64		believe_since;	/* what was published before does not count */
	HTAB	   *by_id;
	HTAB	   *by_owner;
	HTAB	   *firsts;
	List	   *processes;		/* those that matter to the search */
	bool		has_told;		/* some of them have to check */
} Graph;

/* lease time at which the last check of all backends began; 0: there was none */
static pg_atomic_uint64 *checked_at = NULL;

Size
dlock_deadlock_shmem_size(void)
{
	return sizeof(pg_atomic_uint64);
}

void
dlock_deadlock_shmem_init(void)
{
	bool		found;

	checked_at = ShmemInitStruct("dlock deadlocks", dlock_deadlock_shmem_size(), &found);
	if (!found)
		pg_atomic_init_u64(checked_at, 0);
}

/*
 * The graph
 */

/*
 * A hash table that lasts as long as the check.  Without functions its key is a
 * number.
 */
static HTAB *
make_table(const char *name, Size entrysize, HashValueFunc hash, HashCompareFunc match)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64),.entrysize = entrysize};

	ctl.hcxt = CurrentMemoryContext;
	ctl.hash = hash;
	ctl.match = match;
	return hash_create(name, 256, &ctl, HASH_ELEM | HASH_CONTEXT |
					   (hash != NULL ? HASH_FUNCTION | HASH_COMPARE : HASH_BLOBS));
}

/* The key in graph->firsts is an entry, which knows the hash of what it waits for. */
static uint32
hash_key(const void *key, Size keysize)
{
	return (uint32) (*(const DlockQueueEntry *const *) key)->hash;
}

/* As memcmp(): 0 if two entries wait for the same key. */
static int
compare_keys(const void *a, const void *b, Size keysize)
{
	return !dlock_queue_same_key(*(const DlockQueueEntry *const *) a,
								 *(const DlockQueueEntry *const *) b);
}

/* The process with this id, which is new if nobody has waited for it so far. */
static Process *
get_process(Graph *graph, uint64 id)
{
	bool		found;
	Process    *process = hash_search(graph->by_id, &id, HASH_ENTER, &found);

	if (!found)
	{
		memset(process, 0, sizeof(*process));
		process->id = id;
	}
	return process;
}

/* All that wait in a database in the name of an owner. */
static Group *
get_owner(Graph *graph, Oid dboid, DlockBlocker owner)
{
	uint64		name = hash_combine64(owner, dboid);
	bool		found;
	Group	   *group = hash_search(graph->by_owner, &name, HASH_ENTER, &found);

	if (!found)
	{
		memset(group, 0, sizeof(*group));
		group->name = name;
	}
	return group;
}

/* Copy the queue.  Nothing is in the list of the search yet. */
static void
begin_graph(Graph *graph, int64 believe_since)
{
	memset(graph, 0, sizeof(*graph));
	graph->believe_since = believe_since;
	graph->by_id = make_table("dlock processes", sizeof(Process), NULL, NULL);
	graph->by_owner = make_table("dlock owners", sizeof(Group), NULL, NULL);
	graph->firsts = make_table("dlock turns", sizeof(First), hash_key, compare_keys);
	graph->entries = dlock_queue_copy_all(&graph->nentries);
	for (int i = 0; i < graph->nentries; i++)
	{
		DlockQueueEntry *entry = &graph->entries[i];
		Process    *process = get_process(graph, dlock_queue_entry_id(entry));
		First	   *first;
		bool		found;

		process->entry = entry;
		if (entry->kind != DLOCK_WAIT_TURN)
			continue;
		if (entry->owner_name != 0)
		{
			Group	   *owner = get_owner(graph, entry->dboid, entry->owner_name);

			owner->processes = lappend(owner->processes, process);
		}

		/* the copies of a key are in the order of service */
		first = hash_search(graph->firsts, &entry, HASH_ENTER, &found);
		if (!found)
			first->process = process;
	}
}

/* This process matters to the search. */
static void
list_process(Graph *graph, Process *process)
{
	if (!process->is_listed)
		graph->processes = lappend(graph->processes, process);
	process->is_listed = true;
}

/* find_blockers() and find_lock_blockers() have made room for it. */
static void
add_blocker(Process *process, Group *group)
{
	process->blockers[process->nblockers++] = group;
}

/* This process waits for that one, which then matters to the search, too. */
static void
add_process_blocker(Graph *graph, Process *process, Process *blocker)
{
	list_process(graph, blocker);
	if (blocker->alone == NULL)
	{
		blocker->alone = palloc0(sizeof(Group));
		blocker->alone->processes = list_make1(blocker);
	}
	add_blocker(process, blocker->alone);
}

/* This process waits for whatever waits in the name of an owner. */
static void
add_owner_blocker(Graph *graph, Process *process, DlockBlocker owner)
{
	Group	   *group = get_owner(graph, process->entry->dboid, owner);
	ListCell   *lc;

	if (!group->is_listed)
		foreach(lc, group->processes)
			list_process(graph, lfirst(lc));
	group->is_listed = true;
	add_blocker(process, group);
}

/*
 * What a process in our queue waits for, unless it watches, or what it published
 * does not count.  If nobody keeps it from the key, but it is not the first in
 * line, it waits for the first one: two readers fit beside each other, but not if
 * a writer waits between them.
 */
static void
find_blockers(Graph *graph, Process *process)
{
	DlockQueueEntry *entry = process->entry;

	if (entry->kind != DLOCK_WAIT_TURN ||
		(graph->believe_since != 0 &&
		 (entry->looked_at < graph->believe_since ||
		  entry->is_stale)))
		return;

	process->blockers = palloc((entry->report.nblockers + 1) * sizeof(Group *));
	if (entry->report.must_end == 0)
	{
		const First *first = hash_search(graph->firsts, &entry, HASH_FIND, NULL);

		if (first->process != process)
			add_process_blocker(graph, process, first->process);
		return;
	}
	process->spare = entry->report.nblockers_all - entry->report.must_end;
	for (int i = 0; i < entry->report.nblockers; i++)
	{
		DlockBlocker blocker = entry->report.blockers[i];

		if (blocker & DLOCK_OWNER_BIT)
			add_owner_blocker(graph, process, blocker);
		else if (blocker != 0)
			add_process_blocker(graph, process, get_process(graph, blocker));
	}
}

/* What a process that is not in our queue waits for: all of them have to end. */
static void
find_lock_blockers(Graph *graph, Process *process)
{
	ArrayType  *array;
	Datum	   *pids;
	int			npids;

	array = DatumGetArrayTypeP(OidFunctionCall1(F_PG_BLOCKING_PIDS,
												Int32GetDatum((int) process->id)));
	deconstruct_array(array, INT4OID, sizeof(int32), true, TYPALIGN_INT,
					  &pids, NULL, &npids);
	process->blockers = palloc((npids + 1) * sizeof(Group *));
	for (int i = 0; i < npids; i++)
		if (DatumGetInt32(pids[i]) != 0)
			add_process_blocker(graph, process,
								get_process(graph, DatumGetInt32(pids[i])));
}

/*
 * Who is stuck
 */

/* A process waits for this group. */
static void
add_waiter(Group *group, Process *waiter)
{
	ListCell   *lc;

	if (group->waiters == NIL)
		foreach(lc, group->processes)
	{
		Process    *process = lfirst(lc);

		process->groups = lappend(process->groups, group);
		if (process->is_stuck)
			group->nstuck++;
	}
	group->waiters = lappend(group->waiters, waiter);
	if (group->nstuck > 0)
		waiter->nstuck++;
}

/* This process can continue.  Those that wait for it are to be checked again. */
static void
set_free(Process *process, List **to_check)
{
	ListCell   *lc;
	ListCell   *waiter;

	process->is_stuck = false;
	foreach(lc, process->groups)
	{
		Group	   *group = lfirst(lc);

		if (--group->nstuck > 0)
			continue;
		foreach(waiter, group->waiters)
			((Process *) lfirst(waiter))->nstuck--;
		*to_check = list_concat(*to_check, group->waiters);
	}
}

/*
 * Find out who is stuck, of the listed processes and all that they wait for.  A
 * process is stuck if more of its blockers are than it can spare.  If it waits for
 * a whole key or a lock of PostgreSQL, it can spare none: one that is stuck is
 * enough.  If it waits for one of several places, mostly all have to be.
 */
static void
find_stuck(Graph *graph)
{
	List	   *to_check;
	ListCell   *lc;

	/* both lists grow while we go through them */
	for (int i = 0; i < list_length(graph->processes); i++)
	{
		Process    *process = list_nth(graph->processes, i);

		if (process->entry != NULL)
			find_blockers(graph, process);
		else
			find_lock_blockers(graph, process);
		process->is_stuck = process->nblockers > 0;
	}
	foreach(lc, graph->processes)
	{
		Process    *process = lfirst(lc);

		for (int i = 0; i < process->nblockers; i++)
			add_waiter(process->blockers[i], process);
	}
	to_check = list_copy(graph->processes);
	for (int i = 0; i < list_length(to_check); i++)
	{
		Process    *process = list_nth(to_check, i);

		if (process->is_stuck && process->nstuck <= process->spare)
			set_free(process, &to_check);
	}
}

/*
 * Circles
 */

/*
 * Walk from a process that is stuck to all that it depends on: those that are stuck
 * and that it waits for, directly or not.  If the walk comes back to it, it is in
 * a circle, and the way back by reached_from is a shortest one.
 */
static void
reach_from(Process *start)
{
	List	   *reached = list_make1(start);

	/* the list grows while we go through it */
	for (int next = 0; next < list_length(reached); next++)
	{
		Process    *from = list_nth(reached, next);

		for (int i = 0; i < from->nblockers; i++)
		{
			Group	   *group = from->blockers[i];
			ListCell   *lc;

			if (group->is_reached)
				continue;
			group->is_reached = true;
			foreach(lc, group->processes)
			{
				Process    *process = lfirst(lc);

				if (!process->is_stuck || process->reached_from != NULL)
					continue;
				process->reached_from = from;
				if (process != start)
					reached = lappend(reached, process);
			}
		}
	}
}

/*
 * One of those that a stuck process waits for and that are stuck, too.  There is
 * always one, and it is always the same.
 */
static Process *
next_stuck(const Process *process)
{
	Group	  **group = process->blockers;

	while ((*group)->nstuck == 0)
		group++;
	while (!((Process *) list_nth((*group)->processes, (*group)->skip))->is_stuck)
		(*group)->skip++;
	return list_nth((*group)->processes, (*group)->skip);
}

/*
 * Walk from a process to one of those that it waits for, and so on.  If it is stuck,
 * that ends in a circle: returns a process of one that no earlier walk has found, or
 * NULL.  Each process is visited once.
 */
static Process *
walk_to_circle(Process *process, int walk)
{
	while (process->is_stuck && process->walk == 0)
	{
		process->walk = walk;
		process = next_stuck(process);
	}
	return process->walk == walk ? process : NULL;
}

/* The backend in a circle that came last, or NULL if there is none or it is ours. */
static Process *
youngest_backend(Process *start)
{
	Process    *process = start;
	Process    *youngest = NULL;

	do
	{
		if (process->id == MyProcPid)
			return NULL;
		if (process->entry != NULL && process->entry->ticket == 0 &&
			(youngest == NULL || process->entry->arrival > youngest->entry->arrival))
			youngest = process;
		process = next_stuck(process);
	} while (process != start);
	return youngest;
}

/* One backend of each circle that we are not in has to check. */
static void
find_others(Graph *graph)
{
	int			walk = 0;
	ListCell   *lc;

	foreach(lc, graph->processes)
	{
		Process    *circle = walk_to_circle(lfirst(lc), ++walk);
		Process    *told = circle != NULL ? youngest_backend(circle) : NULL;

		if (told == NULL)
			continue;
		told->is_told = true;
		graph->has_told = true;
	}
}

/*
 * This backend, if it is in a circle, else NULL.  At first, a check is about all
 * backends; once there is a suspicion, about this one.
 */
static Process *
find_backend(Graph *graph)
{
	Process    *us = get_process(graph, MyProcPid);

	list_process(graph, us);
	for (int i = 0; i < graph->nentries && graph->believe_since == 0; i++)
		if (graph->entries[i].ticket == 0)
			list_process(graph, get_process(graph, graph->entries[i].pid));
	find_stuck(graph);
	if (us->is_stuck)
		reach_from(us);
	if (graph->believe_since == 0)
		find_others(graph);
	return us->reached_from != NULL ? us : NULL;
}

/* A granter may end the tickets of its own database only. */
static bool
is_our_ticket(const DlockQueueEntry *entry)
{
	return entry != NULL && entry->ticket != 0 && entry->dboid == MyDatabaseId;
}

/* The ticket of this database that came last, of those in a circle, or NULL. */
static Process *
youngest_ticket(Process *start)
{
	Process    *process = start;
	Process    *youngest = NULL;

	do
	{
		if (is_our_ticket(process->entry) &&
			(youngest == NULL || process->id > youngest->id))
			youngest = process;
		process = next_stuck(process);
	} while (process != start);
	return youngest;
}

/*
 * A ticket of this database that is in a circle, else NULL.
 *
 * A walk that comes to a process of an earlier walk leads to a circle that is known.  If
 * there is no ticket in a circle, one of the backends in it finds it.
 *
 * While circles are only suspected, this finds all that the walks end in, so that
 * what they depend on is woken together.
 */
static Process *
find_ticket(Graph *graph)
{
	Process    *result = NULL;
	int			walk = 0;
	ListCell   *lc;

	for (int i = 0; i < graph->nentries; i++)
		if (is_our_ticket(&graph->entries[i]))
			list_process(graph, get_process(graph, graph->entries[i].ticket));
	find_stuck(graph);

	foreach(lc, graph->processes)
	{
		Process    *process = walk_to_circle(lfirst(lc), ++walk);
		Process    *ticket = process != NULL ? youngest_ticket(process) : NULL;

		if (ticket == NULL)
			continue;
		result = ticket;
		reach_from(ticket);
		if (graph->believe_since != 0)
			break;
	}
	return result;
}

/*
 * What happens to those in a circle
 */

/*
 * All that a circle depends on look again, so that what they have published is
 * true.  Those that merely wait for them need not: there may be thousands.  Called
 * for each waiter, with its bucket locked.
 */
static bool
wake_if_reached(DlockQueueEntry *entry, void *arg)
{
	uint64		id = dlock_queue_entry_id(entry);
	const Process *process = hash_search(((Graph *) arg)->by_id, &id, HASH_FIND, NULL);

	if (process == NULL || entry->pid == MyProcPid)
		return true;
	if (process->is_told)
		pg_atomic_write_u32(&entry->in_circle, 1);
	if (process->is_told || process->reached_from != NULL)
		dlock_queue_wake(entry);
	return true;
}

/*
 * What this one has published does not count any more.  To forget the blockers
 * would not be enough: a waiter that has none waits for the first in line.
 */
static bool
withdraw_if_same(DlockQueueEntry *entry, void *arg)
{
	if (dlock_queue_entry_id(entry) != *(uint64 *) arg)
		return true;
	entry->report.nblockers = 0;
	entry->looked_at = 0;
	return false;
}

static const char *
name_process(const Process *process)
{
	if (process->entry != NULL && process->entry->ticket != 0)
		return psprintf("ticket %lld", (long long) process->id);
	return psprintf("process %d", (int) process->id);
}

/* of a longer circle, the others are only counted */
#define MAX_NAMED	50

/* One line of the detail: who waits for which lock, and who blocks it. */
static void
append_step(StringInfo path, const Process *process)
{
	const Process *from = process->reached_from;
	int			start = path->len;

	appendStringInfo(path, "%s waits for %s, blocked by %s.",
					 name_process(from),
					 from->entry != NULL ?
					 psprintf("lock \"%s\"", from->entry->key) :
					 "a PostgreSQL lock",
					 name_process(process));
	path->data[start] = pg_toupper(path->data[start]);
}

/* The circle in words, beginning with the one that gives up. */
static char *
describe(Process *victim)
{
	Process    *process = victim;
	List	   *way = NIL;
	StringInfoData path;

	do
	{
		way = lappend(way, process);
		process = process->reached_from;
	} while (process != victim);

	initStringInfo(&path);
	for (int i = list_length(way) - 1, n = 0; i >= 0 && n < MAX_NAMED; i--, n++)
	{
		if (n > 0)
			appendStringInfoChar(&path, '\n');
		append_step(&path, list_nth(way, i));
	}
	if (list_length(way) > MAX_NAMED)
		appendStringInfo(&path, "\nThere are %d more in this circle.",
						 list_length(way) - MAX_NAMED);
	return path.data;
}

/*
 * When to check
 */

/* A wait begins. */
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
 * Look for a circle.  The first time it is only suspected, and what
 * it depends on is woken.  After that, only what was published since counts, and the
 * one that "find" returns gives up: it is reported, as an error if it is the caller
 * itself.  Returns who gives up, or 0.
 */
static uint64
check(DlockDeadlockWatch *watch, int64 now, Process *(*find) (Graph *), int elevel)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	Graph		graph;
	Process    *found;
	uint64		victim = 0;

	context = AllocSetContextCreate(caller, "dlock deadlock check",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	LWLockAcquire(dlock_lwlock_deadlock(), LW_EXCLUSIVE);
	if (find == find_backend && watch->suspected_at == 0)
		pg_atomic_write_u64(checked_at, (uint64) dlock_clock_now());
	begin_graph(&graph, watch->suspected_at);
	found = find(&graph);
	if (found != NULL && watch->suspected_at != 0)
	{
		victim = found->id;
		dlock_queue_visit(LW_EXCLUSIVE, withdraw_if_same, &victim);
	}
	LWLockRelease(dlock_lwlock_deadlock());

	if (victim != 0)
	{
		dlock_stats_count(DLOCK_STAT_DEADLOCKS);
		ereport(elevel,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 errdetail("%s", describe(found)),
				 errhint("If you need several locks, always acquire them in the same order.")));
	}
	else if (found != NULL || graph.has_told)
		dlock_queue_visit(LW_SHARED, wake_if_reached, &graph);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	plan_next(watch, found != NULL, now);
	return victim;
}

/*
 * Does the last check of another backend count as ours?  It does if it is recent, and
 * was made after we have published what we wait for.  If it was made before, the next
 * one is soon.
 */
static bool
check_counts(DlockDeadlockWatch *watch, int64 now)
{
	int64		last = (int64) pg_atomic_read_u64(checked_at);
	int64		next = last + DeadlockTimeout * INT64CONST(1000);

	if (last == 0 || now >= next)
		return false;
	if (dlock_backend_wait_blocked_since() < last)
		plan_next(watch, false, now);
	else
		watch->next = next;
	return true;
}

/* For a backend that waits: an error if it is in a deadlock. */
void
dlock_deadlock_watch(DlockDeadlockWatch *watch, int64 now)
{
	bool		in_circle = dlock_backend_wait_in_circle();

	if (watch->suspected_at == 0 && !in_circle &&
		(now < watch->next || check_counts(watch, now)))
		return;
	if (watch->suspected_at == 0 || now >= watch->next)
		(void) check(watch, now, find_backend, ERROR);
}

/*
 * For the granter of this database, on behalf of all of its tickets.  Returns a
 * ticket that has to give up, or 0.
 */
int64
dlock_deadlock_watch_tickets(DlockDeadlockWatch *watch, int64 now)
{
	return now < watch->next ? 0 : (int64) check(watch, now, find_ticket, LOG);
}
