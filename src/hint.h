/*-------------------------------------------------------------------------
 *
 * hint.h
 *	  Where the newest row version of a key was last seen.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HINT_H
#define DLOCK_HINT_H

#include "storage/itemptr.h"

extern uint64 dlock_hint_hash(const char *key, int keylen);
extern bool dlock_hint_get(uint64 hash, ItemPointer tid);
extern void dlock_hint_set(uint64 hash, ItemPointer tid);

#endif							/* DLOCK_HINT_H */
