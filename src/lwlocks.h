/*-------------------------------------------------------------------------
 *
 * lwlocks.h
 *	  The LWLocks of dlock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LWLOCKS_H
#define DLOCK_LWLOCKS_H

#include "storage/lwlock.h"

#define DLOCK_PARTITIONS	64
#define DLOCK_BUCKETS		64
#define DLOCK_CONTENDED_SETS	64

extern void dlock_lwlocks_request(void);
extern void dlock_lwlocks_init(void);

extern LWLock *dlock_lwlock_database(void);
extern LWLock *dlock_lwlock_deadlock(void);
extern LWLock *dlock_lwlock_partition(uint64 hash);
extern LWLock *dlock_lwlock_bucket(int bucket);
extern LWLock *dlock_lwlock_stats(void);
extern LWLock *dlock_lwlock_quota(void);
extern LWLock *dlock_lwlock_tickets(void);
extern LWLock *dlock_lwlock_contended(int set);

/* The partition of a key. */
static inline int
dlock_lwlock_partition_number(uint64 hash)
{
	return (hash >> 20) % DLOCK_PARTITIONS;
}

#endif							/* DLOCK_LWLOCKS_H */
