/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  The part of a try that makes a grant.
 *
 * An exclusive grant takes the head of the key: the row is locked, or added.  If
 * the key may have places, these are looked at when the head is ours, and the
 * decision is made again.  places.c explains why nothing is missed.
 *
 * A shared grant takes a place, which is a row of its own.  It is added under
 * the partition lock, if nothing that the decision depends on has changed until
 * then.
 *
 * The rows of others are judged by a reading of the clock from before they were
 * read.  If one of them had expired by then, its holder cannot fence it any
 * more.  With a later reading, the holder could do so in between.
 *
 * A grant may end others: those that it preempts, those that have lapsed, and
 * the place that its own owner has so far.  All of them are locked before
 * anything is written.  If one of them is in use, the answer is "busy".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/sinval.h"

#include "clock.h"
#include "database.h"
#include "events.h"
#include "grant.h"
#include "lwlocks.h"
#include "session.h"
#include "version.h"
#include "write.h"

DlockVerdict
dlock_grant_decide(const DlockTry *try, int64 now)
{
	return dlock_fsm_decide(try->found->states, try->found->n, try->request,
							try->turn, now);
}

/*
 * Has the transaction that was changing the row ended by now?  Then an acquire
 * looks again before it answers busy.
 *
 * If it is the reaper's, this waits for it, because what the reaper deletes is
 * free.  The reaper touches a few rows and commits, and waits for nobody, so
 * this takes no longer than waiting for an LWLock.
 */
bool
dlock_grant_pending_ended(const DlockRow *row)
{
	DlockDatabase *db;

	if (!TransactionIdIsValid(row->pending))
		return false;
	db = dlock_database(MyDatabaseId);
	if (db != NULL && pg_atomic_read_u32(&db->reaper_xid) == row->pending)
		XactLockTableWait(row->pending, NULL, NULL, XLTW_None);
	return !TransactionIdIsInProgress(row->pending);
}

static void
fill_grant(DlockGrant *grant, const DlockRequest *request, int64 version, int64 now)
{
	grant->version = version;
	grant->role = request->role;
	grant->owner = request->owner;
	grant->value = request->value;
	grant->ttl = request->ttl;
	grant->cleanup = request->cleanup;
	grant->priority = request->priority;
	grant->pid = request->session ? MyProcPid : 0;
	grant->slots = request->slots;
	grant->at_least = request->at_least;
	grant->delay = request->delay;
	grant->lazy = request->lazy;
	grant->acquired_at = now;
	grant->refreshed_at = now;
	grant->expires_at = now + request->ttl;
}

static void
granted(DlockTry *try, const DlockGrant *grant)
{
	try->result->answer = DLOCK_IS_GRANTED;
	try->result->version = grant->version;
	try->result->expires = grant->expires_at;
	dlock_xact_want_reaper(grant->expires_at);
	try->wrote = DLOCK_WROTE_GRANT;
}

/*
 * The other rows that end when this is granted
 */


/* Lock them.  If that is not possible, the answer is set. */
static DlockLocked
lock_ending(DlockTry *try, int except)
{
	DlockRows  *found = try->found;

	for (int i = 0; i < found->n; i++)
	{
		DlockLocked locked;

		if (!found->states[i].ends || i == except)
			continue;
		locked = dlock_find_lock(&try->store, try->key, &found->states[i],
								 &found->rows[i], LockTupleExclusive, LockWaitSkip);
		if (locked != DLOCK_LOCKED)
			return locked;
		try->wrote = DLOCK_WROTE_LAZY;
	}
	return DLOCK_LOCKED;
}

/* End them.  "except" is overwritten by the grant itself. */
static void
end_rows(DlockTry *try, int except, int64 now)
{
	DlockRows  *found = try->found;
	char	   *key = NULL;

	for (int i = 0; i < found->n; i++)
	{
		DlockState *state = &found->states[i];
		bool		is_taken;

		if (!state->ends)
			continue;
		is_taken = dlock_fsm_phase(state, try->before) == DLOCK_PHASE_LIVE &&
			!(state->slot != DLOCK_HEAD && state->slot == try->request->slot);
		if (is_taken)
		{
			if (key == NULL)
				key = pnstrdup(try->key->data, try->key->len);
			dlock_event_forced(key, state->version, try->request->role, NULL);
		}
		if (i == except)
			continue;
		if (state->slot == DLOCK_HEAD)
			dlock_write_free(&try->store, try->key, &found->rows[i], now, 0);
		else
			dlock_write_remove(&try->store, &found->rows[i]);
		dlock_session_released(state->version);
	}
}

/*
 * Adding rows
 */

/* Load what is needed under the partition lock, and take it. */
static void
begin_insert(DlockTry *try, DlockInsertion *insertion)
{
	uint64		seen;

	do
	{
		seen = SharedInvalidMessageCounter;
		dlock_version_load(&try->store);
		dlock_write_load_insert(insertion);
	} while (seen != SharedInvalidMessageCounter);
	dlock_write_begin_insert(insertion);
}

/*
 * A grant to a key that has no head.  False: look again.
 *
 * If the key may have places, only a free row is added, which is ours then as
 * any other head would be.
 */
bool
dlock_grant_add_head(DlockTry *try)
{
	int			change = dlock_xact_begin_change(try->key->hash);
	DlockInsertion insertion;
	DlockGrant	grant;
	DlockRow	row;

	fill_grant(&grant, try->request, 0, dlock_clock_now());
	dlock_write_prepare_insert(&insertion, &try->store, try->key, DLOCK_HEAD,
							   &grant, dlock_places_marked(try->key));
	begin_insert(try, &insertion);
	if (dlock_find_any(&try->store, insertion.index, try->key, DLOCK_HEAD) ||
		(insertion.is_whole && dlock_places_marked(try->key)))
	{
		dlock_write_cancel_insert(&insertion);
		dlock_xact_cancel_change(change);
		return false;
	}
	if (!insertion.is_whole)
	{
		dlock_write_end_insert(&insertion, &grant, &row);
		dlock_xact_end_change(change, false, false, DLOCK_NEVER);
		return false;
	}

	/* the head is ours: draw the version, and start the lease now */
	fill_grant(&grant, try->request, dlock_version_next(&try->store),
			   dlock_clock_now());
	dlock_write_end_insert(&insertion, &grant, &row);
	granted(try, &grant);
	dlock_xact_end_change(change, false, true, grant.expires_at);
	return true;
}

/*
 * A grant that takes over the head, which we have locked.  False: look again.
 *
 * The reading of the clock has to be later than the lock, and earlier than the
 * look at the places.
 */
bool
dlock_grant_head(DlockTry *try, DlockVerdict verdict, int change)
{
	DlockRows  *found = try->found;
	DlockGrant	grant;
	DlockLocked locked;

	if (dlock_places_marked(try->key))
	{
		dlock_places_claim_head(try->key);
		try->before = dlock_clock_now();
		dlock_find_nothing(found);
		(void) dlock_find_slot(&try->store, try->key, DLOCK_HEAD,
							   DLOCK_FIND_NEWEST, found);
		dlock_find_places(&try->store, try->key, DLOCK_FIND_NEWEST, true, found);
	}
	else
		try->before = dlock_clock_now();

	verdict = dlock_grant_decide(try, try->before);
	if (verdict.action != DLOCK_DO_NOTHING &&
		(verdict.action != DLOCK_DO_GRANT || verdict.row == DLOCK_NO_ROW))
		return false;
	try->result->answer = verdict.answer;
	locked = verdict.action == DLOCK_DO_GRANT && verdict.nends > 0 ?
		lock_ending(try, verdict.row) : DLOCK_LOCKED;
	if (locked == DLOCK_LOCK_CHANGED)
		return false;
	if (locked == DLOCK_LOCK_BUSY)
		try->result->answer = DLOCK_IS_BUSY;
	if (try->result->answer != DLOCK_IS_GRANTED)
	{
		/* only rows are locked; that blocks others until we end */
		dlock_xact_end_change(change, true, false, DLOCK_NEVER);
		return true;
	}

	fill_grant(&grant, try->request, dlock_version_next(&try->store),
			   dlock_clock_now());
	if (verdict.nends > 0)
		end_rows(try, verdict.row, grant.acquired_at);
	dlock_write_grant(&try->store, try->key, DLOCK_HEAD,
					  &found->rows[verdict.row], &grant);
	granted(try, &grant);
	dlock_xact_end_change(change, false, true, grant.expires_at);
	return true;
}

/*
 * Put a grant into a place: the row that verdict.row names and that we have
 * locked, or a new one.  Its version is drawn here if it has none.  False: look
 * again.
 */
static bool
put_in_place(DlockTry *try, int taken, DlockGrant *grant, bool claims_count)
{
	const DlockRequest *request = try->request;
	LWLock	   *partition = dlock_lwlock_partition(try->key->hash);
	bool		draws = grant->version == 0;
	DlockInsertion insertion;
	DlockRow	row;
	bool		is_free;

	if (taken == DLOCK_NO_ROW)
	{
		dlock_write_prepare_insert(&insertion, &try->store, try->key,
								   request->slot, grant, false);
		begin_insert(try, &insertion);
	}
	else
		LWLockAcquire(partition, LW_EXCLUSIVE);

	is_free = !claims_count ||
		dlock_places_unchanged(try->key, &try->claims, request->slots != DLOCK_SHARED);
	if (taken != DLOCK_NO_ROW)
	{
		/* the lock on the row shows that it is taken */
		if (is_free)
			dlock_places_claim_place(try->key);
		LWLockRelease(partition);
		if (!is_free)
			return false;
		if (draws)
			fill_grant(grant, request, dlock_version_next(&try->store),
					   dlock_clock_now());
		dlock_write_grant(&try->store, try->key, request->slot,
						  &try->found->rows[taken], grant);
		return true;
	}

	if (!is_free ||
		(request->slot != DLOCK_HEAD &&
		 dlock_find_any(&try->store, insertion.index, try->key, request->slot)))
	{
		dlock_write_cancel_insert(&insertion);
		return false;
	}
	if (draws)
		fill_grant(grant, request, dlock_version_next(&try->store),
				   dlock_clock_now());
	if (request->slot == DLOCK_HEAD)
		insertion.slot = grant->version;
	dlock_write_end_insert(&insertion, grant, &row);
	if (!insertion.is_whole)
		dlock_write_grant(&try->store, try->key, insertion.slot, &row, grant);
	return true;
}

/* A shared grant.  False: look again. */
bool
dlock_grant_place(DlockTry *try, DlockVerdict verdict)
{
	DlockRows  *found = try->found;
	int			change = dlock_xact_begin_change(try->key->hash);
	DlockLocked locked = lock_ending(try, DLOCK_NO_ROW);
	DlockGrant	grant;

	if (locked == DLOCK_LOCKED && verdict.row != DLOCK_NO_ROW)
		locked = dlock_find_lock(&try->store, try->key, &found->states[verdict.row],
								 &found->rows[verdict.row], LockTupleExclusive,
								 LockWaitSkip);
	if (locked == DLOCK_LOCK_BUSY)
		try->result->answer = DLOCK_IS_BUSY;
	if (locked != DLOCK_LOCKED)
	{
		dlock_xact_end_change(change, true, false, DLOCK_NEVER);
		return locked == DLOCK_LOCK_BUSY;
	}

	fill_grant(&grant, try->request, 0, dlock_clock_now());
	if (!put_in_place(try, verdict.row, &grant, true))
	{
		dlock_xact_end_change(change, true, false, DLOCK_NEVER);
		return false;
	}
	end_rows(try, DLOCK_NO_ROW, grant.acquired_at);
	granted(try, &grant);
	dlock_xact_end_change(change, verdict.nends > 0, true, grant.expires_at);
	return true;
}

/*
 * The exclusive grant becomes a shared one, with the same version.  We have
 * locked the head, so nobody else can take a place meanwhile.
 */
bool
dlock_grant_move(DlockTry *try, DlockVerdict verdict, int change)
{
	DlockRows  *found = try->found;
	DlockRow   *head = &found->rows[verdict.row];
	int			taken = DLOCK_NO_ROW;
	DlockGrant	grant;
	int64		now = dlock_clock_now();

	for (int i = 0; i < found->n; i++)
		if (found->states[i].exists && i != verdict.row &&
			found->states[i].slot == try->request->slot)
			taken = i;
	if (taken != DLOCK_NO_ROW &&
		dlock_find_lock(&try->store, try->key, &found->states[taken],
						&found->rows[taken], LockTupleExclusive,
						LockWaitSkip) != DLOCK_LOCKED)
	{
		try->result->answer = DLOCK_IS_BUSY;
		dlock_xact_end_change(change, true, false, DLOCK_NEVER);
		return true;
	}

	fill_grant(&grant, try->request, dlock_row_version(head->tuple), now);
	grant.acquired_at = dlock_row_acquired_at(head->tuple);
	if (!put_in_place(try, taken, &grant, false))
		return false;
	dlock_write_free(&try->store, try->key, head, now, 0);
	granted(try, &grant);
	dlock_xact_end_change(change, true, false, grant.expires_at);
	return true;
}

/* Renew a grant: a repeated acquire replaces it, a refresh extends it. */
void
dlock_grant_renew(DlockTry *try, DlockRow *row, int64 slot, int64 now, int change)
{
	const DlockRequest *request = try->request;
	int64		old_ttl = dlock_row_ttl(row->tuple);
	int64		ttl = request->ttl != 0 ? request->ttl : old_ttl;
	int64		from = request->stamp != 0 ? request->stamp : now;
	DlockGrant	grant;

	if (request->op == DLOCK_ACQUIRE)
	{
		fill_grant(&grant, request, dlock_row_version(row->tuple), now);
		grant.acquired_at = dlock_row_acquired_at(row->tuple);
		dlock_write_grant(&try->store, try->key, slot, row, &grant);
		granted(try, &grant);
		dlock_xact_end_change(change, true, false, grant.expires_at);
		return;
	}

	dlock_write_renewal(&try->store, try->key, row, ttl, from);
	try->result->expires = from + ttl;
	dlock_xact_want_reaper(from + ttl);
	dlock_xact_end_change(change, false, false, from + ttl);
	try->wrote = ttl > old_ttl ? DLOCK_WROTE_GRANT : DLOCK_WROTE_RENEWAL;
}
