/*-------------------------------------------------------------------------
 *
 * find.h
 *	  Finding the rows of a key, and locking one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FIND_H
#define DLOCK_FIND_H

#include "access/htup.h"
#include "nodes/lockoptions.h"
#include "utils/snapshot.h"

#include "found.h"
#include "key.h"
#include "store.h"

typedef enum DlockFind
{
	DLOCK_FIND_HINTED,			/* if the hint leads to it; a miss says
								 * nothing */
	DLOCK_FIND_NEWEST,			/* that another transaction is changing it is
								 * enough, and a miss is not believed */
	DLOCK_FIND_COMMITTED,		/* the last committed row */
	DLOCK_FIND_WHOLE			/* ... with a copy of it */
} DlockFind;

typedef enum DlockLocked
{
	DLOCK_LOCKED,
	DLOCK_LOCK_BUSY,			/* would have to wait */
	DLOCK_LOCK_CHANGED			/* look again */
} DlockLocked;

extern bool dlock_find_slot(const DlockStore *store, const DlockKey *key,
							int64 slot, DlockFind how, DlockRows *found);
extern bool dlock_find_version(const DlockStore *store, const DlockKey *key,
							   int64 version, DlockRows *found);
extern void dlock_find_places(const DlockStore *store, const DlockKey *key,
							  DlockFind how, bool with_head, int64 owners_of,
							  int max, DlockRows *found);
extern void dlock_find_committed(const DlockStore *store, const DlockKey *key,
								 DlockRows *found);
extern bool dlock_find_any(const DlockStore *store, Relation index,
						   const DlockKey *key, int64 slot);
extern DlockLocked dlock_find_lock(const DlockStore *store, const DlockKey *key,
								   DlockState *state, DlockRow *row,
								   LockTupleMode mode, LockWaitPolicy policy);

#endif							/* DLOCK_FIND_H */
