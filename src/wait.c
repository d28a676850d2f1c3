/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  The queue of those that wait for a key.
 *
 * Every backend has one entry in shared memory, so the queue cannot overflow.
 * Entries hang in buckets by the hash of their key.  Each bucket is in the
 * order of service: higher priority first, and by arrival within a priority.
 * The first entry of a key has the turn.  Only that waiter tries to get the
 * lock; a request that is not in the queue stands behind it.
 *
 * No wakeup is lost.  A waiter enters the queue, then looks at the row, then
 * sleeps.  A process that frees the row first makes that visible and then looks
 * into the queue, at the end of its transaction (xact.c).  So either the waiter
 * sees the row free, or the other process sees the waiter.  That process sets
 * the waiter's flag before its latch.  The waiter clears its flag before it
 * looks at the row, and does not sleep if the flag is set: a latch alone is not
 * enough, because CHECK_FOR_INTERRUPTS() may reset it.
 *
 * Only the waiter that has the turn is woken.  If it leaves without the lock,
 * it wakes the next one, because its own wakeup may have announced the free
 * key.
 *
 * A bucket's lock is never held across heap access or sleep, and no other lock
 * is taken under it, except by dlock_wait_copy_all(), which takes all of them
 * in order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "compat.h"
#include "database.h"
#include "lwlocks.h"
#include "stats.h"
#include "wait.h"

typedef struct DlockQueue
{
	pg_atomic_uint32 nwaiters;	/* in all buckets; changed under their locks */
	pg_atomic_uint64 ticket;
	dlist_head	buckets[DLOCK_BUCKETS];
	DlockWaiter waiters[FLEXIBLE_ARRAY_MEMBER]; /* by process number */
} DlockQueue;

static DlockQueue *queue = NULL;

/* our own entry while we wait, else NULL */
static DlockWaiter *me = NULL;

Size
dlock_wait_shmem_size(void)
{
	return add_size(offsetof(DlockQueue, waiters),
					mul_size(MaxBackends, sizeof(DlockWaiter)));
}

void
dlock_wait_shmem_init(void)
{
	bool		found;

	queue = ShmemInitStruct("dlock waiters", dlock_wait_shmem_size(), &found);
	if (found)
		return;

	memset(queue, 0, dlock_wait_shmem_size());
	pg_atomic_init_u32(&queue->nwaiters, 0);
	pg_atomic_init_u64(&queue->ticket, 0);
	for (int i = 0; i < DLOCK_BUCKETS; i++)
		dlist_init(&queue->buckets[i]);
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&queue->waiters[i].woken, 0);
		pg_atomic_init_u32(&queue->waiters[i].stale, 0);
	}
}

static int
bucket_number(uint64 hash)
{
	return (hash >> 8) % DLOCK_BUCKETS;
}

static LWLock *
bucket_lock(uint64 hash)
{
	return dlock_lwlock_bucket(bucket_number(hash));
}

static dlist_head *
bucket_list(uint64 hash)
{
	return &queue->buckets[bucket_number(hash)];
}

/* The hash of an owner, as stored in the queue; 0 if there is none. */
uint64
dlock_wait_owner(const char *owner)
{
	uint64		hash;

	if (owner == NULL)
		return 0;
	hash = hash_bytes_extended((const unsigned char *) owner, strlen(owner), 0);
	return hash == 0 ? 1 : hash;
}

static bool
waits_for(const DlockWaiter *waiter, const DlockKey *key)
{
	return waiter->dboid == MyDatabaseId && waiter->hash == key->hash &&
		waiter->keylen == key->len &&
		memcmp(waiter->key, key->data, key->len) == 0;
}

static bool
wait_for_same(const DlockWaiter *a, const DlockWaiter *b)
{
	return a->dboid == b->dboid && a->hash == b->hash &&
		a->keylen == b->keylen && memcmp(a->key, b->key, a->keylen) == 0;
}

/* Is there anybody waiting for anything? */
bool
dlock_wait_any(void)
{
	/* pairs with the one in dlock_wait_enter() */
	pg_memory_barrier();
	return pg_atomic_read_u32(&queue->nwaiters) != 0;
}

static void
wake(DlockWaiter *waiter)
{
	pg_atomic_write_u32(&waiter->woken, 1);
	pg_write_barrier();
	SetLatch(waiter->latch);
}

/*
 * Wake those that a change matters to.  Called at the end of a transaction, so
 * it must not fail.  A change names its key by the hash.  If two keys have the
 * same hash, the waiters of the other key are woken, too.
 */
void
dlock_wait_wake(const DlockChange *change)
{
	DlockWaiter *first = NULL;
	dlist_iter	iter;

	LWLockAcquire(bucket_lock(change->hash), LW_SHARED);
	dlist_foreach(iter, bucket_list(change->hash))
	{
		DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

		if (waiter->dboid != MyDatabaseId || waiter->hash != change->hash)
			continue;
		if (waiter->kind == DLOCK_WAIT_CHANGE)
		{
			if (change->wakes_change || change->expires < waiter->wake_at)
				wake(waiter);
			continue;
		}
		pg_atomic_write_u32(&waiter->stale, 1);
		if (first == NULL || !wait_for_same(first, waiter))
		{
			if (change->wakes_turn || change->expires < waiter->wake_at)
				wake(waiter);
		}
		if (first == NULL)
			first = waiter;
	}
	LWLockRelease(bucket_lock(change->hash));
}

/* The waiter that has the turn, or NULL.  The bucket's lock must be held. */
static DlockWaiter *
first_in_line(const DlockKey *key)
{
	dlist_iter	iter;

	dlist_foreach(iter, bucket_list(key->hash))
	{
		DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

		if (waiter->kind == DLOCK_WAIT_TURN && waits_for(waiter, key))
			return waiter;
	}
	return NULL;
}

/* Would a newcomer of this priority stand behind another request? */
bool
dlock_wait_others_first(const DlockKey *key, int32 priority)
{
	DlockWaiter *first;
	bool		result;

	if (!dlock_wait_any())
		return false;

	LWLockAcquire(bucket_lock(key->hash), LW_SHARED);
	first = first_in_line(key);
	result = first != NULL && first->priority >= priority;
	LWLockRelease(bucket_lock(key->hash));
	return result;
}

/*
 * Enter the queue.  The caller leaves it again, whatever happens, and looks
 * at the row before it sleeps.
 */
void
dlock_wait_enter(const DlockKey *key, DlockWaitKind kind, Oid role,
				 const char *owner, int32 priority, int64 since, int64 until)
{
	DlockWaiter *waiter = &queue->waiters[DLOCK_MY_PROCNO];
	dlist_head *list = bucket_list(key->hash);
	dlist_iter	iter;
	dlist_node *before = NULL;

	Assert(me == NULL && waiter->pid == 0);
	Assert(key->len <= DLOCK_MAX_KEY);

	LWLockAcquire(bucket_lock(key->hash), LW_EXCLUSIVE);

	pg_atomic_write_u32(&waiter->woken, 0);
	pg_atomic_write_u32(&waiter->stale, 0);
	waiter->latch = MyLatch;
	waiter->pid = MyProcPid;
	waiter->kind = kind;
	waiter->ticket = pg_atomic_fetch_add_u64(&queue->ticket, 1);
	waiter->dboid = MyDatabaseId;
	waiter->hash = key->hash;
	waiter->keylen = key->len;
	memcpy(waiter->key, key->data, key->len);
	waiter->key[key->len] = '\0';
	waiter->role = role;
	waiter->has_owner = owner != NULL;
	strlcpy(waiter->owner, owner != NULL ? owner : "", sizeof(waiter->owner));
	waiter->owner_hash = dlock_wait_owner(owner);
	waiter->priority = priority;
	waiter->since = since;
	waiter->until = until;
	waiter->wake_at = DLOCK_NEVER;
	waiter->looked_at = 0;
	waiter->nblockers = 0;
	waiter->asked_version = 0;
	waiter->announce = false;

	/* behind the last one that has our priority or a higher one */
	dlist_reverse_foreach(iter, list)
	{
		DlockWaiter *other = dlist_container(DlockWaiter, node, iter.cur);

		if (other->priority >= priority)
			break;
		before = iter.cur;
	}
	if (before != NULL)
		dlist_insert_before(before, &waiter->node);
	else
		dlist_push_tail(list, &waiter->node);

	/* a full barrier: a process that frees the key from here on sees us */
	pg_atomic_fetch_add_u32(&queue->nwaiters, 1);
	me = waiter;
	LWLockRelease(bucket_lock(key->hash));
}

/*
 * Leave the queue.  If we had the turn and did not get the lock, the waiter that
 * has the turn now is woken, because our own wakeup may have announced the free
 * key.  If we got the lock, the end of our transaction wakes it if need be.
 */
void
dlock_wait_leave(bool granted)
{
	DlockWaiter *waiter = me;
	dlist_iter	iter;

	if (waiter == NULL)
		return;

	LWLockAcquire(bucket_lock(waiter->hash), LW_EXCLUSIVE);
	dlist_foreach(iter, bucket_list(waiter->hash))
	{
		DlockWaiter *other = dlist_container(DlockWaiter, node, iter.cur);

		if (other == waiter || granted)
			continue;
		if (other->kind != DLOCK_WAIT_TURN || !wait_for_same(other, waiter))
			continue;
		/* the first of the others: does it come after us? */
		if (waiter->kind == DLOCK_WAIT_TURN &&
			(other->priority < waiter->priority ||
			 (other->priority == waiter->priority && other->ticket > waiter->ticket)))
			wake(other);
		break;
	}
	dlist_delete(&waiter->node);
	waiter->pid = 0;
	me = NULL;
	pg_atomic_fetch_sub_u32(&queue->nwaiters, 1);
	LWLockRelease(bucket_lock(waiter->hash));
}

/*
 * Call this before each look at the row.  Returns how many waiters come before
 * us; if there are none, we have the turn.
 */
int
dlock_wait_rearm(void)
{
	int			position = 0;
	dlist_iter	iter;

	/*
	 * Until we have said when we will look again, every change wakes us. What
	 * we said last time may be sooner than what this look leads to.
	 */
	LWLockAcquire(bucket_lock(me->hash), LW_EXCLUSIVE);
	pg_atomic_write_u32(&me->woken, 0);
	pg_atomic_write_u32(&me->stale, 0);
	me->wake_at = DLOCK_NEVER;
	dlist_foreach(iter, bucket_list(me->hash))
	{
		DlockWaiter *other = dlist_container(DlockWaiter, node, iter.cur);

		if (other == me)
			break;
		if (other->kind == DLOCK_WAIT_TURN && wait_for_same(other, me))
			position++;
	}
	LWLockRelease(bucket_lock(me->hash));
	pg_memory_barrier();
	return position;
}

/* Tell the others what we have seen, and when we will look again. */
void
dlock_wait_publish(const DlockOutlook *outlook)
{
	bool		announce = false;

	Assert(outlook->nblockers <= DLOCK_MAX_BLOCKERS);

	LWLockAcquire(bucket_lock(me->hash), LW_EXCLUSIVE);
	me->looked_at = dlock_clock_now();
	me->wake_at = outlook->wake_at;
	me->nblockers = outlook->nblockers;
	memcpy(me->blockers, outlook->blockers,
		   outlook->nblockers * sizeof(DlockBlocker));
	if (me->asked_version != outlook->asked_version)
		announce = me->announce = outlook->asked_version != 0;
	me->asked_version = outlook->asked_version;
	me->asked_at = outlook->asked_at;
	me->yield_by = outlook->yield_by;
	LWLockRelease(bucket_lock(me->hash));

	if (announce)
	{
		dlock_stats_count(DLOCK_STAT_ASKED);
		dlock_database_want_announcement();
	}
}

/*
 * Sleep until we are woken, or until the given lease time.  This may return
 * early for all sorts of reasons; the caller looks again.  It notices that the
 * client is gone, where the operating system can tell.
 */
void
dlock_wait_sleep(int64 until)
{
	long		timeout = -1;
	int64		now = dlock_clock_now();

	if (until <= now)
		return;
	if (until != DLOCK_NEVER)
		timeout = (long) Min((until - now) / 1000 + 1, INT_MAX);

	/* nothing that resets the latch may come between this and the sleep */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&me->woken) != 0)
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

/* Has the holder of this version been asked to yield, and by whom? */
bool
dlock_wait_asked(const DlockKey *key, int64 version, DlockWaiter *requestor)
{
	DlockWaiter *first;
	bool		result;

	if (!dlock_wait_any())
		return false;

	/* the waiter that has the turn is the one that asks */
	LWLockAcquire(bucket_lock(key->hash), LW_SHARED);
	first = first_in_line(key);
	result = first != NULL && first->asked_version == version;
	if (result && requestor != NULL)
		memcpy(requestor, first, sizeof(*requestor));
	LWLockRelease(bucket_lock(key->hash));
	return result;
}

/* Copies of all waiters, as they are at one moment. */
DlockWaiter *
dlock_wait_copy_all(int *n)
{
	DlockWaiter *copy = palloc(mul_size(MaxBackends, sizeof(DlockWaiter)));

	*n = 0;
	for (int i = 0; i < DLOCK_BUCKETS; i++)
		LWLockAcquire(dlock_lwlock_bucket(i), LW_SHARED);
	for (int i = 0; i < DLOCK_BUCKETS; i++)
	{
		dlist_iter	iter;

		dlist_foreach(iter, &queue->buckets[i])
			memcpy(&copy[(*n)++], dlist_container(DlockWaiter, node, iter.cur),
				   sizeof(DlockWaiter));
	}
	for (int i = DLOCK_BUCKETS - 1; i >= 0; i--)
		LWLockRelease(dlock_lwlock_bucket(i));
	return copy;
}

/* How many wait for their turn in this database. */
int
dlock_wait_count(void)
{
	int			n = 0;

	for (int i = 0; i < DLOCK_BUCKETS; i++)
	{
		dlist_iter	iter;

		LWLockAcquire(dlock_lwlock_bucket(i), LW_SHARED);
		dlist_foreach(iter, &queue->buckets[i])
		{
			DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

			if (waiter->kind == DLOCK_WAIT_TURN && waiter->dboid == MyDatabaseId)
				n++;
		}
		LWLockRelease(dlock_lwlock_bucket(i));
	}
	return n;
}

/* One request to yield that has not been announced yet; false if none. */
bool
dlock_wait_take_announcement(Oid dboid, DlockWaiter *waiter)
{
	bool		found = false;

	for (int i = 0; i < DLOCK_BUCKETS && !found; i++)
	{
		dlist_iter	iter;

		LWLockAcquire(dlock_lwlock_bucket(i), LW_EXCLUSIVE);
		dlist_foreach(iter, &queue->buckets[i])
		{
			DlockWaiter *asking = dlist_container(DlockWaiter, node, iter.cur);

			if (asking->dboid == dboid && asking->announce)
			{
				asking->announce = false;
				memcpy(waiter, asking, sizeof(*waiter));
				found = true;
				break;
			}
		}
		LWLockRelease(dlock_lwlock_bucket(i));
	}
	return found;
}

/* Make a waiter look again, so that what it has published becomes true. */
void
dlock_wait_wake_pid(int pid)
{
	for (int i = 0; i < DLOCK_BUCKETS; i++)
	{
		dlist_iter	iter;

		LWLockAcquire(dlock_lwlock_bucket(i), LW_SHARED);
		dlist_foreach(iter, &queue->buckets[i])
		{
			DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

			if (waiter->pid == pid)
				wake(waiter);
		}
		LWLockRelease(dlock_lwlock_bucket(i));
	}
}

/* We give up: no other waiter needs to see a deadlock with us in it. */
void
dlock_wait_withdraw(void)
{
	LWLockAcquire(bucket_lock(me->hash), LW_EXCLUSIVE);
	me->nblockers = 0;
	LWLockRelease(bucket_lock(me->hash));
}
