/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counts of what happens to locks.
 *
 * Each backend counts in a block of shared memory that no other process writes
 * to, so counting is an ordinary increment, without a lock and without an atomic
 * operation.  A reader adds up the blocks of its database.  A backend that exits
 * adds its block to the sum of the database, under the lock that readers hold,
 * so nothing is counted twice or missed.
 *
 * A reset cannot clear the blocks of others.  It makes the sum of the database
 * the negative of what the blocks contain at that moment.  A maximum cannot be
 * treated like that, so it says after how many resets it was found.
 *
 * What a transaction has changed is counted when it commits (xact.c).  What
 * failed, and every wait, is counted at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "database.h"
#include "shmem.h"
#include "stats/stats.h"

typedef struct Figures
{
	Oid			dboid;			/* InvalidOid: not in use; protected by the
								 * lock, as is the rest of a block in that
								 * state */
	uint32		resets;			/* yield_max is from after this many resets */
	int64		counts[DLOCK_NSTATS];
	int64		waits[DLOCK_WAIT_BUCKETS];
	int64		yield_max;
} Figures;

/* What backends that have exited have counted, less what a reset takes off. */
typedef struct Sum
{
	Figures		block;			/* protected by the lock */
	TimestampTz reset_at;
} Sum;

typedef struct Shared
{
	TimestampTz started;		/* read-only */
	Sum			sums[DLOCK_MAX_DATABASES];	/* as in database.c */
	Figures		blocks[FLEXIBLE_ARRAY_MEMBER];	/* by process number */
} Shared;

static Shared *shared = NULL;

/* of this backend; NULL until it has something to count */
static Figures *mine = NULL;
static Sum *sum_of_mine = NULL;

static const int64 uppers[DLOCK_WAIT_BUCKETS] = {
	INT64CONST(1000), INT64CONST(2000), INT64CONST(5000),
	INT64CONST(10000), INT64CONST(20000), INT64CONST(50000),
	INT64CONST(100000), INT64CONST(200000), INT64CONST(500000),
	INT64CONST(1000000), INT64CONST(2000000), INT64CONST(5000000),
	INT64CONST(10000000), INT64CONST(30000000), INT64CONST(60000000),
	INT64CONST(300000000), INT64CONST(1800000000), DLOCK_NEVER
};

Size
dlock_stats_shmem_size(void)
{
	return add_size(offsetof(Shared, blocks), mul_size(MaxBackends, sizeof(Figures)));
}

void
dlock_stats_shmem_init(void)
{
	bool		found;

	shared = ShmemInitStruct("dlock statistics", dlock_stats_shmem_size(), &found);
	if (found)
		return;
	memset(shared, 0, dlock_stats_shmem_size());
	shared->started = GetCurrentTimestamp();
}

/* The upper bound of a bucket; the wait is at most that long. */
int64
dlock_stats_bucket_upper(int bucket)
{
	return uppers[bucket];
}

/*
 * The sum of this database, or NULL if database.c has no slot for it.  The lock
 * must be held exclusively.
 */
static Sum *
own_sum(const DlockDatabase *db)
{
	Sum		   *sum;

	if (db == NULL)
		return NULL;
	sum = &shared->sums[dlock_database_number(db)];
	if (sum->block.dboid != MyDatabaseId)
	{
		/* the slot had no database, or one that is gone */
		memset(sum, 0, sizeof(*sum));
		sum->block.dboid = MyDatabaseId;
		sum->reset_at = shared->started;
	}
	return sum;
}

static void
add_block(Figures *to, const Figures *from)
{
	for (int i = 0; i < DLOCK_NSTATS; i++)
		to->counts[i] += from->counts[i];
	for (int i = 0; i < DLOCK_WAIT_BUCKETS; i++)
		to->waits[i] += from->waits[i];
	if (from->resets == to->resets)
		to->yield_max = Max(to->yield_max, from->yield_max);
}

/* After the grants of this session were released, which counts, too. */
static void
hand_over(int code, Datum arg)
{
	LWLockAcquire(dlock_lwlock_stats(), LW_EXCLUSIVE);
	if (sum_of_mine != NULL && sum_of_mine->block.dboid == mine->dboid)
		add_block(&sum_of_mine->block, mine);
	memset(mine, 0, sizeof(*mine));
	LWLockRelease(dlock_lwlock_stats());
	mine = NULL;
}

/* Call this before something that must not fail counts. */
void
dlock_stats_attach(void)
{
	DlockDatabase *db;
	Figures    *block;

	if (likely(mine != NULL))
		return;

	db = dlock_database(MyDatabaseId);
	on_shmem_exit(hand_over, (Datum) 0);
	block = &shared->blocks[DLOCK_MY_PROCNO];
	LWLockAcquire(dlock_lwlock_stats(), LW_EXCLUSIVE);
	sum_of_mine = own_sum(db);
	memset(block, 0, sizeof(*block));
	block->dboid = MyDatabaseId;
	mine = block;
	LWLockRelease(dlock_lwlock_stats());
}

void
dlock_stats_count(DlockStat stat)
{
	dlock_stats_attach();
	mine->counts[stat]++;
}

/* An acquire that does not wait was not granted. */
void
dlock_stats_busy(const DlockKey *key)
{
	dlock_stats_count(DLOCK_STAT_BUSY);
	dlock_contended_keys_busy(key);
}

/* A wait for the turn has ended, in whatever way. */
void
dlock_stats_waited(const DlockKey *key, int64 us, bool timed_out)
{
	int			bucket = 0;

	us = Max(us, 0);
	while (us > uppers[bucket])
		bucket++;

	dlock_stats_count(DLOCK_STAT_WAITS);
	mine->counts[DLOCK_STAT_WAIT_TIME] += us;
	mine->waits[bucket]++;
	if (timed_out)
		mine->counts[DLOCK_STAT_TIMEOUTS]++;
	dlock_contended_keys_waited(key, us);
}

/* At the commit of a release that was asked for so long ago. */
void
dlock_stats_yielded(int64 us)
{
	uint32		resets = sum_of_mine != NULL ? sum_of_mine->block.resets : 0;

	us = Max(us, 0);
	mine->counts[DLOCK_STAT_YIELDED]++;
	mine->counts[DLOCK_STAT_YIELD_TIME] += us;
	if (mine->resets != resets)
	{
		mine->yield_max = 0;
		mine->resets = resets;
	}
	mine->yield_max = Max(mine->yield_max, us);
}

/* Add up what the live backends of this database have counted. */
static void
add_blocks(Figures *to)
{
	for (int i = 0; i < MaxBackends; i++)
		if (shared->blocks[i].dboid == MyDatabaseId)
			add_block(to, &shared->blocks[i]);
}

void
dlock_stats_read(DlockStats *stats)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	Figures		total = {0};
	Sum		   *sum;

	LWLockAcquire(dlock_lwlock_stats(), LW_EXCLUSIVE);
	sum = own_sum(db);
	if (sum != NULL)
		total = sum->block;
	add_blocks(&total);
	stats->reset_at = sum != NULL ? sum->reset_at : shared->started;
	LWLockRelease(dlock_lwlock_stats());

	memcpy(stats->counts, total.counts, sizeof(stats->counts));
	memcpy(stats->waits, total.waits, sizeof(stats->waits));
	stats->yield_max = total.yield_max;
}

/* All counts of this database become zero. */
void
dlock_stats_reset_all(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	Figures		live = {0};
	Sum		   *sum;

	LWLockAcquire(dlock_lwlock_stats(), LW_EXCLUSIVE);
	sum = own_sum(db);
	if (sum != NULL)
	{
		add_blocks(&live);
		for (int i = 0; i < DLOCK_NSTATS; i++)
			sum->block.counts[i] = -live.counts[i];
		for (int i = 0; i < DLOCK_WAIT_BUCKETS; i++)
			sum->block.waits[i] = -live.waits[i];
		sum->block.yield_max = 0;
		sum->block.resets++;
		sum->reset_at = GetCurrentTimestamp();
	}
	LWLockRelease(dlock_lwlock_stats());
	dlock_contended_keys_reset();
}
