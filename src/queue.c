/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  The queue of those that wait for a key.
 *
 * A waiter is a backend (wait.c) or a ticket (ticket.c).  Both stand in the same
 * queue.  Entries hang in lists by the hash of their key, and each list is in the
 * order of service: upgrades first, then by priority, higher ones first, and by
 * arrival within a priority.  The first entry of a key has the turn.  Only that
 * waiter tries to get the lock; a request that is not in the queue stands behind
 * it.
 *
 * No wakeup is lost.  A waiter enters the queue, then looks at the row, then
 * sleeps.  A process that frees the row first makes that visible and then looks
 * into the queue, at the end of its transaction (xact.c).  So either the waiter
 * sees the row free, or the other process sees the waiter.  A ticket cannot
 * sleep: its granter does.  A ticket that is woken is put into the list of those
 * that its granter has to look at, and stays there if there is no granter at the
 * moment.
 *
 * Only the waiter that has the turn is woken.  If it leaves without the lock,
 * it wakes the next one, because its own wakeup may have announced the free
 * key.  If it leaves with one of several places, it does so, too: there may be
 * room for the next one.
 *
 * There are about as many lists as there can be waiters, so that a key meets few
 * others, and far fewer locks: a bucket is the lists that share one.  A bucket's
 * lock is never held across heap access or sleep, and nothing is taken under it
 * but the spinlock of a list of ready tickets and the lock of the tickets.  Only
 * dlock_queue_copy_all() takes more than one bucket's lock, in order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/shmem.h"

#include "clock.h"
#include "guc.h"
#include "lwlocks.h"
#include "queue.h"

typedef struct DlockQueue
{
	pg_atomic_uint32 nwaiters;	/* in all lists; changed under their locks */
	pg_atomic_uint64 arrivals;
	uint32		nlists;			/* a power of two */
	dlist_head	lists[FLEXIBLE_ARRAY_MEMBER];
} DlockQueue;

static DlockQueue *queue = NULL;

static uint32
count_lists(void)
{
	return pg_nextpower2_32(Max(MaxBackends + dlock_max_tickets, DLOCK_BUCKETS));
}

Size
dlock_queue_shmem_size(void)
{
	return add_size(offsetof(DlockQueue, lists),
					mul_size(count_lists(), sizeof(dlist_head)));
}

void
dlock_queue_shmem_init(void)
{
	bool		found;

	queue = ShmemInitStruct("dlock queue", dlock_queue_shmem_size(), &found);
	if (found)
		return;

	pg_atomic_init_u32(&queue->nwaiters, 0);
	pg_atomic_init_u64(&queue->arrivals, 0);
	queue->nlists = count_lists();
	for (int i = 0; i < queue->nlists; i++)
		dlist_init(&queue->lists[i]);
}

static uint32
list_number(uint64 hash)
{
	return (hash >> 8) & (queue->nlists - 1);
}

static dlist_head *
list_of(uint64 hash)
{
	return &queue->lists[list_number(hash)];
}

/* The lock of the bucket that this hash belongs to. */
static LWLock *
lock_of(uint64 hash)
{
	return dlock_lwlock_bucket(list_number(hash) % DLOCK_BUCKETS);
}

void
dlock_queue_lock(uint64 hash, LWLockMode mode)
{
	LWLockAcquire(lock_of(hash), mode);
}

void
dlock_queue_unlock(uint64 hash)
{
	LWLockRelease(lock_of(hash));
}

static DlockWaiter *
waiter_at(dlist_node *node)
{
	return dlist_container(DlockWaiter, node, node);
}

static bool
waits_for(const DlockWaiter *waiter, const DlockKey *key)
{
	return waiter->dboid == MyDatabaseId && waiter->hash == key->hash &&
		waiter->keylen == key->len &&
		memcmp(waiter->key, key->data, key->len) == 0;
}

/* Is there anybody waiting for anything? */
bool
dlock_queue_any(void)
{
	/* pairs with the one in dlock_queue_insert() */
	pg_memory_barrier();
	return pg_atomic_read_u32(&queue->nwaiters) != 0;
}

/*
 * Waking
 */

/* It is in the queue, and its bucket's lock is held. */
void
dlock_queue_wake(DlockWaiter *waiter)
{
	pg_atomic_write_u32(&waiter->woken, 1);
	if (waiter->ticket != 0)
	{
		dlock_ready_put(&waiter->ready);
		return;
	}
	pg_write_barrier();
	SetLatch(waiter->latch);
}

/*
 * Wake those that a change matters to.  Called at the end of a transaction, so
 * it must not fail.  A change names its key by the hash.  If two keys have the
 * same hash, the waiters of the other key are woken, too.
 */
void
dlock_queue_changed(const DlockChange *change)
{
	DlockWaiter *first = NULL;
	dlist_iter	iter;

	LWLockAcquire(lock_of(change->hash), LW_SHARED);
	dlist_foreach(iter, list_of(change->hash))
	{
		DlockWaiter *waiter = waiter_at(iter.cur);

		if (waiter->dboid != MyDatabaseId || waiter->hash != change->hash)
			continue;
		if (waiter->kind == DLOCK_WAIT_CHANGE)
		{
			if (change->wakes_change || change->expires < waiter->wake_at)
				dlock_queue_wake(waiter);
			continue;
		}

		/* a line of a thousand is mostly read */
		if (pg_atomic_read_u32(&waiter->stale) == 0)
			pg_atomic_write_u32(&waiter->stale, 1);
		if (first == NULL || !dlock_waiter_is_same(first, waiter))
		{
			if (change->wakes_turn || change->expires < waiter->wake_at)
				dlock_queue_wake(waiter);
		}
		if (first == NULL)
			first = waiter;
	}
	LWLockRelease(lock_of(change->hash));
}

/* Call a function for each waiter, until it returns false. */
void
dlock_queue_visit(LWLockMode mode, DlockQueueVisitor visitor, void *arg)
{
	bool		goes_on = true;

	for (int bucket = 0; bucket < DLOCK_BUCKETS && goes_on; bucket++)
	{
		LWLockAcquire(dlock_lwlock_bucket(bucket), mode);
		for (int i = bucket; i < queue->nlists && goes_on; i += DLOCK_BUCKETS)
		{
			dlist_iter	iter;

			dlist_foreach(iter, &queue->lists[i])
			{
				goes_on = visitor(waiter_at(iter.cur), arg);
				if (!goes_on)
					break;
			}
		}
		LWLockRelease(dlock_lwlock_bucket(bucket));
	}
}

/*
 * Make a waiter look again, so that what it has published becomes true.  The hash
 * is that of its key.
 */
void
dlock_queue_wake_id(uint64 hash, uint64 id)
{
	dlist_iter	iter;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	dlist_foreach(iter, list_of(hash))
	{
		DlockWaiter *waiter = waiter_at(iter.cur);

		if (dlock_waiter_id(waiter) == id)
			dlock_queue_wake(waiter);
	}
	LWLockRelease(lock_of(hash));
}

static bool
wake_if_ours(DlockWaiter *waiter, void *arg)
{
	if (waiter->dboid == MyDatabaseId)
		dlock_queue_wake(waiter);
	return true;
}

/* The same for all waiters of this database. */
void
dlock_queue_wake_all(void)
{
	dlock_queue_visit(LW_SHARED, wake_if_ours, NULL);
}

static bool
count_if_ours(DlockWaiter *waiter, void *arg)
{
	if (waiter->kind == DLOCK_WAIT_TURN && waiter->dboid == MyDatabaseId)
		(*(int *) arg)++;
	return true;
}

/* How many wait for their turn in this database. */
int
dlock_queue_count(void)
{
	int			n = 0;

	dlock_queue_visit(LW_SHARED, count_if_ours, &n);
	return n;
}

/*
 * The order
 */

/* The waiter that has the turn, or NULL.  The bucket's lock must be held. */
static DlockWaiter *
first_in_line(const DlockKey *key)
{
	dlist_iter	iter;

	dlist_foreach(iter, list_of(key->hash))
	{
		DlockWaiter *waiter = waiter_at(iter.cur);

		if (waiter->kind == DLOCK_WAIT_TURN && waits_for(waiter, key))
			return waiter;
	}
	return NULL;
}

static pg_noinline bool
others_first(const DlockKey *key, int32 priority)
{
	DlockWaiter *first;
	bool		result;

	LWLockAcquire(lock_of(key->hash), LW_SHARED);
	first = first_in_line(key);
	result = first != NULL && (first->upgrades || first->priority >= priority);
	LWLockRelease(lock_of(key->hash));
	return result;
}

/* Would a newcomer of this priority stand behind another request? */
bool
dlock_queue_others_first(const DlockKey *key, int32 priority)
{
	return dlock_queue_any() && others_first(key, priority);
}

static bool
ranks_above(const DlockWaiter *a, const DlockWaiter *b)
{
	if (a->upgrades != b->upgrades)
		return a->upgrades;
	if (a->priority != b->priority)
		return a->priority > b->priority;
	return a->arrival < b->arrival;
}

/*
 * Entries.  The bucket's lock is held exclusively.
 */

/* Does another waiter of the same key upgrade already? */
bool
dlock_queue_upgrades(const DlockWaiter *waiter)
{
	dlist_iter	iter;

	dlist_foreach(iter, list_of(waiter->hash))
	{
		const DlockWaiter *other = waiter_at(iter.cur);

		if (!other->upgrades)
			break;				/* these come first */
		if (other != waiter && dlock_waiter_is_same(other, waiter))
			return true;
	}
	return false;
}

/*
 * Enter the queue.  One that has been there before gets its place back.
 */
void
dlock_queue_insert(DlockWaiter *waiter)
{
	dlist_head *list = list_of(waiter->hash);
	dlist_iter	iter;
	dlist_node *before = NULL;

	if (waiter->arrival == 0)
		waiter->arrival = pg_atomic_add_fetch_u64(&queue->arrivals, 1);
	dlist_reverse_foreach(iter, list)
	{
		if (!ranks_above(waiter, waiter_at(iter.cur)))
			break;
		before = iter.cur;
	}
	if (before != NULL)
		dlist_insert_before(before, &waiter->node);
	else
		dlist_push_tail(list, &waiter->node);

	/* a full barrier: a process that frees the key from here on sees us */
	pg_atomic_fetch_add_u32(&queue->nwaiters, 1);
}

/*
 * Leave the queue.  If it had the turn, the waiter that has it now may have to
 * be woken: if it did not get the lock, because its own wakeup may have
 * announced the free key, and if it got one of several places, because there may
 * be more.  If it got the whole key, the end of that transaction wakes the next
 * one if need be.
 */
void
dlock_queue_remove(DlockWaiter *waiter, bool wake_next)
{
	dlist_iter	iter;
	bool		is_before = true;

	if (wake_next && waiter->kind == DLOCK_WAIT_TURN)
		dlist_foreach(iter, list_of(waiter->hash))
	{
		DlockWaiter *other = waiter_at(iter.cur);

		if (other == waiter)
		{
			is_before = false;
			continue;
		}
		if (other->kind != DLOCK_WAIT_TURN || !dlock_waiter_is_same(other, waiter))
			continue;
		/* the first of the others: does it come after this one? */
		if (!is_before)
			dlock_queue_wake(other);
		break;
	}
	dlist_delete(&waiter->node);
	pg_atomic_fetch_sub_u32(&queue->nwaiters, 1);

	if (waiter->ticket != 0)
		dlock_ready_drop(&waiter->ready);
}

/*
 * An upgrade comes before all others.  This one is an upgrade from now on, or not
 * any more, and looks again.
 */
void
dlock_queue_set_upgrades(DlockWaiter *waiter, bool upgrades)
{
	dlock_queue_remove(waiter, !upgrades);
	waiter->upgrades = upgrades;
	dlock_queue_insert(waiter);
	dlock_queue_wake(waiter);
}

/* How many come before this one; if there are none, it has the turn. */
int
dlock_queue_position(const DlockWaiter *waiter)
{
	int			position = 0;
	dlist_iter	iter;

	dlist_foreach(iter, list_of(waiter->hash))
	{
		const DlockWaiter *other = waiter_at(iter.cur);

		if (other == waiter)
			break;
		if (other->kind == DLOCK_WAIT_TURN && dlock_waiter_is_same(other, waiter))
			position++;
	}
	return position;
}

/*
 * Does another one have the turn?  All that wait ask this again and again, so only
 * the first of the others counts.  An upgrade is first, but if it turns out that it
 * is none any more, it is behind those that came before it.
 */
static bool
is_behind(const DlockWaiter *waiter)
{
	dlist_iter	iter;

	dlist_foreach(iter, list_of(waiter->hash))
	{
		const DlockWaiter *other = waiter_at(iter.cur);

		if (other == waiter && !waiter->upgrades)
			return false;
		if (other == waiter || other->kind != DLOCK_WAIT_TURN ||
			!dlock_waiter_is_same(other, waiter))
			continue;
		return !waiter->upgrades || other->priority > waiter->priority ||
			(other->priority == waiter->priority && other->arrival < waiter->arrival);
	}
	return false;
}

/*
 * Before each look at the row.  Until the waiter has said when it will look
 * again, every change wakes it.  What it said last time may be sooner than what
 * this look leads to.  Returns whether another one comes first, unless this is an
 * upgrade.
 */
bool
dlock_queue_rearm(DlockWaiter *waiter)
{
	pg_atomic_write_u32(&waiter->woken, 0);
	pg_atomic_write_u32(&waiter->stale, 0);
	waiter->wake_at = DLOCK_NEVER;
	return is_behind(waiter);
}

/*
 * Copies, and what others ask
 */

/* Has the holder of this grant been asked to yield, and by whom? */
bool
dlock_queue_asked(const DlockKey *key, const DlockState *grant,
				  DlockNamedWaiter *requestor)
{
	DlockWaiter *first;
	bool		result;

	if (!dlock_queue_any())
		return false;

	/* the waiter that has the turn is the one that asks */
	LWLockAcquire(lock_of(key->hash), LW_SHARED);
	first = first_in_line(key);
	result = first != NULL && dlock_waiter_asks(first, grant);
	if (result && requestor != NULL)
		dlock_waiter_copy(requestor, first);
	LWLockRelease(lock_of(key->hash));
	return result;
}

/*
 * Those that wait for their turn to get this key, in order: the first ones, as many
 * as there is room for.  Returns how many there are in all.
 */
int
dlock_queue_line(const DlockKey *key, DlockInLine *line, int max)
{
	int			n = 0;
	dlist_iter	iter;

	LWLockAcquire(lock_of(key->hash), LW_SHARED);
	dlist_foreach(iter, list_of(key->hash))
	{
		const DlockWaiter *waiter = waiter_at(iter.cur);

		if (waiter->kind != DLOCK_WAIT_TURN || !waits_for(waiter, key))
			continue;
		if (n < max)
		{
			line[n].pid = waiter->pid;
			line[n].ticket = waiter->ticket;
		}
		n++;
	}
	LWLockRelease(lock_of(key->hash));
	return n;
}

static char *
copy_text(char **to, const char *text)
{
	char	   *copy = *to;
	Size		size = strlen(text) + 1;

	memcpy(copy, text, size);
	*to += size;
	return copy;
}

/*
 * Copies of all waiters, as they are at one moment, each list in order.  If memory
 * runs out, the error is raised without the locks: a waiter that gets it has to
 * leave the queue.
 */
DlockWaiter *
dlock_queue_copy_all(int *n)
{
	DlockWaiter *copies;
	char	   *texts = NULL;
	Size		size = 0;
	dlist_iter	iter;
	int			max;

	for (int i = 0; i < DLOCK_BUCKETS; i++)
		LWLockAcquire(dlock_lwlock_bucket(i), LW_SHARED);

	*n = 0;
	max = pg_atomic_read_u32(&queue->nwaiters);
	copies = palloc_extended(max * sizeof(DlockWaiter) + 1,
							 MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	for (int i = 0; copies != NULL && i < queue->nlists && *n < max; i++)
		dlist_foreach(iter, &queue->lists[i])
	{
		DlockWaiter *copy = &copies[(*n)++];

		memcpy(copy, waiter_at(iter.cur), sizeof(DlockWaiter));
		size += copy->keylen + 1;
		if (copy->owner != NULL)
			size += strlen(copy->owner) + 1;
	}
	if (copies != NULL)
		texts = palloc_extended(size + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	for (int i = 0; texts != NULL && i < *n; i++)
	{
		copies[i].key = copy_text(&texts, copies[i].key);
		if (copies[i].owner != NULL)
			copies[i].owner = copy_text(&texts, copies[i].owner);
	}

	for (int i = DLOCK_BUCKETS - 1; i >= 0; i--)
		LWLockRelease(dlock_lwlock_bucket(i));
	if (copies == NULL || texts == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("%d requests wait for locks.", max)));
	return copies;
}
