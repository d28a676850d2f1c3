/*-------------------------------------------------------------------------
 *
 * hint.h
 *	  Where the newest row version of a place was last seen.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HINT_H
#define DLOCK_HINT_H

#include "storage/itemptr.h"

extern Size dlock_hint_shmem_size(void);
extern void dlock_hint_shmem_init(void);

extern bool dlock_hint_get(uint64 place, ItemPointer tid);
extern void dlock_hint_set(uint64 place, ItemPointer tid);

#endif							/* DLOCK_HINT_H */
