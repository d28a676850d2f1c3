/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Acquire a key, or several, and wait if the request may.
 *
 * An acquire tries once (lock.c).  If the key is busy and the request may wait,
 * it enters the queue (backend_wait.c) and tries again whenever it is woken or a
 * time is up: the holder's expiry, the end of the holder's time to yield, the end of
 * its own wait, or the time to look for a deadlock.  It gets further than "busy"
 * only when it has the turn.
 *
 * Several keys, or none of them.  They are acquired one after the other, in the
 * ordinary way and with what is left of one wait.  The order is that of their bytes,
 * whatever the caller's, so two such calls never wait for each other.  What was won
 * stays ours while we wait for the next key: the rows are written, but not committed.
 *
 * All of it happens in a subtransaction.  If a key is not to be had, rolling the
 * subtransaction back gives back the others, and wakes those that wait for
 * them.  A call that may not wait looks at all keys first, so that one that
 * fails writes nothing.
 *
 * The first TTL must not run while we wait for the last key.  So the TTLs are
 * counted anew from when the last key was won, unless that took no longer than
 * a millisecond, which is as exact as a TTL is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "clock.h"
#include "lock/acquire.h"
#include "lock/lock.h"
#include "lock/session.h"
#include "policy/policy.h"
#include "queue/backend_wait.h"
#include "queue/deadlock.h"
#include "queue/wait_log.h"
#include "queue/wait_report.h"
#include "stats/stats.h"

/*
 * The wait has failed.  An error calls this with code 0, the exit of the process
 * with another one.
 */
static void
give_up_turn(int code, Datum arg)
{
	DlockWaitLog *log = (DlockWaitLog *) DatumGetPointer(arg);

	dlock_backend_wait_leave(true);
	if (LockTimeout > 0)
		disable_timeout(LOCK_TIMEOUT, true);
	dlock_stats_waited(log->key, dlock_clock_now() - log->began,
					   code == 0 && geterrcode() == ERRCODE_LOCK_NOT_AVAILABLE);
}

/*
 * Give up every snapshot that this CALL holds, as a COMMIT in a procedure
 * would.  The portal keeps one for its result, which is a number and does not
 * need it.
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

/* Sleep until we are woken, but not beyond that time (lease time). */
static void
sleep_until(int64 until, bool without_snapshot)
{
	if (without_snapshot)
		give_up_snapshots();
	dlock_backend_wait_sleep(until);
	if (without_snapshot)
		EnsurePortalSnapshotExists();
}

/* What an error says that ends a wait: a timeout, a cancel, a deadlock. */
typedef struct WaitContext
{
	const DlockKey *key;
	bool		is_own;			/* our own session has it */
} WaitContext;

/* A callback of errors that are raised within a wait. */
static void
say_waiting(void *arg)
{
	const WaitContext *context = arg;

	if (context->is_own)
		errcontext("while waiting for lock \"%.*s\", which this session holds itself",
				   context->key->len, context->key->data);
	else
		errcontext("while waiting for lock \"%.*s\"", context->key->len, context->key->data);
}

/* Is our own session among those that we wait for? */
static bool
waits_for_itself(const DlockWaitReport *report)
{
	for (int i = 0; i < report->nblockers; i++)
		if (report->blockers[i] == (DlockBlocker) MyProcPid)
			return true;
	return false;
}

/* Called without a bucket's lock: the request has not entered the queue. */
static void
raise_second_upgrade(const DlockRequest *request)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("Another holder of a place of lock \"%s\" already waits to have it for itself. Each of the two would wait for the other's place.",
					   pnstrdup(request->key.data, request->key.len)),
			 errhint("Release the place and acquire the lock again.")));
}

/* Try again and again until it is granted, refused, or the time is up. */
static void
wait_in_queue(const DlockRequest *request, DlockTurn *turn, DlockResult *result,
			  DlockWaitLog *log, TimestampTz lock_deadline)
{
	WaitContext context = {.key = &request->key};
	ErrorContextCallback callback;
	DlockDeadlockWatch watch;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock wait",
													ALLOCSET_DEFAULT_SIZES);
	DlockWaitReport report = {0};
	DlockRows	found;

	dlock_deadlock_begin(&watch, log->began);
	callback.previous = error_context_stack;
	callback.callback = say_waiting;
	callback.arg = &context;
	error_context_stack = &callback;

	for (;;)
	{
		int64		looked_at;
		int64		now;

		turn->behind = dlock_backend_wait_rearm();
		CHECK_FOR_INTERRUPTS();

		MemoryContextReset(each_look);
		MemoryContextSwitchTo(each_look);
		looked_at = dlock_clock_now();
		dlock_lock_try(request, turn, &found, result);
		if (result->answer != DLOCK_IS_BUSY && result->answer != DLOCK_IS_ASKED)
			break;

		now = dlock_clock_now();
		if (result->answer == DLOCK_IS_BUSY && now >= turn->until)
			break;
		if (dlock_backend_wait_upgrades())
		{
			if (result->upgrades)
				turn->behind = false;
			else if (dlock_wait_report_is_settled(&found))
				dlock_backend_wait_step_back();
		}
		else if (result->upgrades && !dlock_backend_wait_upgrade())
			raise_second_upgrade(request);
		dlock_wait_report_make(request, turn, &found, result, looked_at, now, &report);
		dlock_backend_wait_publish(&report);
		context.is_own = waits_for_itself(&report);
		dlock_deadlock_watch(&watch, now);
		dlock_wait_log_still(log, &found, now);

		/* if we waited for any other lock meanwhile, that turned it off */
		if (lock_deadline != 0 && !get_timeout_active(LOCK_TIMEOUT))
			enable_timeout_at(LOCK_TIMEOUT, lock_deadline);
		sleep_until(Min(Min(report.wake_at, turn->until), watch.next),
					request->without_snapshot);
	}

	error_context_stack = callback.previous;
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(each_look);
}

/* A try was busy: enter the queue, wait there, and leave it whatever happens. */
static void
wait_for_turn(const DlockRequest *request, DlockTurn *turn, DlockResult *result)
{
	DlockEntrant entrant = {0};
	TimestampTz lock_deadline = LockTimeout > 0 ?
		TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LockTimeout) : 0;
	DlockWaitLog log = {.key = &request->key};
	int64		now;
	bool		passes_on;

	entrant.kind = DLOCK_WAIT_TURN;
	entrant.terms = request->terms;
	entrant.upgrades = result->upgrades;
	entrant.since = dlock_clock_now();
	entrant.until = turn->until;
	log.began = entrant.since;

	PG_ENSURE_ERROR_CLEANUP(give_up_turn, PointerGetDatum(&log));
	{
		if (!dlock_backend_wait_enter(&request->key, &entrant))
			raise_second_upgrade(request);
		if (lock_deadline != 0)
			enable_timeout_at(LOCK_TIMEOUT, lock_deadline);
		wait_in_queue(request, turn, result, &log, lock_deadline);
	}
	PG_END_ENSURE_ERROR_CLEANUP(give_up_turn, PointerGetDatum(&log));

	/* a place leaves room for others, before our transaction ends */
	passes_on = result->answer != DLOCK_IS_GRANTED ||
		request->terms.capacity != DLOCK_EXCLUSIVE;
	dlock_backend_wait_leave(passes_on);
	now = dlock_clock_now();
	dlock_stats_waited(&request->key, now - log.began, result->answer != DLOCK_IS_GRANTED);
	dlock_wait_log_end(&log, result->answer == DLOCK_IS_GRANTED, now);

	/* if it has fired already, keep the indicator, so that it is reported */
	if (LockTimeout > 0)
		disable_timeout(LOCK_TIMEOUT, true);
}

/*
 * Raise an error unless the policies allow the request, which has been granted.  What
 * they say at the grant counts, and they may have changed since the request, more
 * so if it had to wait.  The granter calls this, too.
 */
void
dlock_acquire_check_granted(const DlockRequest *request, const DlockResult *result)
{
	dlock_policy_check_request(&request->key, &request->terms);
	if (!result->renewed)
		dlock_policy_check_grant(&request->key, request->terms.role);
}

/* Try once, and wait for the turn if the request may. */
void
dlock_acquire_key(const DlockRequest *request, DlockResult *result)
{
	DlockTurn	turn;
	DlockRows	found;

	dlock_policy_check_request(&request->key, &request->terms);
	dlock_turn_begin(&turn);
	if (request->session)
		dlock_session_prepare();
	if (request->terms.wait != 0)	/* or else nobody has time to yield */
		turn.until = request->terms.wait == DLOCK_NEVER ?
			DLOCK_NEVER : dlock_clock_now() + request->terms.wait;
	turn.behind = dlock_queue_others_first(&request->key, request->terms.priority);
	dlock_lock_try(request, &turn, &found, result);
	if (result->answer != DLOCK_IS_GRANTED && request->terms.wait == 0)
		dlock_stats_busy(&request->key);
	else if (result->answer == DLOCK_IS_BUSY || result->answer == DLOCK_IS_ASKED)
		wait_for_turn(request, &turn, result);

	if (result->answer == DLOCK_IS_GRANTED && request->session)
		dlock_session_add(&request->key, request->terms.role, result->version);
	if (result->answer == DLOCK_IS_GRANTED)
		dlock_acquire_check_granted(request, result);
}

/*
 * Several keys
 */

/* as exact as a TTL is */
#define EXACT_US	INT64CONST(1000)

/* For qsort(): the order in which all callers take several keys. */
static int
compare_keys(const void *a, const void *b)
{
	const DlockRequest *x = *(const DlockRequest *const *) a;
	const DlockRequest *y = *(const DlockRequest *const *) b;
	int			cmp = memcmp(x->key.data, y->key.data, Min(x->key.len, y->key.len));

	return cmp != 0 ? cmp : x->key.len - y->key.len;
}

/* The requests in the order of their keys, none of which comes twice. */
static const DlockRequest **
sort_requests(const DlockRequest *requests, int n)
{
	const DlockRequest **sorted = palloc(n * sizeof(DlockRequest *));

	for (int i = 0; i < n; i++)
		sorted[i] = &requests[i];
	qsort(sorted, n, sizeof(DlockRequest *), compare_keys);
	for (int i = 1; i < n; i++)
		if (compare_keys(&sorted[i - 1], &sorted[i]) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("key \"%s\" is given more than once",
							pnstrdup(sorted[i]->key.data, sorted[i]->key.len))));
	return sorted;
}

/* Let a TTL count from the given lease time. */
static void
stamp(const DlockRequest *granted, const DlockResult *grant, int64 from)
{
	DlockRequest request = {.op = DLOCK_REFRESH};
	DlockResult result;

	request.key = granted->key;
	request.terms.role = granted->terms.role;
	request.by_version = true;
	request.version = grant->version;
	request.renewed = grant->renewed || grant->upgrades;
	request.terms.ttl = granted->terms.ttl;
	request.stamp = from;
	dlock_lock_execute(&request, &result);
	if (result.answer != DLOCK_IS_HELD)
		elog(ERROR, "version %lld has been lost while others were acquired",
			 (long long) grant->version);
}

/*
 * Acquire all.  Returns the number of a request that failed, or -1.  The results
 * are in the order of the requests.
 */
static int
acquire_sorted(const DlockRequest **sorted, const DlockRequest *requests, int n,
			   DlockResult *results)
{
	int64		wait = sorted[0]->terms.wait;
	int64		until = wait == DLOCK_NEVER ? 0 : dlock_clock_now() + wait;
	int64		earliest = DLOCK_NEVER;
	int64		latest = 0;

	for (int i = 0; i < n; i++)
	{
		DlockRequest request = *sorted[i];
		int			number = sorted[i] - requests;

		CHECK_FOR_INTERRUPTS();
		if (wait != DLOCK_NEVER && i > 0)
			request.terms.wait = Max(until - dlock_clock_now(), 0);
		dlock_acquire_key(&request, &results[number]);
		if (results[number].answer != DLOCK_IS_GRANTED)
			return number;
		earliest = Min(earliest, results[number].expires);
		latest = Max(latest, results[number].expires);
	}
	if (latest - earliest > EXACT_US)
		for (int i = 0; i < n; i++)
			stamp(sorted[i], &results[sorted[i] - requests],
				  latest - sorted[i]->terms.ttl);
	return -1;
}

/*
 * Acquire all or none.  Called by dlock_acquire_all(), once or more in a transaction.
 * Returns the number of a request that was not granted, or -1.
 */
int
dlock_acquire_keys(const DlockRequest *requests, int n, DlockResult *results)
{
	const DlockRequest **sorted = sort_requests(requests, n);
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			failed;

	for (int i = 0; i < n; i++)
		dlock_policy_check_request(&sorted[i]->key, &sorted[i]->terms);
	for (int i = 0; i < n && sorted[0]->terms.wait == 0; i++)
	{
		failed = sorted[i] - requests;
		dlock_lock_foresee(sorted[i], &results[failed]);
		if (results[failed].answer == DLOCK_IS_GRANTED)
			continue;
		dlock_stats_busy(&sorted[i]->key);
		return failed;
	}

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		failed = acquire_sorted(sorted, requests, n, results);
	}
	PG_CATCH();
	{
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (failed < 0)
		ReleaseCurrentSubTransaction();
	else
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return failed;
}
