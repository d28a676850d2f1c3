/*-------------------------------------------------------------------------
 *
 * watch.c
 *	  Wait until a key changes.
 *
 * A watcher stands in the queue of the key, but never has the turn.  It looks again
 * whenever it is woken, and when the first grant of the key expires.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "clock.h"
#include "lock/watch.h"
#include "queue/backend_wait.h"
#include "rows/find.h"
#include "rules/lock_rules.h"

/* A callback: leave the queue after an error, too. */
static void
leave_queue(int code, Datum arg)
{
	dlock_backend_wait_leave(true);
}

/* What a watcher sees of a key. */
typedef struct Sight
{
	bool		held;
	int64		version;		/* the highest that is held */
	uint64		value;			/* its value's hash */
	int64		wake_at;		/* when the first grant expires */
} Sight;

/* What is committed, and the time at which it was judged. */
static Sight
look_at_key(const DlockKey *key, int64 *now)
{
	Sight		sight = {.wake_at = DLOCK_NEVER};
	DlockTable	store;
	DlockRows	found;

	dlock_table_open(&store, false, false);
	dlock_find_committed(&store, key, &found);
	*now = dlock_clock_now();
	for (int i = 0; i < found.n; i++)
	{
		const DlockState *state = &found.states[i];

		if (!dlock_rules_is_held(state, *now))
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
	dlock_table_close(&store, false);
	return sight;
}

/*
 * Look again and again until the version differs from the given one, the value
 * from the first one seen, or the time is up.
 */
static bool
look_until_changed(const DlockKey *key, bool is_held, int64 *version, int64 until)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext each_look = AllocSetContextCreate(caller, "dlock watch",
													ALLOCSET_DEFAULT_SIZES);
	DlockWaitReport report = {0};
	Sight		first = {0};
	Sight		sight;
	bool		is_first = true;

	for (;;)
	{
		int64		now;

		(void) dlock_backend_wait_rearm();
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

		report.wake_at = sight.wake_at;
		dlock_backend_wait_publish(&report);
		dlock_backend_wait_sleep(Min(report.wake_at, until));
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
dlock_watch_key(const DlockKey *key, bool is_held, int64 *version, int64 timeout)
{
	bool		held;

	PG_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);
	{
		DlockEntrant entrant = {.kind = DLOCK_WAIT_CHANGE};

		entrant.terms.role = GetUserId();
		entrant.since = dlock_clock_now();
		entrant.until = timeout == DLOCK_NEVER ? DLOCK_NEVER : entrant.since + timeout;
		(void) dlock_backend_wait_enter(key, &entrant);
		held = look_until_changed(key, is_held, version, entrant.until);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_queue, (Datum) 0);

	dlock_backend_wait_leave(true);
	return held;
}
