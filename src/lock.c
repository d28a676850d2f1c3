/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  The engine: read the row, let fsm.c decide, apply.
 *
 * There is one way through here for everybody, the reaper included:
 *
 *	1. find the row
 *	2. decide; where nothing has to be written, that is the answer
 *	3. make the row ours: lock it, or the place where it will be
 *	4. decide again, for time has passed, more so if we had to wait
 *	5. write
 *
 * Whatever changed between 1 and 3 shows in 3, and we start over.  An acquire
 * and the reaper never wait in 3; the holder's own operations do, as any
 * UPDATE would.
 *
 * An acquire that may wait does so outside of all that: it enters the queue
 * (wait.c) and tries again whenever it is woken or a time is up, and gets
 * further than 2 only when it is its turn.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinval.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "clock.h"
#include "deadlock.h"
#include "events.h"
#include "guc.h"
#include "lock.h"
#include "role.h"
#include "session.h"
#include "shmem.h"
#include "standby.h"
#include "store.h"
#include "version.h"
#include "wait.h"
#include "xact.h"

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
 * Is the transaction that had the row in its hands out of the way by now?
 * Then an acquire looks again before it answers busy.
 *
 * The reaper's is no reason to answer busy: what it deletes is free.  It
 * touches a few rows and commits, waiting for nobody, so waiting for it is
 * no more than waiting for an LWLock.
 */
static bool
out_of_the_way(const DlockRow *row)
{
	DlockDatabase *db;

	if (!TransactionIdIsValid(row->pending))
		return false;
	db = dlock_shmem_database(MyDatabaseId);
	if (db != NULL && pg_atomic_read_u32(&db->reap_xid) == row->pending)
		XactLockTableWait(row->pending, NULL, NULL, XLTW_None);
	return !TransactionIdIsInProgress(row->pending);
}

static void
fill_grant(DlockGrant *grant, const DlockRequest *request, int64 version, int64 now)
{
	grant->version = version;
	grant->role = request->claim.role;
	grant->owner = request->claim.owner;
	grant->value = request->value;
	grant->ttl = request->ttl;
	grant->cleanup = request->cleanup;
	grant->priority = request->claim.priority;
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
	dlock_xact_report_due(grant->expires_at);
}

/* Steps 3 to 5 for a key that has no row; false: look again. */
static bool
add_row(const DlockStore *store, const DlockKey *key,
		const DlockRequest *request, DlockResult *result)
{
	int			note = dlock_xact_note(key->hash);
	DlockInsertion *insertion;
	DlockGrant	grant;
	uint64		seen;

	fill_grant(&grant, request, 0, dlock_clock_now());
	insertion = dlock_store_prepare_insert(store, key, &grant);
	do
	{
		seen = SharedInvalidMessageCounter;
		dlock_version_load(store);
		dlock_store_load_insert(insertion);
	} while (seen != SharedInvalidMessageCounter);

	if (!dlock_store_begin_insert(insertion))
	{
		dlock_xact_unnote(note);
		return false;
	}
	if (!dlock_store_inserts_grant(insertion))
	{
		dlock_store_end_insert(insertion, 0, grant.acquired_at);
		dlock_xact_noted(note, false, false, DLOCK_NEVER);
		return false;
	}

	/* ours, so its version is the next, and its time begins */
	fill_grant(&grant, request, dlock_version_next(store), dlock_clock_now());
	dlock_store_end_insert(insertion, grant.version, grant.acquired_at);
	granted(result, &grant);
	dlock_xact_noted(note, false, true, grant.expires_at);
	return true;
}

/* Step 5 for a row that we have locked. */
static DlockWrite
apply(const DlockStore *store, const DlockKey *key, DlockRow *row,
	  const DlockRequest *request, DlockAction action, int64 now, int note,
	  DlockResult *result)
{
	DlockGrant	grant;
	int64		ttl;

	switch (action)
	{
		case DLOCK_DO_GRANT:
			fill_grant(&grant, request, dlock_version_next(store), now);
			dlock_store_grant(store, key, row, &grant);
			granted(result, &grant);
			dlock_xact_noted(note, false, true, grant.expires_at);
			return DLOCK_WROTE_GRANT;

		case DLOCK_DO_RENEW:
			if (request->claim.op == DLOCK_ACQUIRE)
			{
				/* the same grant as it is asked for now */
				fill_grant(&grant, request, row->state.version, now);
				grant.acquired_at = row->acquired_at;
				dlock_store_grant(store, key, row, &grant);
				granted(result, &grant);
				dlock_xact_noted(note, true, false, grant.expires_at);
				return DLOCK_WROTE_GRANT;
			}
			ttl = request->ttl != 0 ? request->ttl : row->ttl;
			dlock_store_renew(store, key, row, ttl, now);
			result->expires = now + ttl;
			dlock_xact_report_due(result->expires);
			dlock_xact_noted(note, false, false, result->expires);
			return ttl > row->ttl ? DLOCK_WROTE_GRANT : DLOCK_WROTE_RENEWAL;

		case DLOCK_DO_CLEAR:
			dlock_store_clear(store, key, row, now);
			dlock_session_released(key);
			dlock_xact_report_due(now + DLOCK_LINGER_US);
			return request->claim.op == DLOCK_FORCE ?
				DLOCK_WROTE_OTHER : DLOCK_WROTE_LAZY;

		case DLOCK_DO_REMOVE:
			dlock_store_remove(store, row);
			return DLOCK_WROTE_LAZY;

		case DLOCK_DO_PIN:
		case DLOCK_DO_NOTHING:
			break;
	}

	/* the lock on the row is all, and stands in others' way */
	dlock_xact_noted(note, true, false, DLOCK_NEVER);
	return DLOCK_WROTE_LAZY;
}

/*
 * One try.  Leaves in "row" what was found, for those who have to wait.
 */
static void
try_once(const DlockKey *key, const DlockRequest *request,
		 const DlockClaim *claim, DlockRow *row, DlockResult *result)
{
	bool		may_wait = (claim->op != DLOCK_ACQUIRE &&
							claim->op != DLOCK_REAP && !request->skip_used);
	DlockWrite	wrote = DLOCK_WROTE_NOTHING;
	DlockStore	store;

	dlock_xact_enter();
	dlock_store_open(&store, claim->op != DLOCK_CHECK, false);

	for (;;)
	{
		DlockVerdict verdict;
		DlockAction locked_for;
		DlockLocked locked;
		int64		now;
		int			note;

		CHECK_FOR_INTERRUPTS();

		dlock_store_find(&store, key,
						 claim->op == DLOCK_ACQUIRE ? DLOCK_FIND_HINT : DLOCK_FIND_COMMITTED,
						 row);
		if (claim->op == DLOCK_ACQUIRE && out_of_the_way(row))
			continue;
		if (claim->op == DLOCK_CHECK && row->state.held)
			row->state.asked = dlock_wait_asked(key, row->state.version, NULL);

		verdict = dlock_fsm_decide(&row->state, claim, dlock_clock_now());
		result->answer = verdict.answer;
		result->version = row->state.version;
		result->expires = row->state.expires;
		if (verdict.action == DLOCK_DO_NOTHING)
			break;

		if (verdict.action == DLOCK_DO_GRANT)
		{
			dlock_standby_require();
			dlock_version_prepare(&store);
		}

		if (!row->state.exists)
		{
			if (!add_row(&store, key, request, result))
				continue;
			wrote = DLOCK_WROTE_GRANT;
			break;
		}

		note = dlock_xact_note(key->hash);
		locked = dlock_store_lock(&store, row, lock_mode(verdict.action),
								  may_wait ? LockWaitBlock : LockWaitSkip);
		if (locked != DLOCK_LOCKED)
			dlock_xact_unnote(note);
		if (locked == DLOCK_LOCK_CHANGED)
			continue;
		if (locked == DLOCK_LOCK_BUSY)
		{
			if (claim->op == DLOCK_ACQUIRE && out_of_the_way(row))
				continue;
			result->answer = DLOCK_IS_BUSY;
			break;
		}

		/*
		 * Ours now, and so settled as far as we are concerned: whoever was
		 * changing it has rolled back, or is doing what our lock allows.
		 */
		wrote = DLOCK_WROTE_LAZY;
		row->state.unsettled = false;
		locked_for = verdict.action;
		now = dlock_clock_now();
		verdict = dlock_fsm_decide(&row->state, claim, now);
		if (verdict.action != DLOCK_DO_NOTHING && verdict.action != locked_for)
			continue;			/* needs another lock */
		result->answer = verdict.answer;
		wrote = apply(&store, key, row, request, verdict.action, now, note, result);
		if (verdict.preempts)
			dlock_event_forced(pnstrdup(key->data, key->len), row->state.version,
							   claim->role, NULL);
		break;
	}

	if (result->answer == DLOCK_IS_GRANTED && request->session)
		dlock_session_add(key, claim->role);

	dlock_store_close(&store, wrote != DLOCK_WROTE_NOTHING);
	dlock_xact_leave(wrote);
}

/*
 * Waiting
 */

static void
leave_queue(int code, Datum arg)
{
	dlock_wait_leave(false);
	if (LockTimeout > 0)
		disable_timeout(LOCK_TIMEOUT, true);
}

/*
 * Give up every snapshot that this CALL holds, as a COMMIT in a procedure
 * would.  The portal keeps one for the sake of its result, which is a number
 * and does not need it.
 */
static void
give_up_snapshots(void)
{
	ForgetPortalSnapshots();
	if (ActivePortal != NULL && ActivePortal->holdSnapshot != NULL)
	{
		UnregisterSnapshotFromOwner(ActivePortal->holdSnapshot,
									ActivePortal->resowner);
		ActivePortal->holdSnapshot = NULL;
	}
	InvalidateCatalogSnapshot();
}

static void
sleep_until(int64 until, bool without_snapshot)
{
	if (without_snapshot)
		give_up_snapshots();
	dlock_wait_sleep(until);
	if (without_snapshot)
		EnsurePortalSnapshotExists();
}

/*
 * When to look for a deadlock next.  A suspicion is confirmed soon, with what
 * has been seen since then; otherwise it is less and less likely that one
 * comes about, which takes somebody that waits for us elsewhere.
 */
typedef struct DeadlockWatch
{
	int64		next;			/* lease time */
	int64		pause;
	int64		suspected_at;	/* 0: not suspected */
	int			doubts;			/* how often it was not confirmed */
} DeadlockWatch;

#define CONFIRM_US		INT64CONST(10000)
#define MAX_DOUBTS		5
#define MAX_PAUSE_US	INT64CONST(10000000)

static void
watch_deadlock(DeadlockWatch *watch, int64 now)
{
	bool		suspected;

	if (now < watch->next)
		return;

	dlock_deadlock_check(watch->suspected_at, &suspected);

	/* not even with old knowledge, or not confirmed for long */
	if (watch->suspected_at == 0 ? !suspected : ++watch->doubts > MAX_DOUBTS)
	{
		watch->suspected_at = 0;
		watch->pause = Min(watch->pause * 2, MAX_PAUSE_US);
		watch->next = now + watch->pause;
		return;
	}
	if (watch->suspected_at == 0)
	{
		watch->suspected_at = now;
		watch->doubts = 0;
	}
	watch->next = now + CONFIRM_US;
}

/*
 * When the waiter should look again by itself: at the expiry, if it is known,
 * or when the holder's time to yield is up.
 */
#define BEHIND_US	INT64CONST(10000000)

static int64
look_again_at(const DlockClaim *claim, const DlockRow *row,
			  const DlockResult *result, int64 looked_at, int64 yield_by)
{
	if (result->answer == DLOCK_IS_ASKED)
		return Min(yield_by, row->state.expires);

	/*
	 * Whoever is before us passes the turn on, so this is only to be found
	 * content by the commits until then: a new holder whose lease ends no
	 * sooner than we look need not wake us.
	 */
	if (claim->behind)
		return looked_at + BEHIND_US;

	/* in use by a transaction, or by several; the end of each wakes us */
	if (!row->state.held || TransactionIdIsValid(row->pending) ||
		row->state.expires <= looked_at)
		return DLOCK_NEVER;
	return row->state.expires;
}

/*
 * Busy, but by nothing that withdraws what we have asked of the holder: an
 * open transaction of his, be it a fence or a refresh, buys him no new time.
 */
static bool
still_asking(const DlockClaim *claim, const DlockState *state)
{
	if (claim->behind)
		return false;
	return state->unsettled ||
		(state->held && state->version == claim->asked_version &&
		 state->priority < claim->priority);
}

/* Try again and again until it is granted, refused, or the time is up. */
static void
wait_in_queue(const DlockKey *key, const DlockRequest *request,
			  DlockClaim *claim, DlockRow *row, DlockResult *result,
			  int64 began, TimestampTz lock_deadline)
{
	DeadlockWatch watch = {0};
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock wait",
													ALLOCSET_DEFAULT_SIZES);
	int64		yield_by = 0;

	watch.pause = DeadlockTimeout * INT64CONST(1000);
	watch.next = began + watch.pause;

	for (;;)
	{
		int64		looked_at;
		int64		wake_at;
		int64		now;

		claim->behind = dlock_wait_rearm() > 0;
		CHECK_FOR_INTERRUPTS();

		MemoryContextReset(each_look);
		MemoryContextSwitchTo(each_look);
		looked_at = dlock_clock_now();
		try_once(key, request, claim, row, result);
		if (result->answer != DLOCK_IS_BUSY && result->answer != DLOCK_IS_ASKED)
			break;

		now = dlock_clock_now();
		if (result->answer == DLOCK_IS_BUSY)
		{
			if (now >= claim->until)
				break;
			if (!still_asking(claim, &row->state))
				claim->asked_version = 0;
		}
		else
		{
			/* a holder is asked once; another holder anew */
			if (claim->asked_version != result->version)
			{
				claim->asked_version = result->version;
				claim->asked_at = now;
			}
			yield_by = dlock_fsm_yield_by(&row->state, claim, now);
		}

		wake_at = look_again_at(claim, row, result, looked_at, yield_by);
		dlock_wait_publish(row, wake_at, claim->asked_version, claim->asked_at,
						   yield_by);
		watch_deadlock(&watch, now);

		/* whoever waits for another lock meanwhile turns it off */
		if (lock_deadline != 0 && !get_timeout_active(LOCK_TIMEOUT))
			enable_timeout_at(LOCK_TIMEOUT, lock_deadline);
		sleep_until(Min(Min(wake_at, claim->until), watch.next),
					request->without_snapshot);
	}

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(each_look);
}

static void
wait_for_turn(const DlockKey *key, const DlockRequest *request,
			  DlockClaim *claim, DlockRow *row, DlockResult *result)
{
	int64		began = dlock_clock_now();
	TimestampTz lock_deadline = 0;

	PG_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	{
		dlock_wait_enter(key, DLOCK_WAIT_TURN, claim->role, claim->owner,
						 claim->priority, began, claim->until);
		if (LockTimeout > 0)
		{
			lock_deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														LockTimeout);
			enable_timeout_at(LOCK_TIMEOUT, lock_deadline);
		}
		wait_in_queue(key, request, claim, row, result, began, lock_deadline);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);

	dlock_wait_leave(result->answer == DLOCK_IS_GRANTED);

	/* if it has struck already, let it be reported as what it was */
	if (LockTimeout > 0)
		disable_timeout(LOCK_TIMEOUT, true);
}

static void
acquire(const DlockKey *key, const DlockRequest *request, DlockRow *row,
		DlockResult *result)
{
	DlockClaim	claim = request->claim;
	int64		now = dlock_clock_now();

	if (request->session)
		dlock_session_prepare();
	claim.until = request->wait == DLOCK_NEVER ? DLOCK_NEVER : now + request->wait;
	claim.behind = dlock_wait_others_first(key, claim.priority);
	try_once(key, request, &claim, row, result);
	if (request->wait > 0 &&
		(result->answer == DLOCK_IS_BUSY || result->answer == DLOCK_IS_ASKED))
		wait_for_turn(key, request, &claim, row, result);
}

void
dlock_lock_execute(const DlockRequest *request, DlockResult *result)
{
	DlockKey	key;
	DlockRow	row;

	dlock_store_key(&key, request->key, request->keylen);
	if (request->claim.op == DLOCK_ACQUIRE)
		acquire(&key, request, &row, result);
	else
		try_once(&key, request, &request->claim, &row, result);
}

/* Look again and again until the version differs or the time is up. */
static bool
watch_version(const DlockKey *key, bool is_held, int64 *version, int64 until)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock watch",
													ALLOCSET_DEFAULT_SIZES);
	bool		held;

	for (;;)
	{
		DlockStore	store;
		DlockRow	row;
		int64		wake_at;
		int64		now;

		(void) dlock_wait_rearm();
		CHECK_FOR_INTERRUPTS();

		MemoryContextReset(each_look);
		MemoryContextSwitchTo(each_look);
		dlock_store_open(&store, false, false);
		dlock_store_find(&store, key, DLOCK_FIND_COMMITTED, &row);
		dlock_store_close(&store, false);

		now = dlock_clock_now();
		held = dlock_fsm_is_live(&row.state, now);
		if (held != is_held || (held && row.state.version != *version) || now >= until)
		{
			*version = row.state.version;
			break;
		}

		wake_at = held ? row.state.expires : DLOCK_NEVER;
		row.pending = InvalidTransactionId;
		dlock_wait_publish(&row, wake_at, 0, 0, 0);
		dlock_wait_sleep(Min(wake_at, until));
	}

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(each_look);
	return held;
}

/*
 * Wait until the key has another version than the given one, or none if it
 * had one, or the time is up.  Returns whether it is held, and the version.
 */
bool
dlock_lock_watch(const char *keydata, int keylen, bool is_held, int64 *version,
				 int64 timeout)
{
	DlockKey	key;
	bool		held;

	dlock_store_key(&key, keydata, keylen);

	PG_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	{
		int64		began = dlock_clock_now();
		int64		until = timeout == DLOCK_NEVER ? DLOCK_NEVER : began + timeout;

		dlock_wait_enter(&key, DLOCK_WAIT_CHANGE, dlock_role_current(), NULL, 0,
						 began, until);
		held = watch_version(&key, is_held, version, until);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);

	dlock_wait_leave(false);
	return held;
}
