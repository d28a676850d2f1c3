/*-------------------------------------------------------------------------
 *
 * waker.c
 *	  Threads that sleep until their call is done.
 *
 * A thread sleeps on a word of its own, or on one that it shares with those that
 * are likely to be woken together (queue.c).  Why it was woken is told to each of
 * them; a thread that was told nothing sleeps again.
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"
#include "waker.h"
#include "word.h"

/* Before it is known to others.  shared, if not NULL, is where it sleeps. */
void
dlock_waker_prepare(DlockWaker *waker, int *shared)
{
	__atomic_store_n(&waker->woken, 0, __ATOMIC_RELAXED);
	waker->shared = shared;
	waker->sleeps = true;
}

/*
 * Sleep until it is woken for that reason, or until then.  Returns the reasons for
 * which it was woken.  The caller does not have the mutex of the handle.
 */
int
dlock_waker_sleep(DlockWaker *waker, int why, int64_t until)
{
	int		   *word = waker->shared != NULL ? waker->shared : &waker->woken;

	for (;;)
	{
		/* in this order: what it is told later changes the word later */
		int			seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		int			woken = __atomic_load_n(&waker->woken, __ATOMIC_ACQUIRE);
		int64_t		left;

		if (woken & why)
			return woken;
		left = dlock_poll_timeout(until, dlock_now());
		if (left == 0)
			return woken;
		dlock_word_sleep(word, seen, left);
	}
}

static void
wake_shared(int *shared)
{
	if (shared == NULL)
		return;
	(void) __atomic_fetch_add(shared, 1, __ATOMIC_RELEASE);
	dlock_word_wake_all(shared);
}

/* Tell it why.  It may be gone as soon as it is told. */
static void
tell(DlockWaker *waker, int why)
{
	bool		is_own = waker->shared == NULL;

	(void) __atomic_fetch_or(&waker->woken, why, __ATOMIC_RELEASE);
	if (is_own)
		dlock_word_wake_one(&waker->woken);
}

void
dlock_waker_wake(DlockWaker *waker, int why)
{
	int		   *shared = waker->shared;

	tell(waker, why);
	wake_shared(shared);
}

/* All of a list.  Neighbours mostly share a word. */
void
dlock_waker_wake_list(DlockWaker *list, int why)
{
	int		   *shared = NULL;

	while (list != NULL)
	{
		DlockWaker *next = list->next;

		if (list->shared != shared)
		{
			wake_shared(shared);
			shared = list->shared;
		}
		tell(list, why);
		list = next;
	}
	wake_shared(shared);
}

/* The thread that looks after them is to look; if it is awake, before it sleeps. */
void
dlock_rouse(DlockWoken *list)
{
	list->roused = true;
	if (!list->sleeps)
		return;
	list->sleeps = false;
	dlock_bell_ring(&list->bell);
}

/* That thread looks now; what it is roused for from here on is new. */
void
dlock_look(DlockWoken *list)
{
	list->roused = false;
}

/* It is about to sleep.  False: there is something new. */
bool
dlock_may_sleep(DlockWoken *list)
{
	list->sleeps = !list->roused;
	return list->sleeps;
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
		dlock_rouse(list);
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
