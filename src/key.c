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
