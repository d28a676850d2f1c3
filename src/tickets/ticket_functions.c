/*-------------------------------------------------------------------------
 *
 * ticket_functions.c
 *	  dlock_enqueue(), dlock_ticket(), dlock_dequeue().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "database.h"
#include "functions/arguments.h"
#include "functions/listing.h"
#include "journal.h"
#include "lock/lock.h"
#include "policy/policy.h"
#include "shard/shard.h"
#include "stats/stats.h"
#include "tickets/granter.h"
#include "tickets/ticket.h"

PG_FUNCTION_INFO_V1(dlock_enqueue);
PG_FUNCTION_INFO_V1(dlock_ticket);
PG_FUNCTION_INFO_V1(dlock_dequeue);

#define TICKET_COLUMNS	4

/* Does the owner of this request still hold that version of the key? */
static bool
is_held(const DlockRequest *request, int64 version)
{
	DlockRequest check = {.op = DLOCK_CHECK};
	DlockResult result;

	check.key = request->key;
	check.terms = request->terms;
	check.by_version = true;
	check.version = version;
	dlock_lock_execute(&check, &result);
	return result.answer == DLOCK_IS_HELD || result.answer == DLOCK_IS_PREEMPTING;
}

/* An error if this database does not serve the shard of the key. */
static void
check_shard(const DlockKey *key)
{
	DlockTable	store;

	dlock_table_open(&store, false, false);
	dlock_shard_check(&store, key);
	dlock_table_close(&store, false);
}

/*
 * A ticket for this request: a new one, which the commit of the transaction puts
 * into the queue, or the one that its owner already has for the key, unless it is to
 * be anew.  Also returns the number of the database, for which a granter is wanted.
 */
static int64
take_ticket(const DlockRequest *request, int *db)
{
	DlockDatabase *database = dlock_database(MyDatabaseId);
	int64		version;
	int64		ticket;

	if (database == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases use dlock"),
				 errdetail("The limit is %d.", DLOCK_MAX_DATABASES),
				 errhint("Wait with dlock_acquire.")));
	*db = dlock_database_number(database);
	check_shard(&request->key);
	dlock_policy_check_request(&request->key, &request->terms);

	/* once it is there, nothing may fail until the transaction knows of it */
	ticket = request->terms.anew ? 0 :
		dlock_ticket_find(&request->key, &request->terms, &version);
	if (ticket != 0 && (version == 0 || is_held(request, version)))
		return ticket;
	dlock_stats_attach();
	dlock_journal_reserve();
	ticket = dlock_ticket_draft(&request->key, &request->terms, *db);
	(void) dlock_journal_add(DLOCK_NOTE_DRAFT, &ticket, sizeof(ticket));
	return ticket;
}

/* Start a granter if there is none.  An error takes the ticket back. */
static void
require_granter(int db)
{
	if (dlock_granter_start(db, dlock_clock_now()))
		return;
	dlock_stats_count(DLOCK_STAT_TICKETS_REFUSED);
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no worker process is left that could grant tickets"),
			 errhint("Wait with dlock_acquire, or increase \"max_worker_processes\" and restart the server.")));
}

Datum
dlock_enqueue(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	int64		ticket;
	int			db;

	dlock_arguments_prevent_read_only("dlock_enqueue()");
	dlock_arguments_enqueue(fcinfo, &request);
	ticket = take_ticket(&request, &db);
	require_granter(db);
	PG_RETURN_INT64(ticket);
}

static const char *
state_name(DlockTicketState state)
{
	switch (state)
	{
		case DLOCK_TICKET_GRANTED:
			return "granted";
		case DLOCK_TICKET_MISSED:
			return "missed";
		default:
			return "waiting";
	}
}

/* It writes nothing, so it works in a read-only transaction. */
Datum
dlock_ticket(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockTicketShown shown;
	Datum		values[TICKET_COLUMNS];
	bool		isnull[TICKET_COLUMNS] = {false};

	dlock_arguments_require_primary("dlock_ticket()");
	InitMaterializedSRF(fcinfo, 0);
	dlock_listing_check_columns(rsinfo, TICKET_COLUMNS);
	if (PG_ARGISNULL(0) ||
		!dlock_ticket_show(PG_GETARG_INT64(0), GetUserId(), &shown))
		return (Datum) 0;

	values[0] = CStringGetTextDatum(shown.key);
	values[1] = CStringGetTextDatum(state_name(shown.state));
	isnull[2] = shown.position == 0;
	values[2] = Int32GetDatum(shown.position);
	isnull[3] = shown.state != DLOCK_TICKET_GRANTED;
	values[3] = Int64GetDatum(shown.version);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}

/* Memory is not undone: a rollback does not bring the request back. */
Datum
dlock_dequeue(PG_FUNCTION_ARGS)
{
	DlockTicketShown shown;
	DlockKey	key;

	dlock_arguments_prevent_read_only("dlock_dequeue()");
	if (PG_ARGISNULL(0))
		dlock_arguments_null("ticket");
	if (!dlock_ticket_remove(PG_GETARG_INT64(0), GetUserId(), &shown))
		PG_RETURN_BOOL(false);
	if (shown.state == DLOCK_TICKET_WAITING)
	{
		dlock_key_set(&key, shown.key, shown.keylen);
		dlock_stats_waited(&key, dlock_clock_now() - shown.since, false);
	}
	PG_RETURN_BOOL(true);
}
