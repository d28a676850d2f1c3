/*-------------------------------------------------------------------------
 *
 * subscriber.c
 *	  Keeps logical replication from writing to dlock.locks.
 *
 * A publication FOR ALL TABLES contains the rows of dlock.locks.  On a
 * subscriber that also has dlock, the apply worker would overwrite and delete
 * grants of that server, without regard to row locks, versions and the queue.
 *
 * The apply worker fires only triggers that are enabled ALWAYS.  Restoring a
 * dump fires them, too, and is allowed.  It may bring places, so their keys are
 * marked before, and whatever it brings is counted afterwards (places.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "replication/logicalworker.h"

#include "owners.h"
#include "places.h"
#include "row.h"

PG_FUNCTION_INFO_V1(dlock_refuse_replication);

static void
note_row(HeapTuple tuple, bool is_there)
{
	DlockKey	key;

	dlock_row_key(tuple, &key);
	if (is_there)
		dlock_places_restored(&key, dlock_row_slot(tuple));
	else if (dlock_row_slot(tuple) != DLOCK_HEAD)
	{
		dlock_places_mark(&key);
		dlock_owners_restored(&key, dlock_row_slot(tuple));
	}
}

Datum
dlock_refuse_replication(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	bool		is_after;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"dlock_refuse_replication\" must be called as a trigger")));
	if (IsLogicalWorker())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("logical replication cannot write to table \"dlock.locks\""),
				 errdetail("The locks of one server mean nothing on another."),
				 errhint("Publish the tables or the schemas that you need by name, without schema \"dlock\".")));

	is_after = TRIGGER_FIRED_AFTER(data->tg_event);
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
		note_row(data->tg_trigtuple, is_after);
	else if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		note_row(data->tg_newtuple, is_after);
		return PointerGetDatum(data->tg_newtuple);
	}
	return PointerGetDatum(data->tg_trigtuple);
}
