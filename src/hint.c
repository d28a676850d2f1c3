/*-------------------------------------------------------------------------
 *
 * hint.c
 *	  Where the newest row version of a key was last seen.
 *
 * While any session holds an old snapshot, dead row versions of a busy key
 * pile up, and a lookup through the index walks all of them.  A hint leads
 * straight to the newest one, and spares the index on the ordinary path too.
 *
 * The cache is a direct-mapped array of 64-bit words: 16 bits of the key's
 * hash, and the tuple id.  One word is read and written atomically, without a
 * lock.  A hint may be wrong in every way (evicted, stale, of another key, of
 * a table that has been rewritten since), so store.c checks whatever it leads
 * to; a wrong hint costs a lookup, never a wrong answer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "compat.h"
#include "hint.h"
#include "shmem.h"

#define TAG_MASK	UINT64CONST(0xFFFF000000000000)

uint64
dlock_hint_hash(const char *key, int keylen)
{
	return hash_bytes_extended((const unsigned char *) key, keylen,
							   MyDatabaseId);
}

bool
dlock_hint_get(uint64 hash, ItemPointer tid)
{
	uint64		word = pg_atomic_read_u64(&dlock_shmem->hints[hash % DLOCK_HINTS]);
	OffsetNumber offset = (OffsetNumber) (word & 0xFFFF);

	if ((word & TAG_MASK) != (hash & TAG_MASK) || !OffsetNumberIsValid(offset))
		return false;
	ItemPointerSet(tid, (BlockNumber) ((word >> 16) & 0xFFFFFFFF), offset);
	return true;
}

void
dlock_hint_set(uint64 hash, ItemPointer tid)
{
	/* 16 bits of tag, 32 of block, 16 of offset */
	uint64		word = hash & TAG_MASK;

	word |= (uint64) ItemPointerGetBlockNumber(tid) << 16;
	word |= ItemPointerGetOffsetNumber(tid);
	pg_atomic_write_u64(&dlock_shmem->hints[hash % DLOCK_HINTS], word);
}

PG_FUNCTION_INFO_V1(dlock_test_poison_hints);

/*
 * For the tests only; no SQL function is made of it at installation.  Fills
 * the cache with words whose tag is right for the key given, and whose tuple
 * id is right, wrong or impossible by chance.
 */
Datum
dlock_test_poison_hints(PG_FUNCTION_ARGS)
{
	text	   *key = PG_GETARG_TEXT_PP(0);
	int32		blocks = PG_GETARG_INT32(1);
	uint64		hash = dlock_hint_hash(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	uint64		dice;
	ItemPointerData tid;

	dlock_shmem_require();
	dice = pg_prng_uint64(&pg_global_prng_state);
	ItemPointerSet(&tid, (BlockNumber) (dice % ((uint64) blocks + 1)),
				   (OffsetNumber) ((dice >> 32) % 400 + 1));
	if (dice >> 60 == 0)
		ItemPointerSet(&tid, MaxBlockNumber, FirstOffsetNumber);
	dlock_hint_set(hash, &tid);
	PG_RETURN_VOID();
}
