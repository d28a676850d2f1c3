/*-------------------------------------------------------------------------
 *
 * tell.c
 *	  Calling the program back with what happened to its locks.
 *
 * Only the renewal thread calls back, one event at a time and without the mutex:
 * the program may call local functions, free the lock, or close the handle.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "clock.h"
#include "roster.h"
#include "tell.h"

/* The most important event of a lock.  False: there is none. */
static bool
next_event(dlock_lock *lock, dlock_event *event, int64_t now)
{
	memset(event, 0, sizeof(*event));
	event->size = sizeof(*event);
	event->lock = lock;
	event->key = lock->key;
	event->version = lock->version;
	if (lock->silent || lock->freed)
		return false;
	if (lock->tell_lost)
	{
		event->type = DLOCK_EVENT_LOST;
		event->reason = lock->reason;
		lock->tell_lost = false;
	}
	else if (lock->tell_preempted)
	{
		event->type = DLOCK_EVENT_PREEMPTED;
		event->left_ms = dlock_max(lock->yield_until - now, 0);
		lock->tell_preempted = false;
	}
	else if (lock->tell_danger)
	{
		event->type = DLOCK_EVENT_DANGER;
		event->left_ms = dlock_max(lock->deadline - now, 0);
		lock->tell_danger = false;
	}
	else
		return false;
	return lock->callback != NULL;
}

/*
 * Tell one event.  Returns true if there was one; the list of locks may have
 * changed then.  The caller has the mutex.
 */
bool
dlock_tell(dlock_handle *handle, int64_t now)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		dlock_event event;

		if (!next_event(lock, &event, now))
			continue;
		lock->in_callback = true;
		handle->lends = false;
		pthread_cond_broadcast(&handle->changed);
		pthread_mutex_unlock(&handle->mutex);
		lock->callback(&event, lock->callback_arg);
		pthread_mutex_lock(&handle->mutex);
		lock->in_callback = false;
		if (lock->freed)
		{
			dlock_roster_remove(lock);
			dlock_lock_destroy(lock);
		}
		pthread_cond_broadcast(&handle->changed);
		return true;
	}
	return false;
}
