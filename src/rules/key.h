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
#ifndef DLOCK_RULES_KEY_H
#define DLOCK_RULES_KEY_H

#include "common/hashfn.h"
#include "miscadmin.h"

/* the longest texts, in bytes; scripts/facts compares the client's copy */
#define DLOCK_MAX_KEY		1024
#define DLOCK_MAX_OWNER		1024
#define DLOCK_MAX_VALUE		65536
#define DLOCK_MAX_TICKET_VALUE	1024

#define DLOCK_HEAD			INT64CONST(0)

/* instead of one slot: the head and all places, all places, none */
#define DLOCK_ALL_SLOTS		INT64CONST(-1)
#define DLOCK_ALL_PLACES	INT64CONST(-2)
#define DLOCK_NO_SLOT		INT64CONST(-3)

/* the slots of places that have an owner begin here, far above all versions; places.c */
#define DLOCK_OWNED_SLOTS	(INT64CONST(1) << 62)

typedef struct DlockKey
{
	const char *data;
	int			len;
	uint64		hash;			/* of key and database, in this run of the
								 * server */
} DlockKey;

/*
 * Random, and new whenever shared memory is (shmem.c).  Hashes that a client could
 * compute would let it choose thousands of keys with one hash, or an owner that is
 * taken for another role's.  So no hash of a key or an owner is stored on disk.
 */
extern uint64 dlock_key_seed;

/* The hash of a text, "of" a database or a role. */
static inline uint64
dlock_key_hash_text(const char *data, int len, Oid of)
{
	return hash_bytes_extended((const unsigned char *) data, len, dlock_key_seed + of);
}

/* A key of the current database. */
static inline void
dlock_key_set(DlockKey *key, const char *data, int len)
{
	key->data = data;
	key->len = len;
	key->hash = dlock_key_hash_text(data, len, MyDatabaseId);
}

/* The order of keys in the index: that of their bytes. */
static inline int
dlock_key_compare(const char *a, int alen, const char *b, int blen)
{
	int			order = memcmp(a, b, Min(alen, blen));

	return order != 0 ? order : alen - blen;
}

/* The hash of a key and a slot. */
static inline uint64
dlock_key_slot_hash(const DlockKey *key, int64 slot)
{
	return slot == DLOCK_HEAD ? key->hash : hash_combine64(key->hash, (uint64) slot);
}

#endif							/* DLOCK_RULES_KEY_H */
