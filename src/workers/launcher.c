/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The permanent worker, which starts a reaper in each database where one
 *	  is due.
 *
 * The launcher is connected to no database, so it does not block commands such
 * as DROP DATABASE.  Backends tell it through shared memory when the next lease
 * in their database will end (dlock_database_want_reaper).  At that time it
 * starts a reaper there, which makes one pass and exits.  So DROP DATABASE and
 * CREATE DATABASE ... TEMPLATE find the database unused a moment later.  Only
 * one reaper runs at a time, which limits the cost for all databases together.
 *
 * Shared memory does not know the leases that were written before the server
 * started, so the launcher begins by sending a reaper to every database.
 *
 * It also starts a granter where there are tickets and the last granter has left
 * (see granter.c).
 *
 * A reaper that fails (no worker slot, a database that allows no connections)
 * is started again later.  No lock depends on it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "database.h"
#include "guc.h"
#include "rows/places.h"
#include "tickets/granter.h"
#include "tickets/ticket.h"
#include "worker.h"
#include "workers/workers.h"

#define RESTART_SECONDS		1
#define GRANTER_PAUSE_US	INT64CONST(1000000)
#define VISIT_PAUSE_US		INT64CONST(50000)	/* between two visits */
#define MAX_VISIT_US		INT64CONST(30000000)	/* then it is ended */
#define RETRY_US			INT64CONST(10000000)
#define MAX_SLEEP_US		INT64CONST(60000000)

void
dlock_launcher_init(void)
{
	BackgroundWorker worker;

	dlock_worker_describe(&worker, "launcher", RESTART_SECONDS);
	RegisterBackgroundWorker(&worker);
}

/*
 * Bring the slots in line with pg_database.  Slots of dropped databases are
 * freed, and databases that allow no connections are not due.  With all_due,
 * every other database gets a slot and is due now.
 */
static void
read_databases(bool all_due)
{
	Oid		   *gone = palloc(DLOCK_MAX_DATABASES * sizeof(Oid));
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	/* the scan shows all that have a slot by now, unless they were dropped */
	dlock_database_list(gone);

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
					dlock_database_set_due(dlock_database_at(i), DLOCK_NEVER);
			}

		if (all_due && form->datallowconn)
		{
			DlockDatabase *db = dlock_database(form->oid);

			if (db != NULL)
				dlock_database_set_due(db, dlock_clock_now());
		}
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();

	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		if (OidIsValid(gone[i]))
			dlock_ticket_forget(gone[i]);
	dlock_database_forget(gone);
	pfree(gone);
}

/*
 * Granters
 */

/*
 * May a granter be started in this database?  Not while a command has locked
 * it, which may be about to drop it.
 */
static bool
is_open(Oid dboid, bool *is_gone)
{
	LOCKTAG		tag;
	bool		locked;

	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, dboid, 0);
	locked = LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
	*is_gone = locked && !SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(dboid));
	CommitTransactionCommand();
	return locked && !*is_gone;
}

/*
 * Start a granter where there are tickets and none is running: the last one has
 * ended with an error, or has made way for a command.  Return when to look
 * again.
 */
static int64
start_granters(void)
{
	int64		next = DLOCK_NEVER;

	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
	{
		Oid			dboid = dlock_database_at(i)->dboid;
		int64		when = OidIsValid(dboid) ? dlock_granter_wanted_at(i) : DLOCK_NEVER;
		int64		now;
		bool		is_gone;

		if (when == DLOCK_NEVER)
			continue;
		now = dlock_clock_now();
		if (when > now)
		{
			next = Min(next, when);
			continue;
		}
		if (!is_open(dboid, &is_gone))
		{
			if (is_gone)
				dlock_ticket_forget(dboid);
			else
				next = Min(next, now + GRANTER_PAUSE_US);
			continue;
		}
		(void) dlock_granter_start(i, now);
		next = Min(next, now + GRANTER_PAUSE_US);
	}
	return next;
}

/*
 * Reapers
 */

/*
 * Wait until the reaper has exited.  A visit is short.  One that is not is
 * ended, because the other databases wait for it: it may be connecting to a
 * database whose owner keeps it locked.
 */
static void
wait_for_reaper(BackgroundWorkerHandle *handle)
{
	int64		until = dlock_clock_now() + MAX_VISIT_US;

	for (;;)
	{
		BgwHandleStatus status;
		int64		granters_at = start_granters();
		int64		now = dlock_clock_now();
		pid_t		pid;

		CHECK_FOR_INTERRUPTS();
		status = GetBackgroundWorkerPid(handle, &pid);
		if (status == BGWH_STOPPED)
			return;
		if (status == BGWH_POSTMASTER_DIED)
			proc_exit(1);
		if (now >= until || ShutdownRequestPending)
		{
			TerminateBackgroundWorker(handle);
			until = now + RETRY_US;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (Max(Min(until, granters_at) - now, 0) / 1000) + 1,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Run a reaper in a database and wait until it has exited. */
static DlockVisit
run_reaper(DlockDatabase *db)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	dlock_worker_describe(&worker, "reaper", BGW_NEVER_RESTART);
	worker.bgw_main_arg = Int32GetDatum(dlock_database_number(db));
	worker.bgw_notify_pid = MyProcPid;

	db->progress.ended = false;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		return DLOCK_VISIT_NO_WORKER;
	wait_for_reaper(handle);
	pfree(handle);
	return db->progress.ended ? DLOCK_VISIT_GOOD : DLOCK_VISIT_FAILED;
}

static void
say_goodbye(int code, Datum arg)
{
	dlock_database_set_launcher(NULL);
}

/* When a visit to this database is due. */
static int64
due_at(DlockDatabase *db)
{
	if (pg_atomic_read_u32(&db->announce) != 0)
		return db->progress.next_visit;
	if (dlock_reap_interval == 0 && dlock_places_known(db))
		return DLOCK_NEVER;
	return Max((int64) pg_atomic_read_u64(&db->due), db->progress.not_before);
}

/* Run a reaper in each database that is due.  Return the time until the next. */
static int64
run_due(void)
{
	int64		sleep = MAX_SLEEP_US;
	bool		ran = false;

	for (int i = 0; i < DLOCK_MAX_DATABASES && !ShutdownRequestPending; i++)
	{
		DlockDatabase *db = dlock_database_at(i);
		int64		due;
		int64		now;

		CHECK_FOR_INTERRUPTS();

		if (!OidIsValid(db->dboid))
			continue;
		due = due_at(db);
		now = dlock_clock_now();
		if (due <= now)
		{
			int64		began = now;
			DlockVisit	visit = run_reaper(db);

			ran = true;
			now = dlock_clock_now();
			db->progress.next_visit = now + VISIT_PAUSE_US;
			pg_atomic_write_u32(&db->last_visit, visit);
			if (visit == DLOCK_VISIT_GOOD)
				pg_atomic_write_u64(&db->last_good_visit, (uint64) now);
			else
			{
				/*
				 * It may have reset the due time and failed after that.  The
				 * longer it took, the later it is tried again.
				 */
				db->progress.not_before = now + Max(RETRY_US, (now - began) * 9);
				db->progress.next_visit = db->progress.not_before;
				(void) dlock_database_take_announcement(db);
				dlock_database_set_due(db, now);
				read_databases(false);
			}
			due = due_at(db);
		}
		sleep = Min(sleep, Max(due - now, 0));
	}

	/*
	 * Waiting for a reaper resets our latch, so we may have missed a call
	 * from a database that we had passed already: look again before sleeping.
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

	/* leases of earlier runs count from this moment */
	(void) dlock_clock_started();

	before_shmem_exit(say_goodbye, (Datum) 0);
	dlock_database_set_launcher(MyLatch);

	read_databases(true);

	while (!ShutdownRequestPending)
	{
		int64		sleep = run_due();
		int64		granters_at = start_granters();

		if (granters_at != DLOCK_NEVER)
			sleep = Min(sleep, Max(granters_at - dlock_clock_now(), 0));

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

	/* after exit code 0 the postmaster would not restart us */
	proc_exit(1);
}
