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
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#include "clock.h"
#include "waker.h"

#ifdef __linux__

/*
 * A futex is the word itself, so a wakeup is one call of the kernel, after which
 * the waker is not touched any more.  It may be gone by then: waking an address at
 * which nobody sleeps does nothing, and every other user of a futex expects to be
 * woken for nothing.
 */
static void
futex_wait(int *word, int seen, int64_t ms)
{
	struct timespec ts = {.tv_sec = ms / 1000,.tv_nsec = ms % 1000 * 1000000};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &ts, NULL, 0);
}

void
dlock_waker_prepare(DlockWaker *waker)
{
	__atomic_store_n(&waker->woken, 0, __ATOMIC_RELAXED);
	waker->sleeps = true;
}

int
dlock_waker_sleep(DlockWaker *waker, int why, int64_t until)
{
	for (;;)
	{
		int			woken = __atomic_load_n(&waker->woken, __ATOMIC_ACQUIRE);
		int64_t		left;

		if (woken & why)
			return woken;
		left = dlock_poll_timeout(until, dlock_now());
		if (left == 0)
			return woken;
		futex_wait(&waker->woken, woken, left);
	}
}

void
dlock_waker_wake(DlockWaker *waker, int why)
{
	__atomic_fetch_or(&waker->woken, why, __ATOMIC_RELEASE);
	syscall(SYS_futex, &waker->woken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void
dlock_waker_free(DlockWaker *waker)
{
	(void) waker;
}

#endif

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
