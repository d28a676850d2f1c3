/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  The queue of those that wait for a key.
 *
 * An entry is a backend that waits (backend_wait.c) or a ticket (ticket.c).  Both are
 * in the same queue.  Entries are in lists by the hash of their key, and each list is in the
 * order of service: upgrades first, then by priority, higher ones first, and by
 * arrival within a priority.  The first entry of a key has the turn.  Only that
 * one tries to get the lock; a request that is not in the queue comes after it,
 * unless its priority is higher.
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
 * A change of a key takes constant time, however many wait for it, and so does a turn.
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
#include "queue/queue.h"
#include "shmem.h"

/* Protected by the lock of its bucket, except for "changed" of its entries. */
typedef struct List
{
	dlist_head	turns;			/* in the order of service */
	dlist_head	watchers;
	bool		is_mixed;		/* there may be two keys with the same hash */
} List;

typedef struct DlockQueue
{
	pg_atomic_uint32 nwaiters;	/* in all lists; changed under their locks */
	pg_atomic_uint64 arrivals;
	pg_atomic_uint64 changes;	/* numbers the changes of keys that have
								 * waiters */
	uint32		nlists;			/* a power of two */
	List		lists[FLEXIBLE_ARRAY_MEMBER];
} DlockQueue;

static DlockQueue *queue = NULL;

/* As many as there can be entries, so that most lists have one key. */
static uint32
count_lists(void)
{
	return pg_nextpower2_32(Max(MaxBackends + dlock_max_tickets, DLOCK_BUCKETS));
}

Size
dlock_queue_shmem_size(void)
{
	return add_size(offsetof(DlockQueue, lists),
					mul_size(count_lists(), sizeof(List)));
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
	pg_atomic_init_u64(&queue->changes, 0);
	queue->nlists = count_lists();
	for (int i = 0; i < queue->nlists; i++)
	{
		dlist_init(&queue->lists[i].turns);
		dlist_init(&queue->lists[i].watchers);
		queue->lists[i].is_mixed = false;
	}
}

static uint32
list_number(uint64 hash)
{
	return (hash >> 8) & (queue->nlists - 1);
}

static List *
list_of(uint64 hash)
{
	return &queue->lists[list_number(hash)];
}

/* Where the entries are that wait for their turn to get a key with this hash. */
static dlist_head *
turns_of(uint64 hash)
{
	return &list_of(hash)->turns;
}

/* The lock of the bucket that this hash belongs to. */
static LWLock *
lock_of(uint64 hash)
{
	return dlock_lwlock_bucket(list_number(hash) % DLOCK_BUCKETS);
}

/* For those that own an entry.  Nothing that waits may be done under it. */
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

static DlockQueueEntry *
entry_at(dlist_node *node)
{
	return dlist_container(DlockQueueEntry, node, node);
}

/* Does an entry wait for this key of the current database? */
static bool
waits_for(const DlockQueueEntry *entry, const DlockKey *key)
{
	return entry->dboid == MyDatabaseId && entry->hash == key->hash &&
		entry->keylen == key->len &&
		memcmp(entry->key, key->data, key->len) == 0;
}

/* Is there any entry?  This spares most callers a look into the queue. */
bool
dlock_queue_any(void)
{
	/* pairs with the one in dlock_queue_insert() */
	pg_memory_barrier();
	return pg_atomic_read_u32(&queue->nwaiters) != 0;
}

/*
 * An entry
 */

/* A role and owner, as others name what they wait for; 0 without an owner. */
DlockBlocker
dlock_queue_owner_name(Oid role, const char *owner)
{
	if (owner == NULL)
		return 0;
	return DLOCK_OWNER_BIT | dlock_key_hash_text(owner, strlen(owner), role);
}

/* Do they wait for the same key? */
bool
dlock_queue_same_key(const DlockQueueEntry *a, const DlockQueueEntry *b)
{
	return a->dboid == b->dboid && a->hash == b->hash &&
		a->keylen == b->keylen && memcmp(a->key, b->key, a->keylen) == 0;
}

/*
 * Fill an entry that is not in the queue yet.  The caller sets its texts and
 * what identifies it: the latch and process, or the ticket.
 */
void
dlock_queue_fill(DlockQueueEntry *entry, const DlockKey *key, const DlockEntrant *entrant)
{
	pg_atomic_write_u32(&entry->woken, 0);
	pg_atomic_write_u64(&entry->changed, 0);
	entry->seen = 0;
	entry->is_stale = false;
	pg_atomic_write_u32(&entry->in_circle, 0);
	entry->announce = false;
	entry->kind = entrant->kind;
	entry->dboid = MyDatabaseId;
	entry->arrival = 0;
	entry->hash = key->hash;
	entry->keylen = key->len;
	entry->terms = entrant->terms;
	entry->owner_name = dlock_queue_owner_name(entrant->terms.role, entrant->terms.owner);
	entry->upgrades = entrant->upgrades;
	entry->since = entrant->since;
	entry->until = entrant->until;
	entry->looked_at = 0;
	memset(&entry->report, 0, sizeof(entry->report));
	entry->report.wake_at = DLOCK_NEVER;
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

/*
 * Do two reports name the same blockers?  Then it has been blocked since the first
 * one.
 */
static bool
same_blockers(const DlockWaitReport *a, const DlockWaitReport *b)
{
	return a->must_end == b->must_end && a->nblockers_all == b->nblockers_all &&
		a->nblockers == b->nblockers &&
		memcmp(a->blockers, b->blockers, a->nblockers * sizeof(DlockBlocker)) == 0;
}

/*
 * Publish a report.  Called by the process that owns the entry, after a look at
 * the row, with the bucket locked exclusively.  True: a holder is asked to yield that
 * was not asked before, so a reaper has to notify it.
 */
bool
dlock_queue_publish(DlockQueueEntry *entry, const DlockWaitReport *report)
{
	bool		announce = asks_others(&entry->report.asking, &report->asking);

	Assert(report->nblockers <= DLOCK_MAX_BLOCKERS);
	if (entry->looked_at == 0 || !same_blockers(&entry->report, report))
		entry->blocked_since = dlock_clock_now();
	entry->looked_at = dlock_clock_now();
	entry->report = *report;
	if (announce)
		entry->announce = true;
	return announce;
}

/* Has the request of this entry asked the holder of this grant to yield? */
bool
dlock_queue_entry_asks(const DlockQueueEntry *entry, const DlockState *grant)
{
	if (entry->report.asking.all)
		return grant->terms.priority < entry->terms.priority &&
			!dlock_terms_same_owner(&grant->terms, &entry->terms);
	for (int i = 0; i < entry->report.asking.n; i++)
		if (entry->report.asking.one[i].version == grant->version)
			return true;
	return false;
}

/*
 * Waking
 */

/*
 * Wake a backend, or put a ticket into the list of its granter.  The entry is in
 * the queue, and its bucket is locked, shared or exclusively.
 */
void
dlock_queue_wake(DlockQueueEntry *entry)
{
	pg_atomic_write_u32(&entry->woken, 1);
	if (entry->ticket != 0)
	{
		dlock_ready_list_put(&entry->ready);
		return;
	}
	pg_write_barrier();
	SetLatch(entry->latch);
}

/*
 * The first entry with this hash of those that wait for their turn, or NULL.  Mostly it
 * is the first one of its list.
 */
static DlockQueueEntry *
first_with_hash(uint64 hash)
{
	dlist_iter	iter;

	dlist_foreach(iter, turns_of(hash))
		if (entry_at(iter.cur)->hash == hash)
		return entry_at(iter.cur);
	return NULL;
}

/* The next one after this one with the same hash, or NULL. */
static DlockQueueEntry *
next_with_hash(DlockQueueEntry *entry)
{
	dlist_head *list = turns_of(entry->hash);

	for (DlockQueueEntry *next = entry; dlist_has_next(list, &next->node);)
	{
		next = entry_at(dlist_next_node(list, &next->node));
		if (next->hash == entry->hash)
			return next;
	}
	return NULL;
}

/*
 * Number the change of a key, in the first entry of its line.  Others do the same at the
 * same time, because the bucket is locked shared: the highest number stays.
 */
static void
note_change(DlockQueueEntry *first)
{
	uint64		change = pg_atomic_add_fetch_u64(&queue->changes, 1);
	uint64		noted = pg_atomic_read_u64(&first->changed);

	while (noted < change &&
		   !pg_atomic_compare_exchange_u64(&first->changed, &noted, change))
		;
}

/*
 * Wake those that a change matters to.  Called at the end of a transaction that has
 * changed the key (xact.c), so it must not fail.
 *
 * A watcher is woken if the version has changed.  Of those that wait for their
 * turn, only the first one is woken, if the key may be free, and the owner that the
 * key was handed over to.  Either is also woken if the grant ends before they would
 * look again by themselves.
 *
 * What all the others have published may be wrong from now on, which deadlock.c has to
 * know.  Thousands may stand in line, so the change is noted in the first one only.  It
 * hands the note on when it leaves (move_note()).
 *
 * A change names its key by the hash.  If two keys have the same hash, the waiters
 * of the other key are woken without effect.
 */
void
dlock_queue_changed(const DlockChange *change)
{
	List	   *list = list_of(change->hash);
	DlockQueueEntry *first;
	dlist_iter	iter;

	LWLockAcquire(lock_of(change->hash), LW_SHARED);
	dlist_foreach(iter, &list->watchers)
	{
		DlockQueueEntry *entry = entry_at(iter.cur);

		if (entry->hash == change->hash &&
			(change->wakes_change || change->expires < entry->report.wake_at))
			dlock_queue_wake(entry);
	}

	first = first_with_hash(change->hash);
	if (first != NULL)
		note_change(first);
	for (DlockQueueEntry *entry = first; entry != NULL; entry = next_with_hash(entry))
	{
		if ((entry == first || !dlock_queue_same_key(first, entry)) &&
			(change->wakes_turn || change->expires < entry->report.wake_at))
			dlock_queue_wake(entry);
		else if (change->heir != 0 && entry->owner_name == change->heir)
			dlock_queue_wake(entry);
		if (!list->is_mixed && change->heir == 0)
			break;
	}
	LWLockRelease(lock_of(change->hash));
}

/*
 * Has the key been changed since the entry looked at it, or is about to?  "first" is the
 * first entry with its hash.
 */
static bool
is_stale(const DlockQueueEntry *entry, DlockQueueEntry *first)
{
	return first != NULL && pg_atomic_read_u64(&first->changed) > entry->seen;
}

/* One entry hands the number of the last change on to another one. */
static void
move_note(DlockQueueEntry *from, DlockQueueEntry *to)
{
	if (from != NULL && to != NULL &&
		pg_atomic_read_u64(&from->changed) > pg_atomic_read_u64(&to->changed))
		pg_atomic_write_u64(&to->changed, pg_atomic_read_u64(&from->changed));
}

/* Visit the entries of one list.  Returns whether to continue. */
static bool
visit_list(dlist_head *list, DlockQueueVisitor visitor, void *arg)
{
	dlist_iter	iter;

	dlist_foreach(iter, list)
		if (!visitor(entry_at(iter.cur), arg))
		return false;
	return true;
}

/* Call a function for each entry of the queue, until it returns false. */
void
dlock_queue_visit(LWLockMode mode, DlockQueueVisitor visitor, void *arg)
{
	bool		continues = true;

	for (int bucket = 0; bucket < DLOCK_BUCKETS && continues; bucket++)
	{
		LWLockAcquire(dlock_lwlock_bucket(bucket), mode);
		for (int i = bucket; i < queue->nlists && continues; i += DLOCK_BUCKETS)
			continues = visit_list(&queue->lists[i].turns, visitor, arg) &&
				visit_list(&queue->lists[i].watchers, visitor, arg);
		LWLockRelease(dlock_lwlock_bucket(bucket));
	}
}

/* A visitor of dlock_queue_wake_all(). */
static bool
wake_if_ours(DlockQueueEntry *entry, void *arg)
{
	if (entry->dboid == MyDatabaseId)
		dlock_queue_wake(entry);
	return true;
}

/* Make all waiters of this database look again: shards are served or not. */
void
dlock_queue_wake_all(void)
{
	dlock_queue_visit(LW_SHARED, wake_if_ours, NULL);
}

/* A visitor of dlock_queue_count().  Watchers do not count. */
static bool
count_if_ours(DlockQueueEntry *entry, void *arg)
{
	if (entry->kind == DLOCK_WAIT_TURN && entry->dboid == MyDatabaseId)
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
 * The order of service
 *
 * A list is in this order: upgrades first, then by priority, higher ones first, then
 * by arrival.  A list may hold entries of several keys.  Watchers are apart.
 *
 * Three functions know the order, and have to agree: ranks_above() for a place in the
 * list, others_first() for a request that is not in it, and is_behind() for an upgrade
 * whose owner may have lost its place.
 */

/* The entry that has the turn for a key, or NULL.  The bucket is locked. */
static DlockQueueEntry *
first_in_line(const DlockKey *key)
{
	dlist_iter	iter;

	dlist_foreach(iter, turns_of(key->hash))
		if (waits_for(entry_at(iter.cur), key))
		return entry_at(iter.cur);
	return NULL;
}

/* The part of the next function that is rarely needed. */
static pg_noinline bool
others_first(const DlockKey *key, int32 priority)
{
	DlockQueueEntry *first;
	bool		result;

	LWLockAcquire(lock_of(key->hash), LW_SHARED);
	first = first_in_line(key);
	result = first != NULL && (first->upgrades || first->terms.priority >= priority);
	LWLockRelease(lock_of(key->hash));
	return result;
}

/*
 * Would a request of this priority that is not in the queue come after one that is?
 * Every acquire asks this before its first try.  An arrival is later than those that
 * are there, so an equal priority comes after them.
 */
bool
dlock_queue_others_first(const DlockKey *key, int32 priority)
{
	return dlock_queue_any() && others_first(key, priority);
}

/* Does a come before b? */
static bool
ranks_above(const DlockQueueEntry *a, const DlockQueueEntry *b)
{
	if (a->upgrades != b->upgrades)
		return a->upgrades;
	if (a->terms.priority != b->terms.priority)
		return a->terms.priority > b->terms.priority;
	return a->arrival < b->arrival;
}

/*
 * For those that own an entry.  The bucket is locked exclusively, except for
 * dlock_queue_position().
 */

/* Does another request for the same key wait for an upgrade already? */
bool
dlock_queue_upgrades(const DlockQueueEntry *entry)
{
	dlist_iter	iter;

	dlist_foreach(iter, turns_of(entry->hash))
	{
		const DlockQueueEntry *other = entry_at(iter.cur);

		if (!other->upgrades)
			break;				/* upgrades come first */
		if (other != entry && dlock_queue_same_key(other, entry))
			return true;
	}
	return false;
}

/*
 * Enter the queue.  A ticket that has been there before returns to its position,
 * because it keeps its arrival.
 */
void
dlock_queue_insert(DlockQueueEntry *entry)
{
	List	   *list = list_of(entry->hash);
	DlockQueueEntry *first = first_with_hash(entry->hash);
	dlist_node *before = NULL;
	dlist_iter	iter;

	if (entry->arrival == 0)
		entry->arrival = pg_atomic_add_fetch_u64(&queue->arrivals, 1);
	if (entry->kind == DLOCK_WAIT_CHANGE)
		dlist_push_tail(&list->watchers, &entry->node);
	else
	{
		dlist_reverse_foreach(iter, &list->turns)
		{
			if (!ranks_above(entry, entry_at(iter.cur)))
				break;
			before = iter.cur;
		}
		if (before != NULL)
			dlist_insert_before(before, &entry->node);
		else
			dlist_push_tail(&list->turns, &entry->node);
		list->is_mixed = list->is_mixed ||
			(first != NULL && !dlock_queue_same_key(first, entry));
		move_note(first, first_with_hash(entry->hash));
	}

	/* a full barrier: a process that frees the key from here on sees us */
	pg_atomic_fetch_add_u32(&queue->nwaiters, 1);
}

/*
 * Leave the queue.  With wake_next, the next entry of the key is woken if this one
 * had the turn.  The caller passes true if it did not get the lock, because its own
 * wakeup may have been for the free key, and if it got one of several places, because
 * there may be more.  If it got the whole key, the end of its transaction wakes the
 * next one.
 */
void
dlock_queue_remove(DlockQueueEntry *entry, bool wake_next)
{
	dlist_iter	iter;
	bool		is_before = true;

	if (wake_next && entry->kind == DLOCK_WAIT_TURN)
		dlist_foreach(iter, turns_of(entry->hash))
	{
		DlockQueueEntry *other = entry_at(iter.cur);

		if (other == entry)
		{
			is_before = false;
			continue;
		}
		if (!dlock_queue_same_key(other, entry))
			continue;
		/* the first of the others: does it come after this one? */
		if (!is_before)
			dlock_queue_wake(other);
		break;
	}
	if (entry->kind == DLOCK_WAIT_TURN && first_with_hash(entry->hash) == entry)
		move_note(entry, next_with_hash(entry));
	dlist_delete(&entry->node);
	if (dlist_is_empty(turns_of(entry->hash)))
		list_of(entry->hash)->is_mixed = false;
	pg_atomic_fetch_sub_u32(&queue->nwaiters, 1);

	if (entry->ticket != 0)
		dlock_ready_list_drop(&entry->ready);
}

/*
 * This entry is an upgrade from now on, or not any more: its owner has a place of the
 * key, or has lost it.  It moves to its new position, and looks again.
 */
void
dlock_queue_set_upgrades(DlockQueueEntry *entry, bool upgrades)
{
	dlock_queue_remove(entry, !upgrades);
	entry->upgrades = upgrades;
	dlock_queue_insert(entry);
	dlock_queue_wake(entry);
}

/* How many entries of the key come before this one; 0: it has the turn. */
int
dlock_queue_position(const DlockQueueEntry *entry)
{
	int			position = 0;
	dlist_iter	iter;

	dlist_foreach(iter, turns_of(entry->hash))
	{
		const DlockQueueEntry *other = entry_at(iter.cur);

		if (other == entry)
			break;
		if (dlock_queue_same_key(other, entry))
			position++;
	}
	return position;
}

/*
 * Would this entry be behind another one of its key if it were no upgrade?
 *
 * An entry that is no upgrade is behind if the list has another one of its key
 * before it.  Every waiter asks this before each look, and a line may be long, so the
 * loop ends at the first entry of the key, this one or another.
 *
 * An upgrade is first in the list because its owner has a place of the key.  Only the
 * look that follows can tell whether the owner still has it.  If it does, the caller
 * ignores our answer.  If not, the request must not be granted before those that
 * have a higher priority or came earlier.  So for an upgrade we skip the entry itself
 * and compare it with the next one of its key, which is the first of the others.
 */
static bool
is_behind(const DlockQueueEntry *entry)
{
	dlist_iter	iter;

	dlist_foreach(iter, turns_of(entry->hash))
	{
		const DlockQueueEntry *other = entry_at(iter.cur);

		if (other == entry && !entry->upgrades)
			return false;
		if (other == entry || !dlock_queue_same_key(other, entry))
			continue;
		return !entry->upgrades || other->terms.priority > entry->terms.priority ||
			(other->terms.priority == entry->terms.priority && other->arrival < entry->arrival);
	}
	return false;
}

/*
 * Called before each look at the row.  Until the next report, every change of the
 * key wakes the entry, because the time of the last report does not count any more.
 * Returns whether another entry comes first; see is_behind() for
 * upgrades.
 */
bool
dlock_queue_rearm(DlockQueueEntry *entry)
{
	pg_atomic_write_u32(&entry->woken, 0);
	entry->seen = pg_atomic_read_u64(&queue->changes);
	entry->report.wake_at = DLOCK_NEVER;
	return is_behind(entry);
}

/*
 * Copies, and what others ask
 */

/* A copy that has its own texts.  The bucket is locked. */
static void
copy_entry(DlockNamedEntry *copy, const DlockQueueEntry *entry)
{
	memcpy(&copy->entry, entry, sizeof(DlockQueueEntry));
	memcpy(copy->key, entry->key, entry->keylen + 1);
	copy->entry.key = copy->key;
	copy->entry.terms.value = NULL;
	if (entry->terms.owner != NULL)
	{
		strlcpy(copy->owner, entry->terms.owner, sizeof(copy->owner));
		copy->entry.terms.owner = copy->owner;
	}
}

/*
 * Has the holder of this grant been asked to yield, and by whom?  Only the entry that
 * has the turn asks.
 */
bool
dlock_queue_asked(const DlockKey *key, const DlockState *grant,
				  DlockNamedEntry *requestor)
{
	DlockQueueEntry *first;
	bool		result;

	if (!dlock_queue_any())
		return false;

	LWLockAcquire(lock_of(key->hash), LW_SHARED);
	first = first_in_line(key);
	result = first != NULL && dlock_queue_entry_asks(first, grant);
	if (result && requestor != NULL)
		copy_entry(requestor, first);
	LWLockRelease(lock_of(key->hash));
	return result;
}

/*
 * The first "max" of those that wait for their turn to get this key, in order, for
 * the log.  Returns how many there are in all.
 */
int
dlock_queue_line(const DlockKey *key, DlockInLine *line, int max)
{
	int			n = 0;
	dlist_iter	iter;

	LWLockAcquire(lock_of(key->hash), LW_SHARED);
	dlist_foreach(iter, turns_of(key->hash))
	{
		const DlockQueueEntry *entry = entry_at(iter.cur);

		if (!waits_for(entry, key))
			continue;
		if (n < max)
		{
			line[n].pid = entry->pid;
			line[n].ticket = entry->ticket;
		}
		n++;
	}
	LWLockRelease(lock_of(key->hash));
	return n;
}

/* Append a text to the memory for all texts, and return the copy. */
static char *
copy_text(char **to, const char *text)
{
	char	   *copy = *to;
	Size		size = strlen(text) + 1;

	memcpy(copy, text, size);
	*to += size;
	return copy;
}

/* Add copies of a list.  Returns how much memory their texts take. */
static Size
copy_list(dlist_head *list, DlockQueueEntry *copies, int *n)
{
	Size		size = 0;
	dlist_iter	iter;

	dlist_foreach(iter, list)
	{
		DlockQueueEntry *entry = entry_at(iter.cur);
		DlockQueueEntry *copy = &copies[(*n)++];

		memcpy(copy, entry, sizeof(DlockQueueEntry));
		copy->is_stale = is_stale(entry, first_with_hash(entry->hash));
		size += copy->keylen + 1;
		if (copy->terms.owner != NULL)
			size += strlen(copy->terms.owner) + 1;
	}
	return size;
}

/*
 * Copies of all entries, as they are at one moment, each list in order.  For the
 * deadlock check and the view.  If memory runs out, the error is raised without the
 * locks, because a waiter that gets it has to leave the queue.
 */
DlockQueueEntry *
dlock_queue_copy_all(int *n)
{
	DlockQueueEntry *copies;
	char	   *texts = NULL;
	Size		size = 0;
	int			max;

	for (int i = 0; i < DLOCK_BUCKETS; i++)
		LWLockAcquire(dlock_lwlock_bucket(i), LW_SHARED);

	*n = 0;
	max = pg_atomic_read_u32(&queue->nwaiters);
	copies = palloc_extended(max * sizeof(DlockQueueEntry) + 1,
							 MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	for (int i = 0; copies != NULL && i < queue->nlists && *n < max; i++)
	{
		size += copy_list(&queue->lists[i].turns, copies, n);
		size += copy_list(&queue->lists[i].watchers, copies, n);
	}
	if (copies != NULL)
		texts = palloc_extended(size + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	for (int i = 0; texts != NULL && i < *n; i++)
	{
		copies[i].key = copy_text(&texts, copies[i].key);
		copies[i].terms.value = NULL;
		if (copies[i].terms.owner != NULL)
			copies[i].terms.owner = copy_text(&texts, copies[i].terms.owner);
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

/*
 * Requests to yield that have not been announced
 */

typedef struct Announcement
{
	Oid			dboid;
	DlockNamedEntry *copy;
	bool		found;
} Announcement;

/* A visitor: take the first entry of the database that has something to announce. */
static bool
take_if_announced(DlockQueueEntry *entry, void *arg)
{
	Announcement *announcement = arg;

	if (entry->dboid != announcement->dboid || !entry->announce)
		return true;
	entry->announce = false;
	copy_entry(announcement->copy, entry);
	announcement->found = true;
	return false;
}

/*
 * Take an entry that has asked a holder to yield since this was called last, for
 * the reaper, which sends the notifications.  False: there is none.
 */
bool
dlock_queue_take_announcement(Oid dboid, DlockNamedEntry *copy)
{
	Announcement announcement = {.dboid = dboid,.copy = copy};

	dlock_queue_visit(LW_EXCLUSIVE, take_if_announced, &announcement);
	return announcement.found;
}
