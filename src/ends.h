/*-------------------------------------------------------------------------
 *
 * ends.h
 *	  Grants that end: the log, and how long holders take to yield.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ENDS_H
#define DLOCK_ENDS_H

#include "access/htup.h"

#include "key.h"
#include "state.h"
#include "store.h"

typedef enum DlockEnd
{
	/* by its holder */
	DLOCK_END_RELEASED,
	DLOCK_END_DISCONNECTED,		/* released by the end of its session */
	DLOCK_END_UPGRADED,			/* its owner has the key for itself now */

	/* against its will */
	DLOCK_END_EXPIRED,
	DLOCK_END_SESSION_GONE,		/* the session could not release it */
	DLOCK_END_LAPSED,			/* lazy, and wanted by another request */
	DLOCK_END_PREEMPTED,
	DLOCK_END_FORCED
} DlockEnd;

extern void dlock_ends_note(const DlockStore *store, const DlockKey *key,
							HeapTuple tuple, const DlockState *state,
							DlockEnd how, Oid by, int64 asked_at, int64 now);
extern void dlock_ends_count(void);
extern void dlock_ends_at_end(bool committed);
extern void dlock_ends_at_abort_sub(SubTransactionId subid);

/* for a process that must not read catalogs while it changes rows */
extern void dlock_ends_defer(void);
extern void dlock_ends_log_deferred(void);

#endif							/* DLOCK_ENDS_H */
