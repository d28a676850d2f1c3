/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  The engine: read the rows, let lock_rules.c decide, apply.
 *
 * Every operation takes the same way, the reaper's included:
 *
 *	1. find the rows of the key
 *	2. decide; if nothing has to be written, that is the answer
 *	3. make the row ours: lock it, or the place where it will be
 *	4. decide again, because time has passed, more so if we had to wait
 *	5. write
 *
 * Whatever changed between 1 and 3 shows in 3, and we start over.  An acquire
 * and the reaper never wait in 3; the holder's own operations do, as any UPDATE
 * would.
 *
 * This is one try.  An acquire that may wait calls it again and again (acquire.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "miscadmin.h"

#include "clock.h"
#include "guc.h"
#include "health/standby.h"
#include "journal.h"
#include "lock/grant_end.h"
#include "lock/lock.h"
#include "policy/policy.h"
#include "queue/queue.h"
#include "queue/wait_report.h"
#include "rows/place_count.h"
#include "rows/version.h"
#include "rows/write.h"
#include "shard/shard.h"

/* The tuple lock of an action, as README has it in a table. */
static LockTupleMode
lock_mode(DlockAction action)
{
	switch (action)
	{
		case DLOCK_DO_PIN:
			return LockTupleKeyShare;
		case DLOCK_DO_RENEW:
			return LockTupleNoKeyExclusive;
		default:
			return LockTupleExclusive;
	}
}

/*
 * Step 1: finding
 */

/* Does the request ask for a place? */
static bool
is_shared(const DlockRequest *request)
{
	return request->op == DLOCK_ACQUIRE && request->terms.capacity != DLOCK_EXCLUSIVE;
}

/* Is the grant that the request names among the rows found so far? */
static bool
is_found(const DlockTry *try)
{
	DlockAnswer answer = dlock_grant_decide(try, dlock_clock_now()).answer;

	return answer != DLOCK_IS_NOT_HELD && answer != DLOCK_IS_HELD_BY_OTHER;
}

/*
 * The rows for an operation that names a grant: the place, if a hint leads to its
 * version; or else the head, if it is that grant; or else the place of the owner;
 * or else all.
 */
static void
find_named(DlockTry *try)
{
	const DlockRequest *request = try->request;
	DlockRows  *found = try->found;
	int			nheads;

	if (request->by_version && !request->exclusive_only &&
		dlock_places_marked(&try->request->key) &&
		dlock_find_version(&try->store, &try->request->key, request->version, found) &&
		is_found(try))
		return;
	found->n = 0;
	(void) dlock_find_slot(&try->store, &try->request->key, DLOCK_HEAD, DLOCK_FIND_COMMITTED,
						   found);
	nheads = found->n;

	/* the head first, because its grant may become that of a place */
	if (request->exclusive_only || !dlock_places_marked(&try->request->key) || is_found(try))
		return;
	if (request->op != DLOCK_HANDOVER && request->terms.owner != NULL &&
		dlock_find_slot(&try->store, &try->request->key,
						dlock_places_owner_slot(request->terms.role, request->terms.owner),
						DLOCK_FIND_COMMITTED, found) &&
		is_found(try))
		return;
	found->n = nheads;
	dlock_find_places(&try->store, &try->request->key, DLOCK_FIND_COMMITTED, false,
					  DLOCK_ALL_SLOTS, INT_MAX, found);
}

/*
 * For a handover: the grant that is named, and if it is a place, the one that the next
 * owner may have.  The counters are read before, so that a place that is added
 * afterwards is noticed (add_place() in grant.c).
 */
static void
find_named_and_next(DlockTry *try)
{
	const DlockRequest *request = try->request;
	DlockRows  *found = try->found;
	bool		has_place = false;

	dlock_places_read(&request->key, request->slot, &try->claims);
	find_named(try);
	for (int i = 0; i < found->n; i++)
		has_place = has_place || found->states[i].slot == request->slot;
	if (!has_place && dlock_places_marked(&request->key))
		(void) dlock_find_slot(&try->store, &request->key, request->slot,
							   DLOCK_FIND_COMMITTED, found);
}

/* The head, and for a shared request the place that its owner has so far. */
static void
find_head_and_own(DlockTry *try)
{
	const DlockRequest *request = try->request;

	if (!try->headless)
		(void) dlock_find_slot(&try->store, &request->key, DLOCK_HEAD,
							   DLOCK_FIND_NEWEST, try->found);
	if (is_shared(request) && request->slot != DLOCK_HEAD)
		(void) dlock_find_slot(&try->store, &request->key, request->slot,
							   DLOCK_FIND_NEWEST, try->found);
}

/*
 * All rows, for an acquire.  Mostly a hint leads to the head; if not, it comes
 * with the places.  Whose places they are matters only if it is the request's
 * own, whose slot is known unless the request is exclusive, or if it has to wait.
 */
static void
find_all(DlockTry *try)
{
	const DlockRequest *request = try->request;
	bool		has_head;

	try->counted = true;
	has_head = dlock_find_slot(&try->store, &request->key, DLOCK_HEAD,
							   DLOCK_FIND_HINTED, try->found);
	dlock_find_places(&try->store, &request->key, DLOCK_FIND_NEWEST, !has_head,
					  is_shared(request) && request->terms.wait == 0 ?
					  request->slot : DLOCK_ALL_SLOTS, INT_MAX, try->found);
}

/* Has the owner of the request this row?  Its place is in the given slot. */
static bool
is_of_owner(const DlockState *state, const DlockRequest *request, int64 slot)
{
	return state->slot != DLOCK_HEAD ? state->slot == slot :
		state->held && dlock_terms_same_owner(&state->terms, &request->terms);
}

/*
 * Another request comes first, so this one is busy, unless its owner has something
 * already.  Thousands may stand in line for a key with thousands of places, and all
 * of them look now and then.  So the head and some of the places will do, to tell
 * others what it waits for.  False: nothing is found, and all have to be read.
 */
static bool
find_some(DlockTry *try)
{
	const DlockRequest *request = try->request;
	DlockRows  *found = try->found;
	bool		has_owner = request->terms.owner != NULL;
	int64		slot = has_owner ?
		dlock_places_owner_slot(request->terms.role, request->terms.owner) : DLOCK_HEAD;
	bool		is_busy = true;

	(void) dlock_find_slot(&try->store, &try->request->key, DLOCK_HEAD, DLOCK_FIND_NEWEST,
						   found);
	dlock_find_places(&try->store, &try->request->key, DLOCK_FIND_NEWEST, false,
					  DLOCK_ALL_SLOTS, DLOCK_MAX_BLOCKERS, found);
	for (int i = 0; i < found->n && has_owner; i++)
		if (is_of_owner(&found->states[i], request, slot))
			is_busy = false;
	if (is_busy && has_owner)
		is_busy = !dlock_find_slot(&try->store, &try->request->key, slot, DLOCK_FIND_NEWEST,
								   found);
	if (!is_busy)
		found->n = 0;
	return is_busy;
}

/*
 * Before an acquire looks at rows, the order counts (places.c): a shared request
 * marks the key, then the counters are read, then the clock.  False: the key is not
 * marked, so it has no places, and none of this is needed.
 */
static bool
begin_look(DlockTry *try)
{
	const DlockRequest *request = try->request;

	if (is_shared(request) && try->pin < 0)
		try->pin = dlock_places_pin(&request->key);
	try->is_marked = dlock_places_marked(&request->key);
	if (!try->is_marked)
		return false;
	dlock_places_read(&request->key, request->slot, &try->claims);
	try->before = dlock_clock_now();
	return true;
}

/*
 * Can the request be granted whatever places of others there are?  A reader can,
 * and so can a semaphore that has room for sure.  What is known about that may also
 * spare the look for a head.
 */
static bool
ignores_places(DlockTry *try)
{
	const DlockRequest *request = try->request;
	DlockPlaceCount count;

	if (!is_shared(request))
		return false;
	count = dlock_place_count_get(&request->key, dlock_table_file(&try->store),
								  &try->claims);
	if (request->terms.capacity != DLOCK_SHARED &&
		count.at_most >= (uint64) request->terms.capacity)
		return false;
	try->headless = count.no_head;
	return true;
}

/*
 * Find the rows that the operation depends on.  Reading all rows of a key is always
 * right, but a key may have thousands.  The first line that applies counts:
 *
 *	operation					rows that are read		why no other row matters
 *	---------					------------------		------------------------
 *	the reaper's				that row				it asks about one row
 *	a handover					find_named_and_next()	it changes the grant that it
 *														names; an owner has one place
 *	others but acquire			find_named()			it changes the grant that it
 *														names, and nothing else
 *	acquire of an unmarked key	the head				the key has no places
 *	a reader; a semaphore that	the head, the owner's	other places are not in its way
 *	has room for sure			own place
 *	acquire behind another		find_some()				the answer is "busy", and some
 *														blockers are enough to report,
 *														unless it says when to ask again
 *	any other acquire			all						any of them may be in its way
 *
 * What is read without a lock may change at once.  An acquire finds that out when it
 * compares the mark or the counters again, before it claims its row (places.c).  All
 * others find it out when they lock the row.
 */
static void
find_rows(DlockTry *try)
{
	const DlockRequest *request = try->request;

	dlock_find_nothing(try->found);
	try->headless = false;
	try->counted = false;
	if (request->op == DLOCK_REAP)
		(void) dlock_find_slot(&try->store, &request->key, request->slot,
							   DLOCK_FIND_COMMITTED, try->found);
	else if (request->op == DLOCK_HANDOVER)
		find_named_and_next(try);
	else if (request->op != DLOCK_ACQUIRE)
		find_named(try);
	else if (!begin_look(try) || ignores_places(try))
		find_head_and_own(try);
	else if (!try->turn->behind || (request->terms.spent && request->terms.wait == 0) ||
			 !find_some(try))
		find_all(try);
}

/*
 * Steps 3 to 5, if they do not make a grant
 */

/* How durable the end of a grant has to be. */
static DlockWrite
ended_by(DlockOp op)
{
	if (op == DLOCK_FORCE)
		return DLOCK_WROTE_RELEASE | DLOCK_WROTE_OTHER;
	return op == DLOCK_RELEASE ? DLOCK_WROTE_RELEASE : DLOCK_WROTE_LAZY;
}

/*
 * Step 5 for a row that we have locked: write what the verdict says, and note how
 * durable it has to be and whom it wakes.
 */
static void
apply(DlockTry *try, DlockRow *row, DlockVerdict verdict, int64 now, int change)
{
	int64		version = dlock_row_version(row->tuple);

	try->wrote = ended_by(try->request->op);
	switch (verdict.action)
	{
		case DLOCK_DO_RENEW:
			dlock_grant_renew(try, row, try->found->states[verdict.row].slot, now,
							  change);
			return;

		case DLOCK_DO_CLEAR:
			dlock_write_free(&try->store, &try->request->key, row, now, verdict.cools_until);
			(void) dlock_journal_add(DLOCK_NOTE_ENDED, &version, sizeof(version));
			if (try->found->states[verdict.row].slot != DLOCK_HEAD)
				dlock_xact_want_reaper(verdict.cools_until);
			else
				dlock_xact_want_reaper(Max(verdict.cools_until, now + DLOCK_LINGER_US));
			if (verdict.cools_until != 0)
				dlock_xact_end_change(change, false, true, verdict.cools_until);
			return;

		case DLOCK_DO_REMOVE:
			dlock_write_remove(&try->store, &try->request->key, row);
			(void) dlock_journal_add(DLOCK_NOTE_ENDED, &version, sizeof(version));
			return;

		default:
			break;
	}

	/* only the row is locked; that blocks others until we end */
	dlock_xact_end_change(change, true, false, DLOCK_NEVER);
}

/* Note that a grant ends, for the statistics and the log. */
static void
record_ended(DlockTry *try, DlockVerdict verdict, int64 now)
{
	DlockEnding ending = {.store = &try->store,
		.state = &try->found->states[verdict.row],
		.row = &try->found->rows[verdict.row],
	.request = try->request,.now = now};

	dlock_grant_end_ended(&ending, verdict.answer);
}

/*
 * Steps 3 to 5 for a verdict about one row that is there and that is no new grant: a
 * renewal, a release, a fence, a forced release, the reaper's removal, the move of a
 * grant from the head to a place, and a handover.  Called by look(), with no LWLock
 * held.
 *
 * The key is noted before the row is locked, so that the end of the transaction wakes
 * those that the row lock has kept waiting.  Then the row is locked as strongly as
 * the verdict needs.  A holder's operation waits for the row; an acquire, the reaper
 * and a backend that exits do not.  With the lock held, the rules decide again,
 * because time has passed and the row may have changed.  If they now say something
 * that needs another lock, we look again from the start; the row lock stays until the
 * transaction ends, and does no harm.
 *
 * False: look again.
 */
static bool
change_row(DlockTry *try, DlockVerdict verdict)
{
	const DlockRequest *request = try->request;
	DlockState *state = &try->found->states[verdict.row];
	DlockRow   *row = &try->found->rows[verdict.row];
	bool		may_wait = request->op != DLOCK_ACQUIRE &&
		request->op != DLOCK_REAP && !request->skip_used;
	int			change = dlock_xact_begin_change(try->request->key.hash);
	DlockAction locked_for = verdict.action;
	DlockLocked locked;
	int64		now;

	locked = dlock_find_lock(&try->store, &try->request->key, state, row,
							 lock_mode(verdict.action),
							 may_wait ? LockWaitBlock : LockWaitSkip);
	if (locked != DLOCK_LOCKED)
		dlock_xact_cancel_change(change);
	if (locked == DLOCK_LOCK_CHANGED)
		return false;
	if (locked == DLOCK_LOCK_BUSY)
	{
		if (request->op == DLOCK_ACQUIRE && dlock_grant_pending_ended(row))
			return false;
		try->result->answer = DLOCK_IS_BUSY;
		return true;
	}

	try->wrote = DLOCK_WROTE_LAZY;
	now = dlock_clock_now();
	verdict = dlock_grant_decide(try, now);
	if (verdict.action != DLOCK_DO_NOTHING && verdict.action != locked_for)
		return false;			/* needs another lock */
	if (verdict.action == DLOCK_DO_MOVE)
		return dlock_grant_move(try, verdict, change);
	if (verdict.action == DLOCK_DO_HAND_OVER)
		return dlock_grant_hand_over(try, verdict, now, change);
	try->result->answer = verdict.answer;
	if (verdict.action == DLOCK_DO_CLEAR || verdict.action == DLOCK_DO_REMOVE)
		record_ended(try, verdict, now);
	apply(try, row, verdict, now, change);
	return true;
}

/*
 * Steps 1 and 2
 */

/* How often a request for one of several places looks again at most. */
#define MAX_LOOKS	5

/* Has anything that keeps us from it ended while we looked? */
static bool
has_ended(const DlockTry *try)
{
	if (try->request->op != DLOCK_ACQUIRE ||
		(is_shared(try->request) && try->looks >= MAX_LOOKS))
		return false;
	for (int i = 0; i < try->found->n; i++)
		if (TransactionIdIsValid(try->found->rows[i].pending) &&
			dlock_grant_pending_ended(&try->found->rows[i]))
			return true;
	return false;
}

/* Find and decide. */
static DlockVerdict
find_and_decide(DlockTry *try)
{
	DlockRows  *found = try->found;
	DlockVerdict verdict;

	find_rows(try);
	if (try->request->op == DLOCK_CHECK)
		for (int i = 0; i < found->n; i++)
			found->states[i].asked = found->states[i].held &&
				dlock_queue_asked(&try->request->key, &found->states[i], NULL);

	verdict = dlock_grant_decide(try, try->is_marked ?
								 try->before : dlock_clock_now());
	try->result->answer = verdict.answer;
	try->result->upgrades = verdict.upgrades;
	try->result->version = 0;
	try->result->role = InvalidOid;
	try->result->expires = 0;
	try->result->renewed = false;
	if (verdict.row != DLOCK_NO_ROW)
	{
		try->result->version = found->states[verdict.row].version;
		try->result->role = found->states[verdict.row].terms.role;
		try->result->expires = found->states[verdict.row].expires;
	}
	return verdict;
}

/* Steps 1 and 2, and the others if there is something to write. */
static bool
look(DlockTry *try)
{
	DlockVerdict verdict = find_and_decide(try);

	try->looks++;
	if (verdict.action == DLOCK_DO_NOTHING)
		return verdict.answer != DLOCK_IS_BUSY || !has_ended(try);
	if (verdict.action != DLOCK_DO_GRANT && verdict.action != DLOCK_DO_HAND_OVER)
		return change_row(try, verdict);

	dlock_standby_require();
	dlock_version_prepare(&try->store);
	if (verdict.action == DLOCK_DO_HAND_OVER)
		return change_row(try, verdict);
	if (is_shared(try->request))
		return dlock_grant_place(try, verdict);
	return verdict.row == DLOCK_NO_ROW ?
		dlock_grant_add_head(try, verdict) : dlock_grant_head(try, verdict);
}

/* How long the policies let a grant be held: what they say now counts. */
static void
set_max_hold(DlockTry *try)
{
	const DlockRequest *request = try->request;
	int64		max_hold = 0;

	if ((request->op == DLOCK_ACQUIRE && !request->terms.spent) ||
		request->op == DLOCK_REFRESH || request->op == DLOCK_HANDOVER)
		max_hold = dlock_policy_max_hold(&request->key, request->terms.role);
	try->result->max_hold = max_hold;
	if (max_hold == 0)
		return;
	try->limited = *request;
	try->limited.max_hold = max_hold;
	try->request = &try->limited;
}

/*
 * The beginning of dlock_lock_try().  Opens and locks the table, until the end of the
 * transaction.
 */
static void
begin_try(DlockTry *try, const DlockRequest *request, const DlockTurn *turn,
		  DlockRows *found, DlockResult *result)
{
	try->request = request;
	try->turn = turn;
	try->found = found;
	try->result = result;
	try->is_marked = false;
	try->pin = -1;
	try->has_place = false;
	try->headless = false;
	try->counted = false;
	try->looks = 0;
	try->wrote = DLOCK_WROTE_NOTHING;
	dlock_table_open(&try->store, request->op != DLOCK_CHECK, false);
	set_max_hold(try);

	/* what draws a version; the table is locked before the check: see shard.c */
	if (request->op == DLOCK_ACQUIRE || request->op == DLOCK_HANDOVER)
		dlock_shard_check(&try->store, &request->key);
}

/* One try.  Leaves in "found" what was there, for a caller that has to wait. */
void
dlock_lock_try(const DlockRequest *request, const DlockTurn *turn,
			   DlockRows *found, DlockResult *result)
{
	DlockTry	try;

	dlock_xact_enter();
	begin_try(&try, request, turn, found, result);
	do
		CHECK_FOR_INTERRUPTS();
	while (!look(&try));

	if (request->terms.spent && result->answer == DLOCK_IS_BUSY)
		result->free_at = dlock_wait_report_free_at(request, found, dlock_clock_now());
	if (try.pin >= 0)
		dlock_places_unpin(try.pin, try.has_place);
	dlock_table_close(&try.store, try.wrote != DLOCK_WROTE_NOTHING);
	dlock_xact_leave(try.wrote);
}

/* An operation that does not wait in the queue. */
void
dlock_lock_execute(const DlockRequest *request, DlockResult *result)
{
	DlockTurn	turn;
	DlockRows	found;

	dlock_turn_begin(&turn);
	dlock_lock_try(request, &turn, &found, result);
}

/*
 * Called before the answer that a lock is not held.  A database that does not serve
 * the shard cannot know that, because another one may have granted the lock since.
 * A client that may have used an outdated shard map gets an error instead.
 */
void
dlock_lock_require_served(const DlockKey *key)
{
	DlockTable	store;

	if (likely(!dlock_only_served))
		return;
	dlock_table_open(&store, false, false);
	dlock_shard_check(&store, key);
	dlock_table_close(&store, false);
}

/* What would an acquire answer that does not wait?  Steps 1 and 2 only. */
void
dlock_lock_foresee(const DlockRequest *request, DlockResult *result)
{
	DlockTurn	turn;
	DlockRows	found;
	DlockTry	try;

	dlock_turn_begin(&turn);
	turn.behind = dlock_queue_others_first(&request->key, request->terms.priority);
	begin_try(&try, request, &turn, &found, result);
	do
	{
		CHECK_FOR_INTERRUPTS();
		(void) find_and_decide(&try);
		try.looks++;
	} while (result->answer == DLOCK_IS_BUSY && has_ended(&try));
	if (try.pin >= 0)
		dlock_places_unpin(try.pin, false);
	dlock_table_close(&try.store, false);
}

/* The versions of all grants of the key that are held or cooling. */
int64 *
dlock_lock_versions(const DlockKey *key, int *n)
{
	DlockRows	found;
	DlockTable	store;
	int64	   *versions;
	int64		now;

	dlock_table_open(&store, false, false);
	dlock_find_committed(&store, key, &found);
	dlock_table_close(&store, false);

	*n = 0;
	versions = palloc(found.n * sizeof(int64) + 1);
	now = dlock_clock_now();
	for (int i = 0; i < found.n; i++)
		if (dlock_rules_is_held(&found.states[i], now) ||
			dlock_rules_phase(&found.states[i], now) == DLOCK_PHASE_COOLING)
			versions[(*n)++] = found.states[i].version;
	return versions;
}
