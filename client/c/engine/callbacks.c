/*-------------------------------------------------------------------------
 *
 * callbacks.c
 *	  Calling the program back with what happened to its locks.
 *
 * Only the background thread calls back, one event at a time and without the mutex:
 * the program may call local functions, free the lock, or close the handle.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "engine/engine.h"

static bool
has_event(const dlock_lock *lock)
{
	return !lock->silent && !lock->freed &&
		(lock->tell_lost || lock->tell_preempted || lock->tell_danger);
}

/* Is there an event to be told? */
bool
dlock_callbacks_pending(const dlock_handle *handle)
{
	for (const dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (has_event(lock))
			return true;
	return false;
}

/* Take the most important event of a lock.  False: nobody wants to hear of it. */
static bool
take_event(dlock_lock *lock, dlock_event *event, int64_t now)
{
	memset(event, 0, sizeof(*event));
	event->size = sizeof(*event);
	event->lock = lock;
	event->key = lock->key;
	event->version = lock->version;
	if (lock->tell_lost)
	{
		event->type = DLOCK_EVENT_LOST;
		event->reason = lock->reason;
		lock->tell_lost = false;
	}
	else if (lock->tell_preempted)
	{
		event->type = DLOCK_EVENT_PREEMPTED;
		event->reason = lock->yield_reason;
		event->left_ms = dlock_max(lock->yield_until - now, 0);
		lock->tell_preempted = false;
	}
	else
	{
		event->type = DLOCK_EVENT_DANGER;
		event->left_ms = dlock_max(lock->deadline - now, 0);
		lock->tell_danger = false;
	}
	return lock->callback != NULL;
}

/*
 * Tell one event.  Returns true if there was one; the list of locks may have
 * changed then.  Called by the background thread.
 */
bool
dlock_callbacks_next(dlock_handle *handle, int64_t now)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		dlock_event event;

		if (!has_event(lock) || !take_event(lock, &event, now))
			continue;
		lock->in_callback = true;
		pthread_mutex_unlock(&handle->mutex);
		lock->callback(&event, lock->callback_arg);
		pthread_mutex_lock(&handle->mutex);
		lock->in_callback = false;
		if (lock->freed)
		{
			dlock_lock_list_remove(lock);
			dlock_lock_destroy(lock);
		}
		dlock_op_step_releases(handle);
		dlock_loop_changed(handle);
		return true;
	}
	return false;
}
