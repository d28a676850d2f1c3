/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The functions behind the views dlock_locks and dlock_waiters.
 *
 * The views show the newest committed state and our own changes, whatever the
 * transaction's snapshot, because every decision about a lock uses that state,
 * too.  Any role can see that a key is held, by which role and until when.  Only
 * members of that role see the owner and the value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "compat.h"
#include "fsm.h"
#include "row.h"
#include "scan.h"
#include "shmem.h"
#include "shown.h"
#include "store.h"
#include "wait.h"

PG_FUNCTION_INFO_V1(dlock_locks_shown);
PG_FUNCTION_INFO_V1(dlock_waiters_shown);

#define LOCK_COLUMNS	18
#define WAITER_COLUMNS	8

typedef struct Show
{
	ReturnSetInfo *rsinfo;
	int64		now;
	bool		sees_all;
	MemoryContext per_row;
	DlockWaiter asking;
} Show;

/* 1: exclusive, N: one of so many places, NULL: shared. */
static Datum
slots_datum(int32 slots, bool *isnull)
{
	*isnull = slots == DLOCK_SHARED;
	return Int32GetDatum(slots);
}

static Datum
text_datum(const char *text, bool *isnull)
{
	*isnull = text == NULL;
	return text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
}

static const char *
state_name(DlockPhase phase, bool asked)
{
	switch (phase)
	{
		case DLOCK_PHASE_COOLING:
			return "cooling";
		case DLOCK_PHASE_LAPSED:
			return "lapsed";
		default:
			return asked ? "preempting" : "held";
	}
}

/* Who has asked the holder to yield; all null if nobody has. */
static void
show_requestor(const Show *show, const DlockState *state, Datum *values, bool *isnull)
{
	const DlockWaiter *asking = &show->asking;

	for (int i = 0; i < 4; i++)
	{
		values[i] = (Datum) 0;
		isnull[i] = !state->asked;
	}
	if (!state->asked)
		return;
	values[0] = text_datum(asking->has_owner && dlock_shown_may_see(show->sees_all, asking->role) ?
						   asking->owner : NULL, &isnull[0]);
	values[1] = Int32GetDatum(asking->priority);
	values[2] = TimestampTzGetDatum(dlock_clock_to_wall(dlock_fsm_asked_since(state, &asking->asking, show->now)));
	values[3] = TimestampTzGetDatum(dlock_clock_to_wall(dlock_fsm_yield_by(state, &asking->asking, asking->until, show->now)));
}

static bool
show_row(const DlockStore *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Show	   *show = arg;
	MemoryContext caller = MemoryContextSwitchTo(show->per_row);
	DlockKey	key;
	DlockGrant	grant;
	DlockState	state;
	DlockPhase	phase;
	Datum		values[LOCK_COLUMNS];
	bool		isnull[LOCK_COLUMNS] = {false};
	int64		until;
	bool		hidden;

	MemoryContextReset(show->per_row);
	memset(&state, 0, sizeof(state));
	dlock_row_key(tuple, &key);
	dlock_row_state(tuple, &state);
	phase = dlock_fsm_phase(&state, show->now);

	if (phase >= DLOCK_PHASE_COOLING)
	{
		dlock_row_grant(store->heap, tuple, &grant);
		hidden = !dlock_shown_may_see(show->sees_all, grant.role);
		state.asked = phase == DLOCK_PHASE_LIVE &&
			dlock_wait_asked(&key, &state, &show->asking);
		until = phase == DLOCK_PHASE_COOLING ?
			dlock_fsm_busy_until(&state) : grant.expires_at;

		values[0] = PointerGetDatum(cstring_to_text_with_len(key.data, key.len));
		values[1] = Int64GetDatum(grant.version);
		values[2] = text_datum(hidden ? NULL : grant.owner, &isnull[2]);
		values[3] = ObjectIdGetDatum(grant.role);
		values[4] = text_datum(hidden ? NULL : grant.value, &isnull[4]);
		values[5] = CStringGetTextDatum(state_name(phase, state.asked));
		values[6] = Int32GetDatum(grant.priority);
		values[7] = TimestampTzGetDatum(dlock_clock_to_wall(grant.acquired_at));
		values[8] = TimestampTzGetDatum(dlock_clock_to_wall(grant.refreshed_at));
		values[9] = TimestampTzGetDatum(dlock_clock_to_wall(until));
		values[10] = dlock_shown_interval(Max(until - show->now, 0));
		values[11] = dlock_shown_interval(grant.ttl);
		isnull[12] = grant.pid == 0;
		values[12] = Int32GetDatum(grant.pid);
		values[13] = slots_datum(grant.slots, &isnull[13]);
		show_requestor(show, &state, &values[14], &isnull[14]);
		tuplestore_putvalues(show->rsinfo->setResult, show->rsinfo->setDesc,
							 values, isnull);
	}

	MemoryContextSwitchTo(caller);
	return true;
}

Datum
dlock_locks_shown(PG_FUNCTION_ARGS)
{
	Show		show;
	DlockStore	store;
	Snapshot	snapshot;

	dlock_shmem_require();
	PreventCommandIfParallelMode("dlock_locks");
	InitMaterializedSRF(fcinfo, 0);

	show.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	dlock_shown_check_columns(show.rsinfo, LOCK_COLUMNS);
	show.now = dlock_clock_now();
	show.sees_all = dlock_shown_sees_all();
	show.per_row = AllocSetContextCreate(CurrentMemoryContext, "dlock row",
										 ALLOCSET_DEFAULT_SIZES);

	dlock_store_open(&store, false, false);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	dlock_scan(&store, snapshot, 0, InvalidBlockNumber, show_row, &show);
	UnregisterSnapshot(snapshot);
	dlock_store_close(&store, false);
	return (Datum) 0;
}

/* How many waiters of the same key come before this one. */
static int
count_before(const DlockWaiter *waiters, int i)
{
	int			n = 0;

	/* copied bucket by bucket, each in the order of its queue */
	for (int j = 0; j < i; j++)
		if (waiters[j].kind == DLOCK_WAIT_TURN &&
			waiters[j].dboid == waiters[i].dboid &&
			waiters[j].hash == waiters[i].hash &&
			strcmp(waiters[j].key, waiters[i].key) == 0)
			n++;
	return n;
}

Datum
dlock_waiters_shown(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockWaiter *waiters;
	int			nwaiters;
	bool		sees_all = dlock_shown_sees_all();

	dlock_shmem_require();
	PreventCommandIfParallelMode("dlock_waiters");
	InitMaterializedSRF(fcinfo, 0);

	dlock_shown_check_columns(rsinfo, WAITER_COLUMNS);
	waiters = dlock_wait_copy_all(&nwaiters);
	for (int i = 0; i < nwaiters; i++)
	{
		DlockWaiter *waiter = &waiters[i];
		bool		in_line = waiter->kind == DLOCK_WAIT_TURN;
		Datum		values[WAITER_COLUMNS];
		bool		isnull[WAITER_COLUMNS] = {false};

		if (waiter->dboid != MyDatabaseId)
			continue;

		values[0] = CStringGetTextDatum(waiter->key);
		values[1] = Int32GetDatum(waiter->pid);
		isnull[2] = !waiter->has_owner || !dlock_shown_may_see(sees_all, waiter->role);
		values[2] = isnull[2] ? (Datum) 0 : CStringGetTextDatum(waiter->owner);
		isnull[3] = !in_line;
		values[3] = Int32GetDatum(waiter->priority);
		values[4] = slots_datum(in_line ? waiter->slots : DLOCK_SHARED, &isnull[4]);
		isnull[5] = !in_line;
		values[5] = Int32GetDatum(in_line ? count_before(waiters, i) + 1 : 0);
		values[6] = TimestampTzGetDatum(dlock_clock_to_wall(waiter->since));
		isnull[7] = waiter->until == DLOCK_NEVER;
		values[7] = isnull[7] ? (Datum) 0 :
			TimestampTzGetDatum(dlock_clock_to_wall(waiter->until));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	pfree(waiters);
	return (Datum) 0;
}
