/*-------------------------------------------------------------------------
 *
 * ready_list.h
 *	  The tickets that a granter has to look at.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_READY_LIST_H
#define DLOCK_QUEUE_READY_LIST_H

#include "lib/ilist.h"
#include "storage/latch.h"
#include "storage/spin.h"

/* Those of one database, protected by the spinlock, as are their items. */
typedef struct DlockReadyList
{
	slock_t		mutex;
	dlist_head	items;
	uint64		last;			/* number of the item that came last */
	Latch	   *latch;			/* the granter's, or NULL */
} DlockReadyList;

typedef struct DlockReadyItem
{
	DlockReadyList *list;
	int64		ticket;
	dlist_node	node;
	bool		is_listed;
	uint64		number;			/* in the order of the list */
} DlockReadyItem;

extern void dlock_ready_list_init(DlockReadyList *list);
extern void dlock_ready_list_set_latch(DlockReadyList *list, Latch *latch);
extern void dlock_ready_list_put(DlockReadyItem *item);
extern void dlock_ready_list_drop(DlockReadyItem *item);
extern int	dlock_ready_list_take(DlockReadyList *list, int64 *tickets, int max);
extern uint64 dlock_ready_list_last(DlockReadyList *list);
extern bool dlock_ready_list_is_past(DlockReadyList *list, uint64 number);

#endif							/* DLOCK_QUEUE_READY_LIST_H */
