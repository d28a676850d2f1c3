/*-------------------------------------------------------------------------
 *
 * policy_functions.c
 *	  dlock_policy(), dlock_policy_drop(), and the trigger of dlock.policies.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "functions/arguments.h"
#include "policy/policy.h"
#include "rules/key.h"

PG_FUNCTION_INFO_V1(dlock_policy);
PG_FUNCTION_INFO_V1(dlock_policy_drop);
PG_FUNCTION_INFO_V1(dlock_policies_changed);

/*
 * Run a statement as the owner of the table, so that the privilege to call the
 * function is enough.  The search_path is the caller's, so every name in it must
 * be qualified.  Returns the number of rows.
 */
static uint64
run_as_owner(const char *sql, int nargs, Oid *types, Datum *values, const char *nulls)
{
	Relation	rel = table_open(dlock_policy_table(), RowExclusiveLock);
	Oid			owner = rel->rd_rel->relowner;
	Oid			save_userid;
	int			save_sec_context;
	uint64		processed;

	table_close(rel, NoLock);
	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(owner, save_sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	SPI_connect();
	if (SPI_execute_with_args(sql, nargs, types, values, nulls, false, 0) < 0)
		elog(ERROR, "could not change \"dlock.policies\"");
	processed = SPI_processed;
	SPI_finish();
	SetUserIdAndSecContext(save_userid, save_sec_context);
	return processed;
}

/* The prefix and the role, which both functions have; NULL is everybody. */
static void
get_name(FunctionCallInfo fcinfo, Datum *values)
{
	char	   *prefix = dlock_arguments_text(fcinfo, 0, "prefix", DLOCK_MAX_KEY);

	if (prefix == NULL)
		dlock_arguments_null("prefix");
	values[0] = CStringGetTextDatum(prefix);
	values[1] = ObjectIdGetDatum(PG_ARGISNULL(1) ? InvalidOid : PG_GETARG_OID(1));
}

static void
prevent_negative(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (!PG_ARGISNULL(argno) && PG_GETARG_INT32(argno) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", name)));
}

/* NULL, or a span of time that is not zero. */
static void
require_span(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (!PG_ARGISNULL(argno) && dlock_arguments_span(fcinfo, argno, name) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be greater than zero", name)));
}

/* Add a policy, or replace the one of that prefix and role. */
Datum
dlock_policy(PG_FUNCTION_ARGS)
{
	Oid			types[] = {TEXTOID, REGROLEOID, BOOLOID, INTERVALOID, INT4OID, INT4OID,
	INTERVALOID};
	Datum		values[lengthof(types)];
	char		nulls[lengthof(types)] = {' ', ' '};

	dlock_arguments_prevent_read_only("dlock_policy()");
	get_name(fcinfo, values);
	if (OidIsValid(DatumGetObjectId(values[1])))
		(void) GetUserNameFromId(DatumGetObjectId(values[1]), false);
	if (PG_ARGISNULL(2))
		dlock_arguments_null("allow");
	require_span(fcinfo, 3, "max_ttl");
	prevent_negative(fcinfo, 4, "max_priority");
	prevent_negative(fcinfo, 5, "max_locks");
	require_span(fcinfo, 6, "max_hold");
	for (int i = 2; i < lengthof(types); i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_GETARG_DATUM(i);
	}
	(void) run_as_owner("INSERT INTO dlock.policies"
						" (prefix, role, allow, max_ttl, max_priority, max_locks, max_hold)"
						" VALUES ($1, $2, $3, $4, $5, $6, $7)"
						" ON CONFLICT ON CONSTRAINT policies_pkey DO UPDATE"
						" SET allow = excluded.allow, max_ttl = excluded.max_ttl,"
						" max_priority = excluded.max_priority, max_locks = excluded.max_locks,"
						" max_hold = excluded.max_hold",
						lengthof(types), types, values, nulls);
	PG_RETURN_VOID();
}

/* False if there is no such policy. */
Datum
dlock_policy_drop(PG_FUNCTION_ARGS)
{
	Oid			types[2] = {TEXTOID, OIDOID};
	Datum		values[2];

	dlock_arguments_prevent_read_only("dlock_policy_drop()");
	get_name(fcinfo, values);
	PG_RETURN_BOOL(run_as_owner("DELETE FROM dlock.policies p"
								" WHERE p.prefix OPERATOR(pg_catalog.=) $1"
								" AND p.role::pg_catalog.oid OPERATOR(pg_catalog.=) $2",
								lengthof(types), types, values, NULL) > 0);
}

/* Every backend reads the table again, when this commits. */
Datum
dlock_policies_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"dlock.policies_changed\" must be called as a trigger")));
	dlock_policy_changes(data->tg_relation);
	return PointerGetDatum(NULL);
}
