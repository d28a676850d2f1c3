/*-------------------------------------------------------------------------
 *
 * reenter.h
 *	  Acquiring a lock that this handle already holds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_REENTER_H
#define DLOCK_REENTER_H

#include "handle.h"

/* A call that is about to acquire a key; it exists while that lasts. */
typedef struct DlockEntry
{
	struct DlockEntry *next;
	const char *key;
} DlockEntry;

extern dlock_status dlock_reenter(dlock_handle *handle, DlockEntry *entry,
								  const char *key, int32_t slots, int64_t wait_until,
								  dlock_lock **lock, dlock_error *err);
extern dlock_status dlock_reenter_again(dlock_handle *handle, const char *key,
										int32_t slots, dlock_lock **lock);
extern void dlock_reenter_end(dlock_handle *handle, DlockEntry *entry);

#endif							/* DLOCK_REENTER_H */
