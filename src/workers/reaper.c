/*-------------------------------------------------------------------------
 *
 * reaper.c
 *	  A visit to one database: notifies the holders that have been asked to
 *	  yield, and makes a pass over the locks.
 *
 * A pass reads the blocks of the table in which a row may be due (expiry.c), in their
 * order and from where the last one stopped.  It asks the engine
 * to remove the rows that have expired, and those that have been free for a
 * long time.  The engine treats this like any other request: it finds the row
 * again, decides, and skips a row that is in use.
 *
 * The first pass after a start reads all blocks.  It also marks the keys that have
 * places (places.c); if the reaper is turned off, it does only that.
 *
 * Rows are deleted in batches.  Each batch is a separate transaction, whose
 * commit waits for nothing.  An acquire that meets a row that is being deleted
 * waits for that transaction (see lock.c), so the transaction must not do
 * anything that can block.  Notifications are therefore sent in a transaction
 * after it, because a transaction that notifies waits for a lock that all such
 * transactions share.
 *
 * A pass is short.  The pause before the next one depends on the processor time that
 * the pass has cost: one that finds nothing costs a twentieth of a core at most, even if
 * it had to read a table with millions of rows.  The first pass after a start, or after
 * the table was rewritten, pauses less: until it is over, an expiry may be noticed late,
 * and every request pays for not knowing which keys have places.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
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
#include "rows/expiry.h"
#include "rows/places.h"
#include "rows/row.h"
#include "rows/scan.h"
#include "rows/table.h"
#include "worker.h"
#include "workers/workers.h"

#define BATCH_ROWS		200
#define PASS_US			INT64CONST(1000000) /* stop after this long */
#define UNKNOWN_PAUSE_US	INT64CONST(5000000)
#define REST_BATCH		1		/* rest for this many times the batch's time */
#define REST_PASS		19		/* ... the pass's time if it found nothing */

/* A row that is due. */
typedef struct Due
{
	char	   *key;
	int			keylen;
	int64		slot;
	BlockNumber block;
	int64		expired;		/* the version that ended; 0: it was none */
} Due;

/* What one batch has found. */
typedef struct Batch
{
	DlockDatabase *db;
	int64		now;
	DlockDueRun run;
	Due		   *rows;
	int			n;
	int			max;
	int			nexpired;
	MemoryContext kept;
} Batch;

/* A row that is not due is noted, one that is due is collected. */
static bool
collect(const DlockTable *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Batch	   *batch = arg;
	int64		slot = dlock_row_slot(tuple);
	int64		due = dlock_row_due(tuple);
	Due			row = {.slot = slot,.block = ItemPointerGetBlockNumber(&tuple->t_self)};
	bool		is_due = seen == DLOCK_SEEN_COMMITTED && due <= batch->now &&
		dlock_reap_interval > 0;
	DlockKey	key;

	if (!is_due)
		dlock_expiry_note(batch->db, row.block, due);
	if (is_due || slot != DLOCK_HEAD)
		dlock_row_key(tuple, &key);

	/*
	 * a pending one, too: who has prepared it may have marked it in another
	 * run
	 */
	if (slot != DLOCK_HEAD && dlock_places_being_read(batch->db))
		dlock_places_mark(&key);
	if (is_due)
	{
		if (batch->n == batch->max)
		{
			batch->max *= 2;
			batch->rows = repalloc(batch->rows, batch->max * sizeof(Due));
		}
		row.key = MemoryContextAlloc(batch->kept, key.len + 1);
		memcpy(row.key, key.data, key.len);
		row.key[key.len] = '\0';
		row.keylen = key.len;
		batch->rows[batch->n++] = row;
	}
	return batch->n < BATCH_ROWS || !dlock_expiry_may_stop(&batch->run, row.block);
}

/* Log the grants that have expired, and send their events. */
static void
notify_expired(void *arg)
{
	const Batch *batch = arg;

	dlock_grant_end_log_deferred();
	for (int i = 0; i < batch->n; i++)
		if (batch->rows[i].expired != 0)
			dlock_event_expired(batch->rows[i].key, batch->rows[i].expired);
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
 * Before a batch: what we know of the table is void if it has been rewritten, if a visit
 * was cut short while it read, if settings have changed, or if rows may have come
 * unnoticed.
 */
static void
begin_batch(DlockProgress *progress, DlockDatabase *db, const DlockTable *store)
{
	Oid			file = dlock_table_file(store);
	bool		is_void = progress->file != file || progress->reading ||
		progress->linger != DLOCK_LINGER_US || progress->lapse != DLOCK_LAPSE_US;

	if (is_void)
		progress->next_slot = 0;
	if (progress->next_slot == 0)
	{
		bool		unnoticed = dlock_places_pass_begins(db, store->heap);

		/* but do not hurry if they come unnoticed all the time */
		progress->hurries = is_void || dlock_places_being_read(db);
		is_void = is_void || unnoticed;
	}
	if (!is_void)
		return;
	progress->reading = true;	/* an error from here on voids it again */
	dlock_expiry_forget(db);
	dlock_expiry_unknown(db, RelationGetNumberOfBlocks(store->heap));
	progress->file = file;
	progress->linger = DLOCK_LINGER_US;
	progress->lapse = DLOCK_LAPSE_US;
	progress->from_start = true;
}

/*
 * Read the next blocks in which a row may be due.  The result is the slot to continue
 * with.
 *
 * The snapshot is taken when the table is open: what was committed while we waited for
 * that must be seen (places.c).
 */
static uint32
read_due(const DlockTable *store, Batch *batch, uint32 from, BlockNumber nblocks)
{
	DlockDueRun *run = &batch->run;
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	BlockNumber first;
	BlockNumber n;

	*run = dlock_expiry_begin(batch->db, nblocks, from, batch->now);

	/* a row that was added before the bounds were taken away must be read */
	nblocks = RelationGetNumberOfBlocks(store->heap);
	for (int piece = 0; dlock_expiry_blocks(run, nblocks, piece, &first, &n); piece++)
	{
		BlockNumber next = dlock_scan_blocks(store, snapshot, first, n, collect, batch);

		if (next != InvalidBlockNumber && next < first + n)
			dlock_expiry_stop(batch->db, run, next);
	}
	UnregisterSnapshot(snapshot);
	return run->first + run->n;
}

/* Ask the engine to remove what was collected.  Returns how many rows it has removed. */
static int
remove_due(Batch *batch)
{
	int			removed = 0;

	if (batch->n > 0)
		pg_atomic_write_u32(&batch->db->reaper_xid, GetTopTransactionId());
	for (int i = 0; i < batch->n; i++)
	{
		Due		   *row = &batch->rows[i];
		DlockRequest request = {0};
		DlockResult result;

		request.op = DLOCK_REAP;
		request.linger = DLOCK_LINGER_US;
		request.lapse = DLOCK_LAPSE_US;
		request.slot = row->slot;
		dlock_key_set(&request.key, row->key, row->keylen);
		dlock_lock_execute(&request, &result);

		if (result.answer == DLOCK_IS_EXPIRED)
		{
			row->expired = result.version;
			batch->nexpired++;
		}
		if (result.answer == DLOCK_IS_EXPIRED || result.answer == DLOCK_IS_IDLE)
			removed++;
		else
			dlock_expiry_note(batch->db, row->block,
							  batch->now + dlock_reap_interval * INT64CONST(1000));
	}
	return removed;
}

/*
 * Run one batch from where the last one stopped.  False: the end of the table has been
 * reached, or there is none.
 */
static bool
run_batch(DlockDatabase *db, int *removed)
{
	DlockProgress *progress = &db->progress;
	Batch		batch = {.db = db,.max = BATCH_ROWS};
	DlockTable	store;

	batch.kept = AllocSetContextCreate(TopMemoryContext, "dlock batch",
									   ALLOCSET_DEFAULT_SIZES);
	batch.rows = MemoryContextAlloc(batch.kept, batch.max * sizeof(Due));
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	progress->nblocks = 0;
	if (dlock_table_open(&store, true, true))
	{
		batch.now = dlock_clock_now();
		begin_batch(progress, db, &store);
		progress->nblocks = RelationGetNumberOfBlocks(store.heap);
		progress->reading = true;
		progress->next_slot = read_due(&store, &batch, progress->next_slot,
									   progress->nblocks);
		dlock_table_close(&store, false);
		*removed += remove_due(&batch);
	}
	else
		progress->from_start = false;
	PopActiveSnapshot();
	CommitTransactionCommand();
	pg_atomic_write_u32(&db->reaper_xid, InvalidTransactionId);
	progress->reading = false;

	if (batch.nexpired > 0)
		dlock_event_send(notify_expired, &batch);
	MemoryContextDelete(batch.kept);
	if (dlock_expiry_more(progress->nblocks, progress->next_slot))
		return true;
	progress->next_slot = 0;
	return false;
}

/* The processor time of this process. */
static int64
cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

static void
rest(int64 us)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) (us / 1000) + 1, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* How long to wait until the next pass.  With "more", this one has not come to the end. */
static int64
pause_after(DlockDatabase *db, bool more, int removed, int64 worked)
{
	int64		pause = dlock_reap_interval * INT64CONST(1000);

	if (more && db->progress.hurries)
		return worked * REST_BATCH;

	/* if the trigger of places.c is disabled, another pass does not help */
	if (!dlock_places_known(db) && (pause == 0 || pause > UNKNOWN_PAUSE_US))
		pause = UNKNOWN_PAUSE_US;
	return removed > 0 ? pause : Max(pause, worked * REST_PASS);
}

static void
run_pass(DlockDatabase *db)
{
	int64		began = dlock_clock_now();
	int64		worked = cpu_us();
	int			removed = 0;
	bool		more;

	/* what backends report from here on is for the next pass */
	dlock_database_set_due(db, DLOCK_NEVER);
	for (;;)
	{
		int64		before = cpu_us();

		more = run_batch(db, &removed);
		if (!more || dlock_clock_now() - began > PASS_US)
			break;
		rest((cpu_us() - before) * REST_BATCH);
	}
	if (!more && db->progress.from_start)
		dlock_places_pass_ends(db);
	worked = cpu_us() - worked;
	db->progress.not_before = dlock_clock_now() + pause_after(db, more, removed, worked);

	/* the rest of the table is due now; the whole when its first row is due */
	dlock_database_want_reaper(more ? dlock_clock_now() :
							   dlock_expiry_earliest(db, db->progress.nblocks));
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
