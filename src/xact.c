/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  What dlock does at the end of a transaction: how durable its commit is,
 *	  and which waiters it wakes.
 *
 * A grant must be durable before the client hears of it.  A release may be lost:
 * WAL is sequential, so the flush of any later grant includes it, and if it is
 * lost, the lock only stays until its TTL ends.  A renewal may be lost, too,
 * because after a crash a lease lasts one full TTL from the start.  There are
 * two exceptions.  A renewal with a longer TTL must be durable, so that the row
 * that survives has the longer TTL.  And if a synchronous standby is configured,
 * every renewal must wait for it: a primary that is cut off must not continue to
 * extend leases that the promoted standby has let expire.
 *
 * So at PRE_COMMIT, and for this transaction alone, synchronous_commit is
 * raised if the transaction contains a grant, and turned off if its only writes
 * were such releases and renewals.  Two signs tell that there were no other
 * writes: the transaction had no id before our first write, and the backend has
 * written no WAL but ours since then.  In doubt nothing is lowered.
 *
 * Every key that a transaction is about to change is noted first, so that its
 * waiters are woken at the end, however the transaction ends.  When the
 * callbacks for COMMIT and ABORT run, the outcome is visible to all processes
 * and nothing may fail, so they only set latches, count, log, and put tickets
 * into the queue.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/instrument.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "clock.h"
#include "database.h"
#include "drafts.h"
#include "ends.h"
#include "guc.h"
#include "known.h"
#include "queue.h"
#include "session.h"
#include "standby.h"
#include "stats.h"
#include "tally.h"
#include "xact.h"

/* of the current transaction */
static struct
{
	bool		touched;		/* a lock operation has run */
	bool		had_xid;		/* something was written before it */
	bool		has_tickets;	/* it decides about some */
	int			wrote;			/* DlockWrite bits */
	int64		wal_first;		/* WAL records before the first operation */
	int64		wal_enter;		/* ... before the current operation */
	int64		wal_ours;		/* WAL records of our operations */
	int			lowered_from;	/* what synchronous_commit was, if lowered */
	int64		due;			/* when the reaper is wanted; 0 = it is not */
}			xact;

/* its changes, in order; the memory is kept for the next transaction */
typedef struct Noted
{
	DlockChange change;
	SubTransactionId subid;
	uint32		counts;			/* DLOCK_STAT_BITs, for the commit */
} Noted;

static Noted *changes = NULL;
static int	nchanges = 0;
static int	maxchanges = 0;

#define KEEP_CHANGES	1024

/* Bracket every lock operation with these two. */
void
dlock_xact_enter(void)
{
	if (!xact.touched)
	{
		xact.touched = true;
		dlock_stats_attach();
		xact.had_xid = TransactionIdIsValid(GetTopTransactionIdIfAny());
		xact.wal_first = pgWalUsage.wal_records;
		xact.wal_ours = 0;
	}
	xact.wal_enter = pgWalUsage.wal_records;
}

void
dlock_xact_leave(DlockWrite wrote)
{
	xact.wrote |= wrote;
	xact.wal_ours += pgWalUsage.wal_records - xact.wal_enter;

	/* a try that failed leaves nothing to do at the end */
	if (xact.wrote == DLOCK_WROTE_NOTHING && nchanges == 0 && !xact.has_tickets)
		xact.touched = false;
}

/* The end of this transaction decides about a ticket (drafts.c). */
void
dlock_xact_note_ticket(int64 ticket, bool is_draft)
{
	dlock_drafts_add(ticket, is_draft);
	dlock_xact_enter();
	xact.has_tickets = true;
	dlock_xact_leave(DLOCK_WROTE_NOTHING);
}

/*
 * We are about to change this key.  Unless dlock_xact_end_change() says what the
 * change was, the end of the transaction wakes everything that waits for it.
 */
int
dlock_xact_begin_change(uint64 hash)
{
	Noted	   *noted;

	if (nchanges == maxchanges)
	{
		int			newmax = maxchanges == 0 ? 64 : maxchanges * 2;
		Size		size = mul_size(newmax, sizeof(Noted));

		changes = changes == NULL ?
			MemoryContextAllocHuge(TopMemoryContext, size) :
			repalloc_huge(changes, size);
		maxchanges = newmax;
	}
	noted = &changes[nchanges];
	memset(noted, 0, sizeof(*noted));
	noted->change.hash = hash;
	noted->change.wakes_turn = true;
	noted->change.wakes_change = true;
	noted->change.expires = DLOCK_NEVER;
	noted->subid = GetCurrentSubTransactionId();
	return nchanges++;
}

/* The key was not changed after all. */
void
dlock_xact_cancel_change(int change)
{
	Assert(change == nchanges - 1);
	nchanges = change;
}

/*
 * What the commit of this change counts.  A change may end several grants, and
 * so count the same thing more than once; each further time is noted as a change
 * that wakes nobody.
 */
void
dlock_xact_count_change(int change, DlockStat stat)
{
	if (changes[change].counts & DLOCK_STAT_BIT(stat))
	{
		change = dlock_xact_begin_change(changes[change].change.hash);
		changes[change].change.wakes_turn = false;
		changes[change].change.wakes_change = false;
	}
	changes[change].counts |= DLOCK_STAT_BIT(stat);
}

/* What the change was, and so what its commit means to waiters. */
void
dlock_xact_end_change(int change, bool wakes_turn, bool wakes_change,
					  int64 expires)
{
	Noted	   *this = &changes[change];

	this->change.wakes_turn = wakes_turn;
	this->change.wakes_change = wakes_change;
	this->change.expires = expires;

	/* a trigger may fence the same key for every row: note it once */
	if (change > 0 && this->counts == 0 &&
		memcmp(this, this - 1, sizeof(Noted)) == 0)
		dlock_xact_cancel_change(change);
}

static void
count_changes(void)
{
	for (int i = 0; i < nchanges; i++)
		if (changes[i].counts != 0)
			dlock_stats_count_set(changes[i].counts);
	dlock_ends_count();
}

/* Wake those that wait for the keys changed from the given one on. */
static void
wake_waiters(int first, bool rolled_back)
{
	if (nchanges > first && dlock_queue_any())
		for (int i = first; i < nchanges; i++)
		{
			if (rolled_back)
				changes[i].change.wakes_turn = true;
			dlock_queue_changed(&changes[i].change);
		}
	nchanges = first;
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

static bool
wrote_only_ours(void)
{
	return !xact.had_xid &&
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

static void
restore_synchronous_commit(void)
{
	if (xact.lowered_from > SYNCHRONOUS_COMMIT_OFF &&
		synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		synchronous_commit = xact.lowered_from;
}

static void
pre_commit(void)
{
	int			must_last = DLOCK_WROTE_GRANT;

	if (dlock_standby_defined())
		must_last |= DLOCK_WROTE_RENEWAL;

	if (xact.wrote & must_last)
	{
		if (dlock_durable_grants &&
			synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
			raise_synchronous_commit();
	}
	else if (xact.wrote != DLOCK_WROTE_NOTHING &&
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
	if (committed)
		count_changes();
	else
		dlock_known_forget();

	/* before the waiters are woken, which look for room */
	dlock_tally_at_end(committed);
	if (xact.has_tickets)
		dlock_drafts_at_end(committed);
	wake_waiters(0, !committed);
	dlock_ends_at_end(committed);
	dlock_session_at_end(committed);
	if (committed && xact.due != 0)
		dlock_database_want_reaper(xact.due);

	if (maxchanges > KEEP_CHANGES)
	{
		pfree(changes);
		changes = NULL;
		maxchanges = 0;
	}
	memset(&xact, 0, sizeof(xact));
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (!xact.touched)
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
			if (xact.has_tickets)
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

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	int			first = nchanges;

	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	dlock_known_forget();
	dlock_tally_at_abort_sub(mySubid);
	dlock_ends_at_abort_sub(mySubid);

	/* the changes of this subtransaction and its children come last */
	while (first > 0 && changes[first - 1].subid >= mySubid)
		first--;
	if (xact.has_tickets)
		dlock_drafts_at_abort_sub(mySubid);
	wake_waiters(first, true);
	dlock_session_at_abort_sub(mySubid);
}

void
dlock_xact_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
