/*-------------------------------------------------------------------------
 *
 * ready.h
 *	  The tickets that a granter has to look at.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_READY_H
#define DLOCK_READY_H

#include "lib/ilist.h"
#include "storage/latch.h"
#include "storage/spin.h"

/* Those of one database, protected by the spinlock, as are their items. */
typedef struct DlockReady
{
	slock_t		mutex;
	dlist_head	items;
	uint64		last;			/* number of the item that came last */
	Latch	   *latch;			/* the granter's, or NULL */
} DlockReady;

typedef struct DlockReadyItem
{
	DlockReady *list;
	int64		ticket;
	dlist_node	node;
	bool		is_listed;
	uint64		number;			/* in the order of the list */
} DlockReadyItem;

extern void dlock_ready_init(DlockReady *list);
extern void dlock_ready_set_latch(DlockReady *list, Latch *latch);
extern void dlock_ready_put(DlockReadyItem *item);
extern void dlock_ready_drop(DlockReadyItem *item);
extern int	dlock_ready_take(DlockReady *list, int64 *tickets, int max);
extern uint64 dlock_ready_last(DlockReady *list);
extern bool dlock_ready_is_past(DlockReady *list, uint64 number);

#endif							/* DLOCK_READY_H */
