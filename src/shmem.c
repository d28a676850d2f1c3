/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  dlock's shared memory: the clock's base, one slot a database, the hint
 *	  cache, and the LWLocks.
 *
 * Nothing here is needed for correctness across a crash: all of it is
 * rebuilt empty, and the table decides.
 *
 * LWLocks: one for the array of databases; a fixed number of partition locks
 * that keys are spread over by their hash, held for the insertion of an index
 * entry and for a lookup that must not miss one (store.c); and one for each
 * bucket of the queue (wait.c).  No two kinds are held together, except that
 * the deadlock lock, which makes checks one at a time, comes before the
 * buckets' locks and those of PostgreSQL's lock manager.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "shmem.h"
#include "wait.h"

#define DLOCK_PARTITIONS	64

/* the array of LWLocks */
#define DATABASE_LOCK			0
#define DEADLOCK_LOCK			1
#define FIRST_PARTITION_LOCK	2
#define FIRST_BUCKET_LOCK		(FIRST_PARTITION_LOCK + DLOCK_PARTITIONS)
#define NLOCKS					(FIRST_BUCKET_LOCK + DLOCK_WAIT_BUCKETS)

DlockShmem *dlock_shmem = NULL;

static LWLockPadded *locks = NULL;

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

static void
request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();

	RequestAddinShmemSpace(MAXALIGN(sizeof(DlockShmem)));
	RequestAddinShmemSpace(MAXALIGN(dlock_wait_shmem_size()));
	RequestNamedLWLockTranche("dlock", NLOCKS);
}

static void
startup(void)
{
	bool		found;

	if (prev_shmem_startup)
		prev_shmem_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);

	dlock_shmem = ShmemInitStruct("dlock", sizeof(DlockShmem), &found);
	locks = GetNamedLWLockTranche("dlock");

	if (!found)
	{
		memset(dlock_shmem, 0, sizeof(DlockShmem));
		pg_atomic_init_u64(&dlock_shmem->started, 0);
		for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		{
			DlockDatabase *db = &dlock_shmem->databases[i];

			pg_atomic_init_u64(&db->incarnation, 0);
			pg_atomic_init_u64(&db->due, DLOCK_NEVER);
			pg_atomic_init_u32(&db->events, 0);
			pg_atomic_init_u32(&db->reap_xid, InvalidTransactionId);
			pg_atomic_init_u32(&db->visit, DLOCK_VISIT_GOOD);
			pg_atomic_init_u64(&db->visited, 0);
		}
		for (int i = 0; i < DLOCK_HINTS; i++)
			pg_atomic_init_u64(&dlock_shmem->hints[i], 0);
		dlock_clock_init(dlock_shmem);
	}
	dlock_wait_shmem_init(&locks[FIRST_BUCKET_LOCK], found);

	LWLockRelease(AddinShmemInitLock);
}

void
dlock_shmem_init(void)
{
	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
}

/* Every SQL function comes through here first. */
void
dlock_shmem_require(void)
{
	if (dlock_shmem == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("dlock must be loaded via \"shared_preload_libraries\""),
				 errhint("Add the line shared_preload_libraries = 'dlock' to postgresql.conf "
						 "(or add dlock to the list that is there) and restart the server.")));
}

LWLock *
dlock_shmem_database_lock(void)
{
	return &locks[DATABASE_LOCK].lock;
}

LWLock *
dlock_shmem_deadlock_lock(void)
{
	return &locks[DEADLOCK_LOCK].lock;
}

LWLock *
dlock_shmem_partition(uint64 hash)
{
	return &locks[FIRST_PARTITION_LOCK + (hash >> 20) % DLOCK_PARTITIONS].lock;
}

/*
 * The slot of a database, which gets one now if it has none.  NULL if all
 * are taken: then the reaper does not come to it, and nothing else changes.
 */
DlockDatabase *
dlock_shmem_database(Oid dboid)
{
	static DlockDatabase *mine = NULL;
	DlockDatabase *db = NULL;
	bool		added = false;

	if (mine != NULL && mine->dboid == dboid)
		return mine;

	LWLockAcquire(dlock_shmem_database_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
	{
		DlockDatabase *slot = &dlock_shmem->databases[i];

		if (slot->dboid == dboid)
		{
			db = slot;
			break;
		}
		if (db == NULL && !OidIsValid(slot->dboid))
			db = slot;
	}
	if (db != NULL && db->dboid != dboid)
	{
		pg_atomic_write_u64(&db->incarnation, 0);
		pg_atomic_write_u64(&db->due, DLOCK_NEVER);
		pg_atomic_write_u32(&db->events, 0);
		pg_atomic_write_u32(&db->reap_xid, InvalidTransactionId);
		pg_atomic_write_u32(&db->visit, DLOCK_VISIT_GOOD);
		pg_atomic_write_u64(&db->visited, 0);
		db->not_before = 0;
		db->next_block = 0;
		db->pass_ended = false;
		db->dboid = dboid;
		added = true;
	}
	LWLockRelease(dlock_shmem_database_lock());

	if (db != NULL && dboid == MyDatabaseId)
		mine = db;

	/* a copied or restored database may have come with expired rows */
	if (added && dboid == MyDatabaseId)
		dlock_shmem_report_due(dlock_clock_now());
	return db;
}

/*
 * Tell the reaper that there will be something to do in this database at the
 * given lease time.  Called after the commit that made it so: a visit that
 * finds nothing ends the matter.
 */
void
dlock_shmem_report_due(int64 when)
{
	DlockDatabase *db = dlock_shmem_database(MyDatabaseId);
	uint64		old;

	if (db == NULL)
		return;

	old = pg_atomic_read_u64(&db->due);
	while ((int64) old > when)
	{
		if (pg_atomic_compare_exchange_u64(&db->due, &old, (uint64) when))
		{
			Latch	   *latch = dlock_shmem->launcher_latch;

			if (latch != NULL)
				SetLatch(latch);
			break;
		}
	}
}

/* Tell the launcher that a holder of this database is to be told to yield. */
void
dlock_shmem_report_event(void)
{
	DlockDatabase *db = dlock_shmem_database(MyDatabaseId);
	Latch	   *latch = dlock_shmem->launcher_latch;

	if (db == NULL)
		return;
	pg_atomic_write_u32(&db->events, 1);
	if (latch != NULL)
		SetLatch(latch);
}
