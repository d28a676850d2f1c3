/*-------------------------------------------------------------------------
 *
 * expiry.c
 *	  Where in the table the next row falls due.
 *
 * The reaper must not read millions of rows to find the one that has expired.  So
 * shared memory has a lower bound for every few blocks of the table: no row in them
 * falls due before that time.  A pass of the reaper reads the blocks whose bound has
 * passed, and costs what is due, not what is there.
 *
 * Nothing but the reaper raises a bound.  It takes the bound away ("never"), reads the
 * blocks, and lowers the bound to what it finds.  A process that writes a row puts it
 * into its block first and lowers the bound of that block then.  So a bound is never too
 * high: either the reaper reads the row, whether or not its transaction has ended, or the
 * writer lowers the bound after the reaper has taken the old one away.  The reaper counts
 * every version that is not dead for all: the one that a snapshot shows may be followed
 * by one that is not committed yet, and that one may be rolled back.
 *
 * A bound may be too low, because a row was renewed or deleted.  That costs a visit.
 *
 * Zero stands for unknown, which is always due.  All bounds are unknown after a start,
 * after the table was rewritten, and after rows may have come that nobody has noted
 * (places.c).  If the reaper fails while it reads, all are unknown again
 * (DlockProgress.reading).
 *
 * Memory.  A bound is a slot of four bytes.  Slots come in segments, which a database
 * gets when its table grows.  If there are no more segments, those blocks stay unknown.
 * A database has LIMIT slots at most.  In a larger table several pieces of LIMIT * BLOCKS
 * blocks share the slots.  A database that is dropped leaves its segments to the next one
 * that gets its place in the array of databases.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "storage/shmem.h"

#include "clock.h"
#include "rows/expiry.h"
#include "shmem.h"

#define BLOCKS			8		/* of the table, for each slot */
#define SEGMENT_SLOTS	1024
#define SEGMENTS		1024	/* of all databases together */
#define DB_SEGMENTS		128		/* of one */
#define LIMIT			(DB_SEGMENTS * SEGMENT_SLOTS)
#define RUN_SLOTS		256		/* that are read at once, at most */

/* A bound counts in units of about 131 ms, so that four bytes last for 17 years. */
#define UNIT_BITS		17
#define UNKNOWN			0
#define NEVER			PG_UINT32_MAX

typedef struct DlockExpiry
{
	int64		base;			/* lease time of bound 1 */
	uint32		nsegments;		/* protected by the database lock */

	/* what the bounds of a new segment are; set under the database lock */
	pg_atomic_uint32 fresh[DLOCK_MAX_DATABASES];

	/*
	 * 1 + the number of the segment; 0: none yet.  Set under the database
	 * lock
	 */
	pg_atomic_uint32 segments[DLOCK_MAX_DATABASES][DB_SEGMENTS];
	pg_atomic_uint32 bounds[SEGMENTS][SEGMENT_SLOTS];
} DlockExpiry;

static DlockExpiry *shared = NULL;

Size
dlock_expiry_shmem_size(void)
{
	return sizeof(DlockExpiry);
}

/*
 * Fresh shared memory is zero, which is what all of it has to be.  So it is not written
 * here, and what is never used takes no memory.
 */
void
dlock_expiry_shmem_init(void)
{
	bool		found;

	shared = ShmemInitStruct("dlock expiry", sizeof(DlockExpiry), &found);
	if (!found)
		shared->base = dlock_clock_now();
}

/* The slot, or NULL if there is no segment for it. */
static pg_atomic_uint32 *
find_slot(DlockDatabase *db, uint32 slot)
{
	uint32		segment = pg_atomic_read_u32(&shared->segments[dlock_database_number(db)]
											 [slot / SEGMENT_SLOTS]);

	if (segment == 0)
		return NULL;
	return &shared->bounds[segment - 1][slot % SEGMENT_SLOTS];
}

/* The same, but with a new segment if there is one left. */
static pg_atomic_uint32 *
get_slot(DlockDatabase *db, uint32 slot)
{
	pg_atomic_uint32 *found = find_slot(db, slot);
	pg_atomic_uint32 *segment;

	if (likely(found != NULL))
		return found;
	segment = &shared->segments[dlock_database_number(db)][slot / SEGMENT_SLOTS];
	LWLockAcquire(dlock_lwlock_database(), LW_EXCLUSIVE);
	if (pg_atomic_read_u32(segment) == 0 && shared->nsegments < SEGMENTS)
	{
		uint32		fresh = pg_atomic_read_u32(&shared->fresh[dlock_database_number(db)]);

		for (int i = 0; i < SEGMENT_SLOTS; i++)
			pg_atomic_write_u32(&shared->bounds[shared->nsegments][i], fresh);
		pg_write_barrier();
		pg_atomic_write_u32(segment, ++shared->nsegments);
	}
	LWLockRelease(dlock_lwlock_database());
	return find_slot(db, slot);
}

static uint32
slot_of(BlockNumber block)
{
	return block / BLOCKS % LIMIT;
}

/* How many slots a table of this size has. */
static uint32
count_slots(BlockNumber nblocks)
{
	return Min((nblocks + (uint64) BLOCKS - 1) / BLOCKS, LIMIT);
}

/* Rounded down, so that it is a lower bound. */
static uint32
make_bound(int64 when)
{
	if (when <= shared->base)
		return 1;
	return (uint32) Min(((when - shared->base) >> UNIT_BITS) + 1, (int64) NEVER - 1);
}

/* A bound has passed when all times that it may stand for have. */
static int64
passes_at(uint32 bound)
{
	return bound == NEVER ? DLOCK_NEVER :
		shared->base + ((int64) bound << UNIT_BITS);
}

static void
lower(pg_atomic_uint32 *slot, uint32 bound)
{
	uint32		old = pg_atomic_read_u32(slot);

	while (bound < old && !pg_atomic_compare_exchange_u32(slot, &old, bound))
		;
}

/*
 * A row in this block falls due at the given lease time.  Called by whatever has put a
 * row there, before its transaction ends, and by the reaper for each row that stays.  No
 * LWLock is held.
 */
void
dlock_expiry_note(DlockDatabase *db, BlockNumber block, int64 when)
{
	pg_atomic_uint32 *slot;

	if (db == NULL)
		return;
	slot = get_slot(db, slot_of(block));
	if (slot == NULL)
		return;

	/*
	 * the row is in its block; pairs with the exchange in
	 * dlock_expiry_begin()
	 */
	pg_memory_barrier();
	lower(slot, make_bound(when));
}

/*
 * Nothing is known of any block.  The caller then reads the size of the table, and says
 * which blocks there are (dlock_expiry_unknown()).  What is added after that is noted by
 * whoever adds it, so a table that grows need not be read again.
 */
void
dlock_expiry_forget(DlockDatabase *db)
{
	LWLockAcquire(dlock_lwlock_database(), LW_EXCLUSIVE);
	pg_atomic_write_u32(&shared->fresh[dlock_database_number(db)], NEVER);
	LWLockRelease(dlock_lwlock_database());
	for (uint32 i = 0; i < LIMIT; i++)
	{
		pg_atomic_uint32 *slot = find_slot(db, i);

		if (slot != NULL)
			pg_atomic_write_u32(slot, NEVER);
	}
	pg_memory_barrier();
}

/* Every one of these blocks may have a row that is due. */
void
dlock_expiry_unknown(DlockDatabase *db, BlockNumber nblocks)
{
	uint32		nslots = count_slots(nblocks);

	for (uint32 i = 0; i < nslots; i++)
	{
		pg_atomic_uint32 *slot = get_slot(db, i);

		if (slot != NULL)
			pg_atomic_write_u32(slot, UNKNOWN);
	}
}

static bool
is_due(DlockDatabase *db, uint32 slot, int64 now)
{
	pg_atomic_uint32 *bound = find_slot(db, slot);

	return bound == NULL || passes_at(pg_atomic_read_u32(bound)) <= now;
}

/*
 * The first slots from the given one on that are due and follow each other.  Their
 * bounds are taken away, so the caller must read all of their blocks, or say which it has
 * not.  If the table has more than one piece, it is one slot, so that all pieces are read.
 */
DlockDueRun
dlock_expiry_begin(DlockDatabase *db, BlockNumber nblocks, uint32 from, int64 now)
{
	uint32		nslots = count_slots(nblocks);
	uint32		max = nblocks > (uint64) LIMIT * BLOCKS ? 1 : RUN_SLOTS;
	DlockDueRun run = {.first = from};

	while (run.first < nslots && !is_due(db, run.first, now))
		run.first++;
	while (run.n < max && run.first + run.n < nslots &&
		   is_due(db, run.first + run.n, now))
	{
		pg_atomic_uint32 *slot = get_slot(db, run.first + run.n);

		if (slot != NULL)
			(void) pg_atomic_exchange_u32(slot, NEVER);
		run.n++;
	}
	return run;
}

/* The blocks of a run in a piece of the table.  False: there is no such piece. */
bool
dlock_expiry_blocks(const DlockDueRun *run, BlockNumber nblocks, int piece,
					BlockNumber *first, BlockNumber *n)
{
	uint64		start = ((uint64) piece * LIMIT + run->first) * BLOCKS;

	if (run->n == 0 || start >= nblocks)
		return false;
	*first = (BlockNumber) start;
	*n = (BlockNumber) Min((uint64) run->n * BLOCKS, nblocks - start);
	return true;
}

/* May the caller stop after this block?  A slot has to be read to its end. */
bool
dlock_expiry_may_stop(const DlockDueRun *run, BlockNumber block)
{
	return run->n > 1 && block % BLOCKS == BLOCKS - 1;
}

/* The caller has stopped before this block: the run ends there. */
void
dlock_expiry_stop(DlockDatabase *db, DlockDueRun *run, BlockNumber block)
{
	uint32		n = slot_of(block) - run->first;

	while (run->n > n)
	{
		pg_atomic_uint32 *slot = find_slot(db, run->first + --run->n);

		if (slot != NULL)
			pg_atomic_write_u32(slot, UNKNOWN);
	}
}

/* Are there slots from the given one on? */
bool
dlock_expiry_more(BlockNumber nblocks, uint32 from)
{
	return from < count_slots(nblocks);
}

/* When the first bound passes. */
int64
dlock_expiry_earliest(DlockDatabase *db, BlockNumber nblocks)
{
	uint32		nslots = count_slots(nblocks);
	uint32		earliest = NEVER;

	for (uint32 i = 0; i < nslots; i++)
	{
		pg_atomic_uint32 *slot = find_slot(db, i);

		earliest = Min(earliest, slot == NULL ? UNKNOWN : pg_atomic_read_u32(slot));
	}
	return passes_at(earliest);
}
