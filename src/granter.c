/*-------------------------------------------------------------------------
 *
 * granter.c
 *	  The worker that grants the tickets of a database.
 *
 * It is there while there are tickets, and for a short while after that.  It
 * looks at the tickets that have been woken, and at those whose time has come.
 * It takes all of them in one transaction, so a thousand keys that become free
 * together cost a few flushes, not a thousand.
 *
 * An error ends that transaction, and every grant in it.  The tickets are back in
 * the queue then (drafts.c).  Those that came before the one that failed are done
 * again and committed.  So however many fail, no other ticket is rolled back more
 * than once because of them.  The one that failed is tried once more in a
 * transaction of its own.  If it fails there, it is missed, and the error is the
 * reason.
 *
 * A granter waits for nobody's row, because an acquire does not.  Its commit may
 * wait for a standby; until that confirms, nobody hears of the grants.
 *
 * DROP DATABASE and the like lock the database and then wait for other
 * processes to leave it.  So the granter looks once a second whether the
 * database is locked, and leaves.  The launcher starts another one when it is
 * not any more.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "compat.h"
#include "database.h"
#include "deadlock.h"
#include "desk.h"
#include "due.h"
#include "granter.h"
#include "lock.h"
#include "serve.h"
#include "stats.h"
#include "worker.h"

#define BATCH			200
#define IDLE_US			INT64CONST(5000000) /* then it leaves */
#define PROBE_US		INT64CONST(1000000) /* is the database locked? */
#define MAX_LOOK_US		INT64CONST(60000000)	/* look at least so often */

/* What a transaction is about. */
typedef struct Batch
{
	int64		tickets[BATCH];
	int			n;
	int			current;		/* the one that is looked at */
	int64		due[BATCH];		/* when to look again */
	bool		is_new[BATCH];	/* it waits for the first time */
	DlockServedTicket served[BATCH];	/* those that end */
	int			nserved;
} Batch;

/* How a transaction went. */
typedef enum Outcome
{
	DONE,
	FAILED,						/* with an error */
	UNDONE						/* a ticket was withdrawn meanwhile */
} Outcome;

static int	db;					/* the number of the database */
static DlockDeadlockWatch watch;
static uint64 suspects;			/* those ready up to this one are to look
								 * first */
static MemoryContext batch_context;

/* False: no more worker processes are to be had. */
bool
dlock_granter_start(int number)
{
	BackgroundWorker worker;

	dlock_worker_describe(&worker, "granter", BGW_NEVER_RESTART);
	worker.bgw_main_arg = Int32GetDatum(number);
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

/*
 * A transaction
 */

static void
start_transaction(void)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
}

/* What may follow in the same transaction: neighbours that fit, say. */
static void
add_ready(Batch *batch)
{
	batch->n += dlock_ready_take(dlock_desk_ready(db), &batch->tickets[batch->n],
								 BATCH - batch->n);
}

static bool
look_at_all(Batch *batch, bool goes_on)
{
	MemoryContext each_look = AllocSetContextCreate(CurrentMemoryContext, "dlock look",
													ALLOCSET_DEFAULT_SIZES);

	batch->nserved = 0;
	for (batch->current = 0; batch->current < batch->n; batch->current++)
	{
		int			i = batch->current;
		DlockServedTicket *served = &batch->served[batch->nserved];
		DlockServed result;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(each_look);
		result = dlock_serve_look(batch->tickets[i], &batch->due[i],
								  &batch->is_new[i], served);
		if (result == DLOCK_SERVED_TOO_LATE)
			return false;
		if (result != DLOCK_SERVED_WAITS)
		{
			batch->due[i] = DLOCK_NEVER;
			batch->is_new[i] = false;
		}
		if (result == DLOCK_SERVED_ENDS)
		{
			served->key = MemoryContextStrdup(batch_context, served->key);
			batch->nserved++;
		}
		MemoryContextReset(each_look);
		if (i + 1 == batch->n && goes_on)
			add_ready(batch);
	}
	return true;
}

/* It is known now what became of them. */
static void
finish(const Batch *batch)
{
	int64		now = dlock_clock_now();
	int64		pause = DeadlockTimeout * INT64CONST(1000);

	for (int i = 0; i < batch->nserved; i++)
		dlock_serve_count(&batch->served[i], now);
	for (int i = 0; i < batch->n; i++)
	{
		if (batch->due[i] == DLOCK_NEVER)
			dlock_due_set(batch->tickets[i], DLOCK_NEVER);
		else
			dlock_due_set(batch->tickets[i], Min(batch->due[i], now + MAX_LOOK_US));

		/* one that waits from now on may be in a circle */
		if (batch->is_new[i] && watch.suspected_at == 0 && watch.next > now + pause)
			dlock_deadlock_begin(&watch, now);
	}
}

/* Look at the tickets, and if it goes on, at what follows, in one transaction. */
static Outcome
run_transaction(Batch *batch, bool goes_on, ErrorData **error)
{
	volatile Outcome result = DONE;

	PG_TRY();
	{
		start_transaction();
		PushActiveSnapshot(GetTransactionSnapshot());
		memset(batch->is_new, 0, sizeof(batch->is_new));
		if (!look_at_all(batch, goes_on))
		{
			result = UNDONE;
			AbortCurrentTransaction();
		}
		else
		{
			PopActiveSnapshot();
			CommitTransactionCommand();
		}
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(batch_context);
		*error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		result = FAILED;
	}
	PG_END_TRY();

	MemoryContextSwitchTo(batch_context);
	if (result == DONE)
		finish(batch);
	return result;
}

/* Give a ticket up because of an error. */
static void
miss(int64 ticket, const char *code, const char *reason)
{
	DlockServedTicket served;
	volatile bool ends = false;

	PG_TRY();
	{
		start_transaction();
		ends = dlock_serve_miss(ticket, code, reason, &served) == DLOCK_SERVED_ENDS;
		if (ends)
			served.key = MemoryContextStrdup(batch_context, served.key);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		/* nobody can be told, but whoever asks gets the answer */
		MemoryContextSwitchTo(batch_context);
		EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
		ends = false;
		if (dlock_ticket_end(ticket, DLOCK_TICKET_MISSED, 0, InvalidTransactionId, true))
			dlock_ticket_settle(ticket);
	}
	PG_END_TRY();

	MemoryContextSwitchTo(batch_context);
	if (ends)
		dlock_serve_count(&served, dlock_clock_now());
}

/* Look at one ticket in a transaction of its own. */
static void
run_alone(int64 ticket)
{
	Batch	   *batch = palloc(sizeof(Batch));
	ErrorData  *error;

	batch->tickets[0] = ticket;
	batch->n = 1;
	if (run_transaction(batch, false, &error) == FAILED)
	{
		char		code[6];

		strlcpy(code, unpack_sql_state(error->sqlerrcode), sizeof(code));
		ereport(LOG,
				(errmsg("ticket %lld is missed: %s", (long long) ticket, error->message),
				 error->detail != NULL ? errdetail_internal("%s", error->detail) : 0));
		miss(ticket, code, error->message);
	}
	pfree(batch);
}

/*
 * The first so many are left.  The others are due at once, in the order in which
 * they were put off.
 */
static void
cut_off(Batch *batch, int n)
{
	static int64 put_off = 0;

	for (int i = n; i < batch->n; i++)
		dlock_due_set(batch->tickets[i], ++put_off);
	batch->n = n;
}

/*
 * Look at all that are ready.  If one fails, those before it come first, and then
 * it is looked at alone.  What comes after it is for the next batch.
 */
static void
run_batch(Batch *batch)
{
	int64		failed[BATCH];
	int			nfailed = 0;
	ErrorData  *error;

	while (batch->n > 0)
	{
		Outcome		result = run_transaction(batch, nfailed == 0, &error);
		int			at = batch->current;

		if (result == DONE)
			break;
		if (result == UNDONE)
			continue;

		/* the commit itself: it may be anyone's */
		if (at == batch->n)
			at = 0;
		failed[nfailed++] = batch->tickets[at];
		cut_off(batch, at + 1);
		batch->n = at;
	}
	while (nfailed > 0)
		run_alone(failed[--nfailed]);
}

/*
 * Leaving
 */

/* Does a command want this database for itself?  In a transaction. */
static bool
is_wanted_elsewhere(void)
{
	LOCKTAG		tag;

	/* what every connection locks when it begins */
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL;
}

/* The extension was dropped: nobody will ever get these. */
static void
miss_all(void)
{
	int			n;
	int64	   *tickets = dlock_ticket_list(MyDatabaseId, &n);

	for (int i = 0; i < n; i++)
		miss(tickets[i], "42704", "extension \"dlock\" was dropped");
}

/* Once a second.  False: leave. */
static bool
look_around(void)
{
	bool		is_wanted;
	bool		is_dropped;

	start_transaction();
	is_wanted = is_wanted_elsewhere();
	is_dropped = !is_wanted && !OidIsValid(get_extension_oid("dlock", true));
	CommitTransactionCommand();
	if (is_dropped)
		miss_all();
	pgstat_report_stat(true);
	return !is_wanted;
}

static void
leave(int code, Datum arg)
{
	if (dlock_desk_close(db))
		dlock_database_wake_launcher();
}

/*
 * The process
 */

static void
set_up(Oid dboid)
{
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	dlock_worker_set_up("0");
	pgstat_report_appname("dlock granter");
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * A suspicion is checked when all that were woken for it have been looked at, and
 * that may take a while if many others were ready before.
 */
static void
check_deadlocks(void)
{
	DlockReady *ready = dlock_desk_ready(db);
	int64		ticket;

	if (dlock_clock_now() < watch.next ||
		(watch.suspected_at != 0 && !dlock_ready_is_past(ready, suspects)))
		return;
	start_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	ticket = dlock_deadlock_watch_tickets(&watch, dlock_clock_now());
	suspects = dlock_ready_last(ready);
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (ticket != 0)
	{
		dlock_stats_count(DLOCK_STAT_DEADLOCKS);
		miss(ticket, "40P01", "deadlock");
	}
}

static void
sleep_until(int64 until)
{
	int64		now = dlock_clock_now();

	if (until > now)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) ((until - now) / 1000) + 1, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

static void
serve(void)
{
	Batch	   *batch = MemoryContextAlloc(TopMemoryContext, sizeof(Batch));
	int64		idle_since = 0;
	int64		probe_at = 0;
	bool		has_work;

	for (;;)
	{
		int64		now = dlock_clock_now();

		MemoryContextReset(batch_context);
		MemoryContextSwitchTo(batch_context);

		/* however many are due, those that have been woken get a share */
		batch->n = dlock_due_take(now, batch->tickets, BATCH / 2);
		add_ready(batch);
		batch->n += dlock_due_take(now, &batch->tickets[batch->n], BATCH - batch->n);
		has_work = batch->n > 0;
		if (has_work)
		{
			run_batch(batch);
			idle_since = 0;
		}
		check_deadlocks();
		if (now >= probe_at)
		{
			if (!look_around())
				return;
			probe_at = now + PROBE_US;
		}
		if (idle_since == 0)
			idle_since = now;
		if (now >= idle_since + IDLE_US && dlock_desk_close_if_idle(db))
			return;
		sleep_until(has_work ? now : Min(Min(dlock_due_next(), watch.next), probe_at));
	}
}

void
dlock_granter_main(Datum arg)
{
	Oid			dboid;
	int			n;
	int64	   *tickets;

	db = DatumGetInt32(arg);
	dboid = dlock_database_at(db)->dboid;
	pqsignal(SIGTERM, die);

	/* a cancelled wait for the standby would tell of a grant too early */
	pqsignal(SIGINT, PG_SIG_IGN);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	if (!OidIsValid(dboid))
		return;
	set_up(dboid);
	batch_context = AllocSetContextCreate(TopMemoryContext, "dlock granter",
										  ALLOCSET_DEFAULT_SIZES);
	if (!dlock_desk_open(db))
		return;
	before_shmem_exit(leave, (Datum) 0);
	watch.next = DLOCK_NEVER;

	/* an earlier one may have seen them last */
	tickets = dlock_ticket_list(dboid, &n);
	for (int i = 0; i < n; i++)
		dlock_due_set(tickets[i], 0);
	pfree(tickets);
	serve();
}
