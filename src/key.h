/*-------------------------------------------------------------------------
 *
 * key.h
 *	  A lock's key, and the places of a key.
 *
 * A place is a key and a slot; each row of dlock.locks is one place.  Slot 0
 * is the place of the exclusive grant.  Whatever concerns a key as a whole goes
 * by the key's hash: the partition locks and the queue.  The hint cache goes by
 * the hash of the place.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KEY_H
#define DLOCK_KEY_H

#include "common/hashfn.h"

#define DLOCK_MAX_KEY		1024
#define DLOCK_MAX_OWNER		1024

#define DLOCK_EXCLUSIVE_SLOT	0

typedef struct DlockKey
{
	const char *data;
	int			len;
	uint64		hash;			/* of key and database */
} DlockKey;

extern void dlock_key_set(DlockKey *key, const char *data, int len);

static inline uint64
dlock_key_place(const DlockKey *key, int16 slot)
{
	return slot == DLOCK_EXCLUSIVE_SLOT ? key->hash :
		hash_combine64(key->hash, (uint64) slot);
}

#endif							/* DLOCK_KEY_H */
