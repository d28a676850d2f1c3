/*-------------------------------------------------------------------------
 *
 * row_hint.c
 *	  Where the newest version of a row was last seen.
 *
 * While a session holds an old snapshot, the dead row versions of a busy key
 * pile up, and a lookup through the index reads all of them.  A hint leads
 * straight to the newest one.  It saves the index on the ordinary path, too.
 *
 * The cache is an array of 64-bit words.  A row is named by a hash of its key and
 * slot, or of its key and version (dlock_key_slot_hash()).  A word has 16 bits of
 * that hash, and a tuple id.  The low bits of the hash choose one line of the
 * processor's cache, and a row may use any of the eight words there.  Words
 * are read and written atomically, without a lock.  A hint may be wrong in
 * every way: evicted, stale, of another row, of a table that has been
 * rewritten since.  So find.c checks whatever it leads to; a wrong hint costs a
 * lookup, never a wrong answer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "storage/shmem.h"

#include "compat.h"
#include "rows/row_hint.h"
#include "rules/key.h"

#define HINTS		(1 << 18)

/* 16 bits of tag, 32 of block, 16 of offset, which is never 0 */
#define TAG_MASK	UINT64CONST(0xFFFF000000000000)
#define EMPTY		UINT64CONST(0)

/* words in a line */
#define WAYS		8

static pg_atomic_uint64 *hints = NULL;

Size
dlock_row_hint_shmem_size(void)
{
	return HINTS * sizeof(pg_atomic_uint64);
}

void
dlock_row_hint_shmem_init(void)
{
	bool		found;

	/* shared memory is aligned to cache lines, as a line of ours has to be */
	hints = ShmemInitStruct("dlock hints", dlock_row_hint_shmem_size(), &found);
	if (!found)
		for (int i = 0; i < HINTS; i++)
			pg_atomic_init_u64(&hints[i], EMPTY);
}

static pg_atomic_uint64 *
line_of(uint64 row)
{
	return &hints[row % (HINTS / WAYS) * WAYS];
}

bool
dlock_row_hint_get(uint64 row, ItemPointer tid)
{
	pg_atomic_uint64 *line = line_of(row);

	for (int way = 0; way < WAYS; way++)
	{
		uint64		word = pg_atomic_read_u64(&line[way]);

		if (word != EMPTY && (word & TAG_MASK) == (row & TAG_MASK))
		{
			ItemPointerSet(tid, (BlockNumber) ((word >> 16) & 0xFFFFFFFF),
						   (OffsetNumber) (word & 0xFFFF));
			return true;
		}
	}
	return false;
}

/*
 * Replace the old word of this row, or else an empty one, or else any.  Which
 * one that is depends on the tuple id, so that in the long run rows that are
 * in use push out those that are not, and not each other.  Two processes at
 * once may use two words; the first one counts.
 */
void
dlock_row_hint_set(uint64 row, ItemPointer tid)
{
	pg_atomic_uint64 *line = line_of(row);
	int			chosen = ItemPointerGetOffsetNumber(tid) % WAYS;
	uint64		word = row & TAG_MASK;

	word |= (uint64) ItemPointerGetBlockNumber(tid) << 16;
	word |= ItemPointerGetOffsetNumber(tid);

	for (int way = WAYS - 1; way >= 0; way--)
	{
		uint64		old = pg_atomic_read_u64(&line[way]);

		if (old == EMPTY || (old & TAG_MASK) == (row & TAG_MASK))
			chosen = way;
	}
	pg_atomic_write_u64(&line[chosen], word);
}
