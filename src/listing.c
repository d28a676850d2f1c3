/*-------------------------------------------------------------------------
 *
 * listing.c
 *	  The grants: view dlock_locks, dlock_get() and dlock_list().
 *
 * They show the newest committed state and our own changes, whatever the
 * transaction's snapshot, because every decision about a lock uses that state,
 * too.  A key that nobody holds may be busy all the same, because an open
 * transaction is taking it or has locked what a grant has left.  It is shown as
 * pending, with the process, because otherwise nothing would tell whom to wait
 * for.
 *
 * Any role can see that a key is held, by which role and until when.  Only
 * members of that role see the owner and the value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "args.h"
#include "clock.h"
#include "compat.h"
#include "database.h"
#include "find.h"
#include "fsm.h"
#include "queue.h"
#include "range.h"
#include "row.h"
#include "scan.h"
#include "shmem.h"
#include "shown.h"
#include "store.h"
#include "using.h"

PG_FUNCTION_INFO_V1(dlock_locks_shown);
PG_FUNCTION_INFO_V1(dlock_get);
PG_FUNCTION_INFO_V1(dlock_list);

#define LOCK_COLUMNS	19

typedef struct Show
{
	ReturnSetInfo *rsinfo;
	int64		now;
	bool		sees_all;
	MemoryContext per_row;
	DlockNamedWaiter asking;

	/* dlock_list: stop after so many keys */
	int			max_keys;
	int			nkeys;
	char		last[DLOCK_MAX_KEY];
	int			lastlen;
} Show;

static Datum
text_datum(const char *text, bool *isnull)
{
	*isnull = text == NULL;
	return text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
}

static Datum
pid_datum(int pid, bool *isnull)
{
	*isnull = pid == 0;
	return Int32GetDatum(pid);
}

static Datum
time_datum(int64 lease_time)
{
	return TimestampTzGetDatum(dlock_clock_to_wall(lease_time));
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
	const DlockWaiter *asking = &show->asking.waiter;

	for (int i = 0; i < 4; i++)
	{
		values[i] = (Datum) 0;
		isnull[i] = !state->asked;
	}
	if (!state->asked)
		return;
	values[0] = text_datum(dlock_shown_may_see(show->sees_all, asking->role) ?
						   asking->owner : NULL, &isnull[0]);
	values[1] = Int32GetDatum(asking->priority);
	values[2] = time_datum(dlock_fsm_asked_since(state, &asking->asking, show->now));
	values[3] = time_datum(dlock_fsm_yield_by(state, &asking->asking, asking->until,
											  show->now));
}

/* A key that no grant keeps busy, but an open transaction. */
static void
show_pending(Show *show, const DlockKey *key, int pid)
{
	Datum		values[LOCK_COLUMNS] = {0};
	bool		isnull[LOCK_COLUMNS];

	memset(isnull, true, sizeof(isnull));
	values[0] = PointerGetDatum(cstring_to_text_with_len(key->data, key->len));
	isnull[0] = false;
	values[5] = CStringGetTextDatum("pending");
	isnull[5] = false;
	values[14] = pid_datum(pid, &isnull[14]);
	tuplestore_putvalues(show->rsinfo->setResult, show->rsinfo->setDesc,
						 values, isnull);
}

static void
show_grant(Show *show, const DlockStore *store, const DlockKey *key,
		   HeapTuple tuple, DlockState *state, DlockPhase phase)
{
	DlockGrant	grant;
	Datum		values[LOCK_COLUMNS];
	bool		isnull[LOCK_COLUMNS] = {false};
	int64		until;
	bool		is_over = phase == DLOCK_PHASE_COOLING;
	bool		hidden;

	dlock_row_grant(store->heap, tuple, &grant);
	/* the reaper forgets whose it was, so it is not shown before either */
	hidden = is_over || !dlock_shown_may_see(show->sees_all, grant.role);
	state->asked = phase == DLOCK_PHASE_LIVE &&
		dlock_queue_asked(key, state, &show->asking);
	until = is_over ? dlock_fsm_busy_until(state) : grant.expires_at;

	values[0] = PointerGetDatum(cstring_to_text_with_len(key->data, key->len));
	values[1] = Int64GetDatum(grant.version);
	values[2] = text_datum(hidden ? NULL : grant.owner, &isnull[2]);
	values[3] = ObjectIdGetDatum(grant.role);
	values[4] = text_datum(hidden ? NULL : grant.value, &isnull[4]);
	values[5] = CStringGetTextDatum(state_name(phase, state->asked));
	values[6] = Int32GetDatum(grant.priority);
	values[7] = time_datum(grant.acquired_at);
	values[8] = time_datum(grant.refreshed_at);
	values[9] = time_datum(until);
	values[10] = dlock_shown_interval(Max(until - show->now, 0));
	values[11] = dlock_shown_interval(grant.ttl);
	values[12] = pid_datum(is_over ? 0 : grant.pid, &isnull[12]);
	values[13] = dlock_shown_slots(grant.slots, &isnull[13]);
	values[14] = pid_datum(dlock_using_row(tuple), &isnull[14]);
	show_requestor(show, state, &values[15], &isnull[15]);
	tuplestore_putvalues(show->rsinfo->setResult, show->rsinfo->setDesc,
						 values, isnull);
}

/* What the reaper deletes is free for whoever asks. */
static bool
is_being_reaped(HeapTuple tuple)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	TransactionId xid = db == NULL ? InvalidTransactionId :
	pg_atomic_read_u32(&db->reaper_xid);

	return TransactionIdIsValid(xid) &&
		HeapTupleHeaderGetRawXmax(tuple->t_data) == xid;
}

/* A row that is committed, or our own.  False: there is nothing to show. */
static bool
show_committed(Show *show, const DlockStore *store, const DlockKey *key,
			   HeapTuple tuple)
{
	DlockState	state = {0};
	DlockPhase	phase;
	int			pid;

	/* on a standby, times count from now: read the clock after the row */
	dlock_row_state(tuple, &state, true, NULL);
	show->now = dlock_clock_now();
	phase = dlock_fsm_phase(&state, show->now);
	if (phase >= DLOCK_PHASE_COOLING)
	{
		show_grant(show, store, key, tuple, &state, phase);
		return true;
	}
	pid = is_being_reaped(tuple) ? 0 : dlock_using_row(tuple);
	if (pid == 0)
		return false;
	show_pending(show, key, pid);
	return true;
}

/* Does the key come after the last one, and after as many as are wanted? */
static bool
is_beyond(Show *show, const DlockKey *key)
{
	return show->max_keys > 0 && show->nkeys >= show->max_keys &&
		dlock_range_compare(key->data, key->len, show->last, show->lastlen) != 0;
}

static void
count_key(Show *show, const DlockKey *key)
{
	if (show->max_keys == 0 ||
		(show->nkeys > 0 &&
		 dlock_range_compare(key->data, key->len, show->last, show->lastlen) == 0))
		return;
	show->nkeys++;
	memcpy(show->last, key->data, key->len);
	show->lastlen = key->len;
}

static bool
show_row(const DlockStore *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Show	   *show = arg;
	MemoryContext caller = MemoryContextSwitchTo(show->per_row);
	DlockKey	key;
	bool		more;

	MemoryContextReset(show->per_row);
	dlock_row_key(tuple, &key);
	more = !is_beyond(show, &key);
	if (more)
	{
		bool		shown = true;

		if (seen == DLOCK_SEEN_COMMITTED)
			shown = show_committed(show, store, &key, tuple);
		else
			show_pending(show, &key,
						 dlock_using_xid(HeapTupleHeaderGetXmin(tuple->t_data)));
		if (shown)
			count_key(show, &key);
	}
	MemoryContextSwitchTo(caller);
	return more;
}

static Show *
begin_show(FunctionCallInfo fcinfo, const char *what)
{
	Show	   *show = palloc0(sizeof(Show));

	dlock_shmem_require();
	PreventCommandIfParallelMode(what);
	InitMaterializedSRF(fcinfo, 0);
	show->rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	dlock_shown_check_columns(show->rsinfo, LOCK_COLUMNS);
	show->sees_all = dlock_shown_sees_all();
	show->per_row = AllocSetContextCreate(CurrentMemoryContext, "dlock row",
										  ALLOCSET_DEFAULT_SIZES);
	return show;
}

/* All of them, by reading the table. */
Datum
dlock_locks_shown(PG_FUNCTION_ARGS)
{
	Show	   *show = begin_show(fcinfo, "dlock_locks");
	DlockStore	store;
	Snapshot	snapshot;

	dlock_store_open(&store, false, false);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	dlock_scan(&store, snapshot, 0, InvalidBlockNumber, show_row, show);
	UnregisterSnapshot(snapshot);
	dlock_store_close(&store, false);
	return (Datum) 0;
}

/* Those of one key, by the way that every operation takes. */
Datum
dlock_get(PG_FUNCTION_ARGS)
{
	Show	   *show = begin_show(fcinfo, "dlock_get()");
	DlockRequest request = {0};
	DlockStore	store;
	DlockKey	key;
	DlockRows	found;

	dlock_args_key(fcinfo, &request);
	dlock_key_set(&key, request.key, request.keylen);
	dlock_store_open(&store, false, false);
	dlock_find_committed(&store, &key, &found);
	for (int i = 0; i < found.n; i++)
	{
		const DlockRow *row = &found.rows[i];

		if (row->tuple != NULL)
			(void) show_committed(show, &store, &key, row->tuple);
		else if (TransactionIdIsValid(row->pending))
			show_pending(show, &key, dlock_using_xid(row->pending));
	}
	dlock_store_close(&store, false);
	return (Datum) 0;
}

/* Those whose keys begin with a prefix, in the order of their keys. */
Datum
dlock_list(PG_FUNCTION_ARGS)
{
	Show	   *show = begin_show(fcinfo, "dlock_list()");
	DlockRange	range = {0};
	DlockStore	store;
	Snapshot	snapshot;

	range.prefix = dlock_args_text(fcinfo, 0, "prefix", DLOCK_MAX_KEY);
	if (range.prefix == NULL)
		dlock_args_null("prefix");
	range.prefixlen = strlen(range.prefix);
	range.after = dlock_args_text(fcinfo, 1, "after", DLOCK_MAX_KEY);
	range.afterlen = range.after != NULL ? strlen(range.after) : 0;
	if (!PG_ARGISNULL(2))
	{
		show->max_keys = PG_GETARG_INT32(2);
		if (show->max_keys <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("max_keys must be greater than zero")));
	}

	dlock_store_open(&store, false, false);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	dlock_range(&store, &range, snapshot, show_row, show);
	UnregisterSnapshot(snapshot);
	dlock_store_close(&store, false);
	return (Datum) 0;
}
