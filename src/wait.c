/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  The queue of those that wait for a key.
 *
 * Every backend has one entry in shared memory, so the queue cannot overflow.
 * Entries hang in buckets by the hash of their key.  Each bucket is in the
 * order of service: upgrades first, then by priority, higher ones first, and by
 * arrival within a priority.  The first entry of a key has the turn.  Only that
 * waiter tries to get the lock; a request that is not in the queue stands behind
 * it.
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
 * key.  If it leaves with one of several places, it does so, too: there may be
 * room for the next one.
 *
 * A bucket's lock is never held across heap access or sleep, and no other lock
 * is taken under it, except by dlock_wait_copy_all(), which takes all of them
 * in order.
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
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "compat.h"
#include "database.h"
#include "lwlocks.h"
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
	result = first != NULL && (first->upgrades || first->priority >= priority);
	LWLockRelease(bucket_lock(key->hash));
	return result;
}

/* Whether a waiter of this kind is served before the other one. */
static bool
ranks_above(bool upgrades, int32 priority, const DlockWaiter *other)
{
	if (upgrades != other->upgrades)
		return upgrades;
	return priority > other->priority;
}

static void
fill_entry(DlockWaiter *waiter, const DlockKey *key, const DlockEntrant *entrant)
{
	pg_atomic_write_u32(&waiter->woken, 0);
	pg_atomic_write_u32(&waiter->stale, 0);
	waiter->latch = MyLatch;
	waiter->pid = MyProcPid;
	waiter->kind = entrant->kind;
	waiter->ticket = pg_atomic_fetch_add_u64(&queue->ticket, 1);
	waiter->dboid = MyDatabaseId;
	waiter->hash = key->hash;
	waiter->keylen = key->len;
	memcpy(waiter->key, key->data, key->len);
	waiter->key[key->len] = '\0';
	waiter->role = entrant->role;
	waiter->has_owner = entrant->owner != NULL;
	strlcpy(waiter->owner, waiter->has_owner ? entrant->owner : "",
			sizeof(waiter->owner));
	waiter->owner_hash = dlock_wait_owner(entrant->owner);
	waiter->priority = entrant->priority;
	waiter->slots = entrant->slots;
	waiter->upgrades = entrant->upgrades;
	waiter->since = entrant->since;
	waiter->until = entrant->until;
	waiter->wake_at = DLOCK_NEVER;
	waiter->looked_at = 0;
	waiter->nblockers = 0;
	memset(&waiter->asking, 0, sizeof(waiter->asking));
	waiter->announce = false;
}

/*
 * Enter the queue.  The caller leaves it again, whatever happens, and looks
 * at the row before it sleeps.  False, and not entered: another waiter upgrades
 * already.  Each of them would wait for the place of the other.
 */
bool
dlock_wait_enter(const DlockKey *key, const DlockEntrant *entrant)
{
	DlockWaiter *waiter = &queue->waiters[DLOCK_MY_PROCNO];
	DlockWaiter *first;
	dlist_head *list = bucket_list(key->hash);
	dlist_iter	iter;
	dlist_node *before = NULL;

	Assert(me == NULL && waiter->pid == 0);
	Assert(key->len <= DLOCK_MAX_KEY);

	LWLockAcquire(bucket_lock(key->hash), LW_EXCLUSIVE);

	first = entrant->upgrades ? first_in_line(key) : NULL;
	if (first != NULL && first->upgrades)
	{
		LWLockRelease(bucket_lock(key->hash));
		return false;
	}
	fill_entry(waiter, key, entrant);

	/* behind the last one that has our rank or a higher one */
	dlist_reverse_foreach(iter, list)
	{
		if (!ranks_above(entrant->upgrades, entrant->priority,
						 dlist_container(DlockWaiter, node, iter.cur)))
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
	return true;
}

/*
 * Leave the queue.  If we had the turn, the waiter that has it now may have to
 * be woken: if we did not get the lock, because our own wakeup may have
 * announced the free key, and if we got one of several places, because there may
 * be more.  If we got the whole key, the end of our transaction wakes it if need
 * be.
 */
void
dlock_wait_leave(bool wake_next)
{
	DlockWaiter *waiter = me;
	dlist_iter	iter;
	bool		is_before_us = true;

	if (waiter == NULL)
		return;

	LWLockAcquire(bucket_lock(waiter->hash), LW_EXCLUSIVE);
	dlist_foreach(iter, bucket_list(waiter->hash))
	{
		DlockWaiter *other = dlist_container(DlockWaiter, node, iter.cur);

		if (other == waiter)
		{
			is_before_us = false;
			continue;
		}
		if (!wake_next || other->kind != DLOCK_WAIT_TURN ||
			!wait_for_same(other, waiter))
			continue;
		/* the first of the others: does it come after us? */
		if (waiter->kind == DLOCK_WAIT_TURN && !is_before_us)
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

/* Does "now" ask anybody that "before" did not ask? */
static bool
asks_others(const DlockAsking *before, const DlockAsking *now)
{
	if (now->all)
		return !before->all || before->since != now->since;
	for (int i = 0; i < now->n; i++)
	{
		bool		is_known = false;

		for (int j = 0; j < before->n; j++)
			if (before->one[j].version == now->one[i].version)
				is_known = true;
		if (!is_known)
			return true;
	}
	return false;
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
	me->must_end = outlook->must_end;
	me->nblockers_all = outlook->nblockers_all;
	me->nblockers = outlook->nblockers;
	memcpy(me->blockers, outlook->blockers,
		   outlook->nblockers * sizeof(DlockBlocker));
	if (asks_others(&me->asking, &outlook->asking))
		announce = me->announce = true;
	me->asking = outlook->asking;
	LWLockRelease(bucket_lock(me->hash));

	if (announce)
		dlock_database_want_announcement();
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

/* Has this waiter asked the holder of this grant to yield? */
bool
dlock_wait_is_asked(const DlockWaiter *waiter, const DlockState *grant)
{
	if (waiter->asking.all)
		return grant->priority < waiter->priority &&
			!(waiter->has_owner && grant->owner != NULL &&
			  waiter->role == grant->role && strcmp(waiter->owner, grant->owner) == 0);
	for (int i = 0; i < waiter->asking.n; i++)
		if (waiter->asking.one[i].version == grant->version)
			return true;
	return false;
}

/* Has the holder of this grant been asked to yield, and by whom? */
bool
dlock_wait_asked(const DlockKey *key, const DlockState *grant,
				 DlockWaiter *requestor)
{
	DlockWaiter *first;
	bool		result;

	if (!dlock_wait_any())
		return false;

	/* the waiter that has the turn is the one that asks */
	LWLockAcquire(bucket_lock(key->hash), LW_SHARED);
	first = first_in_line(key);
	result = first != NULL && dlock_wait_is_asked(first, grant);
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

/*
 * Make a waiter look again, so that what it has published becomes true; with 0,
 * all waiters of this database.
 */
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

			if (pid == 0 ? waiter->dboid == MyDatabaseId : waiter->pid == pid)
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
