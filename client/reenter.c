/*-------------------------------------------------------------------------
 *
 * reenter.c
 *	  Acquiring a lock that this handle already holds.
 *
 * The server returns the same grant to the same owner, which is how a request is
 * repeated.  It knows nothing of a program whose functions acquire the same lock
 * within each other.  So that is counted here: lock->holds is how many releases
 * it takes to give the lock back, lock->users how many pointers to it are still
 * to be freed.
 *
 * All of these pointers are the same, so nobody can tell which of them is freed.  That
 * one was freed without a release shows when more releases are due than there are
 * pointers.  If another thread has released its own and not freed it yet, that may be
 * after the last release, and the lock ends by its TTL.  It is never given back while
 * somebody holds it.
 *
 * Two threads that ask for a key at the same time must not wait for each other's
 * grant, because the second one gets the lock of the first.  So a call that may
 * wait first waits for another call of this handle that acquires the same key.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "clock.h"
#include "lease.h"
#include "reenter.h"
#include "roster.h"
#include "util.h"

/* Does a lock of one kind serve a request for another? */
static bool
serves(int32_t held, int32_t asked)
{
	return held == DLOCK_EXCLUSIVE || asked == DLOCK_SHARED || held == asked;
}

/*
 * Find a lock that serves, and count it.  DLOCK_UNCHANGED: there is none;
 * DLOCK_INVALID: the request would wait for our own lock.  The caller has the
 * mutex.
 */
static dlock_status
find(dlock_handle *handle, const char *key, int32_t slots, dlock_lock **found)
{
	int64_t		now = dlock_now();
	bool		would_wait = false;

	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		if (lock->silent || lock->freed || strcmp(lock->key, key) != 0 ||
			dlock_lease_overdue(lock, now))
			continue;
		if (serves(lock->slots, slots))
		{
			lock->holds++;
			lock->users++;
			*found = lock;
			return DLOCK_OK;
		}
		would_wait = slots == DLOCK_EXCLUSIVE;
	}
	return would_wait ? DLOCK_INVALID : DLOCK_UNCHANGED;
}

static bool
is_entering(const dlock_handle *handle, const char *key)
{
	for (const DlockEntry *entry = handle->entering; entry != NULL; entry = entry->next)
		if (strcmp(entry->key, key) == 0)
			return true;
	return false;
}

/*
 * DLOCK_OK: *lock is ours already.  DLOCK_UNCHANGED: the caller has to acquire
 * it, and to call dlock_reenter_end() when that has ended.  wait_until is 0 if
 * the call must not wait.
 */
dlock_status
dlock_reenter(dlock_handle *handle, DlockEntry *entry, const char *key,
			  int32_t slots, int64_t wait_until, dlock_lock **lock, dlock_error *err)
{
	bool		in_time = true;
	dlock_status status;

	pthread_mutex_lock(&handle->mutex);
	do
		status = find(handle, key, slots, lock);
	while (status == DLOCK_UNCHANGED && wait_until > 0 && is_entering(handle, key) &&
		   (in_time = dlock_roster_wait(handle, wait_until)));
	if (status == DLOCK_UNCHANGED && in_time)
	{
		entry->key = key;
		entry->next = handle->entering;
		handle->entering = entry;
	}
	pthread_mutex_unlock(&handle->mutex);
	if (!in_time)
		return dlock_fail(err, DLOCK_BUSY, "lock \"%s\" is held by another client", key);
	if (status == DLOCK_INVALID)
		return dlock_fail(err, DLOCK_INVALID,
						  "lock \"%s\" is held by this handle, but not exclusively", key);
	return status;
}

/*
 * The key was busy, perhaps because another thread of this handle has acquired
 * it meanwhile.
 */
dlock_status
dlock_reenter_again(dlock_handle *handle, const char *key, int32_t slots,
					dlock_lock **lock)
{
	dlock_status status;

	pthread_mutex_lock(&handle->mutex);
	status = find(handle, key, slots, lock);
	pthread_mutex_unlock(&handle->mutex);
	return status;
}

/* The lock was acquired, and is on the roster, or it was not. */
void
dlock_reenter_end(dlock_handle *handle, DlockEntry *entry)
{
	pthread_mutex_lock(&handle->mutex);
	for (DlockEntry **at = &handle->entering; *at != NULL; at = &(*at)->next)
		if (*at == entry)
		{
			*at = entry->next;
			break;
		}
	pthread_cond_broadcast(&handle->changed);
	pthread_mutex_unlock(&handle->mutex);
}
