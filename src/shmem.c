/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  The shared memory and the LWLocks of all modules.
 *
 * Each module keeps its own piece of shared memory to itself.  Nothing in it has
 * to outlive a crash: after one all of it is empty, and the table decides.
 *
 * There is one LWLock for the array of databases (database.c), one that makes
 * deadlock checks run one at a time (deadlock.c), one for the tickets (src/tickets),
 * one for the statistics (stats.c), and one for the room under policies (policy.c).
 * A fixed number of partition locks protect the addition of index entries (write.c,
 * find.c) and the number of places of keys, and there is a lock for each bucket of
 * the queue (queue.c) and for each set of contended keys (contended_keys.c).  Keys
 * are spread over partitions, buckets and sets by their hash, whose seed is here.
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
#include "storage/shmem.h"

#include "clock.h"
#include "database.h"
#include "health/standby.h"
#include "policy/policy.h"
#include "queue/backend_wait.h"
#include "queue/deadlock.h"
#include "queue/queue.h"
#include "rows/expiry.h"
#include "rows/place_count.h"
#include "rows/places.h"
#include "rows/row_hint.h"
#include "rules/key.h"
#include "shmem.h"
#include "stats/stats.h"
#include "tickets/ticket_memory.h"

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;
static bool attached = false;

uint64		dlock_key_seed = 0;

static Size
seed_size(void)
{
	return sizeof(dlock_key_seed);
}

static void
init_seed(void)
{
	bool		found;
	uint64	   *seed = ShmemInitStruct("dlock seed", sizeof(*seed), &found);

	if (!found && !pg_strong_random(seed, sizeof(*seed)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random numbers")));
	dlock_key_seed = *seed;
}

/* The pieces of shared memory: each is a module's own. */
static const struct
{
	Size		(*size) (void);
	void		(*init) (void);
}			pieces[] = {
	{seed_size, init_seed},
	{dlock_clock_shmem_size, dlock_clock_shmem_init},
	{dlock_row_hint_shmem_size, dlock_row_hint_shmem_init},
	{dlock_database_shmem_size, dlock_database_shmem_init},
	{dlock_places_shmem_size, dlock_places_shmem_init},
	{dlock_expiry_shmem_size, dlock_expiry_shmem_init},
	{dlock_place_count_shmem_size, dlock_place_count_shmem_init},
	{dlock_queue_shmem_size, dlock_queue_shmem_init},
	{dlock_backend_wait_shmem_size, dlock_backend_wait_shmem_init},
	{dlock_deadlock_shmem_size, dlock_deadlock_shmem_init},
	{dlock_ticket_memory_shmem_size, dlock_ticket_memory_shmem_init},
	{dlock_stats_shmem_size, dlock_stats_shmem_init},
	{dlock_contended_keys_shmem_size, dlock_contended_keys_shmem_init},
	{dlock_policy_shmem_size, dlock_policy_shmem_init},
	{dlock_standby_shmem_size, dlock_standby_shmem_init}
};

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

static void
request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();

	for (int i = 0; i < lengthof(pieces); i++)
		RequestAddinShmemSpace(MAXALIGN(pieces[i].size()));
	RequestNamedLWLockTranche(TRANCHE, NLOCKS);
}

static void
startup(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	locks = GetNamedLWLockTranche(TRANCHE);
	for (int i = 0; i < lengthof(pieces); i++)
		pieces[i].init();
	LWLockRelease(AddinShmemInitLock);
	attached = true;
}

void
dlock_shmem_init(void)
{
	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
}

bool
dlock_shmem_is_attached(void)
{
	return attached;
}

/* Every SQL function calls this first. */
void
dlock_shmem_require(void)
{
	if (!attached)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("dlock must be loaded via \"shared_preload_libraries\""),
				 errhint("Add the line shared_preload_libraries = 'dlock' to postgresql.conf "
						 "(or add dlock to the list that is there) and restart the server.")));
}

/*
 * The LWLocks
 */

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
