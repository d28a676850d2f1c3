/*-------------------------------------------------------------------------
 *
 * waker.h
 *	  Threads that sleep until their call is done.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAKER_H
#define DLOCK_WAKER_H

#include "handle.h"

/* Why it was woken. */
#define DLOCK_WOKEN_LOOK 1		/* there is something to do */
#define DLOCK_WOKEN_DONE 2		/* its call is done */

extern int	dlock_waker_sleep(DlockWaker *waker, int why, int64_t until);
extern void dlock_waker_wake(DlockWaker *waker, int why);
extern void dlock_waker_wake_list(DlockWaker *list, int why);

/* These need the mutex of the handle. */
extern void dlock_waker_prepare(DlockWaker *waker, int *shared);
extern void dlock_wake(DlockWaker *waker);
extern void dlock_rouse(DlockWoken *list);
extern void dlock_look(DlockWoken *list);
extern bool dlock_may_sleep(DlockWoken *list);
extern DlockWaker *dlock_next_woken(DlockWoken *list);
extern void dlock_forget_woken(DlockWaker *waker);

#endif							/* DLOCK_WAKER_H */
