/*-------------------------------------------------------------------------
 *
 * ready_list.c
 *	  The tickets that a granter has to look at.
 *
 * A ticket that is woken is put here, at the commit of the transaction that
 * wakes it, so nothing in this file can fail.  It stays if there is no granter
 * at the moment.  A ticket that leaves the queue leaves the list.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "queue/ready_list.h"

/* When shared memory is made. */
void
dlock_ready_list_init(DlockReadyList *list)
{
	SpinLockInit(&list->mutex);
	dlist_init(&list->items);
	list->last = 0;
	list->latch = NULL;
}

/*
 * A granter registers its latch here; NULL when it exits.  A PGPROC is never freed, so
 * the latch of a process that is gone may still be set.
 */
void
dlock_ready_list_set_latch(DlockReadyList *list, Latch *latch)
{
	SpinLockAcquire(&list->mutex);
	list->latch = latch;
	SpinLockRelease(&list->mutex);
}

/* Wake the granter for this ticket.  Called with its bucket locked. */
void
dlock_ready_list_put(DlockReadyItem *item)
{
	DlockReadyList *list = item->list;
	Latch	   *latch;

	SpinLockAcquire(&list->mutex);
	if (!item->is_listed)
	{
		dlist_push_tail(&list->items, &item->node);
		item->number = ++list->last;
	}
	item->is_listed = true;
	latch = list->latch;
	SpinLockRelease(&list->mutex);
	if (latch != NULL)
		SetLatch(latch);
}

/* This ticket leaves the queue.  Called with its bucket locked. */
void
dlock_ready_list_drop(DlockReadyItem *item)
{
	DlockReadyList *list = item->list;

	SpinLockAcquire(&list->mutex);
	if (item->is_listed)
		dlist_delete(&item->node);
	item->is_listed = false;
	SpinLockRelease(&list->mutex);
}

/* Take up to "max" tickets, in the order in which they were put. */
int
dlock_ready_list_take(DlockReadyList *list, int64 *tickets, int max)
{
	int			n = 0;

	SpinLockAcquire(&list->mutex);
	while (n < max && !dlist_is_empty(&list->items))
	{
		DlockReadyItem *item = dlist_container(DlockReadyItem, node,
											   dlist_pop_head_node(&list->items));

		item->is_listed = false;
		tickets[n++] = item->ticket;
	}
	SpinLockRelease(&list->mutex);
	return n;
}

/* The number of the item that was put last. */
uint64
dlock_ready_list_last(DlockReadyList *list)
{
	uint64		last;

	SpinLockAcquire(&list->mutex);
	last = list->last;
	SpinLockRelease(&list->mutex);
	return last;
}

/* Have the item with this number, and all before it, been taken? */
bool
dlock_ready_list_is_past(DlockReadyList *list, uint64 number)
{
	bool		result;

	SpinLockAcquire(&list->mutex);
	result = dlist_is_empty(&list->items) ||
		dlist_head_element(DlockReadyItem, node, &list->items)->number > number;
	SpinLockRelease(&list->mutex);
	return result;
}
