/*-------------------------------------------------------------------------
 *
 * direct_writes.c
 *	  Keeps logical replication and SQL from writing to dlock.locks.
 *
 * A publication FOR ALL TABLES contains the rows of dlock.locks.  On a
 * subscriber that also has dlock, the apply worker would overwrite and delete
 * grants of that server, without regard to row locks, versions and the queue.
 *
 * The apply worker fires only triggers that are enabled ALWAYS.  Restoring a
 * dump fires them, too, and inserts rows, which is allowed.  It may bring places, so their
 * keys are marked before, and whatever it brings is counted afterwards (places.c).
 *
 * An owner of the table who deletes or changes a row takes a lock from its holder, who
 * is not told, and nothing is logged.  dlock_force_release() is for that, so it is
 * refused unless dlock.allow_direct_writes is on.  A row that nobody has any more may be
 * deleted: "dlock shard move" does that.  Whatever SQL does to the table, all waiters look
 * again when it commits.
 *
 * pg_restore --disable-triggers disables the triggers of our tables before it
 * fills them, and enables them afterwards.  So a change of a trigger counts as a
 * change of everything that the trigger would have told, as does its end, and that
 * of the database.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "clock.h"
#include "database.h"
#include "guc.h"
#include "health/direct_writes.h"
#include "journal.h"
#include "queue/queue.h"
#include "rows/expiry.h"
#include "rows/place_count.h"
#include "rows/places.h"
#include "rows/row.h"
#include "shmem.h"
#include "shard/shard.h"
#include "tickets/ticket.h"

PG_FUNCTION_INFO_V1(dlock_refuse_replication);

static object_access_hook_type next_hook = NULL;

/* The table of a trigger that is being created, altered or dropped. */
static Oid
table_of(Oid trigger)
{
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			relid = InvalidOid;

	ScanKeyInit(&key, Anum_pg_trigger_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(trigger));
	/* what was created just now is not visible to other snapshots */
	scan = systable_beginscan(triggers, TriggerOidIndexId, true, SnapshotSelf, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		relid = ((Form_pg_trigger) GETSTRUCT(tuple))->tgrelid;
	systable_endscan(scan);
	table_close(triggers, AccessShareLock);
	return relid;
}

static bool
is_named(Oid relid, const char *name)
{
	char	   *found = get_rel_name(relid);
	char	   *schema = get_namespace_name(get_rel_namespace(relid));

	return found != NULL && schema != NULL &&
		strcmp(found, name) == 0 && strcmp(schema, "dlock") == 0;
}

/*
 * This transaction changes the table or its triggers by SQL, or drops it.  That says
 * nothing of keys, so its commit wakes all that wait in this database, and has the
 * reaper look when the next row falls due.
 */
static void
note_change(Oid relid)
{
	if (dlock_shmem_is_attached() && !dlock_journal_has(DLOCK_NOTE_TABLE))
		(void) dlock_journal_add(DLOCK_NOTE_TABLE, &relid, sizeof(relid));
}

static void
end_change(const void *what, bool committed)
{
	if (!committed)
		return;
	if (dlock_queue_any())
		dlock_queue_wake_all();
	dlock_database_want_reaper(dlock_clock_now());
}

static void
see_change(ObjectAccessType access, Oid classid, Oid objid, int subid, void *arg)
{
	if (next_hook != NULL)
		next_hook(access, classid, objid, subid, arg);
	if (access == OAT_DROP && classid == DatabaseRelationId && subid == 0)
		dlock_places_forget_database(objid);
	if (access == OAT_DROP && classid == RelationRelationId && subid == 0 &&
		is_named(objid, "locks"))
	{
		dlock_ticket_table_dropped();
		note_change(objid);
	}
	if (classid == TriggerRelationId &&
		(access == OAT_POST_CREATE || access == OAT_POST_ALTER || access == OAT_DROP))
	{
		Oid			relid = table_of(objid);

		if (is_named(relid, "locks"))
		{
			dlock_places_forget();
			note_change(relid);
		}
		else if (access == OAT_POST_ALTER && is_named(relid, "served"))
			dlock_shard_changed();
	}
}

void
dlock_direct_writes_init(void)
{
	dlock_journal_register(DLOCK_NOTE_TABLE, end_change);
	next_hook = object_access_hook;
	object_access_hook = see_change;
}

static void
note_row(HeapTuple tuple, bool is_there)
{
	DlockKey	key;

	dlock_row_key(tuple, &key);
	if (is_there)
	{
		dlock_places_restored(&key, dlock_row_slot(tuple));
		if (dlock_shmem_is_attached())
			dlock_expiry_note(dlock_database(MyDatabaseId),
							  ItemPointerGetBlockNumber(&tuple->t_self), dlock_row_due(tuple));
	}
	else if (dlock_row_slot(tuple) != DLOCK_HEAD)
		dlock_places_mark(&key);
}

/* Is it the deletion of a row that is neither held nor cooling? */
static bool
is_harmless(const TriggerData *data)
{
	DlockState	state = {0};
	DlockPhase	phase;

	if (!TRIGGER_FIRED_BY_DELETE(data->tg_event) || !dlock_shmem_is_attached())
		return false;
	dlock_row_state(data->tg_trigtuple, &state, false, NULL);
	phase = dlock_rules_phase(&state, dlock_clock_now());
	return phase == DLOCK_PHASE_FREE || phase == DLOCK_PHASE_EXPIRED;
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

	if (!TRIGGER_FIRED_BY_INSERT(data->tg_event) && !dlock_allow_direct_writes && !is_harmless(data))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"dlock.locks\" cannot be changed by SQL"),
				 errdetail("The holder of a lock would lose it without being told."),
				 errhint("Use dlock_force_release() to take a lock away.")));

	dlock_place_count_by_sql();
	note_change(RelationGetRelid(data->tg_relation));
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
