/*-------------------------------------------------------------------------
 *
 * functions.c
 *	  The SQL functions: arguments in, results out.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/execdesc.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/parsenodes.h"
#include "tcop/pquery.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "fence/fence_trigger.h"
#include "functions/arguments.h"
#include "lock/acquire.h"
#include "lock/events.h"
#include "lock/lock.h"
#include "lock/session.h"
#include "lock/watch.h"
#include "policy/policy.h"
#include "rows/places.h"

#define MAX_REASON	1024

PG_FUNCTION_INFO_V1(dlock_acquire);
PG_FUNCTION_INFO_V1(dlock_acquire_all);
PG_FUNCTION_INFO_V1(dlock_lock);
PG_FUNCTION_INFO_V1(dlock_watch);
PG_FUNCTION_INFO_V1(dlock_refresh);
PG_FUNCTION_INFO_V1(dlock_release);
PG_FUNCTION_INFO_V1(dlock_release_session);
PG_FUNCTION_INFO_V1(dlock_check);
PG_FUNCTION_INFO_V1(dlock_holds);
PG_FUNCTION_INFO_V1(dlock_fence);
PG_FUNCTION_INFO_V1(dlock_handover);
PG_FUNCTION_INFO_V1(dlock_limit);
PG_FUNCTION_INFO_V1(dlock_force_release);

/* True if it was granted; an error if the holder was asked and did not yield. */
static bool
is_granted(const DlockRequest *request, const DlockResult *result)
{
	if (result->answer == DLOCK_IS_REFUSED)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the holder of lock \"%s\" did not yield in time",
						pnstrdup(request->key.data, request->key.len)),
				 errdetail("It is still held, with version %lld and a lower priority.",
						   (long long) result->version),
				 errhint("Try again, or take it with force => true.")));
	return result->answer == DLOCK_IS_GRANTED;
}

Datum
dlock_acquire(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;

	dlock_arguments_prevent_read_only("dlock_acquire()");
	dlock_arguments_acquire(fcinfo, &request);
	dlock_acquire_key(&request, &result);
	if (!is_granted(&request, &result))
		PG_RETURN_NULL();
	PG_RETURN_INT64(result.version);
}

Datum
dlock_acquire_all(PG_FUNCTION_ARGS)
{
	DlockRequest *requests;
	DlockResult *results;
	Datum	   *versions;
	int			n;
	int			failed;

	dlock_arguments_prevent_read_only("dlock_acquire_all()");
	requests = dlock_arguments_acquire_all(fcinfo, &n);
	results = palloc0(n * sizeof(DlockResult));
	failed = dlock_acquire_keys(requests, n, results);
	if (failed >= 0 && !is_granted(&requests[failed], &results[failed]))
		PG_RETURN_NULL();

	versions = palloc(n * sizeof(Datum));
	for (int i = 0; i < n; i++)
		versions[i] = Int64GetDatum(results[i].version);
	PG_RETURN_ARRAYTYPE_P(construct_array(versions, n, INT8OID, sizeof(int64),
										  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * CALL dlock_lock(): the same, but a long wait keeps no snapshot, so that it
 * does not hold back VACUUM.  This works if the CALL is not part of a larger
 * transaction and the transaction does not use one snapshot throughout.
 */
Datum
dlock_lock(PG_FUNCTION_ARGS)
{
	CallContext *call = castNode(CallContext, fcinfo->context);
	DlockRequest request = {0};
	DlockResult result;
	TupleDesc	desc;
	Datum		version = (Datum) 0;
	bool		isnull = true;

	dlock_arguments_prevent_read_only("dlock_lock()");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type of dlock_lock must be a row type");

	dlock_arguments_acquire(fcinfo, &request);
	request.without_snapshot = !call->atomic && !IsolationUsesXactSnapshot();
	dlock_acquire_key(&request, &result);
	if (is_granted(&request, &result))
	{
		version = Int64GetDatum(result.version);
		isnull = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  &version, &isnull)));
}

/* It writes nothing, so it works in a read-only transaction. */
Datum
dlock_watch(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	bool		is_held = !PG_ARGISNULL(1);
	int64		version = is_held ? PG_GETARG_INT64(1) : 0;
	int64		wait;

	dlock_arguments_require_primary("dlock_watch()");

	dlock_arguments_key(fcinfo, &request);
	wait = dlock_arguments_wait(fcinfo, 2, "wait");
	if (!dlock_watch_key(&request.key, is_held, &version, wait))
	{
		dlock_lock_require_served(&request.key);
		PG_RETURN_NULL();
	}
	PG_RETURN_INT64(version);
}

Datum
dlock_refresh(PG_FUNCTION_ARGS)
{
	DlockRequest request = {.op = DLOCK_REFRESH};
	DlockResult result;

	dlock_arguments_prevent_read_only("dlock_refresh()");

	dlock_arguments_key(fcinfo, &request);
	request.terms.ttl = dlock_arguments_ttl(fcinfo, 2);
	dlock_arguments_claim(fcinfo, 1, 3, &request);
	request.terms.value = dlock_arguments_text(fcinfo, 4, "value", DLOCK_MAX_VALUE);
	request.new_at_least = PG_NARGS() > 5 && !PG_ARGISNULL(5);
	if (request.new_at_least)
		request.terms.at_least = dlock_arguments_span(fcinfo, 5, "at_least");
	if (request.terms.ttl != 0 || request.new_at_least)
		dlock_policy_check_request(&request.key, &request.terms);

	dlock_lock_execute(&request, &result);
	if (result.answer == DLOCK_IS_NOT_HELD)
		dlock_lock_require_served(&request.key);
	if (result.answer != DLOCK_IS_HELD)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(dlock_clock_to_wall(result.expires));
}

static Datum
answer_text(DlockAnswer answer)
{
	switch (answer)
	{
		case DLOCK_IS_RELEASED:
			return CStringGetTextDatum("released");
		case DLOCK_IS_HELD:
			return CStringGetTextDatum("held");
		case DLOCK_IS_PREEMPTING:
			return CStringGetTextDatum("preempting");
		case DLOCK_IS_NOT_HELD:
			return CStringGetTextDatum("not_held");
		case DLOCK_IS_HELD_BY_OTHER:
			return CStringGetTextDatum("held_by_other");
		default:
			elog(ERROR, "unexpected lock answer %d", (int) answer);
	}
}

/* What the lock is to a version or owner, after the operation. */
static inline DlockAnswer
answer_claim(FunctionCallInfo fcinfo, DlockOp op)
{
	DlockRequest request = {.op = op};
	DlockResult result;

	dlock_arguments_key(fcinfo, &request);
	dlock_arguments_claim(fcinfo, 1, 2, &request);

	dlock_lock_execute(&request, &result);
	if (result.answer == DLOCK_IS_NOT_HELD)
		dlock_lock_require_served(&request.key);
	return result.answer;
}

Datum
dlock_release(PG_FUNCTION_ARGS)
{
	dlock_arguments_prevent_read_only("dlock_release()");
	return answer_text(answer_claim(fcinfo, DLOCK_RELEASE));
}

Datum
dlock_release_session(PG_FUNCTION_ARGS)
{
	dlock_arguments_prevent_read_only("dlock_release_session()");
	PG_RETURN_INT32(dlock_session_release(GetUserId(), false, true));
}

/* It writes nothing, so it works in a read-only transaction. */
Datum
dlock_check(PG_FUNCTION_ARGS)
{
	dlock_arguments_require_primary("dlock_check()");
	return answer_text(answer_claim(fcinfo, DLOCK_CHECK));
}

/* The same question, for a caller that only wants to know whether to continue. */
Datum
dlock_holds(PG_FUNCTION_ARGS)
{
	DlockAnswer answer;

	dlock_arguments_require_primary("dlock_holds()");
	answer = answer_claim(fcinfo, DLOCK_CHECK);
	PG_RETURN_BOOL(answer == DLOCK_IS_HELD || answer == DLOCK_IS_PREEMPTING);
}

/*
 * Is the call part of a SELECT that the client has sent by itself?  Then the
 * transaction ends with it.  A call in a function, a DO block or a statement that
 * writes is not: a query that SPI runs has another memory context than that of the
 * portal, and a portal keeps no descriptor of a query that writes.
 */
static bool
is_whole_transaction(const FmgrInfo *call)
{
	return !IsTransactionBlock() && !IsSubTransaction() &&
		ActivePortal != NULL && ActivePortal->queryDesc != NULL &&
		ActivePortal->queryDesc->estate != NULL &&
		call->fn_mcxt == ActivePortal->queryDesc->estate->es_query_cxt;
}

Datum
dlock_fence(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};

	dlock_arguments_prevent_read_only("dlock_fence()");

	dlock_arguments_key(fcinfo, &request);
	if (PG_ARGISNULL(1))
		dlock_arguments_null("version");
	dlock_fence_require(&request.key, PG_GETARG_INT64(1), GetUserId(), false, NULL);
	if (fcinfo->flinfo->fn_extra == NULL && is_whole_transaction(fcinfo->flinfo))
	{
		fcinfo->flinfo->fn_extra = fcinfo->flinfo;	/* once in a statement */
		ereport(WARNING,
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("dlock_fence() protects nothing outside of a transaction block"),
				 errhint("Call it between BEGIN and COMMIT, in the transaction that writes.")));
	}
	PG_RETURN_VOID();
}

/* NULL if the grant is no longer the caller's, as with a refresh. */
Datum
dlock_handover(PG_FUNCTION_ARGS)
{
	DlockRequest request = {.op = DLOCK_HANDOVER};
	DlockResult result;

	dlock_arguments_prevent_read_only("dlock_handover()");

	dlock_arguments_key(fcinfo, &request);
	if (PG_ARGISNULL(1))
		dlock_arguments_null("version");
	if (PG_ARGISNULL(2))
		dlock_arguments_null("owner");
	dlock_arguments_claim(fcinfo, 1, 2, &request);
	request.slot = dlock_places_owner_slot(request.terms.role, request.terms.owner);
	request.terms.ttl = dlock_arguments_ttl(fcinfo, 3);
	if (request.terms.ttl != 0)
		dlock_policy_check_request(&request.key, &request.terms);

	dlock_lock_execute(&request, &result);
	if (result.answer == DLOCK_IS_BUSY)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("lock \"%s\" cannot be handed over to owner \"%s\"",
						pnstrdup(request.key.data, request.key.len), request.terms.owner),
				 errdetail("That owner has a place of it already, or an open transaction is taking or giving back one."),
				 errhint("Let that owner release its place first, or name another owner.")));
	if (result.answer != DLOCK_IS_GRANTED)
		PG_RETURN_NULL();
	PG_RETURN_INT64(result.version);
}

/* as exact as a TTL is, so that an answer is never zero when the call was refused */
#define EXACT_US	INT64CONST(1000)

/*
 * A permit: a place that is taken and given back at once, and cools for "per".  Zero:
 * it was given.  Otherwise the time until one is to be had.  What is there now is over
 * after "per", so that is the longest answer, and the one that is given if it depends on
 * open transactions.
 */
Datum
dlock_limit(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result = {0};
	Interval   *left = palloc0(sizeof(Interval));

	dlock_arguments_prevent_read_only("dlock_limit()");
	dlock_arguments_limit(fcinfo, &request);
	dlock_acquire_key(&request, &result);
	if (!is_granted(&request, &result))
		left->time = Max(Min(result.free_at - dlock_clock_now(), request.terms.ttl), EXACT_US);
	PG_RETURN_INTERVAL_P(left);
}

/*
 * An administrator takes a lock away from its holder, or from all its holders.
 * The caller's transaction sends the events, so that they are not sent if that
 * transaction rolls back.
 */
Datum
dlock_force_release(PG_FUNCTION_ARGS)
{
	DlockRequest request = {.op = DLOCK_FORCE};
	DlockResult result;
	char	   *reason;
	char	   *key;
	int64	   *versions;
	int64		highest = 0;
	int			n;

	dlock_arguments_prevent_read_only("dlock_force_release()");

	dlock_arguments_key(fcinfo, &request);
	reason = dlock_arguments_text(fcinfo, 1, "reason", MAX_REASON);
	if (reason == NULL)
		dlock_arguments_null("reason");
	request.terms.role = GetUserId();
	request.by_version = true;

	key = pnstrdup(request.key.data, request.key.len);
	versions = dlock_lock_versions(&request.key, &n);
	for (int i = 0; i < n; i++)
	{
		request.version = versions[i];
		if (PG_NARGS() > 2 && !PG_ARGISNULL(2) && request.version != PG_GETARG_INT64(2))
			continue;
		dlock_lock_execute(&request, &result);
		if (result.answer != DLOCK_IS_RELEASED)
			continue;

		highest = Max(highest, request.version);
		ereport(LOG,
				(errmsg("lock \"%s\" with version %lld was forcibly released by role \"%s\"",
						key, (long long) request.version,
						GetUserNameFromId(request.terms.role, false)),
				 errdetail("Reason: %s", reason)));
		dlock_event_forced(key, request.version, request.terms.role, reason);
	}
	if (highest == 0)
	{
		dlock_lock_require_served(&request.key);
		PG_RETURN_NULL();
	}
	PG_RETURN_INT64(highest);
}
