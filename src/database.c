/*-------------------------------------------------------------------------
 *
 * database.c
 *	  What shared memory knows about each database.
 *
 * A slot for each database that uses dlock: when its reaper is wanted, and what
 * the launcher and the reaper have to remember.  If all slots are taken, the reaper
 * does not visit the database, all keys of it count as marked (places.c), and
 * nothing is known of any (place_count.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "miscadmin.h"
#include "storage/shmem.h"

#include "clock.h"
#include "database.h"
#include "shmem.h"

typedef struct DlockDatabases
{
	/* the launcher's; PGPROCs stay where they are, so it never dangles */
	Latch	   *volatile launcher;
	pg_atomic_uint64 last_epoch;
	DlockDatabase slots[DLOCK_MAX_DATABASES];
} DlockDatabases;

static DlockDatabases *shared = NULL;

Size
dlock_database_shmem_size(void)
{
	return sizeof(DlockDatabases);
}

void
dlock_database_begin_epoch(DlockDatabase *db)
{
	pg_atomic_write_u64(&db->epoch, pg_atomic_add_fetch_u64(&shared->last_epoch, 1));
}

static void
reset(DlockDatabase *db, Oid dboid)
{
	dlock_database_begin_epoch(db);
	pg_atomic_write_u64(&db->due, DLOCK_NEVER);
	pg_atomic_write_u32(&db->announce, 0);
	pg_atomic_write_u64(&db->incarnation, 0);
	pg_atomic_write_u32(&db->reaper_xid, InvalidTransactionId);
	pg_atomic_write_u32(&db->places_known, 0);
	pg_atomic_write_u32(&db->last_visit, DLOCK_VISIT_GOOD);
	pg_atomic_write_u64(&db->last_good_visit, 0);
	memset(&db->progress, 0, sizeof(db->progress));
	db->dboid = dboid;
}

void
dlock_database_shmem_init(void)
{
	bool		found;

	shared = ShmemInitStruct("dlock databases", sizeof(DlockDatabases), &found);
	if (found)
		return;

	memset(shared, 0, sizeof(DlockDatabases));
	pg_atomic_init_u64(&shared->last_epoch, 0);
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
	{
		DlockDatabase *db = &shared->slots[i];

		pg_atomic_init_u64(&db->due, 0);
		pg_atomic_init_u32(&db->announce, 0);
		pg_atomic_init_u64(&db->incarnation, 0);
		pg_atomic_init_u32(&db->reaper_xid, 0);
		pg_atomic_init_u32(&db->places_known, 0);
		pg_atomic_init_u64(&db->epoch, 0);
		pg_atomic_init_u64(&db->served_changes, 0);
		pg_atomic_init_u32(&db->last_visit, 0);
		pg_atomic_init_u64(&db->last_good_visit, 0);
		reset(db, InvalidOid);
	}
}

/* The slot of the database of this backend, once it is known. */
static DlockDatabase *mine = NULL;

static pg_noinline DlockDatabase *
find_or_add(Oid dboid)
{
	DlockDatabase *db = NULL;
	bool		added = false;

	LWLockAcquire(dlock_lwlock_database(), LW_EXCLUSIVE);
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
	{
		DlockDatabase *slot = &shared->slots[i];

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
		reset(db, dboid);
		added = true;
	}
	LWLockRelease(dlock_lwlock_database());

	if (db != NULL && dboid == MyDatabaseId)
		mine = db;

	/* a copied or restored database may have come with expired rows */
	if (added && dboid == MyDatabaseId)
		dlock_database_want_reaper(dlock_clock_now());
	return db;
}

/*
 * The slot of a database, which gets one now if it has none.  NULL if all are
 * taken.
 */
DlockDatabase *
dlock_database(Oid dboid)
{
	if (mine != NULL && mine->dboid == dboid)
		return mine;
	return find_or_add(dboid);
}

void
dlock_database_wake_launcher(void)
{
	Latch	   *latch = shared->launcher;

	if (latch != NULL)
		SetLatch(latch);
}

/*
 * Tell the launcher that the reaper will have something to do in this database
 * at the given lease time.  Called after the commit that made it so, because a
 * visit that finds nothing ends the matter.
 */
void
dlock_database_want_reaper(int64 when)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	uint64		old;

	if (db == NULL)
		return;

	old = pg_atomic_read_u64(&db->due);
	while ((int64) old > when)
	{
		if (pg_atomic_compare_exchange_u64(&db->due, &old, (uint64) when))
		{
			dlock_database_wake_launcher();
			break;
		}
	}
}

/* Tell the launcher that a holder in this database must be notified to yield. */
void
dlock_database_want_announcement(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);

	if (db == NULL)
		return;
	pg_atomic_write_u32(&db->announce, 1);
	dlock_database_wake_launcher();
}

DlockDatabase *
dlock_database_at(int i)
{
	return &shared->slots[i];
}

int
dlock_database_number(const DlockDatabase *db)
{
	return db - shared->slots;
}

/* This replaces what was due before. */
void
dlock_database_set_due(DlockDatabase *db, int64 when)
{
	pg_atomic_write_u64(&db->due, (uint64) when);
}

/* Clears the flag: what is wanted from here on sets it again. */
bool
dlock_database_take_announcement(DlockDatabase *db)
{
	return pg_atomic_exchange_u32(&db->announce, 0) != 0;
}

/* The database of each slot, or InvalidOid. */
void
dlock_database_list(Oid *dboids)
{
	LWLockAcquire(dlock_lwlock_database(), LW_SHARED);
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		dboids[i] = shared->slots[i].dboid;
	LWLockRelease(dlock_lwlock_database());
}

/* Free each slot whose entry in the array is its database. */
void
dlock_database_forget(const Oid *dboids)
{
	LWLockAcquire(dlock_lwlock_database(), LW_EXCLUSIVE);
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		if (OidIsValid(dboids[i]) && shared->slots[i].dboid == dboids[i])
			shared->slots[i].dboid = InvalidOid;
	LWLockRelease(dlock_lwlock_database());
}

/* NULL when it exits. */
void
dlock_database_set_launcher(Latch *latch)
{
	shared->launcher = latch;
}

bool
dlock_database_has_launcher(void)
{
	return shared->launcher != NULL;
}
