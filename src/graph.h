/*-------------------------------------------------------------------------
 *
 * graph.h
 *	  Who waits for whom.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_GRAPH_H
#define DLOCK_GRAPH_H

#include "nodes/pg_list.h"
#include "utils/hsearch.h"

#include "waiter.h"

/*
 * What the search for circles (circle.c) has to know about a process or a group.
 */
typedef struct DlockNode
{
	bool		is_group;
	int			number;			/* in the order of being reached; 0: not yet */
	int			lowest;			/* the lowest that a way leads back to */
	int			followed;		/* so many ways from here */
	bool		is_open;		/* its component is not complete */
	bool		in_circle;		/* its component is more than itself */
	struct DlockNode *from;
	struct DlockNode *below;	/* on the stack of those that are open */
} DlockNode;

/*
 * A process or a ticket that waits, or a process that another one waits for.
 * What is said of processes below holds for tickets, too.
 */
typedef struct DlockProcess
{
	uint64		id;				/* its hash key: dlock_waiter_id() */
	DlockNode	node;
	DlockWaiter *waiter;		/* NULL: not in our queue */
	bool		is_known;		/* it is in the list of the search */
	struct DlockProcess *first; /* the first in line, if that is another one */
	struct DlockGroup **blockers;	/* for each: the processes that may be it */
	int			nblockers;
	bool		is_stuck;
	int			nstuck;			/* so many of the blockers are stuck */
	struct DlockGroup *alone;	/* a group of this one only, or NULL */
	List	   *groups;			/* those that somebody waits for */
	List	   *followers;		/* those whose first in line it is */
	struct DlockProcess *reached_from;	/* on a way from us */
} DlockProcess;

/*
 * The processes that share something.  Thousands may wait for an owner, and that
 * owner for thousands, so nothing goes through a group again for each of those
 * that wait for it.
 */
typedef struct DlockGroup
{
	uint64		name;			/* of an owner, or the hash of a key */
	DlockNode	node;
	List	   *processes;
	bool		is_known;		/* all of them are in the list of the search */
	int			nstuck;			/* so many of them are stuck */
	List	   *waiters;		/* the processes that wait for one of them */
	int			walk;			/* the last walk that came here */
} DlockGroup;

typedef struct DlockGraph
{
	DlockWaiter *waiters;		/* as they were at one moment */
	int			nwaiters;
	int64		believe_since;	/* what was seen before that does not count */
	HTAB	   *by_id;
	HTAB	   *by_owner;
	HTAB	   *firsts;			/* those that have the turn, by key */
	List	   *processes;		/* those that matter */
	int			walk;			/* number of the current walk */
	int			last_number;	/* of a node */
	DlockNode  *open;			/* the last one that is open */
} DlockGraph;

extern void dlock_graph_begin(DlockGraph *graph, int64 believe_since);
extern DlockProcess *dlock_graph_process(DlockGraph *graph, uint64 id);
extern void dlock_graph_find_stuck(DlockGraph *graph);

#endif							/* DLOCK_GRAPH_H */
