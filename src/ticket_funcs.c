/*-------------------------------------------------------------------------
 *
 * ticket_funcs.c
 *	  The SQL functions of tickets.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "args.h"
#include "clock.h"
#include "desk.h"
#include "granter.h"
#include "serve.h"
#include "shown.h"
#include "stats.h"
#include "ticket.h"

PG_FUNCTION_INFO_V1(dlock_enqueue);
PG_FUNCTION_INFO_V1(dlock_ticket);
PG_FUNCTION_INFO_V1(dlock_dequeue);

#define TICKET_COLUMNS	4

/* An error takes the ticket back. */
static void
require_granter(int db)
{
	if (!dlock_desk_call(db, dlock_clock_now()) || dlock_granter_start(db))
		return;
	dlock_desk_call_failed(db);
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

	dlock_args_prevent_read_only("dlock_enqueue()");
	dlock_args_enqueue(fcinfo, &request);
	ticket = dlock_serve_enqueue(&request, &db);
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

	dlock_args_require_primary("dlock_ticket()");
	InitMaterializedSRF(fcinfo, 0);
	dlock_shown_check_columns(rsinfo, TICKET_COLUMNS);
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

	dlock_args_prevent_read_only("dlock_dequeue()");
	if (PG_ARGISNULL(0))
		dlock_args_null("ticket");
	if (!dlock_ticket_remove(PG_GETARG_INT64(0), GetUserId(), &shown))
		PG_RETURN_BOOL(false);
	if (shown.state == DLOCK_TICKET_WAITING)
	{
		dlock_key_set(&key, shown.key, shown.keylen);
		dlock_stats_waited(&key, dlock_clock_now() - shown.since, false);
	}
	PG_RETURN_BOOL(true);
}
