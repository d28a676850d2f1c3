/*-------------------------------------------------------------------------
 *
 * xact.c
 *	  What dlock does at the end of a transaction: how durable its commit is,
 *	  and who is woken by it.
 *
 * A grant must be durable before the client hears of it.  A release need not
 * be: WAL is sequential, so the flush of any later grant carries it along,
 * and a release that is lost only leaves the lock until its TTL.  Nor need a
 * renewal, for after a crash a lease lasts one full TTL from the start; but
 * one that lengthens the TTL must, so that the row that survives knows the
 * longer one, and so must every renewal where a synchronous standby is
 * configured: a primary that is cut off must not go on extending leases that
 * the promoted standby has let expire.
 *
 * So at PRE_COMMIT, and for this transaction alone, synchronous_commit is
 * raised for a transaction with a grant, and turned off for one whose only
 * writes were such releases and renewals.  That these were all is known from
 * two things: the transaction had no id before our first write, and since
 * then the backend has written no WAL but ours.  In doubt nothing is lowered.
 *
 * Every key that a transaction is about to touch is noted first, so that
 * those who wait for it are woken at the end, however that comes about.  When
 * the callbacks for COMMIT and ABORT run, the outcome is visible to all, and
 * nothing may fail any more: they only set latches.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/instrument.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "guc.h"
#include "session.h"
#include "shmem.h"
#include "standby.h"
#include "wait.h"
#include "xact.h"

/* of the current transaction */
static struct
{
	bool		touched;		/* a lock operation was here */
	bool		had_xid;		/* before it, something else was written */
	int			wrote;			/* DlockWrite bits */
	int64		wal_first;		/* WAL records before the first operation */
	int64		wal_enter;		/* ... before the current operation */
	int64		wal_ours;		/* WAL records of our operations */
	int			lowered_from;	/* what synchronous_commit was, if lowered */
	int64		due;			/* the reaper is wanted then; 0 = it is not */
}			xact;

/* the keys that it has touched, in order; memory is kept for the next one */
typedef struct Note
{
	DlockChange change;
	SubTransactionId subid;
} Note;

static Note *notes = NULL;
static int	nnotes = 0;
static int	maxnotes = 0;

#define KEEP_NOTES	1024

/* Bracket every lock operation with these two. */
void
dlock_xact_enter(void)
{
	if (!xact.touched)
	{
		xact.touched = true;
		xact.had_xid = TransactionIdIsValid(GetTopTransactionIdIfAny());
		xact.wal_first = pgWalUsage.wal_records;
	}
	xact.wal_enter = pgWalUsage.wal_records;
}

void
dlock_xact_leave(DlockWrite wrote)
{
	xact.wrote |= wrote;
	xact.wal_ours += pgWalUsage.wal_records - xact.wal_enter;
}

/*
 * Note that we are about to touch this key.  Until dlock_xact_noted() says
 * what became of it, all who wait for it will be woken.
 */
int
dlock_xact_note(uint64 hash)
{
	Note	   *note;

	if (nnotes == maxnotes)
	{
		int			newmax = maxnotes == 0 ? 64 : maxnotes * 2;
		Size		size = mul_size(newmax, sizeof(Note));

		notes = notes == NULL ?
			MemoryContextAllocHuge(TopMemoryContext, size) :
			repalloc_huge(notes, size);
		maxnotes = newmax;
	}
	note = &notes[nnotes];
	memset(note, 0, sizeof(*note));
	note->change.hash = hash;
	note->change.wakes_turn = true;
	note->change.wakes_change = true;
	note->change.expires = DLOCK_NEVER;
	note->subid = GetCurrentSubTransactionId();
	return nnotes++;
}

/* It was not touched after all. */
void
dlock_xact_unnote(int note)
{
	Assert(note == nnotes - 1);
	nnotes = note;
}

/* What became of it, and so whom its commit wakes. */
void
dlock_xact_noted(int note, bool wakes_turn, bool wakes_change, int64 expires)
{
	Note	   *this = &notes[note];

	this->change.wakes_turn = wakes_turn;
	this->change.wakes_change = wakes_change;
	this->change.expires = expires;

	/* a trigger fences the same key once a row: once is enough */
	if (note > 0 && memcmp(this, this - 1, sizeof(Note)) == 0)
		dlock_xact_unnote(note);
}

/* Wake those who wait for the keys noted from the given one on. */
static void
wake_noted(int first, bool rolled_back)
{
	if (nnotes > first && dlock_wait_any())
		for (int i = first; i < nnotes; i++)
		{
			if (rolled_back)
				notes[i].change.wakes_turn = true;
			dlock_wait_wake(&notes[i].change);
		}
	nnotes = first;
}

/*
 * The reaper hears of it at commit: a visit before that finds no row, and
 * would be the last one.
 */
void
dlock_xact_report_due(int64 when)
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
 * For this transaction alone: AtEOXact_GUC() undoes it.  It has to be done in
 * this way, because an assign hook tells the wait for the standby what to
 * wait for.
 */
static void
raise_synchronous_commit(void)
{
	(void) set_config_option("synchronous_commit", "on",
							 PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * The hook is of no matter to a commit that waits for nothing.  This is every
 * release's way, so it is spared the machinery of settings, which visits all
 * of them at the end.  Put back when the transaction ends, unless somebody
 * has changed it meanwhile.
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
	wake_noted(0, !committed);
	dlock_session_at_end(committed);
	if (committed && xact.due != 0)
		dlock_shmem_report_due(xact.due);

	if (maxnotes > KEEP_NOTES)
	{
		pfree(notes);
		notes = NULL;
		maxnotes = 0;
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
	int			first = nnotes;

	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;

	/* its own and its children's are the last ones */
	while (first > 0 && notes[first - 1].subid >= mySubid)
		first--;
	wake_noted(first, true);
	dlock_session_at_end(false);
}

void
dlock_xact_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
