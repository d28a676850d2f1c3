/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Lease time: the clock that decides when a lock expires.
 *
 * Lease time is the wall clock at the start of the server plus the monotonic
 * time since, in microseconds.  A step of the wall clock does not move it.
 *
 * Each run of a server (a start of the postmaster, or its restart of shared
 * memory after a crash) has a random number of its own, which is stored with
 * every grant.  A time that another run has stored is never compared with
 * this run's clock: it may have been written by another machine, or before
 * an outage.  Such a grant lasts for one full TTL from the moment that this
 * run began to accept writes, which is when recovery or standby mode ended.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "access/xlog.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "shmem.h"

static int64
monotonic_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

void
dlock_clock_init(DlockShmem *shmem)
{
	shmem->base_wall = GetCurrentTimestamp();
	shmem->base_mono = monotonic_us();

	/* a positive number, so that it looks the same in SQL */
	do
	{
		if (!pg_strong_random(&shmem->run, sizeof(shmem->run)))
			elog(ERROR, "could not generate a random number for dlock");
		shmem->run &= PG_INT64_MAX;
	} while (shmem->run == 0);
}

int64
dlock_clock_now(void)
{
	return dlock_shmem->base_wall + (monotonic_us() - dlock_shmem->base_mono);
}

int64
dlock_clock_run(void)
{
	return dlock_shmem->run;
}

/*
 * When this run began to accept writes.  The launcher asks as soon as
 * recovery is over; where it could not be started, the first use does.
 */
int64
dlock_clock_started(void)
{
	uint64		started = pg_atomic_read_u64(&dlock_shmem->started);

	if (started == 0)
	{
		uint64		now = (uint64) dlock_clock_now();

		/* a standby has not started: its leases would begin now */
		if (RecoveryInProgress())
			return (int64) now;

		if (pg_atomic_compare_exchange_u64(&dlock_shmem->started, &started, now))
			started = now;
	}
	return (int64) started;
}

/*
 * The end of a span of time whose end was stored by the given run: as stored
 * if that is this run, else counted from this run's start.
 */
int64
dlock_clock_effective(int64 run, int64 stored, int64 span)
{
	return run == dlock_shmem->run ? stored : dlock_clock_started() + span;
}

/*
 * Lease time as the wall clock shows it now, for people and clients.  The two
 * differ by the steps that the wall clock has made since the start; rounding
 * keeps the time between our two readings out of it, so that one expiry
 * always looks the same.
 */
TimestampTz
dlock_clock_to_wall(int64 lease_time)
{
	const int64 grain = 10 * 1000;
	int64		offset = GetCurrentTimestamp() - dlock_clock_now();

	offset = (offset + (offset >= 0 ? grain / 2 : -grain / 2)) / grain * grain;
	return lease_time + offset;
}
