/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Lease time: the clock that decides when a lock expires.
 *
 * Lease time is the wall clock at the start of the server plus the monotonic
 * time since then, in microseconds.  A step of the wall clock does not move it.
 *
 * A run of the server is the life of its shared memory: it begins when the
 * postmaster starts, or when it starts everything again after a crash.  Each
 * run has a random number, which is stored with every grant.  A time that was
 * stored by another run is never compared with the clock of this run, because
 * another machine may have written it, or it may date from before an outage.
 * Such a grant lasts one full TTL from the moment this run began to accept
 * writes, that is, from the end of recovery or of standby mode.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "access/xlog.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "clock.h"

typedef struct DlockClock
{
	/* set when shared memory is created, read-only afterwards */
	int64		base_wall;		/* TimestampTz */
	int64		base_mono;		/* monotonic clock at the same moment, us */
	int64		run;			/* names this run of the server */

	/* lease time at which this run began to accept writes; 0 = not yet */
	pg_atomic_uint64 started;
} DlockClock;

static DlockClock *shared = NULL;

static int64
monotonic_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

Size
dlock_clock_shmem_size(void)
{
	return sizeof(DlockClock);
}

void
dlock_clock_shmem_init(void)
{
	bool		found;

	shared = ShmemInitStruct("dlock clock", sizeof(DlockClock), &found);
	if (found)
		return;

	pg_atomic_init_u64(&shared->started, 0);
	shared->base_wall = GetCurrentTimestamp();
	shared->base_mono = monotonic_us();

	/* a positive number, so that it looks the same in SQL */
	do
	{
		if (!pg_strong_random(&shared->run, sizeof(shared->run)))
			elog(ERROR, "could not generate a random number for dlock");
		shared->run &= PG_INT64_MAX;
	} while (shared->run == 0);
}

int64
dlock_clock_now(void)
{
	return shared->base_wall + (monotonic_us() - shared->base_mono);
}

int64
dlock_clock_run(void)
{
	return shared->run;
}

static pg_noinline int64
start(void)
{
	uint64		now = (uint64) dlock_clock_now();
	uint64		started = 0;

	/* a standby has not started: its leases would begin now */
	if (RecoveryInProgress())
		return (int64) now;

	if (pg_atomic_compare_exchange_u64(&shared->started, &started, now))
		started = now;
	return (int64) started;
}

/*
 * When this run began to accept writes.  The launcher asks as soon as recovery
 * is over.  If the launcher could not be started, the first use asks.
 */
int64
dlock_clock_started(void)
{
	uint64		started = pg_atomic_read_u64(&shared->started);

	return started != 0 ? (int64) started : start();
}

/*
 * The end of a span of time whose end was stored by the given run.  If that is
 * this run, it is the stored time; otherwise the span counts from our start.
 */
int64
dlock_clock_effective(int64 run, int64 stored, int64 span)
{
	return run == shared->run ? stored : dlock_clock_started() + span;
}

/*
 * Lease time as the wall clock shows it now, for people and clients.  The two
 * differ by the steps that the wall clock has made since the start.  The
 * difference is rounded, so that the time between our two readings does not
 * show and one expiry always looks the same.
 */
TimestampTz
dlock_clock_to_wall(int64 lease_time)
{
	const int64 grain = 10 * 1000;
	int64		offset = GetCurrentTimestamp() - dlock_clock_now();

	offset = (offset + (offset >= 0 ? grain / 2 : -grain / 2)) / grain * grain;
	return lease_time + offset;
}
