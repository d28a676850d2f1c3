/*-------------------------------------------------------------------------
 *
 * backend_wait.c
 *	  A backend in the queue.
 *
 * Every backend has one entry in shared memory, because it waits for one key at
 * a time.  queue.c has the order of the entries, and the argument why no wakeup
 * is lost.  The backend's part of it: it enters the queue, clears its flag, looks
 * at the row, and does not sleep if the flag is set by then.  A latch alone is
 * not enough, because CHECK_FOR_INTERRUPTS() may reset it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/*
 * libpq.h includes the headers of GSSAPI, which PostgreSQL's development
 * packages do not bring.  FeBeWaitSet does not depend on them, and the layout of
 * Port is the same without them (see libpq-be.h).
 */
#undef ENABLE_GSS

#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "clock.h"
#include "compat.h"
#include "database.h"
#include "queue/backend_wait.h"

static DlockNamedEntry *waiters = NULL; /* by process number */

/* our own entry while we wait, else NULL */
static DlockNamedEntry *me = NULL;

Size
dlock_backend_wait_shmem_size(void)
{
	return mul_size(MaxBackends, sizeof(DlockNamedEntry));
}

void
dlock_backend_wait_shmem_init(void)
{
	bool		found;

	waiters = ShmemInitStruct("dlock waiters", dlock_backend_wait_shmem_size(), &found);
	if (found)
		return;

	memset(waiters, 0, dlock_backend_wait_shmem_size());
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&waiters[i].entry.woken, 0);
		pg_atomic_init_u64(&waiters[i].entry.changed, 0);
		pg_atomic_init_u32(&waiters[i].entry.in_circle, 0);
	}
}

/*
 * Enter the queue.  The caller leaves it again, even after an error, and looks at the
 * row before it sleeps.  False, and not entered: this is an upgrade, and another request
 * for one waits already.  Each of the two would wait for the place of the other.
 */
bool
dlock_backend_wait_enter(const DlockKey *key, const DlockEntrant *entrant)
{
	DlockNamedEntry *mine = &waiters[DLOCK_MY_PROCNO];
	DlockQueueEntry *entry = &mine->entry;
	bool		entered = true;

	Assert(me == NULL && entry->pid == 0);
	Assert(key->len <= DLOCK_MAX_KEY);

	dlock_queue_fill(entry, key, entrant);
	memcpy(mine->key, key->data, key->len);
	mine->key[key->len] = '\0';
	entry->key = mine->key;
	entry->terms.value = NULL;
	if (entrant->terms.owner != NULL)
	{
		strlcpy(mine->owner, entrant->terms.owner, sizeof(mine->owner));
		entry->terms.owner = mine->owner;
	}
	entry->latch = MyLatch;

	dlock_queue_lock(key->hash, LW_EXCLUSIVE);
	if (entrant->upgrades && dlock_queue_upgrades(entry))
		entered = false;
	else
	{
		entry->pid = MyProcPid;
		dlock_queue_insert(entry);
		me = mine;
	}
	dlock_queue_unlock(key->hash);
	return entered;
}

/* Leave the queue, if we are in it.  See dlock_queue_remove() for wake_next. */
void
dlock_backend_wait_leave(bool wake_next)
{
	DlockQueueEntry *entry;

	if (me == NULL)
		return;

	entry = &me->entry;
	dlock_queue_lock(entry->hash, LW_EXCLUSIVE);
	dlock_queue_remove(entry, wake_next);
	entry->pid = 0;
	me = NULL;
	dlock_queue_unlock(entry->hash);
}

/*
 * Called before each look at the row.  Returns whether another entry comes before
 * us; if not, we have the turn.  For an upgrade see is_behind() in queue.c.
 */
bool
dlock_backend_wait_rearm(void)
{
	bool		is_behind;

	dlock_queue_lock(me->entry.hash, LW_EXCLUSIVE);
	is_behind = dlock_queue_rearm(&me->entry);
	dlock_queue_unlock(me->entry.hash);
	pg_memory_barrier();
	return is_behind;
}

/* Do we come before all others, because we have a place of the key? */
bool
dlock_backend_wait_upgrades(void)
{
	return me->entry.upgrades;
}

/*
 * Our owner has got a place while we waited, so we come first from now on.  False: another
 * request does already, and the two would wait for each other.
 */
bool
dlock_backend_wait_upgrade(void)
{
	bool		is_first;

	dlock_queue_lock(me->entry.hash, LW_EXCLUSIVE);
	is_first = !dlock_queue_upgrades(&me->entry);
	if (is_first)
		dlock_queue_set_upgrades(&me->entry, true);
	dlock_queue_unlock(me->entry.hash);
	return is_first;
}

/* We have lost that place.  From now on we wait like all others. */
void
dlock_backend_wait_step_back(void)
{
	dlock_queue_lock(me->entry.hash, LW_EXCLUSIVE);
	dlock_queue_set_upgrades(&me->entry, false);
	dlock_queue_unlock(me->entry.hash);
}

/* Publish a report of our last look.  The launcher is woken if a holder is to be notified. */
void
dlock_backend_wait_publish(const DlockWaitReport *report)
{
	bool		announce;

	dlock_queue_lock(me->entry.hash, LW_EXCLUSIVE);
	announce = dlock_queue_publish(&me->entry, report);
	dlock_queue_unlock(me->entry.hash);
	if (announce)
		dlock_database_want_announcement();
}

/* Since when do we wait for the same processes and owners? */
int64
dlock_backend_wait_blocked_since(void)
{
	return me->entry.blocked_since;
}

/* Has another backend found us in a circle since we were asked last? */
bool
dlock_backend_wait_in_circle(void)
{
	return pg_atomic_exchange_u32(&me->entry.in_circle, 0) != 0;
}

/*
 * Sleep until we are woken, or until the given lease time.  This may return early, so
 * the caller looks again.  It notices that the client is gone, where the operating
 * system can tell.
 */
void
dlock_backend_wait_sleep(int64 until)
{
	long		timeout = -1;
	int64		now = dlock_clock_now();

	if (until <= now)
		return;
	if (until != DLOCK_NEVER)
		timeout = (long) Min((until - now) / 1000 + 1, INT_MAX);

	/* nothing that resets the latch may come between this and the sleep */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&me->entry.woken) != 0)
		return;

	if (MyProcPort != NULL && FeBeWaitSet != NULL && WaitEventSetCanReportClosed())
	{
		WaitEvent	events[FeBeWaitSetNEvents];
		int			n;

		ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_CLOSED, NULL);
		n = WaitEventSetWait(FeBeWaitSet, timeout, events, lengthof(events),
							 dlock_wait_event());
		for (int i = 0; i < n; i++)
		{
			if (events[i].events & WL_POSTMASTER_DEATH)
				proc_exit(1);
			if (events[i].events & WL_SOCKET_CLOSED)
			{
				ClientConnectionLost = true;
				InterruptPending = true;
			}
		}
	}
	else
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						 (timeout >= 0 ? WL_TIMEOUT : 0),
						 timeout, dlock_wait_event());
	ResetLatch(MyLatch);
}
