/*-------------------------------------------------------------------------
 *
 * granter.c
 *	  The worker that grants the tickets of a database.
 *
 * There is a granter while there are tickets, and for a short while after that.  It
 * processes the tickets that have been woken, and those whose time has come (the
 * timer).  It processes up to BATCH of them in one transaction, so a thousand keys that
 * become free together cost a few flushes, not a thousand.
 *
 * An error rolls that transaction back, and every grant in it.  The tickets are
 * back in the queue then (ticket.c).  Those before the one that failed are processed
 * again and committed.  So no ticket is rolled back more than once because of
 * others, no matter how many fail.  The one that failed is tried once more in a
 * transaction of its own.  If it fails there, too, it is missed, and the error is the
 * reason.
 *
 * A granter waits for nobody's row, because an acquire does not.  Its commit may
 * wait for a standby; until that confirms, nobody hears of the grants.
 *
 * DROP DATABASE and the like lock the database and then wait for other
 * processes to leave it.  So the granter checks once a second whether the
 * database is locked, and exits if it is.  The launcher starts another one later.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/extension.h"
#include "lib/pairingheap.h"
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
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "compat.h"
#include "database.h"
#include "lock/events.h"
#include "queue/deadlock.h"
#include "shmem.h"
#include "tickets/granter.h"
#include "tickets/ticket_grant.h"
#include "worker.h"

#define BATCH			200
#define STARTING_US		INT64CONST(5000000) /* then it is started again */
#define IDLE_US			INT64CONST(5000000) /* then it leaves */
#define PROBE_US		INT64CONST(1000000) /* is the database locked? */
#define MAX_LOOK_US		INT64CONST(60000000)	/* between two looks */

/* What a transaction is about. */
typedef struct Batch
{
	int64		tickets[BATCH];
	int			n;
	int			current;		/* the one that is looked at */
	int64		due[BATCH];		/* when to look again */
	bool		is_new[BATCH];	/* it waits for the first time */
	DlockEndedTicket ended[BATCH];	/* those that end */
	int			nended;
} Batch;

/* How a transaction went. */
typedef enum Outcome
{
	DONE,
	FAILED,						/* with an error */
	UNDONE						/* a ticket was withdrawn meanwhile */
} Outcome;

static int	db;					/* the number of our database */
static DlockDeadlockWatch watch;
static uint64 suspects;			/* of the ready tickets, all up to this one
								 * have to look before the next check */
static MemoryContext batch_context;

/*
 * The registry: which process grants the tickets of a database
 *
 * The backend that takes a ticket starts a granter if there is none, so that it can
 * report that no worker process is left.  If a granter exits while there are
 * tickets, the launcher starts another one.  A granter that was started registers
 * itself.  If it does not within STARTING_US, because it could not be started after
 * all, another one is started.  A second one that comes finds the first one
 * registered and exits.
 */

/*
 * When a granter has to be started: lease time, or DLOCK_NEVER.  The lock of the
 * tickets is held.
 */
static int64
wanted_at(int number)
{
	const DlockTicketDatabase *database = dlock_ticket_memory_database(number);

	if (database->nwaiting == 0 || database->granter != 0)
		return DLOCK_NEVER;
	return database->started_at == 0 ? 0 : database->started_at + STARTING_US;
}

/* The same for the launcher. */
int64
dlock_granter_wanted_at(int number)
{
	int64		when;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	when = wanted_at(number);
	LWLockRelease(dlock_lwlock_tickets());
	return when;
}

/*
 * Start a granter if one is wanted.  Called by the launcher, and by a backend that
 * has taken a ticket.  False: no worker process is left.
 */
bool
dlock_granter_start(int number, int64 now)
{
	DlockTicketDatabase *database = dlock_ticket_memory_database(number);
	BackgroundWorker worker;
	bool		wanted;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	wanted = wanted_at(number) <= now;
	if (wanted)
		database->started_at = now;
	LWLockRelease(dlock_lwlock_tickets());
	if (!wanted)
		return true;

	dlock_worker_describe(&worker, "granter", BGW_NEVER_RESTART);
	worker.bgw_main_arg = Int32GetDatum(number);
	if (RegisterDynamicBackgroundWorker(&worker, NULL))
		return true;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	database->started_at = 0;
	LWLockRelease(dlock_lwlock_tickets());
	return false;
}

/* We are the granter from now on.  False: there is one already. */
static bool
register_us(void)
{
	DlockTicketDatabase *database = dlock_ticket_memory_database(db);
	bool		registered;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	registered = database->granter == 0;
	if (registered)
	{
		database->granter = MyProcPid;
		database->started_at = 0;
		dlock_ready_list_set_latch(&database->ready, MyLatch);
	}
	LWLockRelease(dlock_lwlock_tickets());
	return registered;
}

/*
 * We are not any more, unless "if_idle" and there are tickets.  Returns whether
 * there are.  A ticket that comes after this finds no granter, and starts one.
 */
static bool
unregister_us(bool if_idle)
{
	DlockTicketDatabase *database = dlock_ticket_memory_database(db);
	bool		has_tickets;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	has_tickets = database->nwaiting > 0;
	if (database->granter == MyProcPid && !(if_idle && has_tickets))
	{
		database->granter = 0;
		dlock_ready_list_set_latch(&database->ready, NULL);
	}
	LWLockRelease(dlock_lwlock_tickets());
	return has_tickets;
}

/*
 * The timer: when a ticket has to be looked at, if nobody wakes it
 *
 * This is in the granter's own memory: a new granter begins by looking at all
 * tickets.  A ticket that does not wait any more is not removed; it is found to be
 * gone when its time comes.
 */

typedef struct Timer
{
	int64		ticket;			/* the hash key */
	int64		when;			/* lease time */
	pairingheap_node node;
} Timer;

static HTAB *by_ticket = NULL;
static pairingheap * by_time = NULL;

/* The first one is the earliest. */
static int
compare_timers(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	int64		x = pairingheap_const_container(Timer, node, a)->when;
	int64		y = pairingheap_const_container(Timer, node, b)->when;

	return (x < y) - (x > y);
}

/* Called once, in memory that lasts as long as the process. */
static void
init_timers(void)
{
	HASHCTL		ctl = {.keysize = sizeof(int64),.entrysize = sizeof(Timer)};

	by_time = pairingheap_allocate(compare_timers, NULL);
	ctl.hcxt = CurrentMemoryContext;
	by_ticket = hash_create("dlock timers", 256, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
drop_timer(Timer *timer)
{
	pairingheap_remove(by_time, &timer->node);
	(void) hash_search(by_ticket, &timer->ticket, HASH_REMOVE, NULL);
}

/* A new time replaces the old one; DLOCK_NEVER: none. */
static void
set_timer(int64 ticket, int64 when)
{
	Timer	   *timer = hash_search(by_ticket, &ticket, HASH_FIND, NULL);

	if (timer != NULL)
		drop_timer(timer);
	if (when == DLOCK_NEVER)
		return;
	timer = hash_search(by_ticket, &ticket, HASH_ENTER, NULL);
	timer->when = when;
	pairingheap_add(by_time, &timer->node);
}

static Timer *
first_timer(void)
{
	if (pairingheap_is_empty(by_time))
		return NULL;
	return pairingheap_container(Timer, node, pairingheap_first(by_time));
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

/* Add the tickets that have been woken, as far as the batch has room. */
static void
add_ready(Batch *batch)
{
	batch->n += dlock_ready_list_take(&dlock_ticket_memory_database(db)->ready,
									  &batch->tickets[batch->n], BATCH - batch->n);
}

/* Add tickets whose time has come, up to "max" in the batch. */
static void
add_due(Batch *batch, int64 now, int max)
{
	Timer	   *timer;

	while (batch->n < max && (timer = first_timer()) != NULL && timer->when <= now)
	{
		batch->tickets[batch->n++] = timer->ticket;
		drop_timer(timer);
	}
}

/*
 * Process a batch.  With add_more, also take tickets that are woken meanwhile:
 * the next one in line for a place, say.  False: a ticket was withdrawn while it
 * was granted, so the transaction must not commit.
 */
static bool
look_at_all(Batch *batch, bool add_more)
{
	MemoryContext each_look = AllocSetContextCreate(CurrentMemoryContext, "dlock look",
													ALLOCSET_DEFAULT_SIZES);

	batch->nended = 0;
	for (batch->current = 0; batch->current < batch->n; batch->current++)
	{
		int			i = batch->current;
		DlockEndedTicket *ended = &batch->ended[batch->nended];
		DlockLookResult result;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(each_look);
		result = dlock_ticket_grant_look(batch->tickets[i], &batch->due[i],
										 &batch->is_new[i], ended);
		if (result == DLOCK_LOOK_TOO_LATE)
			return false;
		if (result != DLOCK_LOOK_WAITS)
		{
			batch->due[i] = DLOCK_NEVER;
			batch->is_new[i] = false;
		}
		if (result == DLOCK_LOOK_ENDS)
		{
			ended->key = MemoryContextStrdup(batch_context, ended->key);
			batch->nended++;
		}
		MemoryContextReset(each_look);
		if (i + 1 == batch->n && add_more)
			add_ready(batch);
	}
	return true;
}

/* Tell the requesters of the tickets that have ended: a batch. */
static void
announce(void *arg)
{
	const Batch *batch = arg;

	for (int i = 0; i < batch->nended; i++)
		dlock_ticket_grant_announce(&batch->ended[i]);
}

/* The transaction has committed: tell, count and log what has ended, set the timers. */
static void
finish(Batch *batch)
{
	int64		now = dlock_clock_now();
	int64		pause = DeadlockTimeout * INT64CONST(1000);

	if (batch->nended > 0)
		dlock_event_send(announce, batch);
	for (int i = 0; i < batch->nended; i++)
		dlock_ticket_grant_count(&batch->ended[i], now);
	for (int i = 0; i < batch->n; i++)
	{
		set_timer(batch->tickets[i], batch->due[i] == DLOCK_NEVER ?
				  DLOCK_NEVER : Min(batch->due[i], now + MAX_LOOK_US));

		/* one that waits from now on may be in a circle */
		if (batch->is_new[i] && watch.suspected_at == 0 && watch.next > now + pause)
			dlock_deadlock_begin(&watch, now);
	}
}

/*
 * Process the batch in one transaction.  With add_more, also take tickets that
 * become ready meanwhile.  The error is set if the outcome is FAILED.
 */
static Outcome
run_transaction(Batch *batch, bool add_more, ErrorData **error)
{
	volatile Outcome result = DONE;

	PG_TRY();
	{
		start_transaction();
		PushActiveSnapshot(GetTransactionSnapshot());
		memset(batch->is_new, 0, sizeof(batch->is_new));
		if (!look_at_all(batch, add_more))
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

static void
announce_one(void *arg)
{
	dlock_ticket_grant_announce(arg);
}

/* A ticket is missed because of an error, in a transaction of its own. */
static void
miss(int64 ticket, const char *code, const char *reason)
{
	DlockEndedTicket ended;
	volatile bool ends = false;

	PG_TRY();
	{
		start_transaction();
		ends = dlock_ticket_grant_miss(ticket, code, reason, &ended) == DLOCK_LOOK_ENDS;
		if (ends)
			ended.key = MemoryContextStrdup(batch_context, ended.key);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		/* no transaction is possible, but dlock_ticket() gives the answer */
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
	if (!ends)
		return;
	dlock_event_send(announce_one, &ended);
	dlock_ticket_grant_count(&ended, dlock_clock_now());
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
 * Keep the first n tickets of the batch.  The others are due at once, in the order
 * in which they were put off.
 */
static void
cut_off(Batch *batch, int n)
{
	static int64 put_off = 0;

	for (int i = n; i < batch->n; i++)
		set_timer(batch->tickets[i], ++put_off);
	batch->n = n;
}

/*
 * Process a batch.  If a ticket fails, those before it are processed again first,
 * and then it is processed alone.  What comes after it is for the next batch.
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

		/* the commit itself failed: every ticket may be the reason */
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

/* Does a command want this database for itself?  Called in a transaction. */
static bool
is_wanted_elsewhere(void)
{
	LOCKTAG		tag;

	/* what every connection locks when it begins */
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL;
}

/* The extension was dropped: no ticket will ever be granted. */
static void
miss_all(void)
{
	int			n;
	int64	   *tickets = dlock_ticket_list(MyDatabaseId, &n);

	for (int i = 0; i < n; i++)
		miss(tickets[i], "42704", "extension \"dlock\" was dropped");
}

/* Called once a second.  False: the granter has to exit. */
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
	if (unregister_us(false))
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
	DlockReadyList *ready = &dlock_ticket_memory_database(db)->ready;
	int64		ticket;

	if (dlock_clock_now() < watch.next ||
		(watch.suspected_at != 0 && !dlock_ready_list_is_past(ready, suspects)))
		return;
	start_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	ticket = dlock_deadlock_watch_tickets(&watch, dlock_clock_now());
	suspects = dlock_ready_list_last(ready);
	PopActiveSnapshot();
	CommitTransactionCommand();
	if (ticket != 0)
		miss(ticket, "40P01", "deadlock");
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

/* The granter's loop.  It returns when the process has to exit. */
static void
process_tickets(void)
{
	Batch	   *batch = MemoryContextAlloc(TopMemoryContext, sizeof(Batch));
	int64		idle_since = 0;
	int64		probe_at = 0;
	bool		has_work;

	for (;;)
	{
		int64		now = dlock_clock_now();
		int64		wake_at;
		const Timer *timer;

		MemoryContextReset(batch_context);
		MemoryContextSwitchTo(batch_context);

		/* half of the batch is for those that have been woken */
		batch->n = 0;
		add_due(batch, now, BATCH / 2);
		add_ready(batch);
		add_due(batch, now, BATCH);
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
		if (now >= idle_since + IDLE_US && !unregister_us(true))
			return;
		timer = first_timer();
		wake_at = Min(probe_at, watch.next);
		if (timer != NULL)
			wake_at = Min(wake_at, timer->when);
		sleep_until(has_work ? now : wake_at);
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
	if (!register_us())
		return;
	before_shmem_exit(leave, (Datum) 0);
	watch.next = DLOCK_NEVER;

	/* an earlier granter may have taken them from the list of ready tickets */
	MemoryContextSwitchTo(TopMemoryContext);
	init_timers();
	tickets = dlock_ticket_list(dboid, &n);
	for (int i = 0; i < n; i++)
		set_timer(tickets[i], 0);
	pfree(tickets);
	process_tickets();
}
