/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The function behind the view dlock_locks.
 *
 * Shows the newest committed state and our own changes, not the state of the
 * transaction's snapshot: like every decision about a lock, it is about now.
 * Anybody may see that a key is held, by which role and until when; the owner
 * and the value are for members of that role.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "common/int.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "shmem.h"
#include "store.h"

PG_FUNCTION_INFO_V1(dlock_locks_shown);

#define COLUMNS 12

typedef struct Show
{
	ReturnSetInfo *rsinfo;
	int64		now;
	bool		sees_all;
	MemoryContext per_row;
} Show;

static Datum
interval_datum(int64 us)
{
	Interval   *span = palloc0(sizeof(Interval));

	span->time = us;
	return IntervalPGetDatum(span);
}

static bool
show_row(const DlockStore *store, HeapTuple tuple, void *arg)
{
	Show	   *show = arg;
	MemoryContext caller = MemoryContextSwitchTo(show->per_row);
	DlockKey	key;
	DlockGrant	grant;
	DlockState	state;
	Datum		values[COLUMNS];
	bool		isnull[COLUMNS] = {false};
	bool		hidden;
	int			n = 0;

	MemoryContextReset(show->per_row);
	dlock_store_decode(store, tuple, &key, &grant, &state);

	if (state.held && show->now < state.expires)
	{
		hidden = !show->sees_all && !has_privs_of_role(GetUserId(), grant.role);

		values[n++] = PointerGetDatum(cstring_to_text_with_len(key.data, key.len));
		values[n++] = Int64GetDatum(grant.version);
		isnull[n] = hidden || grant.owner == NULL;
		values[n] = isnull[n] ? (Datum) 0 : CStringGetTextDatum(grant.owner);
		n++;
		values[n++] = ObjectIdGetDatum(grant.role);
		isnull[n] = hidden || grant.value == NULL;
		values[n] = isnull[n] ? (Datum) 0 : CStringGetTextDatum(grant.value);
		n++;
		values[n++] = CStringGetTextDatum("held");
		values[n++] = Int32GetDatum(grant.priority);
		values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(grant.acquired_at));
		values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(grant.refreshed_at));
		values[n++] = TimestampTzGetDatum(dlock_clock_to_wall(grant.expires_at));
		values[n++] = interval_datum(state.expires - show->now);
		values[n++] = interval_datum(grant.ttl);
		Assert(n == COLUMNS);

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
	InitMaterializedSRF(fcinfo, 0);

	show.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	show.now = dlock_clock_now();
	show.sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	show.per_row = AllocSetContextCreate(CurrentMemoryContext, "dlock row",
										 ALLOCSET_DEFAULT_SIZES);

	dlock_store_open(&store, false, false);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	dlock_store_scan(&store, snapshot, 0, show_row, &show);
	UnregisterSnapshot(snapshot);
	dlock_store_close(&store);
	return (Datum) 0;
}
