/*-------------------------------------------------------------------------
 *
 * key.h
 *	  A lock's key, and the places of a key.
 *
 * A key has a head and places.  Each is a row of dlock.locks, which is named by
 * the key and a slot.  The head, slot 0, is the exclusive grant.  A place is one
 * of several grants that exist at once.  Its slot follows from its role and
 * owner, so that an owner finds its own place, and has one only.  The slot of a
 * place without an owner is its version.
 *
 * Whatever concerns a key as a whole goes by the key's hash: the partition
 * locks and the queue.  The hint cache goes by the hash of key and slot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KEY_H
#define DLOCK_KEY_H

#include "common/hashfn.h"

#define DLOCK_MAX_KEY		1024
#define DLOCK_MAX_OWNER		1024

#define DLOCK_HEAD			INT64CONST(0)
#define DLOCK_ALL_SLOTS		INT64CONST(-1)

/* the slots of places that have an owner begin here, far above all versions */
#define DLOCK_OWNED_SLOTS	(INT64CONST(1) << 62)

typedef struct DlockKey
{
	const char *data;
	int			len;
	uint64		hash;			/* of key and database */
} DlockKey;

extern void dlock_key_set(DlockKey *key, const char *data, int len);

extern int64 dlock_key_owner_slot(Oid role, const char *owner);

static inline uint64
dlock_key_slot(const DlockKey *key, int64 slot)
{
	return slot == DLOCK_HEAD ? key->hash : hash_combine64(key->hash, (uint64) slot);
}

#endif							/* DLOCK_KEY_H */
