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

#define LOCK_COLUMNS	17
#define WAITER_COLUMNS	7

typedef struct Show
{
	ReturnSetInfo *rsinfo;
	int64		now;
	bool		sees_all;
	MemoryContext per_row;
	DlockWaiter asking;
} Show;

static bool
show_row(const DlockStore *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Show	   *show = arg;
	MemoryContext caller = MemoryContextSwitchTo(show->per_row);
	DlockKey	key;
	DlockGrant	grant;
	DlockState	state;
	Datum		values[LOCK_COLUMNS];
	bool		isnull[LOCK_COLUMNS] = {false};
	bool		hidden;
	int			n = 0;

	MemoryContextReset(show->per_row);
	memset(&state, 0, sizeof(state));
	dlock_row_key(tuple, &key);
	dlock_row_state(tuple, &state);

	if (dlock_fsm_is_live(&state, show->now))
	{
		dlock_row_grant(store->heap, tuple, &grant);
		hidden = !dlock_shown_may_see(show->sees_all, grant.role);
		state.asked = dlock_wait_asked(&key, grant.version, &show->asking);

		values[n++] = PointerGetDatum(cstring_to_text_with_len(key.data, key.len));
		values[n++] = Int64GetDatum(grant.version);
		isnull[n] = hidden || grant.owner == NULL;
		values[n] = isnull[n] ? (Datum) 0 : CStringGetTextDatum(grant.owner);
		n++;
		values[n++] = ObjectIdGetDatum(grant.role);
		isnull[n] = hidden || grant.value == NULL;
		values[n] = isnull[n] ? (Datum) 0 : CStringGetTextDatum(grant.value);
		n++;
		values[n++] = CStringGetTextDatum(state.asked ? "preempting" : "held");
		values[n++] = Int32GetDatum(grant.priority);
		values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(grant.acquired_at));
		values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(grant.refreshed_at));
		values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(grant.expires_at));
		values[n++] = dlock_shown_interval(Min(state.expires - show->now, grant.ttl));
		values[n++] = dlock_shown_interval(grant.ttl);
		isnull[n] = grant.pid == 0;
		values[n++] = Int32GetDatum(grant.pid);
		if (state.asked)
		{
			isnull[n] = !show->asking.has_owner ||
				!dlock_shown_may_see(show->sees_all, show->asking.role);
			values[n] = isnull[n] ? (Datum) 0 : CStringGetTextDatum(show->asking.owner);
			n++;
			values[n++] = Int32GetDatum(show->asking.priority);
			values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(show->asking.asked_at));
			values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(show->asking.yield_by));
		}
		else
		{
			for (int i = 0; i < 4; i++)
			{
				isnull[n] = true;
				values[n++] = (Datum) 0;
			}
		}
		Assert(n == LOCK_COLUMNS);

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
		isnull[4] = !in_line;
		values[4] = Int32GetDatum(in_line ? count_before(waiters, i) + 1 : 0);
		values[5] = TimestampTzGetDatum(dlock_clock_to_wall(waiter->since));
		isnull[6] = waiter->until == DLOCK_NEVER;
		values[6] = isnull[6] ? (Datum) 0 :
			TimestampTzGetDatum(dlock_clock_to_wall(waiter->until));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	pfree(waiters);
	return (Datum) 0;
}
