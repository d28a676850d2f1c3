/*-------------------------------------------------------------------------
 *
 * ticket_grant.c
 *	  What a granter does for a ticket.
 *
 * A granter tries on behalf of a ticket what a waiting backend tries for itself,
 * through the same door, dlock_lock_try().  There are three results: the key is
 * granted to the ticket's role and owner, or the ticket is missed, or it still has to
 * wait.  In the first two cases the event follows after the commit, in a transaction of
 * its own: an event that cannot be sent must not undo the grant.
 *
 * The terms are checked when the ticket is taken (ticket_functions.c).  What may
 * change until the grant is checked again then: policies, the shard, and whether
 * the role exists.  Such a check raises an error, which the granter turns into
 * a miss.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/proc.h"
#include "utils/syscache.h"

#include "clock.h"
#include "database.h"
#include "journal.h"
#include "lock/acquire.h"
#include "lock/events.h"
#include "queue/wait_log.h"
#include "queue/wait_report.h"
#include "rows/places.h"
#include "stats/stats.h"
#include "tickets/ticket_grant.h"

/*
 * The ticket leaves the queue, and has ended if our transaction commits.  The next
 * waiter is woken unless the ticket gets the whole key.  The result is GONE or
 * TOO_LATE if it was withdrawn meanwhile.
 */
static DlockLookResult
end_ticket(const DlockTicketLook *look, DlockTicketState outcome, int64 version,
		   DlockEndedTicket *ended)
{
	bool		granted = outcome == DLOCK_TICKET_GRANTED;

	ended->number = look->number;
	ended->key = pnstrdup(look->key.data, look->key.len);
	ended->keylen = look->key.len;
	ended->since = look->since;
	ended->granted = granted;
	ended->version = version;
	ended->code = NULL;
	ended->reason = NULL;
	ended->has_waited = look->has_waited;
	ended->logged = look->logged;

	/* once it has left the queue, nothing may fail until it is noted */
	dlock_stats_attach();
	dlock_journal_reserve();
	if (!dlock_ticket_end(look->number, outcome, version, GetCurrentTransactionId(),
						  !granted || look->terms.capacity != DLOCK_EXCLUSIVE))
		return granted ? DLOCK_LOOK_TOO_LATE : DLOCK_LOOK_GONE;
	(void) dlock_journal_add(DLOCK_NOTE_TICKET, &look->number, sizeof(look->number));
	return DLOCK_LOOK_ENDS;
}

static DlockLookResult
miss_ticket(const DlockTicketLook *look, const char *code, const char *reason,
			DlockEndedTicket *ended)
{
	DlockLookResult result = end_ticket(look, DLOCK_TICKET_MISSED, 0, ended);

	ended->code = code;
	ended->reason = reason;
	return result;
}

/* The granter gives a ticket up because of an error.  Called in a transaction. */
DlockLookResult
dlock_ticket_grant_miss(int64 number, const char *code, const char *reason,
						DlockEndedTicket *ended)
{
	DlockTicketLook *look = palloc(sizeof(DlockTicketLook));

	if (!dlock_ticket_look(number, look))
		return DLOCK_LOOK_GONE;
	return miss_ticket(look, code, reason, ended);
}

static DlockLookResult
grant_ticket(const DlockTicketLook *look, const DlockRequest *request,
			 const DlockResult *result, DlockEndedTicket *ended)
{
	dlock_acquire_check_granted(request, result);
	return end_ticket(look, DLOCK_TICKET_GRANTED, result->version, ended);
}

static void
fill_request(DlockRequest *request, const DlockTicketLook *look)
{
	memset(request, 0, sizeof(*request));
	request->op = DLOCK_ACQUIRE;
	request->key = look->key;
	request->terms = look->terms;
	request->terms.wait = DLOCK_NEVER;
	request->by_granter = true;
	if (request->terms.capacity != DLOCK_EXCLUSIVE)
		request->slot = dlock_places_owner_slot(request->terms.role,
												request->terms.owner);
}

/*
 * The ticket has to wait.  Publish the report, and return when to look again: when
 * the report says so, when the wait is over, or to log that the ticket waits.
 */
static int64
let_wait(const DlockTicketLook *look, const DlockWaitReport *report,
		 const DlockRows *found, int64 now)
{
	DlockWaitLog log = {.key = &look->key,.began = look->since,.logged = look->logged,
	.ticket = look->number};
	int64		due = Min(report->wake_at, look->until);

	dlock_wait_log_still(&log, found, now);
	if (log_lock_waits && !log.logged)
		due = Min(due, look->since + DeadlockTimeout * INT64CONST(1000));
	if (dlock_ticket_publish_report(look->number, report, log.logged))
		dlock_database_want_announcement();
	return due;
}

/*
 * Look at a ticket, and grant it if possible.  Called in the granter's transaction.
 * If the ticket has to wait, "due" is when to look again, and "is_new" whether it
 * has not waited before.  If it ends, "ended" is what to count after the commit.
 */
DlockLookResult
dlock_ticket_grant_look(int64 number, int64 *due, bool *is_new, DlockEndedTicket *ended)
{
	DlockTicketLook *look = palloc(sizeof(DlockTicketLook));
	DlockWaitReport report = {0};
	DlockRequest request;
	DlockResult result = {0};
	DlockTurn	turn;
	DlockRows	found;
	int64		looked_at;
	int64		now;

	*due = DLOCK_NEVER;
	if (!dlock_ticket_look(number, look))
		return DLOCK_LOOK_GONE;
	*is_new = !look->has_waited;
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(look->terms.role)))
		return miss_ticket(look, "42704", "the role does not exist any more", ended);

	fill_request(&request, look);
	dlock_turn_begin(&turn);
	turn.behind = look->behind;
	turn.until = look->until;
	turn.asking = look->asking;
	looked_at = dlock_clock_now();
	if (!dlock_ticket_is_void(number))
		dlock_lock_try(&request, &turn, &found, &result);

	/*
	 * the try may have waited for the drop, and what it did is undone by the
	 * error
	 */
	if (dlock_ticket_is_void(number))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"dlock\" was dropped")));
	now = dlock_clock_now();
	if (result.answer == DLOCK_IS_GRANTED)
		return grant_ticket(look, &request, &result, ended);
	if (result.answer == DLOCK_IS_REFUSED)
		return miss_ticket(look, "55P03", "the holder did not yield in time", ended);
	if (result.answer == DLOCK_IS_BUSY && now >= look->until)
		return miss_ticket(look, NULL, "timeout", ended);
	if (result.upgrades && !look->upgrades && !dlock_ticket_upgrade(number))
		return miss_ticket(look, "40P01", "deadlock", ended);
	if (look->upgrades && result.upgrades)
		turn.behind = false;
	else if (look->upgrades && dlock_wait_report_is_settled(&found))
		dlock_ticket_step_back(number);

	dlock_wait_report_make(&request, &turn, &found, &result, looked_at, now, &report);
	*due = let_wait(look, &report, &found, now);
	return DLOCK_LOOK_WAITS;
}

/* After the commit, in another transaction: send the event of a ticket that has ended. */
void
dlock_ticket_grant_announce(const DlockEndedTicket *ended)
{
	if (ended->granted)
		dlock_event_granted(ended->key, ended->version, ended->number);
	else
		dlock_event_missed(ended->key, ended->number, ended->code, ended->reason);
}

/* After the commit: count and log a ticket that has ended. */
void
dlock_ticket_grant_count(const DlockEndedTicket *ended, int64 now)
{
	DlockKey	key;
	DlockWaitLog log = {.key = &key,.began = ended->since,.logged = ended->logged,
	.ticket = ended->number};

	dlock_key_set(&key, ended->key, ended->keylen);
	if (ended->has_waited || !ended->granted)
		dlock_stats_waited(&key, now - ended->since, !ended->granted);
	dlock_wait_log_end(&log, ended->granted, now);
}
