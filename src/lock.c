/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  The engine: read the rows, let fsm.c decide, apply.
 *
 * Every operation takes the same way, the reaper's included:
 *
 *	1. find the rows of the key
 *	2. decide; if nothing has to be written, that is the answer
 *	3. make the row ours: lock it, or the place where it will be
 *	4. decide again, because time has passed, more so if we had to wait
 *	5. write
 *
 * Whatever changed between 1 and 3 shows in 3, and we start over.  An acquire
 * and the reaper never wait in 3; the holder's own operations do, as any UPDATE
 * would.
 *
 * This is one try.  An acquire that may wait calls it again and again (await.c).
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
#include "ends.h"
#include "events.h"
#include "guc.h"
#include "lock.h"
#include "session.h"
#include "standby.h"
#include "stats.h"
#include "version.h"
#include "wait.h"
#include "write.h"
#include "xact.h"

typedef struct Try
{
	const DlockKey *key;
	const DlockRequest *request;
	const DlockTurn *turn;
	DlockStore	store;
	DlockRows  *found;
	DlockResult *result;
	DlockWrite	wrote;
} Try;

static LockTupleMode
lock_mode(DlockAction action)
{
	switch (action)
	{
		case DLOCK_DO_PIN:
			return LockTupleKeyShare;
		case DLOCK_DO_RENEW:
			return LockTupleNoKeyExclusive;
		default:
			return LockTupleExclusive;
	}
}

/*
 * Has the transaction that was changing the row ended by now?  Then an acquire
 * looks again before it answers busy.
 *
 * If it is the reaper's, this waits for it, because what the reaper deletes is
 * free.  The reaper touches a few rows and commits, and waits for nobody, so
 * this takes no longer than waiting for an LWLock.
 */
static bool
pending_has_ended(const DlockRow *row)
{
	DlockDatabase *db;

	if (!TransactionIdIsValid(row->pending))
		return false;
	db = dlock_database(MyDatabaseId);
	if (db != NULL && pg_atomic_read_u32(&db->reaper_xid) == row->pending)
		XactLockTableWait(row->pending, NULL, NULL, XLTW_None);
	return !TransactionIdIsInProgress(row->pending);
}

static DlockVerdict
decide(const Try *try, int64 now)
{
	return dlock_fsm_decide(try->found->states, try->found->n, try->request,
							try->turn, now);
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
	grant->acquired_at = now;
	grant->refreshed_at = now;
	grant->expires_at = now + request->ttl;
}

static void
granted(DlockResult *result, const DlockGrant *grant)
{
	result->version = grant->version;
	result->expires = grant->expires_at;
	dlock_xact_want_reaper(grant->expires_at);
}

/* Steps 3 to 5 for a key that has no row.  False: look again. */
static bool
add_row(Try *try)
{
	int			change = dlock_xact_begin_change(try->key->hash);
	DlockInsertion insertion;
	DlockGrant	grant;
	uint64		seen;

	fill_grant(&grant, try->request, 0, dlock_clock_now());
	dlock_write_prepare_insert(&insertion, &try->store, try->key, &grant);
	do
	{
		seen = SharedInvalidMessageCounter;
		dlock_version_load(&try->store);
		dlock_write_load_insert(&insertion);
	} while (seen != SharedInvalidMessageCounter);

	if (!dlock_write_begin_insert(&insertion))
	{
		dlock_xact_cancel_change(change);
		return false;
	}
	if (!insertion.is_grant)
	{
		dlock_write_end_insert(&insertion, 0, grant.acquired_at);
		dlock_xact_end_change(change, false, false, DLOCK_NEVER);
		return false;
	}

	/* the place is ours: draw the version, and start the lease now */
	fill_grant(&grant, try->request, dlock_version_next(&try->store),
			   dlock_clock_now());
	dlock_write_end_insert(&insertion, grant.version, grant.acquired_at);
	granted(try->result, &grant);
	dlock_xact_end_change(change, false, true, grant.expires_at);
	dlock_xact_count_change(change, DLOCK_STAT_BIT(DLOCK_STAT_GRANTS));
	try->wrote = DLOCK_WROTE_GRANT;
	return true;
}

/* Renew a grant: a repeated acquire replaces it, a refresh extends it. */
static DlockWrite
renew(Try *try, DlockRow *row, int64 now, int change)
{
	const DlockRequest *request = try->request;
	int64		old_ttl = dlock_row_ttl(row->tuple);
	int64		ttl = request->ttl != 0 ? request->ttl : old_ttl;

	try->result->renewed = true;

	if (request->op == DLOCK_ACQUIRE)
	{
		DlockGrant	grant;

		fill_grant(&grant, request, dlock_row_version(row->tuple), now);
		grant.acquired_at = dlock_row_acquired_at(row->tuple);
		dlock_write_grant(&try->store, try->key, row, &grant);
		granted(try->result, &grant);
		dlock_xact_end_change(change, true, false, grant.expires_at);
		return DLOCK_WROTE_GRANT;
	}

	dlock_write_renewal(&try->store, try->key, row, ttl, now);
	try->result->expires = now + ttl;
	dlock_xact_want_reaper(now + ttl);
	dlock_xact_end_change(change, false, false, now + ttl);
	return ttl > old_ttl ? DLOCK_WROTE_GRANT : DLOCK_WROTE_RENEWAL;
}

/* A grant that is taken over or removed; it is not live unless preempted. */
static uint32
lost(DlockState *state, bool preempts, DlockEnd *how)
{
	if (preempts)
	{
		*how = DLOCK_END_PREEMPTED;
		return DLOCK_STAT_BIT(DLOCK_STAT_PREEMPTED);
	}
	*how = state->gone ? DLOCK_END_SESSION_GONE : DLOCK_END_EXPIRED;
	return DLOCK_STAT_BIT(DLOCK_STAT_EXPIRED);
}

/* Note what the commit of a change counts, and the grant that it ends. */
static void
record(Try *try, DlockVerdict verdict, int64 now, int change)
{
	const DlockRequest *request = try->request;
	DlockState *state = &try->found->states[verdict.row];
	bool		ends = false;
	DlockEnd	how = DLOCK_END_RELEASED;
	uint32		counts = 0;

	switch (verdict.action)
	{
		case DLOCK_DO_GRANT:
			counts = DLOCK_STAT_BIT(DLOCK_STAT_GRANTS);
			ends = state->held;
			if (ends)
				counts |= lost(state, verdict.preempts, &how);
			break;
		case DLOCK_DO_RENEW:
			counts = DLOCK_STAT_BIT(DLOCK_STAT_RENEWALS);
			break;
		case DLOCK_DO_CLEAR:
			ends = true;
			counts = DLOCK_STAT_BIT(DLOCK_STAT_RELEASES);
			if (request->op == DLOCK_FORCE)
			{
				counts = DLOCK_STAT_BIT(DLOCK_STAT_FORCED);
				how = DLOCK_END_FORCED;
			}
			else if (request->pid != 0)
				how = DLOCK_END_DISCONNECTED;
			break;
		case DLOCK_DO_REMOVE:
			ends = verdict.answer == DLOCK_IS_EXPIRED;
			if (ends)
				counts = lost(state, false, &how);
			break;
		case DLOCK_DO_PIN:
		case DLOCK_DO_NOTHING:
			return;
	}
	dlock_xact_count_change(change, counts);
	if (ends)
		dlock_ends_note(&try->store, try->key, try->found->rows[verdict.row].tuple,
						state, how, request->role, now);
}

/* Step 5 for a row that we have locked. */
static DlockWrite
apply(Try *try, DlockRow *row, DlockAction action, int64 now, int change)
{
	DlockGrant	grant;

	switch (action)
	{
		case DLOCK_DO_GRANT:
			fill_grant(&grant, try->request, dlock_version_next(&try->store), now);
			dlock_write_grant(&try->store, try->key, row, &grant);
			granted(try->result, &grant);
			dlock_xact_end_change(change, false, true, grant.expires_at);
			return DLOCK_WROTE_GRANT;

		case DLOCK_DO_RENEW:
			return renew(try, row, now, change);

		case DLOCK_DO_CLEAR:
			dlock_write_free(&try->store, try->key, row, now);
			dlock_session_released(try->key);
			dlock_xact_want_reaper(now + DLOCK_LINGER_US);
			return try->request->op == DLOCK_FORCE ?
				DLOCK_WROTE_OTHER : DLOCK_WROTE_LAZY;

		case DLOCK_DO_REMOVE:
			dlock_write_remove(&try->store, row);
			return DLOCK_WROTE_LAZY;

		case DLOCK_DO_PIN:
		case DLOCK_DO_NOTHING:
			break;
	}

	/* only the row is locked; that blocks others until we end */
	dlock_xact_end_change(change, true, false, DLOCK_NEVER);
	return DLOCK_WROTE_LAZY;
}

/* Steps 3 to 5 for a key that has a row.  False: look again. */
static bool
change_row(Try *try, DlockVerdict verdict)
{
	const DlockRequest *request = try->request;
	DlockState *state = &try->found->states[verdict.row];
	DlockRow   *row = &try->found->rows[verdict.row];
	bool		may_wait = request->op != DLOCK_ACQUIRE &&
	request->op != DLOCK_REAP && !request->skip_used;
	int			change = dlock_xact_begin_change(try->key->hash);
	DlockAction locked_for = verdict.action;
	DlockLocked locked;
	int64		now;

	locked = dlock_find_lock(&try->store, try->key, state, row,
							 lock_mode(verdict.action),
							 may_wait ? LockWaitBlock : LockWaitSkip);
	if (locked != DLOCK_LOCKED)
		dlock_xact_cancel_change(change);
	if (locked == DLOCK_LOCK_CHANGED)
		return false;
	if (locked == DLOCK_LOCK_BUSY)
	{
		if (request->op == DLOCK_ACQUIRE && pending_has_ended(row))
			return false;
		try->result->answer = DLOCK_IS_BUSY;
		return true;
	}

	try->wrote = DLOCK_WROTE_LAZY;
	now = dlock_clock_now();
	verdict = decide(try, now);
	if (verdict.action != DLOCK_DO_NOTHING && verdict.action != locked_for)
		return false;			/* needs another lock */
	try->result->answer = verdict.answer;
	record(try, verdict, now, change);
	try->wrote = apply(try, row, verdict.action, now, change);
	if (verdict.preempts)
		dlock_event_forced(pnstrdup(try->key->data, try->key->len), state->version,
						   request->role, NULL);
	return true;
}

/* Steps 1 and 2, and the others if there is something to write. */
static bool
look(Try *try)
{
	const DlockRequest *request = try->request;
	DlockRows  *found = try->found;
	DlockVerdict verdict;

	dlock_find(&try->store, try->key,
			   request->op == DLOCK_ACQUIRE ? DLOCK_FIND_NEWEST : DLOCK_FIND_COMMITTED,
			   found);
	for (int i = 0; i < found->n; i++)
	{
		DlockState *state = &found->states[i];

		if (request->op == DLOCK_ACQUIRE && pending_has_ended(&found->rows[i]))
			return false;
		if (request->op == DLOCK_CHECK && state->held)
			state->asked = dlock_wait_asked(try->key, state->version, NULL);
	}

	verdict = decide(try, dlock_clock_now());
	try->result->answer = verdict.answer;
	try->result->version = 0;
	try->result->expires = 0;
	try->result->renewed = false;
	if (verdict.row != DLOCK_NO_ROW)
	{
		try->result->version = found->states[verdict.row].version;
		try->result->expires = found->states[verdict.row].expires;
	}
	if (verdict.action == DLOCK_DO_NOTHING)
		return true;

	if (verdict.action == DLOCK_DO_GRANT)
	{
		dlock_standby_require();
		dlock_version_prepare(&try->store);
	}
	return verdict.row == DLOCK_NO_ROW ? add_row(try) : change_row(try, verdict);
}

/* One try.  Leaves in "found" what was there, for a caller that has to wait. */
void
dlock_lock_try(const DlockKey *key, const DlockRequest *request,
			   const DlockTurn *turn, DlockRows *found, DlockResult *result)
{
	Try			try;

	try.key = key;
	try.request = request;
	try.turn = turn;
	try.found = found;
	try.result = result;
	try.wrote = DLOCK_WROTE_NOTHING;

	dlock_xact_enter();
	dlock_store_open(&try.store, request->op != DLOCK_CHECK, false);
	do
		CHECK_FOR_INTERRUPTS();
	while (!look(&try));

	if (result->answer == DLOCK_IS_GRANTED && request->session)
		dlock_session_add(key, request->role);
	dlock_store_close(&try.store, try.wrote != DLOCK_WROTE_NOTHING);
	dlock_xact_leave(try.wrote);
}

/* An operation that does not wait in the queue. */
void
dlock_lock_execute(const DlockRequest *request, DlockResult *result)
{
	DlockTurn	turn = {0};
	DlockKey	key;
	DlockRows	found;

	dlock_key_set(&key, request->key, request->keylen);
	dlock_lock_try(&key, request, &turn, &found, result);
}
