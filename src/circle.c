/*-------------------------------------------------------------------------
 *
 * circle.c
 *	  Circles of processes that wait for each other.
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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"

#include "circle.h"
#include "queue.h"

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
	struct Group **blockers;	/* for each: the processes that may be it */
	int			nblockers;
	bool		is_stuck;
	struct Process *reached_from;	/* on a way from us */
	bool		is_suspect;		/* a circle that was found depends on it */
} Process;

/*
 * The processes that share something.  Thousands may wait for an owner, and that
 * owner for thousands, so nothing goes through a group again for each of those
 * that wait for it.
 */
typedef struct Group
{
	uint64		name;			/* of an owner, or the hash of a key */
	List	   *processes;
	bool		is_known;		/* all of them are in the list of the search */
	int			nfree;			/* the first so many are not stuck */
	int			walk;			/* the last walk that came here */
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
	int			walk;			/* number of the current walk */
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
	{
		memset(group, 0, sizeof(*group));
		group->name = name;
	}
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

/* The process that has the turn for the key that this one waits for, if known. */
static Process *
first_in_line(const Search *search, const DlockWaiter *waiter)
{
	const Group *group = get_group(search->firsts, waiter->hash);
	ListCell   *lc;

	foreach(lc, group->processes)
	{
		Process    *process = lfirst(lc);

		if (wait_for_same(process->waiter, waiter))
			return process;
	}
	return NULL;
}

/* All that wait in a database in the name of an owner. */
static Group *
group_of_owner(const Search *search, Oid dboid, uint64 name)
{
	return get_group(search->by_owner, hash_combine64(name, dboid));
}

static void
begin_search(Search *search, int64 believe_since)
{
	memset(search, 0, sizeof(*search));
	search->believe_since = believe_since;
	search->by_id = make_table("dlock waiting processes", sizeof(Process));
	search->by_owner = make_table("dlock waiting owners", sizeof(Group));
	search->firsts = make_table("dlock turns", sizeof(Group));
	search->waiters = dlock_queue_copy_all(&search->nwaiters);
	for (int i = 0; i < search->nwaiters; i++)
	{
		DlockWaiter *waiter = &search->waiters[i];
		Process    *process = get_entry(search, dlock_waiter_id(waiter));
		Group	   *group;

		process->waiter = waiter;
		if (waiter->kind != DLOCK_WAIT_TURN)
			continue;
		if (waiter->owner_name != 0)
		{
			group = group_of_owner(search, waiter->dboid, waiter->owner_name);
			group->processes = lappend(group->processes, process);
		}

		/* the copies are in the order of their queue */
		if (first_in_line(search, waiter) == NULL)
		{
			group = get_group(search->firsts, waiter->hash);
			group->processes = lappend(group->processes, process);
		}
	}
}

/* This process matters. */
static Process *
note_process(Search *search, Process *process)
{
	if (!process->is_known)
		search->processes = lappend(search->processes, process);
	process->is_known = true;
	return process;
}

static Process *
get_process(Search *search, uint64 id)
{
	return note_process(search, get_entry(search, id));
}

static Group *
group_of_one(Search *search, uint64 id)
{
	Group	   *group = palloc0(sizeof(Group));

	group->processes = list_make1(get_process(search, id));
	return group;
}

/* A blocker is a process, or whatever waits in the name of an owner. */
static Group *
find_blocker(Search *search, const DlockWaiter *waiter, DlockBlocker blocker)
{
	Group	   *group;
	ListCell   *lc;

	if (blocker == 0)
		return palloc0(sizeof(Group));
	if (!(blocker & DLOCK_OWNER_BIT))
		return group_of_one(search, blocker);
	group = group_of_owner(search, waiter->dboid, blocker);
	if (!group->is_known)
		foreach(lc, group->processes)
			(void) note_process(search, lfirst(lc));
	group->is_known = true;
	return group;
}

/* What a process in our queue waits for. */
static void
find_blockers(Search *search, Process *process)
{
	DlockWaiter *waiter = process->waiter;
	Process    *first;

	if (waiter->kind != DLOCK_WAIT_TURN)
		return;
	if (search->believe_since != 0 &&
		(waiter->looked_at < search->believe_since ||
		 pg_atomic_read_u32(&waiter->stale) != 0))
		return;

	/* if anything else keeps it from the key, that comes first */
	first = first_in_line(search, waiter);
	if (waiter->must_end == 0 && first != process)
		process->first = note_process(search, first);
	process->blockers = palloc0((waiter->nblockers + 1) * sizeof(Group *));
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
	process->blockers = palloc0((npids + 1) * sizeof(Group *));
	for (int i = 0; i < npids; i++)
		if (DatumGetInt32(pids[i]) != 0)
			process->blockers[process->nblockers++] =
				group_of_one(search, DatumGetInt32(pids[i]));
	process->is_stuck = process->nblockers > 0;
}

/* Those that are not stuck stay so. */
static bool
is_any_stuck(Group *group)
{
	while (group->nfree < list_length(group->processes))
	{
		const Process *process = list_nth(group->processes, group->nfree);

		if (process->is_stuck)
			return true;
		group->nfree++;
	}
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

/* Walk on to a process, if it is stuck and we have not been there. */
static void
reach(Process *process, Process *from, List **reached)
{
	if (!process->is_stuck || process->reached_from != NULL)
		return;
	process->reached_from = from;
	*reached = lappend(*reached, process);
}

/* Walk on to all that a process waits for. */
static void
walk_on(const Search *search, Process *from, List **reached)
{
	for (int i = 0; i < from->nblockers; i++)
	{
		Group	   *group = from->blockers[i];
		ListCell   *lc;

		if (group->walk == search->walk)
			continue;
		group->walk = search->walk;
		foreach(lc, group->processes)
			reach(lfirst(lc), from, reached);
	}
	if (from->first != NULL)
		reach(from->first, from, reached);
}

static void
forget_walk(const List *reached)
{
	ListCell   *lc;

	foreach(lc, reached)
		((Process *) lfirst(lc))->reached_from = NULL;
}

/*
 * A shortest circle from us to us, all of it stuck.  Returns all that it depends
 * on: those that are stuck and that we wait for, directly or not, us included.
 * NIL: there is no circle.
 */
static List *
find_circle(Search *search, Process *us)
{
	List	   *reached = NIL;

	search->walk++;
	walk_on(search, us, &reached);

	/* the list grows while we go through it */
	for (int i = 0; i < list_length(reached); i++)
		walk_on(search, list_nth(reached, i), &reached);
	if (us->reached_from != NULL)
		return reached;
	forget_walk(reached);
	return NIL;
}

static void
suspect(const List *processes)
{
	ListCell   *lc;

	foreach(lc, processes)
		((Process *) lfirst(lc))->is_suspect = true;
}

/*
 * A ticket of this database that is in a circle, or NULL.  Only those that another
 * one waits for can be.  If circles are only suspected, "reached" is what all of
 * them depend on.
 */
static Process *
find_ticket_in_circle(Search *search, List **reached)
{
	Process    *ticket = NULL;
	List	   *awaited = NIL;
	ListCell   *lc;

	search->walk++;
	foreach(lc, search->processes)
		if (((Process *) lfirst(lc))->is_stuck)
		walk_on(search, lfirst(lc), &awaited);
	forget_walk(awaited);

	foreach(lc, awaited)
	{
		Process    *process = lfirst(lc);
		List	   *circle;

		if (process->waiter == NULL || process->waiter->ticket == 0 ||
			process->waiter->dboid != MyDatabaseId || process->is_suspect)
			continue;
		circle = find_circle(search, process);
		if (circle == NIL)
			continue;
		ticket = process;
		*reached = list_concat(*reached, circle);
		if (search->believe_since != 0)
			break;
		suspect(circle);
		forget_walk(circle);
	}
	return ticket;
}

static bool
fill(DlockCircle *circle, Process *us, const List *reached)
{
	ListCell   *lc;

	memset(circle, 0, sizeof(*circle));
	if (reached == NIL)
		return false;
	circle->us = us;
	circle->id = us->id;
	foreach(lc, reached)
	{
		Process    *process = lfirst(lc);

		if (process->waiter != NULL)
			circle->depends_on = lappend(circle->depends_on, process->waiter);
	}
	return true;
}

/*
 * Look for a circle that we are in.  What was seen before "believe_since" does
 * not count.
 */
bool
dlock_circle_find(DlockCircle *circle, int64 believe_since)
{
	Search		search;
	Process    *us;

	begin_search(&search, believe_since);
	us = get_process(&search, MyProcPid);
	find_stuck(&search);
	return fill(circle, us, us->is_stuck ? find_circle(&search, us) : NIL);
}

/* The same for all tickets of this database at once. */
bool
dlock_circle_find_ticket(DlockCircle *circle, int64 believe_since)
{
	Search		search;
	List	   *reached = NIL;
	Process    *ticket;

	begin_search(&search, believe_since);
	for (int i = 0; i < search.nwaiters; i++)
		if (search.waiters[i].ticket != 0 && search.waiters[i].dboid == MyDatabaseId)
			(void) get_process(&search, dlock_waiter_id(&search.waiters[i]));
	find_stuck(&search);
	ticket = find_ticket_in_circle(&search, &reached);
	return fill(circle, ticket, reached);
}

static const char *
name_process(const Process *process)
{
	if (process->waiter != NULL && process->waiter->ticket != 0)
		return psprintf("ticket %lld", (long long) process->id);
	return psprintf("process %d", (int) process->id);
}

/* The circle in words, beginning with us. */
char *
dlock_circle_describe(const DlockCircle *circle)
{
	const Process *us = circle->us;
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
