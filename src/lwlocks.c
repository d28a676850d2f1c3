/*-------------------------------------------------------------------------
 *
 * lwlocks.c
 *	  The LWLocks of dlock.
 *
 * There is one lock for the array of databases (database.c), one that makes
 * deadlock checks run one at a time (deadlock.c), a fixed number of partition
 * locks that protect the addition of index entries (write.c, find.c) and the number
 * of places of keys (census.c), one lock
 * for each bucket of the queue (queue.c), one for the tickets (ticket.c, desk.c),
 * one for the statistics (stats.c), one for each set of contended keys
 * (contended.c), and one for the room under policies (quota.c).  Keys are spread
 * over partitions, buckets and sets by their hash.
 *
 * No two kinds are held together, with two exceptions: the deadlock lock comes
 * before the bucket locks and before those of PostgreSQL's lock manager, and the
 * lock of the tickets comes after a bucket lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"

#include "lwlocks.h"

#define TRANCHE				"dlock"
#define DATABASE			0
#define DEADLOCK			1
#define FIRST_PARTITION		2
#define FIRST_BUCKET		(FIRST_PARTITION + DLOCK_PARTITIONS)
#define STATS				(FIRST_BUCKET + DLOCK_BUCKETS)
#define QUOTA				(STATS + 1)
#define TICKETS				(QUOTA + 1)
#define FIRST_CONTENDED		(TICKETS + 1)
#define NLOCKS				(FIRST_CONTENDED + DLOCK_CONTENDED_SETS)

static LWLockPadded *locks = NULL;

void
dlock_lwlocks_request(void)
{
	RequestNamedLWLockTranche(TRANCHE, NLOCKS);
}

void
dlock_lwlocks_init(void)
{
	locks = GetNamedLWLockTranche(TRANCHE);
}

LWLock *
dlock_lwlock_database(void)
{
	return &locks[DATABASE].lock;
}

LWLock *
dlock_lwlock_deadlock(void)
{
	return &locks[DEADLOCK].lock;
}

LWLock *
dlock_lwlock_partition(uint64 hash)
{
	return &locks[FIRST_PARTITION + dlock_lwlock_partition_number(hash)].lock;
}

LWLock *
dlock_lwlock_bucket(int bucket)
{
	return &locks[FIRST_BUCKET + bucket].lock;
}

LWLock *
dlock_lwlock_stats(void)
{
	return &locks[STATS].lock;
}

LWLock *
dlock_lwlock_quota(void)
{
	return &locks[QUOTA].lock;
}

LWLock *
dlock_lwlock_tickets(void)
{
	return &locks[TICKETS].lock;
}

LWLock *
dlock_lwlock_contended(int set)
{
	return &locks[FIRST_CONTENDED + set].lock;
}
