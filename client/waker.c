/*-------------------------------------------------------------------------
 *
 * waker.c
 *	  Threads that sleep until their call is done.
 *
 * Each has a mutex and a condition variable of its own.  When a flight lands, many
 * threads wake up at the same time, and would all wait for the mutex of the handle
 * if they slept on that.
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"
#include "waker.h"

/* Before it is known to others. */
void
dlock_waker_prepare(DlockWaker *waker)
{
	if (!waker->sleeps)
	{
		pthread_mutex_init(&waker->mutex, NULL);
		dlock_cond_init(&waker->cond);
		waker->sleeps = true;
	}
	else
	{
		pthread_mutex_lock(&waker->mutex);
		waker->woken = 0;
		pthread_mutex_unlock(&waker->mutex);
	}
}

/*
 * Sleep until it is woken for that reason, or until then.  Returns the reasons for
 * which it was woken.  The caller does not have the mutex of the handle.
 */
int
dlock_waker_sleep(DlockWaker *waker, int why, int64_t until)
{
	int			woken;

	pthread_mutex_lock(&waker->mutex);
	while ((waker->woken & why) == 0 && dlock_cond_wait(&waker->cond, &waker->mutex, until))
		;
	woken = waker->woken;
	pthread_mutex_unlock(&waker->mutex);
	return woken;
}

void
dlock_waker_wake(DlockWaker *waker, int why)
{
	pthread_mutex_lock(&waker->mutex);
	waker->woken |= why;
	pthread_cond_signal(&waker->cond);
	pthread_mutex_unlock(&waker->mutex);
}

void
dlock_waker_free(DlockWaker *waker)
{
	if (!waker->sleeps)
		return;
	pthread_cond_destroy(&waker->cond);
	pthread_mutex_destroy(&waker->mutex);
}

/* Have its owner look, if it sleeps.  NULL is allowed. */
void
dlock_wake(DlockWaker *waker)
{
	DlockWoken *list = waker != NULL ? waker->list : NULL;

	if (waker != NULL && waker->sleeps)
		dlock_waker_wake(waker, DLOCK_WOKEN_LOOK);
	if (list == NULL || waker->listed)
		return;
	waker->listed = true;
	waker->next = NULL;
	if (list->first == NULL)
	{
		list->first = waker;
		pthread_cond_signal(list->cond);
	}
	else
		list->last->next = waker;
	list->last = waker;
}

/* The first one of the list; NULL: there is none. */
DlockWaker *
dlock_next_woken(DlockWoken *list)
{
	DlockWaker *waker = list->first;

	if (waker != NULL)
	{
		list->first = waker->next;
		waker->listed = false;
	}
	return waker;
}

/* It is about to be freed. */
void
dlock_forget_woken(DlockWaker *waker)
{
	DlockWaker *before = NULL;
	DlockWaker *at;

	if (!waker->listed)
		return;
	for (at = waker->list->first; at != waker; at = at->next)
		before = at;
	if (before != NULL)
		before->next = waker->next;
	else
		waker->list->first = waker->next;
	if (waker->list->last == waker)
		waker->list->last = before;
	waker->listed = false;
}
