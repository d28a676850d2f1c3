/*-------------------------------------------------------------------------
 *
 * roster.c
 *	  The locks of a handle, and how callers and the renewal thread wait for
 *	  each other.
 *
 * The mutex of the handle protects the list and what is in the locks.  A caller
 * that changes something rings the bell of the renewal thread, because that
 * thread sleeps in poll().  The thread answers by the condition variable of the
 * handle.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "roster.h"

void
dlock_roster_wake(dlock_handle *handle)
{
	if (handle->running)
		dlock_bell_ring(&handle->bell);
}

void
dlock_roster_add(dlock_lock *lock)
{
	dlock_handle *handle = lock->handle;

	lock->index = -1;
	lock->connect_at = dlock_now() + dlock_short_ms(lock->ttl_ms);
	lock->prev = NULL;
	lock->next = handle->locks;
	if (lock->next != NULL)
		lock->next->prev = lock;
	handle->locks = lock;
	/* nothing of it is due before */
	if (lock->connect_at < handle->sleeps_until)
		dlock_roster_wake(handle);
}

void
dlock_roster_remove(dlock_lock *lock)
{
	if (lock->prev != NULL)
		lock->prev->next = lock->next;
	else
		lock->handle->locks = lock->next;
	if (lock->next != NULL)
		lock->next->prev = lock->prev;
}

/* Wait until the thread has done something.  False: the time is up. */
bool
dlock_roster_wait(dlock_handle *handle, int64_t until)
{
	return dlock_cond_wait(&handle->changed, &handle->mutex, until);
}

/*
 * Stop renewals of the lock until held_off is decremented.  Waits for a renewal
 * that is in flight, and for a running callback if no more events are wanted.
 * Returns false if the time is up.
 */
bool
dlock_roster_hold_off(dlock_lock *lock, int64_t until)
{
	lock->held_off++;
	while (lock->index >= 0 || (lock->in_callback && lock->silent))
		if (!dlock_roster_wait(lock->handle, until))
			return false;
	return true;
}

/*
 * Acquire
 */

void
dlock_lock_destroy(dlock_lock *lock)
{
	if (lock == NULL)
		return;
	dlock_conn_free(lock->conn);
	free(lock->key);
	free(lock->owner);
	free(lock);
}
