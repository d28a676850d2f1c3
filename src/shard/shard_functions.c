/*-------------------------------------------------------------------------
 *
 * shard_functions.c
 *	  SQL functions for locks that are spread over several servers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "compat.h"
#include "functions/arguments.h"
#include "lock/xact.h"
#include "rows/version.h"
#include "shard/shard.h"
#include "shard/shard_of.h"

PG_FUNCTION_INFO_V1(dlock_shard);
PG_FUNCTION_INFO_V1(dlock_serve);
PG_FUNCTION_INFO_V1(dlock_settle);
PG_FUNCTION_INFO_V1(dlock_advance);
PG_FUNCTION_INFO_V1(dlock_served_changed);

/* the slots of places with an owner are far above all versions; see key.h */
#define MAX_VERSION	(DLOCK_OWNED_SLOTS / 2)

/* It needs no shared memory, so it also works where dlock is not loaded. */
Datum
dlock_shard(PG_FUNCTION_ARGS)
{
	text	   *key = PG_GETARG_TEXT_PP(0);

	dlock_arguments_check_key(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	PG_RETURN_INT32(dlock_shard_of(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)));
}

Datum
dlock_serve(PG_FUNCTION_ARGS)
{
	dlock_arguments_prevent_read_only("dlock_serve()");
	dlock_shard_serve(PG_ARGISNULL(0) ? NULL : PG_GETARG_MULTIRANGE_P(0));
	PG_RETURN_VOID();
}

/*
 * Wait for the transactions that may have passed the check before the last
 * change was committed: all that now hold the lock on the table that a write
 * needs.  New ones see the change.
 */
Datum
dlock_settle(PG_FUNCTION_ARGS)
{
	DlockTable	store;
	LOCKTAG		tag;

	dlock_arguments_require_primary("dlock_settle()");
	if (dlock_shard_is_changed())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("dlock_settle() cannot run in the transaction that changed the shards"),
				 errhint("Commit the change first.")));

	dlock_table_open(&store, false, false);
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, RelationGetRelid(store.heap));
	dlock_table_close(&store, false);
	WaitForLockers(tag, ShareLock, false);
	PG_RETURN_VOID();
}

Datum
dlock_advance(PG_FUNCTION_ARGS)
{
	DlockTable	store;
	int64		version;
	int64		last;

	dlock_arguments_prevent_read_only("dlock_advance()");
	if (PG_ARGISNULL(0))
		dlock_arguments_null("version");
	version = PG_GETARG_INT64(0);
	if (version < 0 || version > MAX_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("version must be between 0 and %lld", (long long) MAX_VERSION)));

	dlock_xact_enter();
	dlock_table_open(&store, true, false);
	last = dlock_version_advance(&store, version);
	dlock_table_close(&store, false);
	dlock_xact_leave(DLOCK_WROTE_GRANT);
	PG_RETURN_INT64(last);
}

/*
 * The trigger of dlock.served.  dlock_serve() does not fire it.  It is for those
 * that write to the table otherwise, such as a dump that is restored.
 */
Datum
dlock_served_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"dlock_served_changed\" must be called as a trigger")));
	if (IsLogicalWorker())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("logical replication cannot write to table \"dlock.served\""),
				 errdetail("Each server serves shards of its own."),
				 errhint("Publish the tables or the schemas that you need by name, without schema \"dlock\".")));

	dlock_shard_changed();
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ?
						   data->tg_newtuple : data->tg_trigtuple);
}
