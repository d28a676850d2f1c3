/*-------------------------------------------------------------------------
 *
 * waiter.h
 *	  An entry of the queue.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAITER_H
#define DLOCK_WAITER_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/latch.h"

#include "key.h"
#include "ready.h"
#include "state.h"

typedef enum DlockWaitKind
{
	DLOCK_WAIT_TURN,			/* for the lock */
	DLOCK_WAIT_CHANGE			/* for another version; never has the turn */
} DlockWaitKind;

/*
 * What a waiter waits for: a process, or, if none is known, whatever waits in
 * the name of a lease's role and owner; 0 if there is neither.
 */
typedef uint64 DlockBlocker;

#define DLOCK_OWNER_BIT		(UINT64CONST(1) << 63)	/* else a process */
#define DLOCK_MAX_BLOCKERS	32

/*
 * A request that waits: that of a backend, or a ticket.  It is protected by the
 * lock of its bucket.  Only one process writes it, the backend itself or the
 * granter of its database, so that process may read it without the lock; "woken",
 * "stale" and "announce" are the exceptions.  Its texts are elsewhere in shared
 * memory, and do not change while it is in the queue.
 */
typedef struct DlockWaiter
{
	dlist_node	node;			/* in its bucket */
	pg_atomic_uint32 woken;		/* set by the process that wakes it */
	pg_atomic_uint32 stale;		/* set by a process that has changed the key
								 * since it looked */
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
	const char *owner;			/* NULL: none */
	uint64		owner_name;		/* as a DlockBlocker */
	int			keylen;
	Oid			role;
	int32		priority;
	int32		slots;
	int64		since;			/* lease time, as are the others */
	int64		until;
	int64		wake_at;		/* when it will look again by itself */

	/* what it waits for, as far as it knew when it last looked */
	int64		looked_at;
	int			must_end;		/* how many of the blockers have to end */
	int			nblockers_all;	/* how many there were, listed or not */
	int			nblockers;
	DlockBlocker blockers[DLOCK_MAX_BLOCKERS];

	DlockAsking asking;			/* whom it has asked to yield */
} DlockWaiter;

/* One with room for its texts: a backend's, or a copy. */
typedef struct DlockNamedWaiter
{
	DlockWaiter waiter;
	char		key[DLOCK_MAX_KEY + 1];
	char		owner[DLOCK_MAX_OWNER + 1];
} DlockNamedWaiter;

/* What a waiter says of itself when it enters the queue. */
typedef struct DlockEntrant
{
	DlockWaitKind kind;
	Oid			role;
	const char *owner;			/* NULL: none */
	int32		priority;
	int32		slots;
	bool		upgrades;
	int64		since;			/* lease time */
	int64		until;
} DlockEntrant;

/* What a waiter tells the others before it sleeps. */
typedef struct DlockOutlook
{
	int64		wake_at;
	int			must_end;
	int			nblockers_all;
	int			nblockers;
	DlockBlocker blockers[DLOCK_MAX_BLOCKERS];
	DlockAsking asking;
} DlockOutlook;

/* what waits: a process, or a ticket; the numbers do not meet */
static inline uint64
dlock_waiter_id(const DlockWaiter *waiter)
{
	return waiter->ticket != 0 ? (uint64) waiter->ticket : (uint64) waiter->pid;
}

extern DlockBlocker dlock_waiter_owner(Oid role, const char *owner);
extern bool dlock_waiter_is_same(const DlockWaiter *a, const DlockWaiter *b);
extern void dlock_waiter_fill(DlockWaiter *waiter, const DlockKey *key,
							  const DlockEntrant *entrant);
extern bool dlock_waiter_publish(DlockWaiter *waiter, const DlockOutlook *outlook);
extern void dlock_waiter_withdraw(DlockWaiter *waiter);
extern bool dlock_waiter_asks(const DlockWaiter *waiter, const DlockState *grant);
extern void dlock_waiter_copy(DlockNamedWaiter *copy, const DlockWaiter *waiter);

#endif							/* DLOCK_WAITER_H */
