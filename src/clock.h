/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  Lease time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CLOCK_H
#define DLOCK_CLOCK_H

#include "datatype/timestamp.h"

#define DLOCK_NEVER		PG_INT64_MAX

extern Size dlock_clock_shmem_size(void);
extern void dlock_clock_shmem_init(void);

extern int64 dlock_clock_now(void);
extern int64 dlock_clock_started(void);
extern int64 dlock_clock_run(void);
extern int64 dlock_clock_effective(int64 run, int64 stored, int64 span);
extern TimestampTz dlock_clock_to_wall(int64 lease_time);

#endif							/* DLOCK_CLOCK_H */
