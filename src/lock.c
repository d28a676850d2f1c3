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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"

#include "clock.h"
#include "guc.h"
#include "lock.h"
#include "shmem.h"
#include "store.h"
#include "version.h"
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
 * The reaper's transaction is no reason to answer busy: what it deletes is
 * free.  It touches a few rows and commits, waiting for nobody, so waiting
 * for it is no more than waiting for an LWLock.
 */
static bool
waited_for_reaper(const DlockRow *row)
{
	DlockDatabase *db;

	if (!row->state.unsettled)
		return false;
	db = dlock_shmem_database(MyDatabaseId);
	if (db == NULL || pg_atomic_read_u32(&db->reap_xid) != row->pending)
		return false;
	XactLockTableWait(row->pending, NULL, NULL, XLTW_None);
	return true;
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
	grant->priority = request->priority;
	grant->acquired_at = now;
	grant->refreshed_at = now;
	grant->expires_at = now + request->ttl;
}

static void
granted(DlockResult *result, const DlockGrant *grant)
{
	result->answer = DLOCK_IS_GRANTED;
	result->version = grant->version;
	result->expires = grant->expires_at;
	dlock_shmem_report_due(grant->expires_at);
}

/* Steps 3 to 5 for a key that has no row; false: look again. */
static bool
add_row(const DlockStore *store, const DlockKey *key,
		const DlockRequest *request, DlockResult *result)
{
	DlockGrant	grant;

	if (!dlock_store_begin_insert(store, key))
		return false;
	fill_grant(&grant, request, dlock_version_next(store), dlock_clock_now());
	dlock_store_end_insert(store, key, &grant);
	granted(result, &grant);
	return true;
}

/* Step 5 for a row that we have locked. */
static DlockWrite
apply(const DlockStore *store, const DlockKey *key, DlockRow *row,
	  const DlockRequest *request, DlockAction action, int64 now,
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
			return DLOCK_WROTE_GRANT;

		case DLOCK_DO_RENEW:
			if (request->claim.op == DLOCK_ACQUIRE)
			{
				/* the same grant as it is asked for now */
				fill_grant(&grant, request, row->state.version, now);
				dlock_store_grant(store, key, row, &grant);
				granted(result, &grant);
				return DLOCK_WROTE_GRANT;
			}
			ttl = request->ttl != 0 ? request->ttl : row->ttl;
			dlock_store_renew(store, key, row, ttl, now);
			result->expires = now + ttl;
			dlock_shmem_report_due(result->expires);
			return ttl > row->ttl ? DLOCK_WROTE_GRANT : DLOCK_WROTE_RENEWAL;

		case DLOCK_DO_CLEAR:
			dlock_store_clear(store, key, row, now);
			dlock_shmem_report_due(now + DLOCK_LINGER_US);
			return request->claim.op == DLOCK_FORCE ?
				DLOCK_WROTE_OTHER : DLOCK_WROTE_LAZY;

		case DLOCK_DO_REMOVE:
			dlock_store_remove(store, row);
			return DLOCK_WROTE_LAZY;

		case DLOCK_DO_PIN:
		case DLOCK_DO_NOTHING:
			break;
	}

	/* the lock on the row is all */
	return DLOCK_WROTE_LAZY;
}

void
dlock_lock_execute(const DlockRequest *request, DlockResult *result)
{
	const DlockClaim *claim = &request->claim;
	bool		may_wait = claim->op != DLOCK_ACQUIRE && claim->op != DLOCK_REAP;
	DlockWrite	wrote = DLOCK_WROTE_NOTHING;
	DlockStore	store;
	DlockKey	key;

	dlock_xact_enter();
	dlock_store_open(&store, claim->op != DLOCK_CHECK, false);
	dlock_store_key(&key, request->key, request->keylen);

	for (;;)
	{
		DlockRow	row;
		DlockVerdict verdict;
		DlockAction locked_for;
		DlockLocked locked;
		int64		now;

		CHECK_FOR_INTERRUPTS();

		dlock_store_find(&store, &key,
						 claim->op == DLOCK_ACQUIRE ? DLOCK_FIND_HINT : DLOCK_FIND_COMMITTED,
						 &row);
		if (claim->op == DLOCK_ACQUIRE && waited_for_reaper(&row))
			continue;

		verdict = dlock_fsm_decide(&row.state, claim, dlock_clock_now());
		result->answer = verdict.answer;
		result->version = row.state.version;
		result->expires = row.state.expires;
		if (verdict.action == DLOCK_DO_NOTHING)
			break;

		if (verdict.action == DLOCK_DO_GRANT)
		{
			dlock_xact_require_sync();
			dlock_version_prepare(&store);
		}

		if (!row.state.exists)
		{
			if (!add_row(&store, &key, request, result))
				continue;
			wrote = DLOCK_WROTE_GRANT;
			break;
		}

		locked = dlock_store_lock(&store, &row, lock_mode(verdict.action),
								  may_wait ? LockWaitBlock : LockWaitSkip);
		if (locked == DLOCK_LOCK_CHANGED)
			continue;
		if (locked == DLOCK_LOCK_BUSY)
		{
			result->answer = DLOCK_IS_BUSY;
			break;
		}

		/*
		 * Ours now, and so settled as far as we are concerned: whoever was
		 * changing it has rolled back, or is doing what our lock allows.
		 */
		row.state.unsettled = false;
		locked_for = verdict.action;
		now = dlock_clock_now();
		verdict = dlock_fsm_decide(&row.state, claim, now);
		if (verdict.action != DLOCK_DO_NOTHING && verdict.action != locked_for)
			continue;			/* needs another lock */
		result->answer = verdict.answer;
		wrote = apply(&store, &key, &row, request, verdict.action, now, result);
		break;
	}

	dlock_store_close(&store);
	dlock_xact_leave(wrote);
}
