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

#include "access/transam.h"
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
#include "policy.h"
#include "session.h"
#include "stats.h"
#include "using.h"
#include "wait.h"
#include "waitlog.h"

static void
leave_queue(int code, Datum arg)
{
	dlock_wait_leave(false);
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

/*
 * When to look for a deadlock next.  A suspicion is checked again soon, against
 * what has been seen since then.  Otherwise we look less and less often, because
 * the longer nobody waits for us elsewhere, the less likely a deadlock becomes.
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

	/* not suspected at all, or not confirmed after several checks */
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
 * What keeps us waiting, for the deadlock check: the process that is using a
 * row or whose session the grant ends with, or else the owner of the lease.
 */
static void
find_blockers(const DlockRows *found, DlockOutlook *outlook)
{
	outlook->nblockers = 0;
	for (int i = 0; i < found->n && outlook->nblockers < DLOCK_MAX_BLOCKERS; i++)
	{
		const DlockState *state = &found->states[i];
		const DlockRow *row = &found->rows[i];
		DlockBlocker *blocker = &outlook->blockers[outlook->nblockers++];

		blocker->pid = 0;
		blocker->role = state->role;
		blocker->owner = 0;
		if (row->is_ours)
			blocker->pid = MyProcPid;
		else if (TransactionIdIsValid(row->pending))
			blocker->pid = dlock_using_xid(row->pending);
		else if (state->held)
			blocker->pid = state->pid;
		if (blocker->pid == 0 && state->held)
			blocker->owner = dlock_wait_owner(state->owner);
	}
}

/*
 * A waiter that does not have the turn looks again after this long.  The one
 * before it passes the turn on, so it need not look at all, but it has to say
 * when it will: a commit whose lease ends no sooner than that need not wake it.
 */
#define BEHIND_LOOK_US	INT64CONST(10000000)

/* When the waiter should look again by itself, if nobody wakes it. */
static int64
look_again_at(const DlockTurn *turn, const DlockRows *found,
			  const DlockResult *result, int64 looked_at, int64 yield_by)
{
	int64		until = DLOCK_NEVER;

	if (turn->behind && result->answer != DLOCK_IS_ASKED)
		return looked_at + BEHIND_LOOK_US;

	for (int i = 0; i < found->n; i++)
	{
		const DlockState *state = &found->states[i];

		if (result->answer != DLOCK_IS_ASKED &&
			(!state->held || TransactionIdIsValid(found->rows[i].pending) ||
			 state->expires <= looked_at))
			continue;			/* in use; the end of its transaction wakes us */
		until = Min(until, state->expires);
	}
	return result->answer == DLOCK_IS_ASKED ? Min(until, yield_by) : until;
}

/* The row of the grant that the answer was about. */
static const DlockState *
find_version(const DlockRows *found, int64 version)
{
	for (int i = 0; i < found->n; i++)
		if (found->states[i].version == version)
			return &found->states[i];
	elog(ERROR, "version %lld is not among the rows of its key", (long long) version);
}

/*
 * Busy, but by nothing that withdraws what we have asked of the holder: an open
 * transaction of the holder, a fence or a refresh, buys it no more time.
 */
static bool
still_asking(const DlockRequest *request, const DlockTurn *turn,
			 const DlockRows *found)
{
	if (turn->behind)
		return false;
	for (int i = 0; i < found->n; i++)
	{
		const DlockState *state = &found->states[i];

		if (state->unsettled ||
			(state->held && state->version == turn->asked_version &&
			 state->priority < request->priority))
			return true;
	}
	return false;
}

/* Try again and again until it is granted, refused, or the time is up. */
static void
wait_in_queue(const DlockKey *key, const DlockRequest *request, DlockTurn *turn,
			  DlockResult *result, DlockWaitLog *log, TimestampTz lock_deadline)
{
	DeadlockWatch watch = {0};
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock wait",
													ALLOCSET_DEFAULT_SIZES);
	DlockOutlook outlook = {0};
	DlockRows	found;

	watch.pause = DeadlockTimeout * INT64CONST(1000);
	watch.next = log->began + watch.pause;

	for (;;)
	{
		int64		looked_at;
		int64		now;

		turn->behind = dlock_wait_rearm() > 0;
		CHECK_FOR_INTERRUPTS();

		MemoryContextReset(each_look);
		MemoryContextSwitchTo(each_look);
		looked_at = dlock_clock_now();
		dlock_lock_try(key, request, turn, &found, result);
		if (result->answer != DLOCK_IS_BUSY && result->answer != DLOCK_IS_ASKED)
			break;

		now = dlock_clock_now();
		if (result->answer == DLOCK_IS_BUSY)
		{
			if (now >= turn->until)
				break;
			if (!still_asking(request, turn, &found))
				turn->asked_version = 0;
		}
		else
		{
			/* a holder is asked once; another holder is asked again */
			if (turn->asked_version != result->version)
			{
				turn->asked_version = result->version;
				turn->asked_at = now;
			}
			outlook.yield_by = dlock_fsm_yield_by(find_version(&found, result->version),
												  turn, now);
		}

		outlook.wake_at = look_again_at(turn, &found, result, looked_at,
										outlook.yield_by);
		outlook.asked_version = turn->asked_version;
		outlook.asked_at = turn->asked_at;
		find_blockers(&found, &outlook);
		dlock_wait_publish(&outlook);
		watch_deadlock(&watch, now);
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
wait_for_turn(const DlockKey *key, const DlockRequest *request, DlockTurn *turn,
			  DlockResult *result)
{
	DlockWaitLog log = {.key = key,.began = dlock_clock_now()};
	TimestampTz lock_deadline = 0;
	int64		now;
	bool		granted;

	PG_ENSURE_ERROR_CLEANUP(give_up_turn, PointerGetDatum(&log));
	{
		dlock_wait_enter(key, DLOCK_WAIT_TURN, request->role, request->owner,
						 request->priority, log.began, turn->until);
		if (LockTimeout > 0)
		{
			lock_deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														LockTimeout);
			enable_timeout_at(LOCK_TIMEOUT, lock_deadline);
		}
		wait_in_queue(key, request, turn, result, &log, lock_deadline);
	}
	PG_END_ENSURE_ERROR_CLEANUP(give_up_turn, PointerGetDatum(&log));

	granted = result->answer == DLOCK_IS_GRANTED;
	dlock_wait_leave(granted);
	now = dlock_clock_now();
	dlock_stats_waited(key, now - log.began, !granted);
	dlock_waitlog_end(&log, granted, now);

	/* if it has fired already, keep the indicator, so that it is reported */
	if (LockTimeout > 0)
		disable_timeout(LOCK_TIMEOUT, true);
}

static void
check_policy(const DlockRequest *request)
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
	DlockTurn	turn = {0};
	DlockKey	key;
	DlockRows	found;

	check_policy(request);
	dlock_key_set(&key, request->key, request->keylen);
	if (request->session)
		dlock_session_prepare();
	turn.until = request->wait == DLOCK_NEVER ?
		DLOCK_NEVER : dlock_clock_now() + request->wait;
	turn.behind = dlock_wait_others_first(&key, request->priority);
	dlock_lock_try(&key, request, &turn, &found, result);
	if (result->answer != DLOCK_IS_GRANTED && request->wait == 0)
		dlock_stats_busy(&key);
	else if (result->answer == DLOCK_IS_BUSY || result->answer == DLOCK_IS_ASKED)
		wait_for_turn(&key, request, &turn, result);

	if (result->answer == DLOCK_IS_GRANTED && !result->renewed)
	{
		check_policy(request);
		dlock_policy_check_grant(request->key, request->keylen, request->role);
	}
}

/* Look again and again until the version differs or the time is up. */
static bool
watch_version(const DlockKey *key, bool is_held, int64 *version, int64 until)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock watch",
													ALLOCSET_DEFAULT_SIZES);
	DlockOutlook outlook = {0};
	bool		held;

	for (;;)
	{
		DlockStore	store;
		DlockRows	found;
		int64		seen = 0;
		int64		now;

		(void) dlock_wait_rearm();
		CHECK_FOR_INTERRUPTS();

		MemoryContextReset(each_look);
		MemoryContextSwitchTo(each_look);
		dlock_store_open(&store, false, false);
		dlock_find(&store, key, DLOCK_FIND_COMMITTED, &found);
		dlock_store_close(&store, false);

		now = dlock_clock_now();
		held = false;
		outlook.wake_at = DLOCK_NEVER;
		for (int i = 0; i < found.n; i++)
			if (dlock_fsm_is_live(&found.states[i], now))
			{
				held = true;
				seen = Max(seen, found.states[i].version);
				outlook.wake_at = Min(outlook.wake_at, found.states[i].expires);
			}
		if (held != is_held || (held && seen != *version) || now >= until)
		{
			*version = seen;
			break;
		}

		dlock_wait_publish(&outlook);
		dlock_wait_sleep(Min(outlook.wake_at, until));
	}

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(each_look);
	return held;
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
		int64		began = dlock_clock_now();
		int64		until = timeout == DLOCK_NEVER ? DLOCK_NEVER : began + timeout;

		dlock_wait_enter(&key, DLOCK_WAIT_CHANGE, GetUserId(), NULL, 0,
						 began, until);
		held = watch_version(&key, is_held, version, until);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);

	dlock_wait_leave(false);
	return held;
}
