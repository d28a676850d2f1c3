/*-------------------------------------------------------------------------
 *
 * circle.c
 *	  Circles of processes that wait for each other.
 *
 * graph.c finds those that never go on by themselves.  It is our deadlock if there
 * is a circle in them that we are part of.  Otherwise we merely wait for processes
 * that have a deadlock, and one of these finds it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"

#include "circle.h"

/* Walk on to a process, if it is stuck and we have not been there. */
static void
reach(DlockProcess *process, DlockProcess *from, List **reached)
{
	if (!process->is_stuck || process->reached_from != NULL)
		return;
	process->reached_from = from;
	*reached = lappend(*reached, process);
}

/* Walk on to all that a process waits for. */
static void
walk_on(const DlockGraph *graph, DlockProcess *from, List **reached)
{
	for (int i = 0; i < from->nblockers; i++)
	{
		DlockGroup *group = from->blockers[i];
		ListCell   *lc;

		if (group->walk == graph->walk)
			continue;
		group->walk = graph->walk;
		foreach(lc, group->processes)
			reach(lfirst(lc), from, reached);
	}
	if (from->first != NULL)
		reach(from->first, from, reached);
}

/* Walk to all that a process waits for, directly or not. */
static void
walk_from(const DlockGraph *graph, DlockProcess *us, List **reached)
{
	int			next = list_length(*reached);

	walk_on(graph, us, reached);

	/* the list grows while we go through it */
	for (; next < list_length(*reached); next++)
		walk_on(graph, list_nth(*reached, next), reached);
}

/*
 * A shortest circle from us to us, all of it stuck.  Returns all that it depends
 * on: those that are stuck and that we wait for, directly or not, us included.
 * NIL: there is no circle.
 */
static List *
find_circle(DlockGraph *graph, DlockProcess *us)
{
	List	   *reached = NIL;

	graph->walk++;
	walk_from(graph, us, &reached);
	return us->reached_from != NULL ? reached : NIL;
}

/*
 * All circles at once
 *
 * Two processes are in a circle if each of them waits for the other, directly or
 * not.  So those in circles are the strongly connected components that are more
 * than one node.  This is Tarjan's algorithm without its recursion, which would be
 * as deep as a chain of waiters is long.
 */

static DlockProcess *
process_of(DlockNode *node)
{
	return (DlockProcess *) ((char *) node - offsetof(DlockProcess, node));
}

static DlockGroup *
group_of(DlockNode *node)
{
	return (DlockGroup *) ((char *) node - offsetof(DlockGroup, node));
}

/* Where the next way from a node leads; NULL: there is none. */
static DlockNode *
follow(DlockNode *node)
{
	int			i = node->followed++;

	if (node->is_group)
	{
		const DlockGroup *group = group_of(node);

		return i < list_length(group->processes) ?
			&((DlockProcess *) list_nth(group->processes, i))->node : NULL;
	}
	else
	{
		const DlockProcess *process = process_of(node);

		if (i < process->nblockers)
			return &process->blockers[i]->node;
		return i == process->nblockers && process->first != NULL ?
			&process->first->node : NULL;
	}
}

static void
open_node(DlockGraph *graph, DlockNode *node, DlockNode *from)
{
	node->number = node->lowest = ++graph->last_number;
	node->is_open = true;
	node->from = from;
	node->below = graph->open;
	graph->open = node;
}

/* No way leads from this node to one before it: it completes a component. */
static void
close_component(DlockGraph *graph, const DlockNode *node)
{
	bool		in_circle = graph->open != node;
	DlockNode  *member;

	do
	{
		member = graph->open;
		graph->open = member->below;
		member->is_open = false;
		member->in_circle = in_circle;
	} while (member != node);
}

static void
find_components(DlockGraph *graph, DlockNode *node)
{
	if (node->number != 0)
		return;
	open_node(graph, node, NULL);
	while (node != NULL)
	{
		DlockNode  *next = follow(node);

		if (next == NULL)
		{
			if (node->lowest == node->number)
				close_component(graph, node);
			if (node->from != NULL)
				node->from->lowest = Min(node->from->lowest, node->lowest);
			node = node->from;
		}
		else if (!next->is_group && !process_of(next)->is_stuck)
			continue;
		else if (next->number == 0)
		{
			open_node(graph, next, node);
			node = next;
		}
		else if (next->is_open)
			node->lowest = Min(node->lowest, next->number);
	}
}

/*
 * A ticket of this database that is in a circle, or NULL.  If circles are only
 * suspected, "reached" is what all of them depend on.
 */
static DlockProcess *
find_ticket_in_circle(DlockGraph *graph, List **reached)
{
	DlockProcess *ticket = NULL;
	ListCell   *lc;

	foreach(lc, graph->processes)
		if (((DlockProcess *) lfirst(lc))->is_stuck)
		find_components(graph, &((DlockProcess *) lfirst(lc))->node);

	graph->walk++;
	foreach(lc, graph->processes)
	{
		DlockProcess *process = lfirst(lc);

		if (!process->node.in_circle || process->reached_from != NULL ||
			process->waiter == NULL || process->waiter->ticket == 0 ||
			process->waiter->dboid != MyDatabaseId)
			continue;
		ticket = process;
		walk_from(graph, process, reached);
		if (graph->believe_since != 0)
			break;
	}
	return ticket;
}

static bool
fill(DlockCircle *circle, DlockProcess *us, const List *reached)
{
	ListCell   *lc;

	memset(circle, 0, sizeof(*circle));
	if (reached == NIL)
		return false;
	circle->us = us;
	circle->id = us->id;
	foreach(lc, reached)
	{
		DlockProcess *process = lfirst(lc);

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
	DlockGraph	graph;
	DlockProcess *us;

	dlock_graph_begin(&graph, believe_since);
	us = dlock_graph_process(&graph, MyProcPid);
	dlock_graph_find_stuck(&graph);
	return fill(circle, us, us->is_stuck ? find_circle(&graph, us) : NIL);
}

/* The same for all tickets of this database at once. */
bool
dlock_circle_find_ticket(DlockCircle *circle, int64 believe_since)
{
	DlockGraph	graph;
	List	   *reached = NIL;
	DlockProcess *ticket;

	dlock_graph_begin(&graph, believe_since);
	for (int i = 0; i < graph.nwaiters; i++)
		if (graph.waiters[i].ticket != 0 && graph.waiters[i].dboid == MyDatabaseId)
			(void) dlock_graph_process(&graph, dlock_waiter_id(&graph.waiters[i]));
	dlock_graph_find_stuck(&graph);
	ticket = find_ticket_in_circle(&graph, &reached);
	return fill(circle, ticket, reached);
}

static const char *
name_process(const DlockProcess *process)
{
	if (process->waiter != NULL && process->waiter->ticket != 0)
		return psprintf("ticket %lld", (long long) process->id);
	return psprintf("process %d", (int) process->id);
}

/* of a longer circle, the others are only counted */
#define MAX_NAMED	50

static void
append_step(StringInfo path, const DlockProcess *process)
{
	const DlockProcess *from = process->reached_from;
	int			start = path->len;

	appendStringInfo(path, "%s waits for %s, blocked by %s.",
					 name_process(from),
					 from->waiter != NULL ?
					 psprintf("lock \"%s\"", from->waiter->key) :
					 "a PostgreSQL lock",
					 name_process(process));
	path->data[start] = pg_toupper(path->data[start]);
}

/* The circle in words, beginning with us. */
char *
dlock_circle_describe(const DlockCircle *circle)
{
	DlockProcess *process = circle->us;
	List	   *way = NIL;
	StringInfoData path;

	/* the way back from us to us */
	do
	{
		way = lappend(way, process);
		process = process->reached_from;
	} while (process != circle->us);

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
