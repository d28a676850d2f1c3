/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  The queue of those that wait for a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_QUEUE_H
#define DLOCK_QUEUE_QUEUE_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "queue/ready_list.h"
#include "rules/key.h"
#include "rules/lock_rules.h"

typedef enum DlockWaitKind
{
	DLOCK_WAIT_TURN,			/* for the lock */
	DLOCK_WAIT_CHANGE			/* for another version; never has the turn */
} DlockWaitKind;

/*
 * What a waiter waits for: the id of a process, or, if none is known, the name of a
 * lease's role and owner, in which others may wait; 0 if there is neither.
 */
typedef uint64 DlockBlocker;

#define DLOCK_OWNER_BIT		(UINT64CONST(1) << 63)	/* else a process */
#define DLOCK_MAX_BLOCKERS	32

/*
 * What a waiter publishes before it sleeps (wait_report.c): when it will look again
 * if nobody wakes it, what it waits for, and which holders it has asked to yield.
 */
typedef struct DlockWaitReport
{
	int64		wake_at;		/* lease time */
	int			must_end;		/* how many of the blockers have to end */
	int			nblockers_all;	/* how many there are, listed or not */
	int			nblockers;
	DlockBlocker blockers[DLOCK_MAX_BLOCKERS];
	DlockAsking asking;
} DlockWaitReport;

/*
 * An entry of the queue: a request of a backend, or a ticket.  It is protected by the
 * lock of its bucket.  Only one process writes it, the backend itself or the
 * granter of its database, so that process may read it without the lock; "woken",
 * "changed", "in_circle" and "announce" are the exceptions.  Its texts are elsewhere in shared
 * memory, and do not change while it is in the queue.
 */
typedef struct DlockQueueEntry
{
	dlist_node	node;			/* in its bucket */
	pg_atomic_uint32 woken;		/* set by the process that wakes it */
	pg_atomic_uint64 changed;	/* of the first entry of a key: the number of
								 * the last change, which anybody may set */
	uint64		seen;			/* number of the last change when it looked */
	bool		is_stale;		/* of a copy: the key has changed since */
	pg_atomic_uint32 in_circle; /* set by a deadlock check of another backend */
	Latch	   *latch;			/* of a backend */
	int			pid;			/* 0: a ticket, or does not wait */
	bool		upgrades;		/* it has a place, and wants the key for
								 * itself */
	bool		announce;		/* notifications are still to be sent */
	int64		ticket;			/* its number; 0: a backend */
	DlockReadyItem ready;		/* of a ticket */
	DlockWaitKind kind;
	Oid			dboid;
	uint64		arrival;		/* order of arrival; 0: not yet */
	uint64		hash;
	const char *key;
	int			keylen;
	DlockTerms	terms;			/* the value is that of a ticket */
	uint64		owner_name;		/* as a DlockBlocker */
	int64		since;			/* lease time, as are the others */
	int64		until;
	int64		looked_at;		/* when it published the report; 0: it has
								 * not, or has withdrawn it */
	int64		blocked_since;	/* since when the report names the same */
	DlockWaitReport report;
} DlockQueueEntry;

/* An entry with memory for its texts: that of a backend, or a copy. */
typedef struct DlockNamedEntry
{
	DlockQueueEntry entry;
	char		key[DLOCK_MAX_KEY + 1];
	char		owner[DLOCK_MAX_OWNER + 1];
} DlockNamedEntry;

/* What a waiter says of itself when it enters the queue. */
typedef struct DlockEntrant
{
	DlockWaitKind kind;
	DlockTerms	terms;
	bool		upgrades;
	int64		since;			/* lease time */
	int64		until;
} DlockEntrant;

/*
 * The number of the process or of the ticket.  Tickets have far higher numbers, so
 * the two never meet.
 */
static inline uint64
dlock_queue_entry_id(const DlockQueueEntry *entry)
{
	return entry->ticket != 0 ? (uint64) entry->ticket : (uint64) entry->pid;
}

/* What the end of a transaction means to those that wait for a key. */
typedef struct DlockChange
{
	uint64		hash;
	bool		wakes_turn;		/* it may be free now */
	bool		wakes_change;	/* it has another version now */
	int64		expires;		/* if it is held: until when */
	uint64		heir;			/* the owner that it was handed over to, as a
								 * DlockBlocker, or 0 */
} DlockChange;

/* An entry, as the log names it. */
typedef struct DlockInLine
{
	int			pid;
	int64		ticket;			/* 0: a backend */
} DlockInLine;

/* Called with the bucket locked.  Returns whether to continue. */
typedef bool (*DlockQueueVisitor) (DlockQueueEntry *entry, void *arg);

extern Size dlock_queue_shmem_size(void);
extern void dlock_queue_shmem_init(void);

/* for those that own an entry */
extern void dlock_queue_fill(DlockQueueEntry *entry, const DlockKey *key,
							 const DlockEntrant *entrant);
extern void dlock_queue_lock(uint64 hash, LWLockMode mode);
extern void dlock_queue_unlock(uint64 hash);
extern bool dlock_queue_upgrades(const DlockQueueEntry *entry);
extern void dlock_queue_insert(DlockQueueEntry *entry);
extern void dlock_queue_remove(DlockQueueEntry *entry, bool wake_next);
extern int	dlock_queue_position(const DlockQueueEntry *entry);
extern bool dlock_queue_rearm(DlockQueueEntry *entry);
extern void dlock_queue_set_upgrades(DlockQueueEntry *entry, bool upgrades);
extern bool dlock_queue_publish(DlockQueueEntry *entry, const DlockWaitReport *report);
extern void dlock_queue_wake(DlockQueueEntry *entry);

/* for everybody */
extern DlockBlocker dlock_queue_owner_name(Oid role, const char *owner);
extern bool dlock_queue_same_key(const DlockQueueEntry *a, const DlockQueueEntry *b);
extern bool dlock_queue_any(void);
extern bool dlock_queue_others_first(const DlockKey *key, int32 priority);
extern void dlock_queue_changed(const DlockChange *change);
extern bool dlock_queue_asked(const DlockKey *key, const DlockState *grant,
							  DlockNamedEntry *requestor);
extern bool dlock_queue_entry_asks(const DlockQueueEntry *entry, const DlockState *grant);
extern bool dlock_queue_take_announcement(Oid dboid, DlockNamedEntry *copy);
extern int	dlock_queue_count(void);
extern int	dlock_queue_line(const DlockKey *key, DlockInLine *line, int max);
extern DlockQueueEntry *dlock_queue_copy_all(int *n);
extern void dlock_queue_visit(LWLockMode mode, DlockQueueVisitor visitor, void *arg);
extern void dlock_queue_wake_all(void);

#endif							/* DLOCK_QUEUE_QUEUE_H */
