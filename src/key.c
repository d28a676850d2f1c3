/*-------------------------------------------------------------------------
 *
 * key.c
 *	  A lock's key.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "key.h"

void
dlock_key_set(DlockKey *key, const char *data, int len)
{
	key->data = data;
	key->len = len;
	key->hash = hash_bytes_extended((const unsigned char *) data, len,
									MyDatabaseId);
}

/*
 * The slot of an owner's place.  Two owners whose hashes are the same would stand
 * in each other's way; with 62 bits that does not happen by chance.
 */
int64
dlock_key_owner_slot(Oid role, const char *owner)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) owner,
										   strlen(owner), role);

	return DLOCK_OWNED_SLOTS + (int64) (hash >> 2);
}
