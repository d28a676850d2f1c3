/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  The part of a try that makes a grant.
 *
 * An exclusive grant takes the head of the key: the row is locked, or added.  A
 * shared grant takes a place, which is a row of its own.  places.c explains how
 * the two meet.
 *
 * The rows of others are judged by a reading of the clock from before they were
 * read.  If one of them had expired by then, its holder cannot fence it any
 * more.  With a later reading, the holder could do so in between.
 *
 * A grant may end others: those that it preempts, those that have lapsed or
 * expired, and the place that its own owner has so far.  All of them are locked
 * before anything is written.  If one of them is in use, the answer is "busy".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/* as in backend_wait.c */
#undef ENABLE_GSS

#include "access/transam.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/sinval.h"
#include "utils/guc.h"

#include "clock.h"
#include "database.h"
#include "journal.h"
#include "lock/events.h"
#include "lock/grant.h"
#include "lock/grant_end.h"
#include "queue/queue.h"
#include "rows/place_count.h"
#include "rows/version.h"
#include "rows/write.h"
#include "shmem.h"

#define ORIGIN_LENGTH	128

/*
 * Has the transaction that was changing the row ended by now?  Then an acquire
 * looks again before it answers busy.
 *
 * If it is the reaper's, this waits for it, because what the reaper deletes is
 * free.  The reaper touches a few rows and commits, and waits for nobody, so
 * this takes no longer than waiting for an LWLock.
 */
bool
dlock_grant_pending_ended(const DlockRow *row)
{
	DlockDatabase *db;

	if (!TransactionIdIsValid(row->pending))
		return false;
	db = dlock_database(MyDatabaseId);
	if (db != NULL && pg_atomic_read_u32(&db->reaper_xid) == row->pending)
		XactLockTableWait(row->pending, NULL, NULL, XLTW_None);
	return !TransactionIdIsInProgress(row->pending);
}

/* When a grant ends that is renewed for this TTL: the policies may cut that short. */
static int64
end_of(const DlockRequest *request, int64 acquired_at, int64 from, int64 ttl)
{
	int64		expires = from + ttl;

	return request->max_hold == 0 ? expires : Min(expires, acquired_at + request->max_hold);
}

/*
 * Whom to ask about a grant that has no owner: this session.  It is kept in the row,
 * because a pooled session serves another client next, and others end.
 */
static const char *
origin(void)
{
	static char text[ORIGIN_LENGTH];
	const char *name = application_name != NULL ? application_name : "";
	const char *host = MyProcPort != NULL && MyProcPort->remote_host != NULL ?
		MyProcPort->remote_host : "";

	snprintf(text, sizeof(text), "pid %d%s%s%s%s", MyProcPid, name[0] != '\0' ? ", " : "", name,
			 host[0] != '\0' ? " from " : "", host);
	return text;
}

/* A grant on the terms of the request, from now on. */
static void
fill_grant(DlockGrant *grant, const DlockRequest *request, int64 version, int64 now)
{
	grant->terms = request->terms;
	grant->version = version;
	grant->pid = request->session ? MyProcPid : 0;
	grant->origin = request->terms.owner == NULL && !request->terms.spent ? origin() : NULL;
	grant->acquired_at = now;
	grant->refreshed_at = now;
	grant->expires_at = now + request->terms.ttl;
}

/*
 * An upgrade does not begin anew: its owner has kept others from the key since it took
 * the place that ends.  So max_hold counts from then, and so does the time of those that
 * have asked it to yield.  Only at_least counts from now.
 */
static void
keep_since(const DlockTry *try, DlockVerdict verdict, DlockGrant *grant)
{
	const DlockRows *found = try->found;

	for (int i = 0; i < found->n && verdict.upgrades; i++)
	{
		const DlockState *state = &found->states[i];

		if (!state->ends || state->slot == DLOCK_HEAD ||
			!dlock_terms_same_owner(&state->terms, &grant->terms))
			continue;
		if (grant->terms.at_least > 0)
			grant->terms.at_least += grant->acquired_at - state->acquired;
		grant->expires_at = end_of(try->request, state->acquired, grant->acquired_at,
								   grant->terms.ttl);
		grant->acquired_at = state->acquired;
	}
}

/* The grant is written: the answer, the reaper's visit, the durability. */
static void
granted(DlockTry *try, const DlockGrant *grant)
{
	try->result->answer = DLOCK_IS_GRANTED;
	try->result->version = grant->version;
	try->result->expires = grant->expires_at;
	dlock_xact_want_reaper(grant->expires_at);
	if (grant->terms.spent)
		dlock_xact_count(DLOCK_STAT_RELEASES);
	try->wrote = DLOCK_WROTE_GRANT;
}

/*
 * The other rows that end when this is granted
 */

/* Lock a row that will end.  From then on this try has written (README, 13). */
static DlockLocked
lock_row(DlockTry *try, int i)
{
	DlockLocked locked;

	locked = dlock_find_lock(&try->store, &try->request->key, &try->found->states[i],
							 &try->found->rows[i], LockTupleExclusive, LockWaitSkip);
	if (locked == DLOCK_LOCKED)
		try->wrote = DLOCK_WROTE_LAZY;
	return locked;
}

/* Lock a row while no LWLock is held: if the reaper is deleting it, wait for that. */
static DlockLocked
lock_row_or_reaper(DlockTry *try, int i)
{
	DlockLocked locked = lock_row(try, i);

	if (locked == DLOCK_LOCK_BUSY && dlock_grant_pending_ended(&try->found->rows[i]))
		locked = DLOCK_LOCK_CHANGED;
	return locked;
}

/* Lock all rows that end, except the one that the grant overwrites. */
static DlockLocked
lock_ending(DlockTry *try, DlockVerdict verdict)
{
	DlockLocked locked = DLOCK_LOCKED;

	if (verdict.nends == 0)
		return locked;
	for (int i = 0; i < try->found->n && locked == DLOCK_LOCKED; i++)
		if (try->found->states[i].ends && i != verdict.row)
		{
			CHECK_FOR_INTERRUPTS();
			locked = lock_row_or_reaper(try, i);
		}
	return locked;
}

/*
 * A row could not be locked, or something has changed.  What has been locked
 * blocks others until we end.  False: look again.
 */
static bool
give_up(DlockTry *try, DlockLocked locked, int change)
{
	if (try->wrote == DLOCK_WROTE_NOTHING)
		dlock_xact_cancel_change(change);
	else
		dlock_xact_end_change(change, true, false, DLOCK_NEVER);
	try->result->answer = DLOCK_IS_BUSY;
	return locked == DLOCK_LOCK_BUSY;
}

/* Note that a grant ends, for the statistics and the log. */
static void
record_taken(DlockTry *try, int i)
{
	DlockEnding ending = {.store = &try->store,
		.state = &try->found->states[i],.row = &try->found->rows[i],
	.request = try->request,.now = try->before};

	dlock_grant_end_taken(&ending);
}

/*
 * End the rows that were locked.  The row of the verdict is overwritten by the grant
 * itself.
 */
static void
end_rows(DlockTry *try, DlockVerdict verdict, int64 now)
{
	DlockRows  *found = try->found;
	char	   *key = NULL;

	if (verdict.nends == 0)
		return;
	for (int i = 0; i < found->n; i++)
	{
		DlockState *state = &found->states[i];

		if (!state->ends)
			continue;
		CHECK_FOR_INTERRUPTS();
		record_taken(try, i);

		/* an upgrade ends the request's own place, which is no loss */
		if (state->obstacle == DLOCK_HOLDS &&
			!dlock_terms_same_owner(&state->terms, &try->request->terms))
		{
			if (key == NULL)
				key = pnstrdup(try->request->key.data, try->request->key.len);
			dlock_event_forced(key, state->version, try->request->terms.role, NULL);
		}
		if (i == verdict.row)
			continue;
		if (state->slot == DLOCK_HEAD)
			dlock_write_free(&try->store, &try->request->key, &found->rows[i], now, 0);
		else
			dlock_write_remove(&try->store, &try->request->key, &found->rows[i]);
		(void) dlock_journal_add(DLOCK_NOTE_ENDED, &state->version,
								 sizeof(state->version));
	}
}

/*
 * Adding rows
 */

/*
 * Load what will be needed under the partition lock, where catalogs cannot be read:
 * for drawing a version, and for an insertion.  An invalidation that comes while one
 * is loaded may have removed the other, so this is repeated until none came.
 */
static void
load(DlockTry *try, bool draws, DlockInsertion *insertion)
{
	uint64		seen;

	do
	{
		seen = SharedInvalidMessageCounter;
		if (draws)
			dlock_version_load(&try->store);
		if (insertion != NULL)
			dlock_write_load_insert(insertion);
	} while (seen != SharedInvalidMessageCounter);
}

/* Take the partition lock for an insertion.  A new grant draws its version then. */
static void
begin_insert(DlockTry *try, DlockInsertion *insertion, const DlockGrant *grant)
{
	load(try, grant->version == 0, insertion);
	dlock_write_begin_insert(insertion);
}

/*
 * Is there a head by now, where we have found none?  The partition lock is held.
 * Reading the index may take long because of dead entries, so it is read only if
 * a head may have been added.
 */
static bool
is_head_taken(const DlockTry *try, const DlockInsertion *insertion)
{
	if (try->is_marked &&
		dlock_places_unchanged(&try->request->key, &try->claims, true, false))
		return false;
	return dlock_write_is_there(insertion);
}

/* A grant to a key that has no head.  False: look again. */
bool
dlock_grant_add_head(DlockTry *try, DlockVerdict verdict)
{
	int			change = dlock_xact_begin_change(try->request->key.hash);
	DlockLocked locked = lock_ending(try, verdict);
	DlockInsertion insertion;
	DlockGrant	grant;
	DlockRow	row;

	if (locked != DLOCK_LOCKED)
		return give_up(try, locked, change);

	fill_grant(&grant, try->request, 0, dlock_clock_now());
	dlock_write_prepare_insert(&insertion, &try->store, &try->request->key, DLOCK_HEAD, &grant);
	begin_insert(try, &insertion, &grant);
	if (is_head_taken(try, &insertion) ||
		dlock_places_marked(&try->request->key) != try->is_marked ||
		!dlock_places_unchanged(&try->request->key, &try->claims, false, try->is_marked))
	{
		dlock_write_cancel_insert(&insertion);
		return give_up(try, DLOCK_LOCK_CHANGED, change);
	}
	if (!insertion.is_whole)
	{
		dlock_write_end_insert(&insertion, &grant, &row);
		dlock_xact_end_change(change, false, false, DLOCK_NEVER);
		return false;
	}

	/* the head is ours: draw the version, and start the lease now */
	fill_grant(&grant, try->request, dlock_version_next(&try->store),
			   dlock_clock_now());
	keep_since(try, verdict, &grant);
	dlock_write_end_insert(&insertion, &grant, &row);
	end_rows(try, verdict, grant.refreshed_at);
	granted(try, &grant);
	dlock_xact_count(DLOCK_STAT_GRANTS);
	dlock_xact_end_change(change, false, true, grant.expires_at);
	return true;
}

/*
 * Lock the head.  If the key is not marked, this is all that it takes, but then
 * it must not be marked afterwards either.
 */
static DlockLocked
claim_head(DlockTry *try, int head)
{
	LWLock	   *partition = dlock_lwlock_partition(try->request->key.hash);
	DlockLocked locked = DLOCK_LOCK_CHANGED;

	if (!try->is_marked)
	{
		locked = lock_row(try, head);
		if (locked == DLOCK_LOCKED && dlock_places_marked(&try->request->key))
			locked = DLOCK_LOCK_CHANGED;
		return locked;
	}

	LWLockAcquire(partition, LW_EXCLUSIVE);
	if (dlock_places_unchanged(&try->request->key, &try->claims, false, true))
		locked = lock_row(try, head);
	if (locked == DLOCK_LOCKED)
		dlock_places_claim_head(&try->request->key);
	LWLockRelease(partition);
	return locked;
}

/* A grant that takes over the head.  False: look again. */
bool
dlock_grant_head(DlockTry *try, DlockVerdict verdict)
{
	int			change = dlock_xact_begin_change(try->request->key.hash);
	DlockRow   *head = &try->found->rows[verdict.row];
	DlockLocked locked = lock_ending(try, verdict);
	DlockGrant	grant;

	if (locked == DLOCK_LOCKED)
		locked = claim_head(try, verdict.row);
	if (locked == DLOCK_LOCK_BUSY && dlock_grant_pending_ended(head))
		locked = DLOCK_LOCK_CHANGED;
	if (locked != DLOCK_LOCKED)
		return give_up(try, locked, change);

	/* the head is as it was when we decided, but time has passed */
	if (!try->is_marked)
		try->before = dlock_clock_now();
	verdict = dlock_grant_decide(try, try->before);
	if (verdict.action != DLOCK_DO_GRANT)
	{
		try->result->answer = verdict.answer;
		dlock_xact_end_change(change, true, false, DLOCK_NEVER);
		return verdict.action == DLOCK_DO_NOTHING;
	}

	fill_grant(&grant, try->request, dlock_version_next(&try->store),
			   dlock_clock_now());
	keep_since(try, verdict, &grant);
	end_rows(try, verdict, grant.refreshed_at);
	dlock_write_grant(&try->store, &try->request->key, DLOCK_HEAD, head, &grant);
	granted(try, &grant);
	dlock_xact_count(DLOCK_STAT_GRANTS);
	dlock_xact_end_change(change, false, true, grant.expires_at);
	return true;
}

/*
 * Is what the decision was based on unchanged?  A grant that moves has the key
 * for itself, so nothing can have changed.  The partition lock is held.
 */
static bool
is_unchanged(const DlockTry *try, const DlockGrant *grant)
{
	return grant->version != 0 ||
		dlock_places_unchanged(&try->request->key, &try->claims, true,
							   try->request->terms.capacity != DLOCK_SHARED);
}

/* The place is ours: draw the version, unless the grant moves. */
static void
draw_version(const DlockTry *try, DlockGrant *grant)
{
	if (grant->version == 0)
		fill_grant(grant, try->request, dlock_version_next(&try->store),
				   dlock_clock_now());
}

/*
 * Put a grant into the row that its owner had before and that we have locked.
 * The lock shows others that it is taken.  False: look again.
 */
static bool
take_old_place(DlockTry *try, int taken, DlockGrant *grant)
{
	LWLock	   *partition = dlock_lwlock_partition(try->request->key.hash);
	bool		is_ours;

	if (grant->version == 0)
		load(try, true, NULL);
	LWLockAcquire(partition, LW_EXCLUSIVE);
	is_ours = is_unchanged(try, grant);
	if (is_ours)
	{
		draw_version(try, grant);
		dlock_places_claim_place(&try->request->key, try->request->slot);
	}
	LWLockRelease(partition);
	if (is_ours)
		dlock_write_grant(&try->store, &try->request->key, try->request->slot,
						  &try->found->rows[taken], grant);
	return is_ours;
}

/*
 * Nothing has changed since we looked, so what we have found was true, and is noted
 * for all backends.  "removals" is what our transaction has removed.  The partition
 * lock is held.
 */
static void
note_found(const DlockTry *try, int removals)
{
	const DlockRows *found = try->found;
	bool		has_head = false;
	int			places = DLOCK_NOT_COUNTED;

	for (int i = 0; i < found->n; i++)
		has_head = has_head || found->states[i].slot == DLOCK_HEAD;
	if (try->counted)
		places = (has_head ? found->n - 1 : found->n) + removals;
	dlock_place_count_set(&try->request->key, dlock_table_file(&try->store),
						  &try->claims, has_head, places);
}

/*
 * Put a grant into a new row.  False: look again.
 *
 * The owner must not have another place.  We have looked for it.  Under the partition
 * lock a counter says whether one may have been added since, so the dead entries that
 * an owner has left in the index are not read there.
 */
static bool
add_place(DlockTry *try, DlockGrant *grant)
{
	int64		slot = try->request->slot;
	int			removals = DLOCK_NOT_COUNTED;
	DlockInsertion insertion;
	DlockRow	row;

	/* what is noted already, or belongs to a grant that moves, is not noted */
	if (grant->version == 0 && !try->headless)
		removals = dlock_place_count_removals(&try->request->key);

	/* without an owner the slot is the version, which is not known yet */
	dlock_write_prepare_insert(&insertion, &try->store, &try->request->key,
							   slot != DLOCK_HEAD ? slot : 1, grant);
	begin_insert(try, &insertion, grant);
	if (!is_unchanged(try, grant) ||
		(slot != DLOCK_HEAD &&
		 !dlock_places_own_unchanged(&try->request->key, slot, &try->claims)))
	{
		dlock_write_cancel_insert(&insertion);
		return false;
	}
	if (removals != DLOCK_NOT_COUNTED)
		note_found(try, removals);
	draw_version(try, grant);
	if (slot == DLOCK_HEAD)
		insertion.slot = grant->version;
	dlock_write_end_insert(&insertion, grant, &row);
	try->has_place = true;
	if (!insertion.is_whole)
		dlock_write_grant(&try->store, &try->request->key, insertion.slot, &row, grant);
	return true;
}

/* The new row of a place, or the one that is there.  False: look again. */
static bool
put_in_place(DlockTry *try, int taken, DlockGrant *grant)
{
	return taken == DLOCK_NO_ROW ?
		add_place(try, grant) : take_old_place(try, taken, grant);
}

/* A shared grant.  False: look again. */
bool
dlock_grant_place(DlockTry *try, DlockVerdict verdict)
{
	int			change = dlock_xact_begin_change(try->request->key.hash);
	DlockLocked locked = lock_ending(try, verdict);
	DlockGrant	grant;

	if (locked == DLOCK_LOCKED && verdict.row != DLOCK_NO_ROW)
		locked = lock_row_or_reaper(try, verdict.row);
	if (locked != DLOCK_LOCKED)
		return give_up(try, locked, change);

	fill_grant(&grant, try->request, 0, dlock_clock_now());
	if (!put_in_place(try, verdict.row, &grant))
		return give_up(try, DLOCK_LOCK_CHANGED, change);
	if (verdict.row != DLOCK_NO_ROW && !try->found->states[verdict.row].ends)
		record_taken(try, verdict.row);
	end_rows(try, verdict, grant.acquired_at);
	granted(try, &grant);
	dlock_xact_count(DLOCK_STAT_GRANTS);
	dlock_xact_end_change(change, verdict.nends > 0, true, grant.expires_at);
	return true;
}

/* The row that is there of the place that the request will have, or none. */
static int
find_own_place(const DlockRows *found, const DlockRequest *request)
{
	for (int i = 0; i < found->n; i++)
		if (found->states[i].exists && found->states[i].slot != DLOCK_HEAD &&
			found->states[i].slot == request->slot)
			return i;
	return DLOCK_NO_ROW;
}

/*
 * The exclusive grant becomes a shared one, with the same version.  We have
 * locked the head, so nobody else can take a place meanwhile.
 */
bool
dlock_grant_move(DlockTry *try, DlockVerdict verdict, int change)
{
	DlockRow   *head = &try->found->rows[verdict.row];
	int			taken = find_own_place(try->found, try->request);
	DlockGrant	grant;
	int64		now = dlock_clock_now();

	if (taken != DLOCK_NO_ROW && lock_row(try, taken) != DLOCK_LOCKED)
		return give_up(try, DLOCK_LOCK_BUSY, change);

	fill_grant(&grant, try->request, dlock_row_version(head->tuple), now);
	grant.acquired_at = dlock_row_acquired_at(head->tuple);
	grant.expires_at = end_of(try->request, grant.acquired_at, now, grant.terms.ttl);
	if (!put_in_place(try, taken, &grant))
		return false;
	dlock_write_free(&try->store, &try->request->key, head, now, 0);
	granted(try, &grant);
	try->result->renewed = true;
	dlock_xact_count(DLOCK_STAT_RENEWALS);
	dlock_xact_end_change(change, true, false, grant.expires_at);
	return true;
}

/*
 * The grant goes to another owner, with a new version and the same terms.  We have
 * locked its row, which keeps all others waiting until our transaction ends, and
 * then the new grant does.  So nothing comes between, and neither the queue nor what
 * else there is of the key matters.  acquired_at stays: it tells since when the key
 * is held.  The session stays behind, because it is not that of the next owner.
 *
 * A place of another owner is another row.  As long as our transaction is open,
 * both count, so a semaphore may seem to have one holder more.  False: look again.
 */
bool
dlock_grant_hand_over(DlockTry *try, DlockVerdict verdict, int64 now, int change)
{
	const DlockRequest *request = try->request;
	DlockRows  *found = try->found;
	DlockRow   *row = &found->rows[verdict.row];
	int64		slot = found->states[verdict.row].slot;
	int64		old_version = found->states[verdict.row].version;
	bool		changes_slot = slot != DLOCK_HEAD && slot != request->slot;
	int			taken = changes_slot ? find_own_place(found, request) : DLOCK_NO_ROW;
	DlockGrant	grant = {0};

	if (taken != DLOCK_NO_ROW)
	{
		DlockLocked locked = lock_row_or_reaper(try, taken);

		if (locked != DLOCK_LOCKED)
			return give_up(try, locked, change);
	}

	dlock_row_grant(try->store.heap, row->tuple, &grant);
	grant.terms.owner = request->terms.owner;
	grant.origin = NULL;
	if (request->terms.ttl != 0)
		grant.terms.ttl = request->terms.ttl;
	grant.version = dlock_version_next(&try->store);
	grant.pid = 0;
	grant.acquired_at = dlock_row_acquired_at(row->tuple);
	grant.refreshed_at = dlock_clock_now();
	grant.expires_at = end_of(request, grant.acquired_at, grant.refreshed_at,
							  grant.terms.ttl);
	/* a row more, until the commit subtracts the one that is removed */
	if (changes_slot && try->pin < 0)
		try->pin = dlock_places_pin(&request->key);
	if (changes_slot && !put_in_place(try, taken, &grant))
		return give_up(try, DLOCK_LOCK_CHANGED, change);
	try->before = now;
	if (taken != DLOCK_NO_ROW)
		record_taken(try, taken);
	record_taken(try, verdict.row);
	if (changes_slot)
		dlock_write_remove(&try->store, &request->key, row);
	else
		dlock_write_grant(&try->store, &request->key, slot, row, &grant);
	(void) dlock_journal_add(DLOCK_NOTE_ENDED, &old_version, sizeof(old_version));
	granted(try, &grant);
	dlock_xact_count(DLOCK_STAT_GRANTS);
	dlock_xact_name_heir(change, dlock_queue_owner_name(grant.terms.role, grant.terms.owner));
	dlock_xact_end_change(change, true, true, grant.expires_at);
	return true;
}

/*
 * A grant must not end before its key may be free.  Called for the arguments of an
 * acquire, and here for a refresh, whose TTL may be that of the grant.
 */
void
dlock_grant_check_at_least(int64 at_least, int64 ttl)
{
	if (at_least > ttl)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("at_least must not be longer than ttl"),
				 errhint("Use a longer TTL.")));
}

/* Renew a grant: a repeated acquire replaces it, a refresh extends it. */
void
dlock_grant_renew(DlockTry *try, DlockRow *row, int64 slot, int64 now, int change)
{
	const DlockRequest *request = try->request;
	int64		old_ttl = dlock_row_ttl(row->tuple);
	int64		ttl = request->terms.ttl != 0 ? request->terms.ttl : old_ttl;
	DlockRenewal renewal = {.value = request->terms.value};
	DlockGrant	grant;

	if (request->new_at_least)
		dlock_grant_check_at_least(request->terms.at_least, ttl);
	try->result->renewed = true;
	if (request->stamp == 0)
		dlock_xact_count(DLOCK_STAT_RENEWALS);
	if (request->op == DLOCK_ACQUIRE)
	{
		fill_grant(&grant, request, dlock_row_version(row->tuple), now);
		grant.acquired_at = dlock_row_acquired_at(row->tuple);
		grant.expires_at = end_of(request, grant.acquired_at, now, grant.terms.ttl);
		dlock_write_grant(&try->store, &try->request->key, slot, row, &grant);
		granted(try, &grant);
		dlock_xact_end_change(change, true, false, grant.expires_at);
		return;
	}

	renewal.ttl = ttl;
	if (request->max_hold != 0)
		renewal.ttl = Min(ttl, request->max_hold);
	if (request->new_at_least)
		renewal.busy_until = now + request->terms.at_least;
	renewal.begins = request->stamp != 0 && !request->renewed;
	renewal.from = request->stamp != 0 ? request->stamp : now;
	renewal.expires_at = end_of(request, renewal.begins ? renewal.from :
								dlock_row_acquired_at(row->tuple), renewal.from, renewal.ttl);
	dlock_write_renewal(&try->store, &try->request->key, row, &renewal);
	try->result->expires = renewal.expires_at;
	dlock_xact_want_reaper(renewal.expires_at);
	dlock_xact_end_change(change, false, request->terms.value != NULL, renewal.expires_at);
	try->wrote = ttl > old_ttl || request->terms.value != NULL || request->new_at_least ?
		DLOCK_WROTE_GRANT : DLOCK_WROTE_RENEWAL;
}
