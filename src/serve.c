/*-------------------------------------------------------------------------
 *
 * serve.c
 *	  Tickets: taking one, and what a granter does with one.
 *
 * A granter tries on behalf of a ticket what a waiting backend tries for itself
 * (await.c), through the same door.  The result is one of three: the key is granted
 * to the ticket's role and owner, or the ticket is missed, or it waits on.  In the
 * first two cases the event is sent in the same transaction, so nobody hears of
 * a grant that is not made, and a grant that is made is announced.
 *
 * The terms are checked when the ticket is taken, and what may change until the
 * grant is checked again then: policies, the shard, and whether the role exists.
 * Such a check raises an error, which the granter turns into a miss.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/syscache.h"

#include "await.h"
#include "clock.h"
#include "database.h"
#include "drafts.h"
#include "events.h"
#include "outlook.h"
#include "policy.h"
#include "serve.h"
#include "shard.h"
#include "stats.h"
#include "waitlog.h"
#include "xact.h"

/*
 * Taking one
 */

static bool
is_held(const DlockRequest *request, int64 version)
{
	DlockRequest check = {.op = DLOCK_CHECK};
	DlockResult result;

	check.key = request->key;
	check.keylen = request->keylen;
	check.role = request->role;
	check.owner = request->owner;
	check.by_version = true;
	check.version = version;
	dlock_lock_execute(&check, &result);
	return result.answer == DLOCK_IS_HELD || result.answer == DLOCK_IS_PREEMPTING;
}

static void
check_shard(const DlockKey *key)
{
	DlockStore	store;

	dlock_store_open(&store, false, false);
	dlock_shard_check(&store, key);
	dlock_store_close(&store, false);
}

/*
 * A ticket for this request.  The commit of the transaction puts it into the
 * queue.  Also returns the number of the database, whose granter is wanted.
 */
int64
dlock_serve_enqueue(const DlockRequest *request, int *db)
{
	DlockTerms	terms = {0};
	DlockDatabase *database = dlock_database(MyDatabaseId);
	DlockKey	key;
	int64		version;
	int64		ticket;

	if (database == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases use dlock"),
				 errdetail("The limit is %d.", DLOCK_MAX_DATABASES),
				 errhint("Wait with dlock_acquire.")));
	*db = dlock_database_number(database);
	dlock_key_set(&key, request->key, request->keylen);
	check_shard(&key);
	dlock_await_check_policy(request);

	terms.key = request->key;
	terms.keylen = request->keylen;
	terms.role = request->role;
	terms.owner = request->owner;
	terms.value = request->value;
	terms.ttl = request->ttl;
	terms.wait = request->wait;
	terms.cleanup = request->cleanup;
	terms.at_least = request->at_least;
	terms.delay = request->delay;
	terms.priority = request->priority;
	terms.slots = request->slots;
	terms.force = request->force;
	terms.lazy = request->lazy;

	/* once it is there, nothing may fail until the transaction knows of it */
	ticket = dlock_ticket_find(&key, &terms, &version);
	if (ticket != 0 && (version == 0 || is_held(request, version)))
		return ticket;
	dlock_stats_attach();
	dlock_drafts_prepare();
	ticket = dlock_ticket_draft(&key, &terms, *db);
	dlock_xact_note_ticket(ticket, true);
	return ticket;
}

/*
 * Looking at one
 */

/*
 * It has ended, if our transaction commits.  Others that wait need to know if it
 * leaves room for them.
 */
static DlockServed
end_ticket(const DlockTicketLook *look, DlockTicketState outcome, int64 version,
		   DlockServedTicket *served)
{
	bool		granted = outcome == DLOCK_TICKET_GRANTED;

	served->number = look->number;
	served->key = pnstrdup(look->terms.key, look->terms.keylen);
	served->keylen = look->terms.keylen;
	served->since = look->since;
	served->granted = granted;
	served->has_waited = look->has_waited;
	served->logged = look->logged;

	/* once it has left the queue, nothing may fail until it is noted */
	dlock_stats_attach();
	dlock_drafts_prepare();
	if (!dlock_ticket_end(look->number, outcome, version, GetCurrentTransactionId(),
						  !granted || look->terms.slots != DLOCK_EXCLUSIVE))
		return granted ? DLOCK_SERVED_TOO_LATE : DLOCK_SERVED_GONE;
	dlock_xact_note_ticket(look->number, false);
	return DLOCK_SERVED_ENDS;
}

static DlockServed
miss_ticket(const DlockTicketLook *look, const char *code, const char *reason,
			DlockServedTicket *served)
{
	DlockServed result = end_ticket(look, DLOCK_TICKET_MISSED, 0, served);

	if (result == DLOCK_SERVED_ENDS)
		dlock_event_missed(look->terms.key, look->number, code, reason);
	return result;
}

/* It is missed because of an error. */
DlockServed
dlock_serve_miss(int64 number, const char *code, const char *reason,
				 DlockServedTicket *served)
{
	DlockTicketLook *look = palloc(sizeof(DlockTicketLook));

	if (!dlock_ticket_look(number, look))
		return DLOCK_SERVED_GONE;
	return miss_ticket(look, code, reason, served);
}

static DlockServed
grant_ticket(const DlockTicketLook *look, const DlockRequest *request,
			 const DlockResult *result, DlockServedTicket *served)
{
	DlockServed answer;

	if (!result->renewed)
	{
		dlock_await_check_policy(request);
		dlock_policy_check_grant(request->key, request->keylen, request->role);
	}
	answer = end_ticket(look, DLOCK_TICKET_GRANTED, result->version, served);
	if (answer == DLOCK_SERVED_ENDS)
		dlock_event_granted(look->terms.key, result->version, look->number);
	return answer;
}

static void
fill_request(DlockRequest *request, const DlockTerms *terms)
{
	memset(request, 0, sizeof(*request));
	request->op = DLOCK_ACQUIRE;
	request->key = terms->key;
	request->keylen = terms->keylen;
	request->role = terms->role;
	request->owner = terms->owner;
	request->value = terms->value;
	request->ttl = terms->ttl;
	request->cleanup = terms->cleanup;
	request->priority = terms->priority;
	request->slots = terms->slots;
	request->at_least = terms->at_least;
	request->delay = terms->delay;
	request->lazy = terms->lazy;
	request->force = terms->force;
	request->wait = DLOCK_NEVER;
	request->by_granter = true;
	if (request->slots != DLOCK_EXCLUSIVE)
		request->slot = dlock_key_owner_slot(request->role, request->owner);
}

/*
 * It has to wait.  Returns when it is to be looked at again: when that is so, when
 * its wait is over, and to log that it waits.
 */
static int64
let_wait(const DlockTicketLook *look, const DlockOutlook *outlook,
		 const DlockRows *found, int64 now)
{
	DlockKey	key;
	DlockWaitLog log = {.key = &key,.began = look->since,.logged = look->logged,
	.ticket = look->number};
	int64		due = Min(outlook->wake_at, look->until);

	dlock_key_set(&key, look->terms.key, look->terms.keylen);
	dlock_waitlog_still(&log, found, now);
	if (log_lock_waits && !log.logged)
		due = Min(due, look->since + DeadlockTimeout * INT64CONST(1000));
	if (dlock_ticket_tell(look->number, outlook, log.logged))
		dlock_database_want_announcement();
	return due;
}

/*
 * Look at a ticket, and grant it if it can be.  If it has to wait, "due" is when
 * to look again, and "is_new" whether it has not waited before.
 */
DlockServed
dlock_serve_look(int64 number, int64 *due, bool *is_new, DlockServedTicket *served)
{
	DlockTicketLook *look = palloc(sizeof(DlockTicketLook));
	DlockOutlook outlook = {0};
	DlockRequest request;
	DlockResult result;
	DlockTurn	turn;
	DlockRows	found;
	DlockKey	key;
	int64		looked_at;
	int64		now;

	*due = DLOCK_NEVER;
	if (!dlock_ticket_look(number, look))
		return DLOCK_SERVED_GONE;
	*is_new = !look->has_waited;
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(look->terms.role)))
		return miss_ticket(look, "42704", "the role does not exist any more", served);

	fill_request(&request, &look->terms);
	dlock_turn_begin(&turn);
	turn.behind = look->behind;
	turn.until = look->until;
	turn.asking = look->asking;
	dlock_key_set(&key, request.key, request.keylen);
	looked_at = dlock_clock_now();
	dlock_lock_try(&key, &request, &turn, &found, &result);
	now = dlock_clock_now();
	if (result.answer == DLOCK_IS_GRANTED)
		return grant_ticket(look, &request, &result, served);
	if (result.answer == DLOCK_IS_REFUSED)
		return miss_ticket(look, "55P03", "the holder did not yield in time", served);
	if (result.answer == DLOCK_IS_BUSY && now >= look->until)
		return miss_ticket(look, NULL, "timeout", served);
	if (result.upgrades && !look->upgrades && !dlock_ticket_upgrade(number))
		return miss_ticket(look, "40P01", "deadlock", served);
	if (look->upgrades && result.upgrades)
		turn.behind = false;
	else if (look->upgrades && dlock_outlook_is_settled(&found))
		dlock_ticket_step_back(number);

	dlock_outlook_make(&request, &turn, &found, &result, looked_at, now, &outlook);
	*due = let_wait(look, &outlook, &found, now);
	return DLOCK_SERVED_WAITS;
}

/* After the commit: the statistics, and the log. */
void
dlock_serve_count(const DlockServedTicket *served, int64 now)
{
	DlockKey	key;
	DlockWaitLog log = {.key = &key,.began = served->since,.logged = served->logged,
	.ticket = served->number};

	dlock_key_set(&key, served->key, served->keylen);
	if (served->has_waited || !served->granted)
		dlock_stats_waited(&key, now - served->since, !served->granted);
	dlock_waitlog_end(&log, served->granted, now);
}
