/*-------------------------------------------------------------------------
 *
 * ready.c
 *	  The tickets that a granter has to look at.
 *
 * A ticket that is woken is put here, at the commit of the transaction that
 * wakes it, so nothing in this file can fail.  It stays if there is no granter
 * at the moment.  A ticket that leaves the queue leaves the list.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "ready.h"

void
dlock_ready_init(DlockReady *list)
{
	SpinLockInit(&list->mutex);
	dlist_init(&list->items);
	list->last = 0;
	list->latch = NULL;
}

/* NULL when the granter exits.  PGPROCs stay, so a latch never dangles. */
void
dlock_ready_set_latch(DlockReady *list, Latch *latch)
{
	SpinLockAcquire(&list->mutex);
	list->latch = latch;
	SpinLockRelease(&list->mutex);
}

void
dlock_ready_put(DlockReadyItem *item)
{
	DlockReady *list = item->list;
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

void
dlock_ready_drop(DlockReadyItem *item)
{
	DlockReady *list = item->list;

	SpinLockAcquire(&list->mutex);
	if (item->is_listed)
		dlist_delete(&item->node);
	item->is_listed = false;
	SpinLockRelease(&list->mutex);
}

/* Take up to so many, in order. */
int
dlock_ready_take(DlockReady *list, int64 *tickets, int max)
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

/* The number of the one that came last. */
uint64
dlock_ready_last(DlockReady *list)
{
	uint64		last;

	SpinLockAcquire(&list->mutex);
	last = list->last;
	SpinLockRelease(&list->mutex);
	return last;
}

/* Have that one, and all before it, been taken? */
bool
dlock_ready_is_past(DlockReady *list, uint64 number)
{
	bool		result;

	SpinLockAcquire(&list->mutex);
	result = dlist_is_empty(&list->items) ||
		dlist_head_element(DlockReadyItem, node, &list->items)->number > number;
	SpinLockRelease(&list->mutex);
	return result;
}
