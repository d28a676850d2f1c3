/*-------------------------------------------------------------------------
 *
 * shard_of.h
 *	  The shard of a key.
 *
 * It is the last ten bits of the CRC-32 (that of zlib, Ethernet and PNG) of the
 * UTF-8 form of the key.  This must never change, and every client can compute
 * it.  The router, which is a module of its own, includes this file too.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SHARD_SHARD_OF_H
#define DLOCK_SHARD_SHARD_OF_H

#include "mb/pg_wchar.h"
#include "utils/pg_crc.h"

#define DLOCK_SHARDS	1024

static inline int
dlock_shard_of(const char *key, int keylen)
{
	char	   *utf8 = pg_server_to_any(key, keylen, PG_UTF8);
	pg_crc32	crc;

	INIT_TRADITIONAL_CRC32(crc);
	COMP_TRADITIONAL_CRC32(crc, utf8, utf8 == key ? keylen : strlen(utf8));
	FIN_TRADITIONAL_CRC32(crc);
	if (utf8 != key)
		pfree(utf8);
	return crc % DLOCK_SHARDS;
}

#endif							/* DLOCK_SHARD_SHARD_OF_H */
