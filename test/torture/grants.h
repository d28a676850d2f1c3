/*-------------------------------------------------------------------------
 *
 * grants.h
 *	  Locks of libdlock: what a client asks for, and what it holds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_GRANTS_H
#define TORTURE_GRANTS_H

#include "client.h"
#include "dlock.h"

/* A lock that we hold, or have lost and not closed yet. */
typedef struct Slot
{
	/* for the thread that watches them; see grants.c */
	dlock_lock *lock;			/* NULL: free */
	int64_t		base;			/* when its TTL began, as far as we know */

	char		key[KEY_SIZE];
	int64_t		version;
	bool		session;
	int			asked;			/* to yield; atomic */
} Slot;

/* A request. */
typedef struct Wish
{
	long		number;
	char		key[KEY_SIZE];
	char		owner[OWNER_SIZE];
	dlock_options options;
} Wish;

extern dlock_handle *handle;

extern void slots_watch(Slot *slots, int n);
extern void slot_drop(Slot *slot);
extern bool slot_is_asked(const Slot *slot);

extern void wish_make(Wish *wish, Slot *slot, bool alone);
extern void wish_called(Wish *wish);
extern void wish_done(const Wish *wish, Slot *slot, dlock_status status, dlock_lock *lock,
					  const dlock_error *err);

extern long release_called(const Slot *slot);
extern void release_done(long number, dlock_status status, const dlock_error *err);

#endif							/* TORTURE_GRANTS_H */
