/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  Is dlock loaded, with its shared memory?
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SHMEM_H
#define DLOCK_SHMEM_H

#include "storage/lwlock.h"

#define DLOCK_PARTITIONS	64
#define DLOCK_BUCKETS		64
#define DLOCK_CONTENDED_SETS	64

extern void dlock_shmem_init(void);
extern void dlock_shmem_require(void);
extern bool dlock_shmem_is_attached(void);

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

#endif							/* DLOCK_SHMEM_H */
