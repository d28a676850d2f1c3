/*-------------------------------------------------------------------------
 *
 * xact.h
 *	  What dlock does at the end of a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_XACT_H
#define DLOCK_LOCK_XACT_H

#include "stats/stats.h"

/* What a lock operation wrote, and so what its commit needs. */
typedef enum DlockWrite
{
	DLOCK_WROTE_NOTHING = 0,
	DLOCK_WROTE_LAZY = 1 << 0,	/* may be lost in a crash */
	DLOCK_WROTE_RENEWAL = 1 << 1,	/* the same, unless a standby confirms */
	DLOCK_WROTE_RELEASE = 1 << 2,	/* the same, unless the session wants more */
	DLOCK_WROTE_OTHER = 1 << 3, /* as durable as the session wants it */
	DLOCK_WROTE_GRANT = 1 << 4	/* must be durable */
} DlockWrite;

extern void dlock_xact_init(void);
extern void dlock_xact_enter(void);
extern void dlock_xact_leave(DlockWrite wrote);
extern bool dlock_xact_wrote_other(void);
extern int	dlock_xact_begin_change(uint64 hash);
extern void dlock_xact_cancel_change(int change);
extern void dlock_xact_name_heir(int change, uint64 owner_name);
extern void dlock_xact_end_change(int change, bool wakes_turn,
								  bool wakes_change, int64 expires);
extern void dlock_xact_count(DlockStat stat);
extern void dlock_xact_want_reaper(int64 when);

#endif							/* DLOCK_LOCK_XACT_H */
