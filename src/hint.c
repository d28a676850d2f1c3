/*-------------------------------------------------------------------------
 *
 * hint.c
 *	  Where the newest row version of a key was last seen.
 *
 * While any session holds an old snapshot, dead row versions of a busy key
 * pile up, and a lookup through the index walks all of them.  A hint leads
 * straight to the newest one, and spares the index on the ordinary path too.
 *
 * The cache is an array of 64-bit words: 16 bits of the key's hash, and the
 * tuple id.  A key's word is one of the eight that make up a line of the
 * processor's cache.  It is read and written atomically, without a lock.  A
 * hint may be wrong in every way (evicted, stale, of another key, of a table
 * that has been rewritten since), so store.c checks whatever it leads to; a
 * wrong hint costs a lookup, never a wrong answer.
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

/* 16 bits of tag, 32 of block, 16 of offset, which is never 0 */
#define TAG_MASK	UINT64CONST(0xFFFF000000000000)
#define EMPTY		UINT64CONST(0)

/* words a line */
#define WAYS		8

uint64
dlock_hint_hash(const char *key, int keylen)
{
	return hash_bytes_extended((const unsigned char *) key, keylen,
							   MyDatabaseId);
}

static pg_atomic_uint64 *
line_of(uint64 hash)
{
	return &dlock_shmem->hints[hash % (DLOCK_HINTS / WAYS) * WAYS];
}

bool
dlock_hint_get(uint64 hash, ItemPointer tid)
{
	pg_atomic_uint64 *line = line_of(hash);

	for (int way = 0; way < WAYS; way++)
	{
		uint64		word = pg_atomic_read_u64(&line[way]);

		if (word != EMPTY && (word & TAG_MASK) == (hash & TAG_MASK))
		{
			ItemPointerSet(tid, (BlockNumber) ((word >> 16) & 0xFFFFFFFF),
						   (OffsetNumber) (word & 0xFFFF));
			return true;
		}
	}
	return false;
}

/*
 * In the place of the key's old word, or of an empty one, or else of any.
 * That one varies with the tuple id, so that in the long run keys which are in
 * use push out those which are not, and not each other.  Two at once may take
 * two places; the first counts.
 */
void
dlock_hint_set(uint64 hash, ItemPointer tid)
{
	pg_atomic_uint64 *line = line_of(hash);
	int			place = ItemPointerGetOffsetNumber(tid) % WAYS;
	uint64		word = hash & TAG_MASK;

	word |= (uint64) ItemPointerGetBlockNumber(tid) << 16;
	word |= ItemPointerGetOffsetNumber(tid);

	for (int way = WAYS - 1; way >= 0; way--)
	{
		uint64		old = pg_atomic_read_u64(&line[way]);

		if (old == EMPTY || (old & TAG_MASK) == (hash & TAG_MASK))
			place = way;
	}
	pg_atomic_write_u64(&line[place], word);
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
