/*-------------------------------------------------------------------------
 *
 * hint.c
 *	  Where the newest row version of a place was last seen.
 *
 * While a session holds an old snapshot, the dead row versions of a busy key
 * pile up, and a lookup through the index reads all of them.  A hint leads
 * straight to the newest one.  It saves the index on the ordinary path, too.
 *
 * The cache is an array of 64-bit words.  A word has 16 bits of the hash of
 * its place, and a tuple id.  The low bits of the hash choose one line of the
 * processor's cache, and a place may use any of the eight words there.  Words
 * are read and written atomically, without a lock.  A hint may be wrong in
 * every way: evicted, stale, of another place, of a table that has been
 * rewritten since.  So find.c checks whatever it leads to; a wrong hint costs a
 * lookup, never a wrong answer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "fmgr.h"
#include "port/atomics.h"
#include "storage/shmem.h"

#include "compat.h"
#include "hint.h"
#include "key.h"

#define HINTS		(1 << 18)

/* 16 bits of tag, 32 of block, 16 of offset, which is never 0 */
#define TAG_MASK	UINT64CONST(0xFFFF000000000000)
#define EMPTY		UINT64CONST(0)

/* words in a line */
#define WAYS		8

static pg_atomic_uint64 *hints = NULL;

Size
dlock_hint_shmem_size(void)
{
	return HINTS * sizeof(pg_atomic_uint64);
}

void
dlock_hint_shmem_init(void)
{
	bool		found;

	/* shared memory is aligned to cache lines, as a line of ours has to be */
	hints = ShmemInitStruct("dlock hints", dlock_hint_shmem_size(), &found);
	if (!found)
		for (int i = 0; i < HINTS; i++)
			pg_atomic_init_u64(&hints[i], EMPTY);
}

static pg_atomic_uint64 *
line_of(uint64 place)
{
	return &hints[place % (HINTS / WAYS) * WAYS];
}

bool
dlock_hint_get(uint64 place, ItemPointer tid)
{
	pg_atomic_uint64 *line = line_of(place);

	for (int way = 0; way < WAYS; way++)
	{
		uint64		word = pg_atomic_read_u64(&line[way]);

		if (word != EMPTY && (word & TAG_MASK) == (place & TAG_MASK))
		{
			ItemPointerSet(tid, (BlockNumber) ((word >> 16) & 0xFFFFFFFF),
						   (OffsetNumber) (word & 0xFFFF));
			return true;
		}
	}
	return false;
}

/*
 * Replace the old word of this place, or else an empty one, or else any.  Which
 * one that is depends on the tuple id, so that in the long run places that are
 * in use push out those that are not, and not each other.  Two processes at
 * once may use two words; the first one counts.
 */
void
dlock_hint_set(uint64 place, ItemPointer tid)
{
	pg_atomic_uint64 *line = line_of(place);
	int			chosen = ItemPointerGetOffsetNumber(tid) % WAYS;
	uint64		word = place & TAG_MASK;

	word |= (uint64) ItemPointerGetBlockNumber(tid) << 16;
	word |= ItemPointerGetOffsetNumber(tid);

	for (int way = WAYS - 1; way >= 0; way--)
	{
		uint64		old = pg_atomic_read_u64(&line[way]);

		if (old == EMPTY || (old & TAG_MASK) == (place & TAG_MASK))
			chosen = way;
	}
	pg_atomic_write_u64(&line[chosen], word);
}

/*
 * For the tests only: the extension's script declares no SQL functions for them.
 */

PG_FUNCTION_INFO_V1(dlock_test_lose_hints);
PG_FUNCTION_INFO_V1(dlock_test_set_hint);
PG_FUNCTION_INFO_V1(dlock_test_poison_hints);

static void
require_hints(void)
{
	if (hints == NULL)
		elog(ERROR, "dlock is not loaded via \"shared_preload_libraries\"");
}

/* Forgets all hints. */
Datum
dlock_test_lose_hints(PG_FUNCTION_ARGS)
{
	require_hints();
	for (int i = 0; i < HINTS; i++)
		pg_atomic_write_u64(&hints[i], EMPTY);
	PG_RETURN_VOID();
}

static void
set_hint_of(text *arg, int64 slot, ItemPointer tid)
{
	DlockKey	key;

	require_hints();
	dlock_key_set(&key, VARDATA_ANY(arg), VARSIZE_ANY_EXHDR(arg));
	dlock_hint_set(dlock_key_slot(&key, slot), tid);
}

/* Stores a hint for the given key and slot, or version of a place. */
Datum
dlock_test_set_hint(PG_FUNCTION_ARGS)
{
	set_hint_of(PG_GETARG_TEXT_PP(0), PG_GETARG_INT64(1),
				(ItemPointer) PG_GETARG_POINTER(2));
	PG_RETURN_VOID();
}

/*
 * Stores a hint for the head of the given key whose tuple id is right, wrong or
 * impossible by chance.
 */
Datum
dlock_test_poison_hints(PG_FUNCTION_ARGS)
{
	int32		blocks = PG_GETARG_INT32(1);
	uint64		dice = pg_prng_uint64(&pg_global_prng_state);
	ItemPointerData tid;

	ItemPointerSet(&tid, (BlockNumber) (dice % ((uint64) blocks + 1)),
				   (OffsetNumber) ((dice >> 32) % 400 + 1));
	if (dice >> 60 == 0)
		ItemPointerSet(&tid, MaxBlockNumber, FirstOffsetNumber);
	set_hint_of(PG_GETARG_TEXT_PP(0), DLOCK_HEAD, &tid);
	PG_RETURN_VOID();
}
