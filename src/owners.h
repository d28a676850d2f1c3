/*-------------------------------------------------------------------------
 *
 * owners.h
 *	  Which owners may have a place.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_OWNERS_H
#define DLOCK_OWNERS_H

#include "key.h"

/* which count a place belongs to, or this */
#define DLOCK_NO_OWNER	(-1)

extern Size dlock_owners_shmem_size(void);
extern void dlock_owners_shmem_init(void);

extern bool dlock_owners_may_have(const DlockKey *key, int64 slot);
extern void dlock_owners_restored(const DlockKey *key, int64 slot);
extern void dlock_owners_met(const DlockKey *key, int64 slot);
extern int	dlock_owners_added(const DlockKey *key, int64 slot);
extern int	dlock_owners_removed(const DlockKey *key, int64 slot);
extern void dlock_owners_subtract(int owner);

#endif							/* DLOCK_OWNERS_H */
