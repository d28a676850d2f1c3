/*-------------------------------------------------------------------------
 *
 * reaper.c
 *	  A visit to one database: notifies the holders that have been asked to
 *	  yield, and makes a pass over the locks.
 *
 * A pass reads the table from where the last one stopped.  It asks the engine
 * to remove the rows that have expired, and those that have been free for a
 * long time.  It also marks the keys that have places (places.c); if the reaper
 * is turned off, the first pass after a start does only that.  The engine treats this like any other request: it finds the row
 * again, decides, and skips a row that is in use.
 *
 * Rows are deleted in batches.  Each batch is a separate transaction, whose
 * commit waits for nothing.  An acquire that meets a row that is being deleted
 * waits for that transaction (see lock.c), so the transaction must not do
 * anything that can block.  Notifications are therefore sent in a transaction
 * after it, because a transaction that notifies waits for a lock that all such
 * transactions share.
 *
 * A pass is short.  The pause before the next one depends on what the pass has
 * cost: a table with millions of rows of which none expires costs a twentieth
 * of a core.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "clock.h"
#include "database.h"
#include "guc.h"
#include "lock/events.h"
#include "lock/grant_end.h"
#include "lock/lock.h"
#include "queue/queue.h"
#include "rows/places.h"
#include "rows/row.h"
#include "rows/scan.h"
#include "rows/table.h"
#include "worker.h"
#include "workers/workers.h"

#define BATCH_ROWS		200
#define BATCH_BLOCKS	2000
#define PASS_US			INT64CONST(1000000) /* stop after this long */
#define UNKNOWN_PAUSE_US	INT64CONST(5000000)
#define REST_BATCH		1		/* rest for this many times the batch's time */
#define REST_PASS		19		/* ... the pass's time if it found nothing */

/* What one batch has found. */
typedef struct Batch
{
	int			nkeys;
	char	   *keys[BATCH_ROWS + MaxHeapTuplesPerPage];
	int			keylens[BATCH_ROWS + MaxHeapTuplesPerPage];
	int64		slots[BATCH_ROWS + MaxHeapTuplesPerPage];
	int64		now;
	int64		next;			/* lease time at which the next row is due */
	MemoryContext per_row;
	MemoryContext kept;
} Batch;

/* Grants that one batch has removed because they had expired. */
typedef struct Expired
{
	int			n;
	struct
	{
		char	   *key;
		int64		version;
	}			grants[lengthof(((Batch *) 0)->keys)];
} Expired;

/* How long a lapsed grant is kept. */
static int64
lapse_us(void)
{
	return dlock_max_ttl * INT64CONST(1000);
}

/* When a row is to be looked at, if nobody changes it until then. */
static int64
due_at(const DlockState *state)
{
	if (state->held)
		return state->terms.lazy ? state->expires + lapse_us() : state->expires;
	if (state->slot == DLOCK_HEAD)
		return Max(state->expires, state->idle_since + DLOCK_LINGER_US);
	return state->expires;
}

static bool
collect(const DlockTable *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Batch	   *batch = arg;
	MemoryContext caller = MemoryContextSwitchTo(batch->per_row);
	DlockKey	key;
	DlockState	state;
	int64		falls_due;

	if (seen != DLOCK_SEEN_COMMITTED)
	{
		MemoryContextSwitchTo(caller);
		return true;
	}
	MemoryContextReset(batch->per_row);
	memset(&state, 0, sizeof(state));
	dlock_row_key(tuple, &key);
	dlock_row_state(tuple, &state, true, NULL);

	if (state.slot != DLOCK_HEAD)
		dlock_places_mark(&key);
	falls_due = dlock_reap_interval > 0 ? due_at(&state) : DLOCK_NEVER;
	if (falls_due <= batch->now)
	{
		batch->keys[batch->nkeys] =
			MemoryContextStrdup(batch->kept, pnstrdup(key.data, key.len));
		batch->keylens[batch->nkeys] = key.len;
		batch->slots[batch->nkeys] = state.slot;
		batch->nkeys++;
	}
	else
		batch->next = Min(batch->next, falls_due);

	MemoryContextSwitchTo(caller);
	return batch->nkeys < BATCH_ROWS;
}

/* Log the grants that have expired, and send their events. */
static void
notify_expired(void *arg)
{
	const Expired *expired = arg;

	dlock_grant_end_log_deferred();
	for (int i = 0; i < expired->n; i++)
		dlock_event_expired(expired->grants[i].key, expired->grants[i].version);
}

/* Tell the holders that this waiter has asked to yield. */
static void
notify_holders(void *arg)
{
	const DlockQueueEntry *waiter = arg;
	DlockTable	store;
	DlockKey	key;
	DlockRows	found;
	int64		now;

	if (!dlock_table_open(&store, false, true))
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	dlock_key_set(&key, waiter->key, waiter->keylen);
	dlock_find_committed(&store, &key, &found);
	dlock_table_close(&store, false);
	now = dlock_clock_now();
	for (int i = 0; i < found.n; i++)
	{
		DlockState *grant = &found.states[i];

		if (dlock_rules_phase(grant, now) == DLOCK_PHASE_LIVE &&
			dlock_queue_entry_asks(waiter, grant))
			dlock_event_preempt(waiter->key, grant->version, waiter->terms.role,
								waiter->terms.priority,
								dlock_rules_yield_by(grant, &waiter->report.asking,
													 waiter->until, now));
	}
	PopActiveSnapshot();
}

/* Tell all holders that have been asked to yield. */
static void
notify_asked(DlockDatabase *db)
{
	DlockNamedEntry *asking = palloc(sizeof(DlockNamedEntry));

	(void) dlock_database_take_announcement(db);
	while (dlock_queue_take_announcement(db->dboid, asking))
		dlock_event_send(notify_holders, &asking->entry);
	pfree(asking);
}

/*
 * If the table has been rewritten since the last batch, rows that we have not
 * seen may be in blocks that we have passed.
 */
static BlockNumber
block_to_start(DlockProgress *progress, const DlockTable *store)
{
	Oid			file = dlock_table_file(store);

	if (progress->file != file)
		progress->next_block = 0;
	progress->file = file;
	return progress->next_block;
}

/*
 * Run one batch from where the last one stopped.  Returns the block where the next one
 * starts, or InvalidBlockNumber at the end of the table or if there is none.
 *
 * The snapshot of the scan is taken when the table is open: what was committed while we
 * waited for that must be seen (places.c).
 */
static BlockNumber
run_batch(DlockDatabase *db, int *removed)
{
	DlockTable	store;
	Batch	   *batch;
	Expired    *expired;
	BlockNumber block = InvalidBlockNumber;
	MemoryContext kept = AllocSetContextCreate(TopMemoryContext, "dlock batch",
											   ALLOCSET_DEFAULT_SIZES);

	batch = MemoryContextAllocZero(kept, sizeof(Batch));
	batch->kept = kept;
	batch->next = DLOCK_NEVER;
	expired = MemoryContextAlloc(kept, sizeof(Expired));
	expired->n = 0;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	batch->per_row = AllocSetContextCreate(CurrentMemoryContext, "dlock row",
										   ALLOCSET_DEFAULT_SIZES);

	if (!dlock_table_open(&store, true, true))
		db->progress.from_start = false;
	else
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

		batch->now = dlock_clock_now();
		block = block_to_start(&db->progress, &store);
		if (block == 0)
			dlock_places_pass_begins(db, store.heap);
		block = dlock_scan_blocks(&store, snapshot, block, BATCH_BLOCKS, collect, batch);
		UnregisterSnapshot(snapshot);
		dlock_table_close(&store, false);

		if (batch->nkeys > 0)
			pg_atomic_write_u32(&db->reaper_xid, GetTopTransactionId());
		for (int i = 0; i < batch->nkeys; i++)
		{
			DlockRequest request = {0};
			DlockResult result;

			request.op = DLOCK_REAP;
			request.linger = DLOCK_LINGER_US;
			request.lapse = lapse_us();
			request.slot = batch->slots[i];
			dlock_key_set(&request.key, batch->keys[i], batch->keylens[i]);
			dlock_lock_execute(&request, &result);

			if (result.answer == DLOCK_IS_EXPIRED)
			{
				expired->grants[expired->n].key = batch->keys[i];
				expired->grants[expired->n].version = result.version;
				expired->n++;
			}
			if (result.answer == DLOCK_IS_EXPIRED || result.answer == DLOCK_IS_IDLE)
				(*removed)++;
			else
				batch->next = Min(batch->next, batch->now + dlock_reap_interval * INT64CONST(1000));
		}
	}

	PopActiveSnapshot();
	CommitTransactionCommand();
	pg_atomic_write_u32(&db->reaper_xid, InvalidTransactionId);

	if (expired->n > 0)
		dlock_event_send(notify_expired, expired);

	db->progress.next_due = Min(db->progress.next_due, batch->next);
	MemoryContextDelete(kept);
	return block;
}

static void
rest(int64 us)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) (us / 1000) + 1, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static void
run_pass(DlockDatabase *db)
{
	int64		began = dlock_clock_now();
	int64		worked = 0;
	int64		pause;
	int			removed = 0;

	/* what backends report from here on is for the next pass */
	dlock_database_set_due(db, DLOCK_NEVER);
	if (db->progress.next_block == 0)
	{
		db->progress.next_due = DLOCK_NEVER;
		db->progress.from_start = true;
	}

	for (;;)
	{
		int64		batch_began = dlock_clock_now();
		int64		now;
		BlockNumber next;

		next = run_batch(db, &removed);
		db->progress.next_block = next == InvalidBlockNumber ? 0 : next;
		now = dlock_clock_now();
		worked += now - batch_began;
		if (db->progress.next_block == 0 && db->progress.from_start)
			dlock_places_pass_ends(db);
		if (db->progress.next_block == 0 || now - began > PASS_US)
			break;
		rest((now - batch_began) * REST_BATCH);
	}

	pause = dlock_reap_interval * INT64CONST(1000);
	if (removed == 0)
		pause = Max(pause, worked * REST_PASS);
	/* if the trigger of places.c is disabled, another pass does not help */
	if (dlock_reap_interval == 0)
		pause = Max(pause, UNKNOWN_PAUSE_US);
	db->progress.not_before = dlock_clock_now() + pause;

	/* the rest of the table is due now; the whole when its first row is due */
	if (db->progress.next_block != 0)
		dlock_database_want_reaper(dlock_clock_now());
	else if (db->progress.next_due != DLOCK_NEVER)
		dlock_database_want_reaper(db->progress.next_due);
}

void
dlock_reaper_main(Datum arg)
{
	DlockDatabase *db = dlock_database_at(DatumGetInt32(arg));

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(db->dboid, InvalidOid, 0);

	/* do not wait long for a command that drops or rewrites the table */
	dlock_worker_set_up("1s");
	pgstat_report_appname("dlock reaper");
	dlock_grant_end_defer();

	notify_asked(db);
	if ((dlock_reap_interval > 0 || !dlock_places_known(db)) &&
		dlock_clock_now() >= db->progress.not_before)
		run_pass(db);
	db->progress.ended = true;
}
