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

extern Size dlock_owners_shmem_size(void);
extern void dlock_owners_shmem_init(void);

extern bool dlock_owners_may_have(const DlockKey *key, int64 slot);
extern void dlock_owners_restored(const DlockKey *key, int64 slot);
extern void dlock_owners_met(const DlockKey *key, int64 slot);
extern void dlock_owners_added(const DlockKey *key, int64 slot);
extern void dlock_owners_removed(const DlockKey *key, int64 slot);
extern void dlock_owners_at_end(bool committed);
extern void dlock_owners_at_abort_sub(SubTransactionId subid);

#endif							/* DLOCK_OWNERS_H */
