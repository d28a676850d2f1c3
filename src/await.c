/*-------------------------------------------------------------------------
 *
 * await.c
 *	  Waiting: for the turn to get a lock, and for a key to change.
 *
 * An acquire tries once (lock.c).  If the key is busy and the request may wait,
 * it enters the queue (wait.c) and tries again whenever it is woken or a time is
 * up: the holder's expiry, the end of the holder's time to yield, the end of its
 * own wait, or the time to look for a deadlock.  It gets further than "busy"
 * only when it has the turn.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "await.h"
#include "clock.h"
#include "deadlock.h"
#include "lock.h"
#include "outlook.h"
#include "policy.h"
#include "session.h"
#include "stats.h"
#include "wait.h"
#include "waitlog.h"

static void
leave_queue(int code, Datum arg)
{
	dlock_wait_leave(true);
	if (LockTimeout > 0)
		disable_timeout(LOCK_TIMEOUT, true);
}

/*
 * The same for a wait that counts.  An error calls this with code 0, the exit of
 * the process with another one.
 */
static void
give_up_turn(int code, Datum arg)
{
	DlockWaitLog *log = (DlockWaitLog *) DatumGetPointer(arg);

	leave_queue(code, (Datum) 0);
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

static void
sleep_until(int64 until, bool without_snapshot)
{
	if (without_snapshot)
		give_up_snapshots();
	dlock_wait_sleep(until);
	if (without_snapshot)
		EnsurePortalSnapshotExists();
}

/* Try again and again until it is granted, refused, or the time is up. */
static void
wait_in_queue(const DlockKey *key, const DlockRequest *request, DlockTurn *turn,
			  DlockResult *result, DlockWaitLog *log, TimestampTz lock_deadline)
{
	DlockDeadlockWatch watch;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock wait",
													ALLOCSET_DEFAULT_SIZES);
	DlockOutlook outlook = {0};
	DlockRows	found;

	dlock_deadlock_begin(&watch, log->began);

	for (;;)
	{
		int64		looked_at;
		int64		now;

		turn->behind = dlock_wait_rearm();
		CHECK_FOR_INTERRUPTS();

		MemoryContextReset(each_look);
		MemoryContextSwitchTo(each_look);
		looked_at = dlock_clock_now();
		dlock_lock_try(key, request, turn, &found, result);
		if (result->answer != DLOCK_IS_BUSY && result->answer != DLOCK_IS_ASKED)
			break;

		now = dlock_clock_now();
		if (result->answer == DLOCK_IS_BUSY && now >= turn->until)
			break;
		if (dlock_wait_upgrades())
		{
			if (result->upgrades)
				turn->behind = false;
			else if (dlock_outlook_is_settled(&found))
				dlock_wait_step_back();
		}
		dlock_outlook_make(request, turn, &found, result, looked_at, now, &outlook);
		dlock_wait_publish(&outlook);
		dlock_deadlock_watch(&watch, now);
		dlock_waitlog_still(log, &found, now);

		/* if we waited for any other lock meanwhile, that turned it off */
		if (lock_deadline != 0 && !get_timeout_active(LOCK_TIMEOUT))
			enable_timeout_at(LOCK_TIMEOUT, lock_deadline);
		sleep_until(Min(Min(outlook.wake_at, turn->until), watch.next),
					request->without_snapshot);
	}

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(each_look);
}

static void
raise_second_upgrade(const DlockRequest *request)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("Another holder of a place of lock \"%s\" already waits to have it for itself. Each of the two would wait for the other's place.",
					   pnstrdup(request->key, request->keylen)),
			 errhint("Release the place and acquire the lock again.")));
}

static void
wait_for_turn(const DlockKey *key, const DlockRequest *request, DlockTurn *turn,
			  DlockResult *result)
{
	DlockEntrant entrant = {0};
	TimestampTz lock_deadline = LockTimeout > 0 ?
	TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LockTimeout) : 0;
	DlockWaitLog log = {.key = key};
	int64		now;
	bool		passes_on;

	entrant.kind = DLOCK_WAIT_TURN;
	entrant.role = request->role;
	entrant.owner = request->owner;
	entrant.priority = request->priority;
	entrant.slots = request->slots;
	entrant.upgrades = result->upgrades;
	entrant.since = dlock_clock_now();
	entrant.until = turn->until;
	log.began = entrant.since;

	PG_ENSURE_ERROR_CLEANUP(give_up_turn, PointerGetDatum(&log));
	{
		if (!dlock_wait_enter(key, &entrant))
			raise_second_upgrade(request);
		if (lock_deadline != 0)
			enable_timeout_at(LOCK_TIMEOUT, lock_deadline);
		wait_in_queue(key, request, turn, result, &log, lock_deadline);
	}
	PG_END_ENSURE_ERROR_CLEANUP(give_up_turn, PointerGetDatum(&log));

	/* a place leaves room for others, before our transaction ends */
	passes_on = result->answer != DLOCK_IS_GRANTED ||
		request->slots != DLOCK_EXCLUSIVE;
	dlock_wait_leave(passes_on);
	now = dlock_clock_now();
	dlock_stats_waited(key, now - log.began, result->answer != DLOCK_IS_GRANTED);
	dlock_waitlog_end(&log, result->answer == DLOCK_IS_GRANTED, now);

	/* if it has fired already, keep the indicator, so that it is reported */
	if (LockTimeout > 0)
		disable_timeout(LOCK_TIMEOUT, true);
}

/* Raise an error unless the policies allow it. */
void
dlock_await_check_policy(const DlockRequest *request)
{
	dlock_policy_check_request(request->key, request->keylen, request->role,
							   request->ttl, request->priority);
}

/*
 * Try once, and wait for the turn if the request may.  What the policies say at
 * the grant counts, and they may have changed since the request, more so if it
 * had to wait.
 */
void
dlock_await_acquire(const DlockRequest *request, DlockResult *result)
{
	DlockTurn	turn;
	DlockKey	key;
	DlockRows	found;

	dlock_await_check_policy(request);
	dlock_turn_begin(&turn);
	dlock_key_set(&key, request->key, request->keylen);
	if (request->session)
		dlock_session_prepare();
	if (request->wait != 0)		/* or else nobody has time to yield */
		turn.until = request->wait == DLOCK_NEVER ?
			DLOCK_NEVER : dlock_clock_now() + request->wait;
	turn.behind = dlock_queue_others_first(&key, request->priority);
	dlock_lock_try(&key, request, &turn, &found, result);
	if (result->answer != DLOCK_IS_GRANTED && request->wait == 0)
		dlock_stats_busy(&key);
	else if (result->answer == DLOCK_IS_BUSY || result->answer == DLOCK_IS_ASKED)
		wait_for_turn(&key, request, &turn, result);

	if (result->answer == DLOCK_IS_GRANTED && !result->renewed)
	{
		dlock_await_check_policy(request);
		dlock_policy_check_grant(request->key, request->keylen, request->role);
	}
}

/* What a watcher sees of a key. */
typedef struct Sight
{
	bool		held;
	int64		version;		/* the highest that is held */
	uint64		value;			/* its value's hash */
	int64		wake_at;		/* when the first grant expires */
} Sight;

static Sight
look_at_key(const DlockKey *key, int64 *now)
{
	Sight		sight = {.wake_at = DLOCK_NEVER};
	DlockStore	store;
	DlockRows	found;

	dlock_store_open(&store, false, false);
	dlock_find_committed(&store, key, &found);
	*now = dlock_clock_now();
	for (int i = 0; i < found.n; i++)
	{
		const DlockState *state = &found.states[i];

		if (!dlock_fsm_is_held(state, *now))
			continue;
		if (state->expires > *now)
			sight.wake_at = Min(sight.wake_at, state->expires);
		sight.held = true;
		if (state->version > sight.version)
		{
			sight.version = state->version;
			sight.value = dlock_row_value_hash(store.heap, found.rows[i].tuple);
		}
	}
	dlock_store_close(&store, false);
	return sight;
}

/*
 * Look again and again until the version differs from the given one, the value
 * from the first one seen, or the time is up.
 */
static bool
watch_key(const DlockKey *key, bool is_held, int64 *version, int64 until)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock watch",
													ALLOCSET_DEFAULT_SIZES);
	DlockOutlook outlook = {0};
	Sight		first = {0};
	Sight		sight;
	bool		is_first = true;

	for (;;)
	{
		int64		now;

		(void) dlock_wait_rearm();
		CHECK_FOR_INTERRUPTS();

		MemoryContextReset(each_look);
		MemoryContextSwitchTo(each_look);
		sight = look_at_key(key, &now);
		if (is_first)
			first = sight;
		is_first = false;
		if (sight.held != is_held || now >= until ||
			(is_held && (sight.version != *version || sight.value != first.value)))
			break;

		outlook.wake_at = sight.wake_at;
		dlock_wait_publish(&outlook);
		dlock_wait_sleep(Min(outlook.wake_at, until));
	}

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(each_look);
	*version = sight.version;
	return sight.held;
}

/*
 * Wait until the key has another version than the given one, or none if it had
 * one, or the time is up.  Returns whether it is held, and the version.
 */
bool
dlock_await_change(const char *keydata, int keylen, bool is_held, int64 *version,
				   int64 timeout)
{
	DlockKey	key;
	bool		held;

	dlock_key_set(&key, keydata, keylen);

	PG_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	{
		DlockEntrant entrant = {.kind = DLOCK_WAIT_CHANGE};

		entrant.role = GetUserId();
		entrant.since = dlock_clock_now();
		entrant.until = timeout == DLOCK_NEVER ? DLOCK_NEVER : entrant.since + timeout;
		(void) dlock_wait_enter(&key, &entrant);
		held = watch_key(&key, is_held, version, entrant.until);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);

	dlock_wait_leave(true);
	return held;
}
