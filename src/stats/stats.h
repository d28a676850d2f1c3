/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Counts of what happens to locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STATS_STATS_H
#define DLOCK_STATS_STATS_H

#include "datatype/timestamp.h"

#include "rules/key.h"

/* In the order of the columns of dlock_stats. */
typedef enum DlockStat
{
	DLOCK_STAT_GRANTS,
	DLOCK_STAT_RENEWALS,
	DLOCK_STAT_RELEASES,
	DLOCK_STAT_BUSY,
	DLOCK_STAT_WAITS,
	DLOCK_STAT_WAIT_TIME,		/* us */
	DLOCK_STAT_TIMEOUTS,
	DLOCK_STAT_DEADLOCKS,
	DLOCK_STAT_EXPIRED,
	DLOCK_STAT_LAPSED_TAKEN,
	DLOCK_STAT_ASKED,
	DLOCK_STAT_YIELDED,
	DLOCK_STAT_YIELD_TIME,		/* us */
	DLOCK_STAT_PREEMPTED,
	DLOCK_STAT_FORCED,
	DLOCK_STAT_FENCE_REJECTED,
	DLOCK_STAT_TICKETS_REFUSED
} DlockStat;

#define DLOCK_NSTATS	(DLOCK_STAT_TICKETS_REFUSED + 1)

/* The last bucket has no upper bound. */
#define DLOCK_WAIT_BUCKETS	18

/* The sums of a database. */
typedef struct DlockStats
{
	int64		counts[DLOCK_NSTATS];
	int64		waits[DLOCK_WAIT_BUCKETS];	/* by how long they took */
	int64		yield_max;		/* us */
	TimestampTz reset_at;
} DlockStats;

extern Size dlock_stats_shmem_size(void);
extern void dlock_stats_shmem_init(void);

extern void dlock_stats_attach(void);
extern void dlock_stats_count(DlockStat stat);
extern void dlock_stats_busy(const DlockKey *key);
extern void dlock_stats_waited(const DlockKey *key, int64 us, bool timed_out);
extern void dlock_stats_yielded(int64 us);

extern int64 dlock_stats_bucket_upper(int bucket);
extern void dlock_stats_read(DlockStats *stats);
extern void dlock_stats_reset_all(void);

/* contended_keys.c: the keys that are most waited for, or lost most often */

#define DLOCK_MAX_CONTENDED	100

typedef struct DlockContended
{
	int64		weight;			/* for the order */
	int64		busy;
	int64		waits;
	int64		wait_time;		/* us */
	int64		lost;
	int			keylen;
	char		key[DLOCK_MAX_KEY];
} DlockContended;

extern Size dlock_contended_keys_shmem_size(void);
extern void dlock_contended_keys_shmem_init(void);

extern void dlock_contended_keys_busy(const DlockKey *key);
extern void dlock_contended_keys_waited(const DlockKey *key, int64 us);
extern void dlock_contended_keys_lost(const DlockKey *key);
extern DlockContended *dlock_contended_keys_list(int *n);
extern void dlock_contended_keys_reset(void);

#endif							/* DLOCK_STATS_STATS_H */
