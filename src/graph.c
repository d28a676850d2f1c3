/*-------------------------------------------------------------------------
 *
 * graph.c
 *	  Who waits for whom, and who will never go on by itself.
 *
 * Several processes may keep a waiter from a key, and it need not be necessary
 * that all of them go on: one of several places is free as soon as one of the
 * holders is.  So we do not just follow who waits for whom.  All processes that
 * we wait for, directly or not, count as stuck at first.  Then those are taken
 * out that wait for nothing, or for enough processes that are not stuck, until
 * there are no more.  What is left never goes on by itself.
 *
 * A waiter that nobody keeps from the key, but that is not the first in line,
 * waits for the first one.  Two readers fit beside each other, but not if a
 * writer waits between them.
 *
 * Whoever may take tickets can make chains of thousands that wait for each other,
 * and other checks wait for this one.  So this and circle.c take time in proportion
 * to the number of those that wait and of what they wait for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "graph.h"
#include "queue.h"

static HTAB *
make_table(const char *name, Size entrysize)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64),.entrysize = entrysize};

	ctl.hcxt = CurrentMemoryContext;
	return hash_create(name, 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static DlockGroup *
get_group(HTAB *table, uint64 name)
{
	bool		found;
	DlockGroup *group = hash_search(table, &name, HASH_ENTER, &found);

	if (!found)
	{
		memset(group, 0, sizeof(*group));
		group->name = name;
		group->node.is_group = true;
	}
	return group;
}

static DlockProcess *
get_entry(DlockGraph *graph, uint64 id)
{
	bool		found;
	DlockProcess *process = hash_search(graph->by_id, &id, HASH_ENTER, &found);

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

/* The process that has the turn for the key that this one waits for, if known. */
static DlockProcess *
first_in_line(const DlockGraph *graph, const DlockWaiter *waiter)
{
	const DlockGroup *group = get_group(graph->firsts, waiter->hash);
	ListCell   *lc;

	foreach(lc, group->processes)
	{
		DlockProcess *process = lfirst(lc);

		if (wait_for_same(process->waiter, waiter))
			return process;
	}
	return NULL;
}

/* All that wait in a database in the name of an owner. */
static DlockGroup *
group_of_owner(const DlockGraph *graph, Oid dboid, uint64 name)
{
	return get_group(graph->by_owner, hash_combine64(name, dboid));
}

/* All that wait, as they are now. */
void
dlock_graph_begin(DlockGraph *graph, int64 believe_since)
{
	memset(graph, 0, sizeof(*graph));
	graph->believe_since = believe_since;
	graph->by_id = make_table("dlock waiting processes", sizeof(DlockProcess));
	graph->by_owner = make_table("dlock waiting owners", sizeof(DlockGroup));
	graph->firsts = make_table("dlock turns", sizeof(DlockGroup));
	graph->waiters = dlock_queue_copy_all(&graph->nwaiters);
	for (int i = 0; i < graph->nwaiters; i++)
	{
		DlockWaiter *waiter = &graph->waiters[i];
		DlockProcess *process = get_entry(graph, dlock_waiter_id(waiter));
		DlockGroup *group;

		process->waiter = waiter;
		if (waiter->kind != DLOCK_WAIT_TURN)
			continue;
		if (waiter->owner_name != 0)
		{
			group = group_of_owner(graph, waiter->dboid, waiter->owner_name);
			group->processes = lappend(group->processes, process);
		}

		/* the copies are in the order of their queue */
		if (first_in_line(graph, waiter) == NULL)
		{
			group = get_group(graph->firsts, waiter->hash);
			group->processes = lappend(group->processes, process);
		}
	}
}

/* This process matters. */
static DlockProcess *
note_process(DlockGraph *graph, DlockProcess *process)
{
	if (!process->is_known)
		graph->processes = lappend(graph->processes, process);
	process->is_known = true;
	return process;
}

/* The same for one that may not be there yet. */
DlockProcess *
dlock_graph_process(DlockGraph *graph, uint64 id)
{
	return note_process(graph, get_entry(graph, id));
}

static DlockGroup *
new_group(void)
{
	DlockGroup *group = palloc0(sizeof(DlockGroup));

	group->node.is_group = true;
	return group;
}

static DlockGroup *
group_of_one(DlockGraph *graph, uint64 id)
{
	DlockProcess *process = dlock_graph_process(graph, id);

	if (process->alone == NULL)
	{
		process->alone = new_group();
		process->alone->processes = list_make1(process);
	}
	return process->alone;
}

/* A blocker is a process, or whatever waits in the name of an owner. */
static DlockGroup *
find_blocker(DlockGraph *graph, const DlockWaiter *waiter, DlockBlocker blocker)
{
	DlockGroup *group;
	ListCell   *lc;

	if (blocker == 0)
		return new_group();
	if (!(blocker & DLOCK_OWNER_BIT))
		return group_of_one(graph, blocker);
	group = group_of_owner(graph, waiter->dboid, blocker);
	if (!group->is_known)
		foreach(lc, group->processes)
			(void) note_process(graph, lfirst(lc));
	group->is_known = true;
	return group;
}

/* What a process in our queue waits for. */
static void
find_blockers(DlockGraph *graph, DlockProcess *process)
{
	DlockWaiter *waiter = process->waiter;
	DlockProcess *first;

	if (waiter->kind != DLOCK_WAIT_TURN)
		return;
	if (graph->believe_since != 0 &&
		(waiter->looked_at < graph->believe_since ||
		 pg_atomic_read_u32(&waiter->stale) != 0))
		return;

	/* if anything else keeps it from the key, that comes first */
	first = first_in_line(graph, waiter);
	if (waiter->must_end == 0 && first != process)
		process->first = note_process(graph, first);
	process->blockers = palloc0((waiter->nblockers + 1) * sizeof(DlockGroup *));
	process->nblockers = waiter->nblockers;
	for (int i = 0; i < waiter->nblockers; i++)
		process->blockers[i] = find_blocker(graph, waiter, waiter->blockers[i]);
	process->is_stuck = true;
}

/* What a process that is not in our queue waits for. */
static void
find_lock_blockers(DlockGraph *graph, DlockProcess *process)
{
	ArrayType  *array;
	Datum	   *pids;
	int			npids;

	array = DatumGetArrayTypeP(OidFunctionCall1(F_PG_BLOCKING_PIDS,
												Int32GetDatum((int) process->id)));
	deconstruct_array(array, INT4OID, sizeof(int32), true, TYPALIGN_INT,
					  &pids, NULL, &npids);
	process->blockers = palloc0((npids + 1) * sizeof(DlockGroup *));
	for (int i = 0; i < npids; i++)
		if (DatumGetInt32(pids[i]) != 0)
			process->blockers[process->nblockers++] =
				group_of_one(graph, DatumGetInt32(pids[i]));
	process->is_stuck = process->nblockers > 0;
}

/*
 * Is this process stuck, given those that are?  For a whole key, or for a lock
 * of PostgreSQL, any blocker is enough; for one of several places it takes so
 * many that the others are too few.
 */
static bool
is_stuck(const DlockProcess *process)
{
	int			allowed = 0;

	if (process->first != NULL && process->first->is_stuck)
		return true;
	if (process->waiter != NULL)
		allowed = process->waiter->nblockers_all - process->waiter->must_end;
	return process->nstuck > allowed;
}

/* Somebody waits for this group: its processes have to know. */
static void
note_waiter(DlockGroup *group, DlockProcess *waiter)
{
	ListCell   *lc;

	if (group->waiters == NIL)
		foreach(lc, group->processes)
	{
		DlockProcess *process = lfirst(lc);

		process->groups = lappend(process->groups, group);
		if (process->is_stuck)
			group->nstuck++;
	}
	group->waiters = lappend(group->waiters, waiter);
	if (group->nstuck > 0)
		waiter->nstuck++;
}

/* All that wait for this process count it as stuck so far. */
static void
set_free(DlockProcess *process, List **to_check)
{
	ListCell   *lc;
	ListCell   *waiter;

	process->is_stuck = false;
	foreach(lc, process->groups)
	{
		DlockGroup *group = lfirst(lc);

		if (--group->nstuck > 0)
			continue;
		foreach(waiter, group->waiters)
			((DlockProcess *) lfirst(waiter))->nstuck--;
		*to_check = list_concat(*to_check, group->waiters);
	}
	*to_check = list_concat(*to_check, process->followers);
}

/* Find out who is stuck, of those that matter and all that they wait for. */
void
dlock_graph_find_stuck(DlockGraph *graph)
{
	List	   *to_check;
	ListCell   *lc;

	/* the list grows while we go through it */
	for (int i = 0; i < list_length(graph->processes); i++)
	{
		DlockProcess *process = list_nth(graph->processes, i);

		if (process->waiter != NULL)
			find_blockers(graph, process);
		else
			find_lock_blockers(graph, process);
	}

	/* it is known by now who counts as stuck at first */
	foreach(lc, graph->processes)
	{
		DlockProcess *process = lfirst(lc);

		for (int i = 0; i < process->nblockers; i++)
			note_waiter(process->blockers[i], process);
		if (process->first != NULL)
			process->first->followers = lappend(process->first->followers, process);
	}

	/* so does this one */
	to_check = list_copy(graph->processes);
	for (int i = 0; i < list_length(to_check); i++)
	{
		DlockProcess *process = list_nth(to_check, i);

		if (process->is_stuck && !is_stuck(process))
			set_free(process, &to_check);
	}
}
