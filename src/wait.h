/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  The queue of those who wait for a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAIT_H
#define DLOCK_WAIT_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "store.h"

#define DLOCK_MAX_KEY		1024
#define DLOCK_MAX_OWNER		1024
#define DLOCK_WAIT_BUCKETS	64

typedef enum DlockWaitKind
{
	DLOCK_WAIT_TURN,			/* for the lock */
	DLOCK_WAIT_CHANGE			/* for another version; has no place in line */
} DlockWaitKind;

/*
 * A backend that waits; each has one entry, for it waits for one key at a
 * time.  Protected by the lock of the bucket that it is in, but for what is
 * said to be its own: that is written by the backend alone, under the lock
 * too, so the backend may read it without.
 */
typedef struct DlockWaiter
{
	dlist_node	node;			/* in its bucket */
	pg_atomic_uint32 woken;		/* set by whoever wakes it */
	pg_atomic_uint32 stale;		/* set by whoever has changed the key since it
								 * looked */
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
	int32		priority;
	int64		since;			/* lease time, as are the others */
	int64		until;
	int64		wake_at;		/* when it will look again by itself */

	/* whom it waits for, as far as it knew when it last looked */
	int64		looked_at;
	int			blocker_pid;	/* 0: nobody in particular */
	Oid			blocker_role;
	bool		blocker_has_owner;
	char		blocker_owner[DLOCK_MAX_OWNER + 1];

	/* the grant that it has asked the holder to yield, or 0 */
	int64		asked_version;
	int64		asked_at;
	int64		yield_by;
	bool		announce;		/* the notification is still to be sent */
} DlockWaiter;

/* What a transaction's end means to those who wait for a key. */
typedef struct DlockChange
{
	uint64		hash;
	bool		wakes_turn;		/* it may be free now */
	bool		wakes_change;	/* it has another version now */
	int64		expires;		/* if it is held: until when */
} DlockChange;

extern Size dlock_wait_shmem_size(void);
extern void dlock_wait_shmem_init(LWLockPadded *locks, bool found);

extern bool dlock_wait_others_first(const DlockKey *key, int32 priority);
extern void dlock_wait_enter(const DlockKey *key, DlockWaitKind kind,
							 Oid role, const char *owner, int32 priority,
							 int64 since, int64 until);
extern void dlock_wait_leave(bool granted);
extern int	dlock_wait_rearm(void);
extern void dlock_wait_publish(const DlockRow *row, int64 wake_at,
							   int64 asked_version, int64 asked_at,
							   int64 yield_by);
extern void dlock_wait_sleep(int64 until);

extern void dlock_wait_wake(const DlockChange *change);
extern bool dlock_wait_any(void);

extern bool dlock_wait_asked(const DlockKey *key, int64 version,
							 DlockWaiter *requestor);
extern DlockWaiter *dlock_wait_copy_all(int *n);
extern bool dlock_wait_take_announcement(Oid dboid, DlockWaiter *waiter);
extern void dlock_wait_wake_pid(int pid);
extern void dlock_wait_withdraw(void);

#endif							/* DLOCK_WAIT_H */
