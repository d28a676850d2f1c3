/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The one permanent worker: starts a reaper where one is due.
 *
 * The launcher is connected to no database, so it stands in nobody's way.
 * Backends tell it through shared memory when the next lease of their
 * database will end (dlock_shmem_report_due); at that time it starts a reaper
 * there, which makes one pass and leaves, so that DROP DATABASE and CREATE
 * DATABASE .. TEMPLATE find the database empty a moment later.  One reaper
 * runs at a time: that bounds what all databases together cost.
 *
 * Shared memory knows nothing of leases that were written before the server
 * started, so the launcher begins by sending a reaper to every database.
 *
 * A reaper that fails (no worker slot, a database that takes no connections)
 * is tried again later; no lock depends on it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "guc.h"
#include "reaper.h"
#include "shmem.h"

#define RESTART_SECONDS		1
#define RETRY_US			INT64CONST(10000000)
#define MAX_SLEEP_US		INT64CONST(60000000)

void
dlock_launcher_init(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RESTART_SECONDS;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "dlock");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "dlock_launcher_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "dlock launcher");
	snprintf(worker.bgw_type, BGW_MAXLEN, "dlock launcher");
	RegisterBackgroundWorker(&worker);
}

/*
 * Bring the slots in line with pg_database: slots of databases that are gone
 * are freed, those that take no connections are left alone, and if asked for,
 * all others get one and are due.
 */
static void
read_databases(bool all_due)
{
	Oid		   *gone = palloc(DLOCK_MAX_DATABASES * sizeof(Oid));
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	/* whatever has a slot by now shows in the scan, unless it was dropped */
	LWLockAcquire(dlock_shmem_database_lock(), LW_SHARED);
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		gone[i] = dlock_shmem->databases[i].dboid;
	LWLockRelease(dlock_shmem_database_lock());

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
			if (gone[i] == form->oid)
			{
				gone[i] = InvalidOid;
				if (!form->datallowconn)
					pg_atomic_write_u64(&dlock_shmem->databases[i].due, DLOCK_NEVER);
			}

		if (all_due && form->datallowconn)
		{
			DlockDatabase *db = dlock_shmem_database(form->oid);

			if (db != NULL)
				pg_atomic_write_u64(&db->due, (uint64) dlock_clock_now());
		}
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();

	LWLockAcquire(dlock_shmem_database_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
	{
		DlockDatabase *db = &dlock_shmem->databases[i];

		if (OidIsValid(gone[i]) && db->dboid == gone[i])
			db->dboid = InvalidOid;
	}
	LWLockRelease(dlock_shmem_database_lock());
	pfree(gone);
}

/* Run a reaper in a database and wait until it has left. */
static DlockVisit
run_reaper(DlockDatabase *db)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	pid_t		pid;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "dlock");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "dlock_reaper_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "dlock reaper");
	snprintf(worker.bgw_type, BGW_MAXLEN, "dlock reaper");
	worker.bgw_main_arg = Int32GetDatum((int32) (db - dlock_shmem->databases));
	worker.bgw_notify_pid = MyProcPid;

	db->pass_ended = false;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		return DLOCK_VISIT_NO_WORKER;
	if (WaitForBackgroundWorkerStartup(handle, &pid) == BGWH_POSTMASTER_DIED ||
		WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		proc_exit(1);
	pfree(handle);
	return db->pass_ended ? DLOCK_VISIT_GOOD : DLOCK_VISIT_FAILED;
}

static void
say_goodbye(int code, Datum arg)
{
	dlock_shmem->launcher_latch = NULL;
}

/* When a visit to this database is due. */
static int64
due_at(DlockDatabase *db)
{
	if (pg_atomic_read_u32(&db->events) != 0)
		return 0;
	if (dlock_reap_interval == 0)
		return DLOCK_NEVER;
	return Max((int64) pg_atomic_read_u64(&db->due), db->not_before);
}

/* How long until the next database is due; runs those that are. */
static int64
run_due(void)
{
	int64		sleep = MAX_SLEEP_US;
	bool		ran = false;

	for (int i = 0; i < DLOCK_MAX_DATABASES && !ShutdownRequestPending; i++)
	{
		DlockDatabase *db = &dlock_shmem->databases[i];
		int64		due;
		int64		now;

		CHECK_FOR_INTERRUPTS();

		if (!OidIsValid(db->dboid))
			continue;
		due = due_at(db);
		now = dlock_clock_now();
		if (due <= now)
		{
			DlockVisit	visit = run_reaper(db);

			ran = true;
			now = dlock_clock_now();
			pg_atomic_write_u32(&db->visit, visit);
			if (visit == DLOCK_VISIT_GOOD)
				pg_atomic_write_u64(&db->visited, (uint64) now);
			else
			{
				/* it may have taken the due time and done nothing about it */
				db->not_before = now + RETRY_US;
				pg_atomic_write_u32(&db->events, 0);
				pg_atomic_write_u64(&db->due, (uint64) now);
				read_databases(false);
			}
			due = due_at(db);
		}
		sleep = Min(sleep, Max(due - now, 0));
	}

	/*
	 * Waiting for a reaper resets our latch, so a database that we had passed
	 * may have called in vain: look again before going to sleep.
	 */
	return ran ? 0 : sleep;
}

void
dlock_launcher_main(Datum arg)
{
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	/* leases of earlier runs are counted from here */
	(void) dlock_clock_started();

	before_shmem_exit(say_goodbye, (Datum) 0);
	dlock_shmem->launcher_latch = MyLatch;

	read_databases(true);

	while (!ShutdownRequestPending)
	{
		int64		sleep = run_due();

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (sleep / 1000) + 1, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}

	/* with 0 the postmaster would not start us again */
	proc_exit(1);
}
