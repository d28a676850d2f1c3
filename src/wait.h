/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  The queue of those that wait for a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAIT_H
#define DLOCK_WAIT_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/latch.h"

#include "key.h"
#include "state.h"

typedef enum DlockWaitKind
{
	DLOCK_WAIT_TURN,			/* for the lock */
	DLOCK_WAIT_CHANGE			/* for another version; never has the turn */
} DlockWaitKind;

/*
 * What a waiter waits for: a process, or, if none is known, the role and owner
 * of a lease.
 */
typedef struct DlockBlocker
{
	int			pid;			/* 0: not known */
	Oid			role;
	uint64		owner;			/* dlock_wait_owner(); 0: none */
} DlockBlocker;

#define DLOCK_MAX_BLOCKERS	32

/*
 * A backend that waits.  Each backend has one entry, because it waits for one
 * key at a time.  An entry is protected by the lock of its bucket.  Only the
 * backend itself writes it, so it may read its own entry without the lock;
 * "woken", "stale" and "announce" are the exceptions.
 */
typedef struct DlockWaiter
{
	dlist_node	node;			/* in its bucket */
	pg_atomic_uint32 woken;		/* set by the process that wakes it */
	pg_atomic_uint32 stale;		/* set by a process that has changed the key
								 * since it looked */
	Latch	   *latch;
	int			pid;			/* 0: does not wait */
	DlockWaitKind kind;
	uint64		ticket;			/* order of arrival */
	Oid			dboid;
	uint64		hash;
	int			keylen;
	char		key[DLOCK_MAX_KEY + 1];
	Oid			role;
	bool		has_owner;
	char		owner[DLOCK_MAX_OWNER + 1];
	uint64		owner_hash;		/* as in DlockBlocker */
	int32		priority;
	int32		slots;
	bool		upgrades;		/* it has a place, and wants the key for
								 * itself */
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
	bool		announce;		/* notifications are still to be sent */
} DlockWaiter;

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

/* What the end of a transaction means to those that wait for a key. */
typedef struct DlockChange
{
	uint64		hash;
	bool		wakes_turn;		/* it may be free now */
	bool		wakes_change;	/* it has another version now */
	int64		expires;		/* if it is held: until when */
} DlockChange;

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

extern Size dlock_wait_shmem_size(void);
extern void dlock_wait_shmem_init(void);

extern uint64 dlock_wait_owner(const char *owner);
extern bool dlock_wait_others_first(const DlockKey *key, int32 priority);
extern bool dlock_wait_enter(const DlockKey *key, const DlockEntrant *entrant);
extern void dlock_wait_leave(bool wake_next);
extern int	dlock_wait_rearm(void);
extern void dlock_wait_publish(const DlockOutlook *outlook);
extern void dlock_wait_sleep(int64 until);

extern void dlock_wait_wake(const DlockChange *change);
extern bool dlock_wait_any(void);

extern bool dlock_wait_is_asked(const DlockWaiter *waiter, const DlockState *grant);
extern bool dlock_wait_asked(const DlockKey *key, const DlockState *grant,
							 DlockWaiter *requestor);
extern DlockWaiter *dlock_wait_copy_all(int *n);
extern bool dlock_wait_take_announcement(Oid dboid, DlockWaiter *waiter);
extern void dlock_wait_wake_pid(int pid);
extern void dlock_wait_withdraw(void);

#endif							/* DLOCK_WAIT_H */
