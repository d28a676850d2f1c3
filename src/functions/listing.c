/*-------------------------------------------------------------------------
 *
 * listing.c
 *	  The grants: view dlock_locks, dlock_get() and dlock_list().  The requests that
 *	  wait: view dlock_waiters.  And what the functions behind all views share.
 *
 * They show the newest committed state and our own changes, whatever the
 * transaction's snapshot, because every decision about a lock uses that state,
 * too.  A key that nobody holds may be busy all the same, because an open
 * transaction is taking it or has locked what a grant has left.  It is shown as
 * pending, with the process, because otherwise nothing would tell whom to wait
 * for.
 *
 * Any role can see that a key is held, by which role and until when.  Only
 * members of that role see the owner and the value.  The same holds for what waits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/* as in backend_wait.c */
#undef ENABLE_GSS

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "libpq/libpq.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "compat.h"
#include "database.h"
#include "functions/arguments.h"
#include "functions/listing.h"
#include "policy/policy.h"
#include "queue/queue.h"
#include "queue/wait_report.h"
#include "rows/find.h"
#include "rows/row.h"
#include "rows/scan.h"
#include "rows/table.h"
#include "rules/lock_rules.h"
#include "shmem.h"

PG_FUNCTION_INFO_V1(dlock_locks_shown);
PG_FUNCTION_INFO_V1(dlock_get);
PG_FUNCTION_INFO_V1(dlock_list);
PG_FUNCTION_INFO_V1(dlock_waiters_shown);

/* The OUT parameters of dlock.locks_shown() and dlock.waiters_shown() in sql/, in order. */
#define LOCK_COLUMNS	21
#define WAITER_COLUMNS	10

/* bytes of a pattern: a key in which each byte is escaped, and a star */
#define DLOCK_MAX_PATTERN	(DLOCK_MAX_KEY * 2 + 1)

/*
 * For all views
 */

/* May the current role see the owner and the value of every grant? */
static bool
sees_all_rows(void)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/* Only members of the role see owner and value. */
static bool
may_see(bool sees_all, Oid role)
{
	return sees_all || has_privs_of_role(GetUserId(), role);
}

/*
 * The script of an older version knows only the first columns.  That of a newer
 * version may have columns that this library cannot fill.
 */
void
dlock_listing_check_columns(const ReturnSetInfo *rsinfo, int known)
{
	if (rsinfo->setDesc->natts > known)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the library of dlock is older than the extension in this database"),
				 errdetail("The library is version %s.", DLOCK_VERSION),
				 errhint("Install the library of the extension's version and restart the server.")));
}

Datum
dlock_listing_interval(int64 us)
{
	Interval   *span = palloc0(sizeof(Interval));

	span->time = us;
	return IntervalPGetDatum(span);
}

/* 1: exclusive, N: one of N places, NULL: shared. */
static Datum
slots_shown(int32 slots, bool *isnull)
{
	*isnull = slots == DLOCK_SHARED;
	return Int32GetDatum(slots);
}

/*
 * Patterns
 *
 * A star stands for any text, a question mark for one character, and a character
 * after a backslash for itself.  libdlock and the command line have the same
 * language.
 */

/* What every key that matches begins with.  True: a key matches only if it is that. */
static bool
pattern_prefix(const char *pattern, char *prefix, int *len)
{
	*len = 0;
	for (; *pattern != '\0' && *pattern != '*' && *pattern != '?'; pattern++)
	{
		if (*pattern == '\\' && pattern[1] != '\0')
			pattern++;
		prefix[(*len)++] = *pattern;
	}
	return *pattern == '\0';
}

/*
 * Does the key match?  Each star takes as little as possible; if what follows does not
 * match then, only the last star has to take more.
 */
static bool
matches(const char *key, int keylen, const char *pattern)
{
	const char *end = key + keylen;
	const char *retry_pattern = NULL;
	const char *retry_key = NULL;

	while (key < end)
	{
		bool		escaped = *pattern == '\\' && pattern[1] != '\0';

		if (*pattern == '*')
		{
			retry_pattern = ++pattern;
			retry_key = key;
		}
		else if (*pattern == '?')
		{
			pattern++;
			key += pg_mblen(key);
		}
		else if (pattern[escaped] == *key)
		{
			pattern += 1 + escaped;
			key++;
		}
		else if (retry_pattern != NULL)
		{
			pattern = retry_pattern;
			retry_key += pg_mblen(retry_key);
			key = retry_key;
		}
		else
			return false;
	}
	while (*pattern == '*')
		pattern++;
	return *pattern == '\0';
}

/*
 * Grants
 */

typedef struct Show
{
	ReturnSetInfo *rsinfo;
	int64		now;
	bool		sees_all;
	MemoryContext per_row;
	DlockNamedEntry asking;
	uint64		nrows;			/* that were read */

	/* dlock_list: the pattern, or NULL; stop after this many keys */
	const char *pattern;
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
	const DlockQueueEntry *asking = &show->asking.entry;

	for (int i = 0; i < 4; i++)
	{
		values[i] = (Datum) 0;
		isnull[i] = !state->asked;
	}
	if (!state->asked)
		return;
	values[0] = text_datum(may_see(show->sees_all, asking->terms.role) ?
						   asking->terms.owner : NULL, &isnull[0]);
	values[1] = Int32GetDatum(asking->terms.priority);
	values[2] = time_datum(dlock_rules_asked_since(state, &asking->report.asking, show->now));
	values[3] = time_datum(dlock_rules_yield_by(state, &asking->report.asking, asking->until,
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
show_grant(Show *show, const DlockTable *store, const DlockKey *key,
		   HeapTuple tuple, DlockState *state, DlockPhase phase)
{
	DlockGrant	grant;
	Datum		values[LOCK_COLUMNS];
	bool		isnull[LOCK_COLUMNS] = {false};
	int64		until;
	int64		max_hold;
	bool		is_over = phase == DLOCK_PHASE_COOLING;
	bool		hidden;

	dlock_row_grant(store->heap, tuple, &grant);
	/* the reaper forgets whose it was, so it is not shown before either */
	hidden = is_over || !may_see(show->sees_all, grant.terms.role);
	state->asked = phase == DLOCK_PHASE_LIVE &&
		dlock_queue_asked(key, state, &show->asking);
	until = is_over ? dlock_rules_busy_until(state) : grant.expires_at;

	values[0] = PointerGetDatum(cstring_to_text_with_len(key->data, key->len));
	values[1] = Int64GetDatum(grant.version);
	values[2] = text_datum(hidden ? NULL : grant.terms.owner, &isnull[2]);
	values[3] = ObjectIdGetDatum(grant.terms.role);
	values[4] = text_datum(hidden ? NULL : grant.terms.value, &isnull[4]);
	values[5] = CStringGetTextDatum(state_name(phase, state->asked));
	values[6] = Int32GetDatum(grant.terms.priority);
	values[7] = time_datum(grant.acquired_at);
	values[8] = time_datum(grant.refreshed_at);
	values[9] = time_datum(until);
	values[10] = dlock_listing_interval(Max(until - show->now, 0));
	values[11] = dlock_listing_interval(grant.terms.ttl);
	values[12] = pid_datum(is_over ? 0 : grant.pid, &isnull[12]);
	values[13] = slots_shown(grant.terms.capacity, &isnull[13]);
	values[14] = pid_datum(dlock_wait_report_user_of_row(tuple), &isnull[14]);
	show_requestor(show, state, &values[15], &isnull[15]);
	max_hold = is_over ? 0 : dlock_policy_max_hold(key, grant.terms.role);
	isnull[19] = max_hold == 0;
	values[19] = isnull[19] ? (Datum) 0 : time_datum(state->acquired + max_hold);
	values[20] = text_datum(hidden ? NULL : grant.origin, &isnull[20]);
	tuplestore_putvalues(show->rsinfo->setResult, show->rsinfo->setDesc,
						 values, isnull);
}

/* What the reaper is deleting is free for every request. */
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
show_committed(Show *show, const DlockTable *store, const DlockKey *key,
			   HeapTuple tuple)
{
	DlockState	state = {0};
	DlockPhase	phase;
	int			pid;

	/* on a standby, times count from now: read the clock after the row */
	dlock_row_state(tuple, &state, true, NULL);
	show->now = dlock_clock_now();
	phase = dlock_rules_phase(&state, show->now);
	if (phase >= DLOCK_PHASE_COOLING)
	{
		show_grant(show, store, key, tuple, &state, phase);
		return true;
	}
	pid = is_being_reaped(tuple) ? 0 : dlock_wait_report_user_of_row(tuple);
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
		dlock_key_compare(key->data, key->len, show->last, show->lastlen) != 0;
}

static void
count_key(Show *show, const DlockKey *key)
{
	if (show->max_keys == 0 ||
		(show->nkeys > 0 &&
		 dlock_key_compare(key->data, key->len, show->last, show->lastlen) == 0))
		return;
	show->nkeys++;
	memcpy(show->last, key->data, key->len);
	show->lastlen = key->len;
}

/*
 * Reading a large table takes long, and nobody may be waiting for the answer any more:
 * psql was killed, or libdlock has given up.  PostgreSQL would notice that when it sends
 * the answer.
 */
#define ROWS_A_LOOK		4096

static void
end_if_alone(Show *show)
{
	if (++show->nrows % ROWS_A_LOOK != 0 || MyProcPort == NULL ||
		!WaitEventSetCanReportClosed() || pq_check_connection())
		return;
	ClientConnectionLost = true;
	InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}

static bool
show_row(const DlockTable *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Show	   *show = arg;
	MemoryContext caller;
	DlockKey	key;
	bool		more;

	end_if_alone(show);
	if (seen == DLOCK_SEEN_LATER)
		return true;
	caller = MemoryContextSwitchTo(show->per_row);
	MemoryContextReset(show->per_row);
	dlock_row_key(tuple, &key);
	more = !is_beyond(show, &key);
	if (more && (show->pattern == NULL || matches(key.data, key.len, show->pattern)))
	{
		bool		shown = true;

		if (seen == DLOCK_SEEN_COMMITTED)
			shown = show_committed(show, store, &key, tuple);
		else
			show_pending(show, &key,
						 dlock_wait_report_user_of_xid(HeapTupleHeaderGetXmin(tuple->t_data)));
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
	dlock_listing_check_columns(show->rsinfo, LOCK_COLUMNS);
	show->sees_all = sees_all_rows();
	show->per_row = AllocSetContextCreate(CurrentMemoryContext, "dlock row",
										  ALLOCSET_DEFAULT_SIZES);
	return show;
}

/* All of them, by reading the table. */
Datum
dlock_locks_shown(PG_FUNCTION_ARGS)
{
	Show	   *show = begin_show(fcinfo, "dlock_locks");
	DlockTable	store;
	Snapshot	snapshot;

	dlock_table_open(&store, false, false);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	dlock_scan_blocks(&store, snapshot, 0, InvalidBlockNumber, show_row, show);
	UnregisterSnapshot(snapshot);
	dlock_table_close(&store, false);
	return (Datum) 0;
}

/* Those of one key, by the way that every operation takes. */
Datum
dlock_get(PG_FUNCTION_ARGS)
{
	Show	   *show = begin_show(fcinfo, "dlock_get()");
	DlockRequest request = {0};
	DlockTable	store;
	DlockRows	found;

	dlock_arguments_key(fcinfo, &request);
	dlock_table_open(&store, false, false);
	dlock_find_committed(&store, &request.key, &found);
	for (int i = 0; i < found.n; i++)
	{
		const DlockRow *row = &found.rows[i];

		if (row->tuple != NULL)
			(void) show_committed(show, &store, &request.key, row->tuple);
		else if (TransactionIdIsValid(row->pending))
			show_pending(show, &request.key, dlock_wait_report_user_of_xid(row->pending));
	}
	dlock_table_close(&store, false);
	return (Datum) 0;
}

/* Those whose keys match a pattern, in the order of their keys. */
Datum
dlock_list(PG_FUNCTION_ARGS)
{
	Show	   *show = begin_show(fcinfo, "dlock_list()");
	char		prefix[DLOCK_MAX_PATTERN];
	DlockRange	range = {.prefix = prefix};
	DlockTable	store;
	Snapshot	snapshot;

	show->pattern = dlock_arguments_text(fcinfo, 0, "pattern", DLOCK_MAX_PATTERN);
	if (show->pattern == NULL)
		dlock_arguments_null("pattern");
	range.is_whole = pattern_prefix(show->pattern, prefix, &range.prefixlen);
	range.after = dlock_arguments_text(fcinfo, 1, "after", DLOCK_MAX_KEY);
	range.afterlen = range.after != NULL ? strlen(range.after) : 0;
	if (!PG_ARGISNULL(2))
	{
		show->max_keys = PG_GETARG_INT32(2);
		if (show->max_keys <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("limit must be greater than zero")));
	}

	dlock_table_open(&store, false, false);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	dlock_scan_range(&store, &range, snapshot, show_row, show);
	UnregisterSnapshot(snapshot);
	dlock_table_close(&store, false);
	return (Datum) 0;
}

/*
 * Requests that wait
 */

/* By key, and for each key as they are in memory, which is the order of its queue. */
static int
compare_waiters(const void *a, const void *b)
{
	const DlockQueueEntry *x = *(DlockQueueEntry *const *) a;
	const DlockQueueEntry *y = *(DlockQueueEntry *const *) b;
	int			cmp = dlock_key_compare(x->key, x->keylen, y->key, y->keylen);

	return cmp != 0 ? cmp : (x > y) - (x < y);
}

/*
 * The waiters of this database, sorted.  The order of the queue's lists would tell
 * something of the hashes, which nobody is to know.
 */
static DlockQueueEntry **
sort_waiters(int *n)
{
	int			nall;
	DlockQueueEntry *all = dlock_queue_copy_all(&nall);
	DlockQueueEntry **ours = palloc_extended(nall * sizeof(*ours) + 1, MCXT_ALLOC_HUGE);

	*n = 0;
	for (int i = 0; i < nall; i++)
		if (all[i].dboid == MyDatabaseId)
			ours[(*n)++] = &all[i];
	qsort(ours, *n, sizeof(*ours), compare_waiters);
	return ours;
}

Datum
dlock_waiters_shown(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockQueueEntry **waiters;
	const DlockQueueEntry *previous = NULL;
	int			nwaiters;
	int			position = 0;
	bool		sees_all = sees_all_rows();

	dlock_shmem_require();
	PreventCommandIfParallelMode("dlock_waiters");
	InitMaterializedSRF(fcinfo, 0);

	dlock_listing_check_columns(rsinfo, WAITER_COLUMNS);
	waiters = sort_waiters(&nwaiters);
	for (int i = 0; i < nwaiters; i++)
	{
		const DlockQueueEntry *waiter = waiters[i];
		bool		in_line = waiter->kind == DLOCK_WAIT_TURN;
		Datum		values[WAITER_COLUMNS];
		bool		isnull[WAITER_COLUMNS] = {false};

		if (previous == NULL || !dlock_queue_same_key(previous, waiter))
			position = 0;
		previous = waiter;
		if (in_line)
			position++;

		values[0] = CStringGetTextDatum(waiter->key);
		isnull[1] = waiter->pid == 0;
		values[1] = Int32GetDatum(waiter->pid);
		values[2] = ObjectIdGetDatum(waiter->terms.role);
		isnull[3] = waiter->terms.owner == NULL || !may_see(sees_all, waiter->terms.role);
		values[3] = isnull[3] ? (Datum) 0 : CStringGetTextDatum(waiter->terms.owner);
		isnull[4] = !in_line;
		values[4] = Int32GetDatum(waiter->terms.priority);
		if (in_line)
			values[5] = slots_shown(waiter->terms.capacity, &isnull[5]);
		else
			values[5] = Int32GetDatum(0);
		isnull[6] = !in_line;
		values[6] = Int32GetDatum(position);
		values[7] = TimestampTzGetDatum(dlock_clock_to_wall(waiter->since));
		isnull[8] = waiter->until == DLOCK_NEVER;
		values[8] = isnull[8] ? (Datum) 0 :
			TimestampTzGetDatum(dlock_clock_to_wall(waiter->until));
		isnull[9] = waiter->ticket == 0;
		values[9] = Int64GetDatum(waiter->ticket);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	return (Datum) 0;
}
