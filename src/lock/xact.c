/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  What dlock does at the end of a transaction: how durable its commit is,
 *	  and which waiters it wakes.
 *
 * A grant must be durable before the client hears of it.  A release may be lost:
 * WAL is sequential, so the flush of any later grant includes it, and if it is
 * lost, the lock is only held again until its TTL ends.  A session that cannot have
 * that sets dlock.durable_releases.  A renewal may be lost, too,
 * because after a crash a lease lasts one full TTL from the start.  There are
 * two exceptions.  A renewal with a longer TTL must be durable, so that the row
 * that survives has the longer TTL.  And if a synchronous standby is configured,
 * every renewal must wait for it: a primary that is cut off must not continue to
 * extend leases that the promoted standby has let expire.
 *
 * So at PRE_COMMIT, and for this transaction alone, synchronous_commit is
 * raised if the transaction contains a grant, and turned off if its only writes
 * were such releases and renewals.  Two signs tell that nothing else needs a flush:
 * one of our operations gave the transaction its id, and the backend has written no
 * WAL but ours since the first of them.  In doubt nothing is lowered.
 *
 * WAL does not tell whether a transaction has written something else that a fence has
 * to judge: a SELECT can write WAL, and a write to an unlogged table writes none.  Ids
 * of commands do, see dlock_xact_wrote_other().
 *
 * Every key that a transaction is about to change is noted in the journal first
 * (journal.c), so that its waiters are woken at the end, however the transaction
 * ends.  When the callbacks for COMMIT and ABORT run, the outcome is visible to
 * all processes and nothing may fail, so they only set latches, count, log, and
 * put tickets into the queue.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/instrument.h"
#include "utils/guc.h"

#include "clock.h"
#include "database.h"
#include "guc.h"
#include "health/standby.h"
#include "journal.h"
#include "lock/xact.h"
#include "queue/queue.h"
#include "stats/stats.h"

/* of the current transaction */
static struct
{
	bool		touched;		/* a lock operation has run */
	bool		had_id;			/* before the current operation */
	bool		id_is_ours;		/* an operation gave the transaction its id */
	CommandId	command_enter;	/* the command before the current operation */
	CommandId	commands_ours;	/* how many commands our operations were */
	int			wrote;			/* DlockWrite bits */
	int64		wal_first;		/* WAL records before the first operation */
	int64		wal_enter;		/* ... before the current operation */
	int64		wal_ours;		/* WAL records of our operations */
	int			lowered_from;	/* what synchronous_commit was, if lowered */
	int64		due;			/* when the reaper is wanted; 0 = it is not */
}			xact;

/* Bracket every lock operation with these two. */
void
dlock_xact_enter(void)
{
	if (!xact.touched)
	{
		xact.touched = true;
		dlock_stats_attach();
		xact.wal_first = pgWalUsage.wal_records;
		xact.wal_ours = 0;
	}

	/* what the statement around us has written, or will, is not ours */
	if (!IsInParallelMode())
		CommandCounterIncrement();
	xact.command_enter = GetCurrentCommandId(false);
	xact.had_id = TransactionIdIsValid(GetTopTransactionIdIfAny());
	xact.wal_enter = pgWalUsage.wal_records;
}

/* The end of a try: what it has written is ours, and no write of the caller's. */
void
dlock_xact_leave(DlockWrite wrote)
{
	xact.wrote |= wrote;
	xact.wal_ours += pgWalUsage.wal_records - xact.wal_enter;
	xact.commands_ours += GetCurrentCommandId(false) - xact.command_enter;
	if (!xact.had_id && TransactionIdIsValid(GetTopTransactionIdIfAny()))
		xact.id_is_ours = true;

	/* a try that failed leaves nothing to do at the end */
	if (xact.wrote == DLOCK_WROTE_NOTHING && !xact.id_is_ours &&
		xact.commands_ours == 0 && dlock_journal_is_empty())
		xact.touched = false;
}

/*
 * Has anything but lock operations written in this transaction?  For a fence that
 * judges the transaction at PRE_COMMIT; in doubt it has.
 *
 * A transaction that has written has an id.  If something else gave it that id, that
 * is the answer.  If one of our operations did, the commands tell.  Whatever writes a
 * row, in a table of any kind, uses the id of the current command, and the next
 * command gets a new one only if that of the last was used.  So there is another
 * writer if more ids were used than we have used.  A rollback to a savepoint does not
 * take them back, and neither it nor a statement that found no row is distinguished
 * from a write.
 *
 * Without an id of a command, there are only: nextval() and setval(), which no rollback
 * undoes; LOCK; pg_current_xact_id(); and messages of pg_logical_emit_message().  After
 * a lock operation that wrote, they pass for nothing.
 */
bool
dlock_xact_wrote_other(void)
{
	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return false;
	if (!xact.id_is_ours)
		return true;
	CommandCounterIncrement();
	return GetCurrentCommandId(false) != xact.commands_ours;
}

/*
 * We are about to change this key.  Unless dlock_xact_end_change() says what the
 * change was, the end of the transaction wakes everything that waits for it.
 */
int
dlock_xact_begin_change(uint64 hash)
{
	DlockChange change = {0};

	change.hash = hash;
	change.wakes_turn = true;
	change.wakes_change = true;
	change.expires = DLOCK_NEVER;
	return dlock_journal_add(DLOCK_NOTE_KEY, &change, sizeof(change));
}

/* The key was not changed after all, and nothing else was noted since. */
void
dlock_xact_cancel_change(int change)
{
	dlock_journal_take_back(change);
}

/* Its commit gives the key to this owner, which may be waiting anywhere in the queue. */
void
dlock_xact_name_heir(int change, uint64 owner_name)
{
	DlockChange *this = dlock_journal_at(change);

	this->heir = owner_name;
}

/* What the change was, and so what its commit means to waiters. */
void
dlock_xact_end_change(int change, bool wakes_turn, bool wakes_change,
					  int64 expires)
{
	DlockChange *this = dlock_journal_at(change);

	this->wakes_turn = wakes_turn;
	this->wakes_change = wakes_change;
	this->expires = expires;

	/* a trigger may fence the same key for every row: note it once */
	if (dlock_journal_repeats(change))
		dlock_journal_take_back(change);
}

/* At the end: wake those that wait for the key.  A rollback may have freed it. */
static void
end_key(const void *what, bool committed)
{
	DlockChange change;

	if (!dlock_queue_any())
		return;
	change = *(const DlockChange *) what;
	if (!committed)
		change.wakes_turn = true;
	dlock_queue_changed(&change);
}

/* The commit of this transaction counts something. */
void
dlock_xact_count(DlockStat stat)
{
	(void) dlock_journal_add(DLOCK_NOTE_COUNT, &stat, sizeof(stat));
}

/* A count of what a transaction has done is none if that is rolled back. */
static void
end_count(const void *what, bool committed)
{
	if (committed)
		dlock_stats_count(*(const DlockStat *) what);
}

/*
 * The reaper is told at commit.  A visit before that would find no row, and no
 * other visit would follow.
 */
void
dlock_xact_want_reaper(int64 when)
{
	if (xact.due == 0 || when < xact.due)
		xact.due = when;
}

/* Has the transaction written nothing but what our own tries have written (README, 9)? */
static bool
wrote_only_ours(void)
{
	return xact.id_is_ours &&
		pgWalUsage.wal_records - xact.wal_first == xact.wal_ours;
}

/*
 * For this transaction only: AtEOXact_GUC() undoes it.  It has to be set through
 * set_config_option(), because an assign hook tells the wait for the standby
 * what to wait for.
 */
static void
raise_synchronous_commit(void)
{
	(void) set_config_option("synchronous_commit", "on",
							 PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * The assign hook does not matter to a commit that waits for nothing.  Every
 * release runs this, so it avoids set_config_option(), which makes the end of
 * the transaction visit all settings.  The value is restored when the
 * transaction ends, unless it has been changed meanwhile.
 */
static void
lower_synchronous_commit(void)
{
	xact.lowered_from = synchronous_commit;
	synchronous_commit = SYNCHRONOUS_COMMIT_OFF;
}

/* A value that the transaction itself has set meanwhile stays. */
static void
restore_synchronous_commit(void)
{
	if (xact.lowered_from > SYNCHRONOUS_COMMIT_OFF &&
		synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		synchronous_commit = xact.lowered_from;
}

/* May fail: the last moment at which it is decided what this commit waits for. */
static void
pre_commit(void)
{
	int			grants = DLOCK_WROTE_GRANT;
	int			must_last;

	if (dlock_standby_defined())
		grants |= DLOCK_WROTE_RENEWAL;
	must_last = (dlock_durable_grants ? grants : 0) |
		(dlock_durable_releases ? DLOCK_WROTE_RELEASE : 0);

	if (xact.wrote & must_last)
	{
		if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
			raise_synchronous_commit();
	}
	else if (!(xact.wrote & grants) && xact.wrote != DLOCK_WROTE_NOTHING &&
			 !(xact.wrote & DLOCK_WROTE_OTHER) &&
			 synchronous_commit > SYNCHRONOUS_COMMIT_OFF &&
			 wrote_only_ours())
		lower_synchronous_commit();
}

/* Must not fail. */
static void
at_end(bool committed)
{
	restore_synchronous_commit();
	dlock_journal_end(committed);
	if (committed && xact.due != 0)
		dlock_database_want_reaper(xact.due);
	memset(&xact, 0, sizeof(xact));
}

/* Registered with PostgreSQL.  README says what may fail at which event. */
static void
xact_callback(XactEvent event, void *arg)
{
	if (!xact.touched && dlock_journal_is_empty())
		return;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			pre_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (xact.wrote != DLOCK_WROTE_NOTHING)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has changed or fenced a lock"),
						 errhint("End it with COMMIT, or acquire the lock in a transaction of its own.")));
			if (dlock_journal_has(DLOCK_NOTE_DRAFT) ||
				dlock_journal_has(DLOCK_NOTE_TICKET))
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has taken a ticket"),
						 errhint("End it with COMMIT, or call dlock_enqueue in a transaction of its own.")));
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			at_end(true);
			break;
		case XACT_EVENT_ABORT:
			at_end(false);
			break;
		default:
			break;
	}
}

/* A savepoint is rolled back: what was noted since goes.  Must not fail. */
static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	dlock_journal_abort_sub(mySubid);
}

/* At load time. */
void
dlock_xact_init(void)
{
	dlock_journal_register(DLOCK_NOTE_KEY, end_key);
	dlock_journal_register(DLOCK_NOTE_COUNT, end_count);
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
