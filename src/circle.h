/*-------------------------------------------------------------------------
 *
 * circle.h
 *	  Circles of processes that wait for each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CIRCLE_H
#define DLOCK_CIRCLE_H

#include "graph.h"

typedef struct DlockCircle
{
	DlockProcess *us;			/* where it begins */
	uint64		id;				/* the same as dlock_waiter_id() */
	List	   *depends_on;		/* copies of all waiters that have to be stuck
								 * for the circle to be one, ours included */
} DlockCircle;

extern bool dlock_circle_find(DlockCircle *circle, int64 believe_since);
extern bool dlock_circle_find_ticket(DlockCircle *circle, int64 believe_since);
extern char *dlock_circle_describe(const DlockCircle *circle);

#endif							/* DLOCK_CIRCLE_H */
