/*-------------------------------------------------------------------------
 *
 * funcs.c
 *	  The SQL functions: arguments in, results out.
 *
 * Everything that a caller can get wrong is found here, before anything is
 * looked up, with an error that names the argument and the limit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "common/int.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "errors.h"
#include "events.h"
#include "funcs.h"
#include "guc.h"
#include "lock.h"
#include "role.h"
#include "session_end.h"
#include "shmem.h"
#include "wait.h"

#define MAX_REASON	1024
#define MAX_VALUE	(64 * 1024)

/* of a wait, a cleanup or a timeout; whoever waits for longer says NULL */
#define MAX_SPAN_DAYS	36500
#define MAX_SPAN_US		(MAX_SPAN_DAYS * USECS_PER_DAY)

PG_FUNCTION_INFO_V1(dlock_acquire);
PG_FUNCTION_INFO_V1(dlock_lock);
PG_FUNCTION_INFO_V1(dlock_watch);
PG_FUNCTION_INFO_V1(dlock_refresh);
PG_FUNCTION_INFO_V1(dlock_release);
PG_FUNCTION_INFO_V1(dlock_release_session);
PG_FUNCTION_INFO_V1(dlock_check);
PG_FUNCTION_INFO_V1(dlock_fence);
PG_FUNCTION_INFO_V1(dlock_force_release);

/*
 * Arguments
 */

static void
null_argument(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("argument \"%s\" of a lock must not be null", name)));
}

static void
check_length(const char *name, int len, int limit)
{
	if (len > limit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" of a lock is too long", name),
				 errdetail("It has %d bytes; the limit is %d.", len, limit)));
}

void
dlock_funcs_check_key(const char *key, int keylen)
{

	if (keylen == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"key\" of a lock must not be empty")));
	check_length("key", keylen, DLOCK_MAX_KEY);
}

static char *
get_text(FunctionCallInfo fcinfo, int argno, const char *name, int limit)
{
	text	   *arg;

	if (PG_ARGISNULL(argno))
		return NULL;
	arg = PG_GETARG_TEXT_PP(argno);
	check_length(name, VARSIZE_ANY_EXHDR(arg), limit);
	return text_to_cstring(arg);
}

static void
get_key(FunctionCallInfo fcinfo, DlockRequest *request)
{
	text	   *key;

	if (PG_ARGISNULL(0))
		null_argument("key");
	key = PG_GETARG_TEXT_PP(0);
	request->key = VARDATA_ANY(key);
	request->keylen = VARSIZE_ANY_EXHDR(key);
	dlock_funcs_check_key(request->key, request->keylen);
}

/* Microseconds of an interval, in which a day has 24 hours. */
static int64
interval_us(const Interval *span, const char *name)
{
	int64		us;

	if (!DLOCK_INTERVAL_IS_FINITE(span))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" of a lock must be finite", name)));
	if (span->month != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" of a lock must not have months or years", name),
				 errdetail("Their length varies. Use days or smaller units.")));
	if (pg_mul_s64_overflow(span->day, USECS_PER_DAY, &us) ||
		pg_add_s64_overflow(us, span->time, &us))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" of a lock is out of range", name)));
	return us;
}

/* A TTL that was given, or 0. */
static int64
get_ttl(FunctionCallInfo fcinfo, int argno)
{
	int64		ttl;

	if (PG_ARGISNULL(argno))
		return 0;
	ttl = interval_us(PG_GETARG_INTERVAL_P(argno), "ttl");
	if (ttl <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"ttl\" of a lock must be greater than zero")));
	if (ttl > (int64) dlock_max_ttl * 1000)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"ttl\" of a lock is over the maximum"),
				 errdetail("\"dlock.max_ttl\" is %d ms.", dlock_max_ttl),
				 errhint("Take a shorter TTL and renew it with dlock_refresh.")));
	return ttl;
}

/* A span of time that may be zero. */
static int64
get_span(FunctionCallInfo fcinfo, int argno, const char *name)
{
	int64		us;

	if (PG_ARGISNULL(argno))
		null_argument(name);
	us = interval_us(PG_GETARG_INTERVAL_P(argno), name);
	if (us < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" of a lock must not be negative", name)));
	if (us > MAX_SPAN_US)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" of a lock is out of range", name),
				 errdetail("The limit is %d days.", MAX_SPAN_DAYS)));
	return us;
}

static bool
get_flag(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (PG_ARGISNULL(argno))
		null_argument(name);
	return PG_GETARG_BOOL(argno);
}

/* By version, by owner, or both. */
static void
get_claim(FunctionCallInfo fcinfo, int version_arg, int owner_arg,
		  DlockOp op, DlockRequest *request)
{
	request->claim.op = op;
	request->claim.role = dlock_role_current();
	if (version_arg >= 0 && !PG_ARGISNULL(version_arg))
	{
		request->claim.by_version = true;
		request->claim.version = PG_GETARG_INT64(version_arg);
	}
	if (owner_arg >= 0)
		request->claim.owner = get_text(fcinfo, owner_arg, "owner", DLOCK_MAX_OWNER);

	/* a name that everybody who forgets one has would be shared by all */
	if (request->claim.owner != NULL && request->claim.owner[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"owner\" of a lock must not be empty"),
				 errhint("Pass NULL for none, or a name that is unique to this request.")));
	if (op != DLOCK_ACQUIRE && !request->claim.by_version &&
		request->claim.owner == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("neither \"version\" nor \"owner\" of the lock is given"),
				 errhint("Give the version that dlock_acquire returned, or the owner that was passed to it.")));
}

/*
 * Which server this is
 */

/* For what writes nothing, but which a standby cannot tell. */
void
dlock_funcs_require_primary(const char *what)
{
	dlock_shmem_require();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s on a standby", what),
				 errhint("Connect to the primary, for instance with target_session_attrs=read-write.")));
	PreventCommandIfParallelMode(what);
}

/* For what writes. */
void
dlock_funcs_prevent_read_only(const char *what)
{
	dlock_funcs_require_primary(what);
	PreventCommandIfReadOnly(what);

	/* pg_upgrade has noted the next transaction id of this server */
	if (IsBinaryUpgrade)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot execute %s during a binary upgrade", what)));
}

/*
 * Functions
 */

/* The arguments that dlock_acquire and dlock_lock share. */
static void
get_acquire(FunctionCallInfo fcinfo, DlockRequest *request)
{
	get_key(fcinfo, request);
	request->ttl = get_ttl(fcinfo, 1);
	if (request->ttl == 0)
		request->ttl = (int64) Min(dlock_default_ttl, dlock_max_ttl) * 1000;
	get_claim(fcinfo, -1, 2, DLOCK_ACQUIRE, request);
	request->value = get_text(fcinfo, 3, "value", MAX_VALUE);
	request->wait = PG_ARGISNULL(4) ? DLOCK_NEVER : get_span(fcinfo, 4, "wait");
	if (PG_ARGISNULL(5))
		null_argument("priority");
	request->claim.priority = PG_GETARG_INT32(5);
	if (request->claim.priority < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"priority\" of a lock must not be negative")));
	request->cleanup = get_span(fcinfo, 6, "cleanup");
	request->claim.force = get_flag(fcinfo, 7, "force");
	request->session = get_flag(fcinfo, 8, "session");
}

/* True if it was granted; an error if the holder was asked and did not yield. */
static bool
do_acquire(const DlockRequest *request, DlockResult *result)
{
	dlock_lock_execute(request, result);
	if (result->answer == DLOCK_IS_REFUSED)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the holder of lock \"%s\" did not yield in time",
						pnstrdup(request->key, request->keylen)),
				 errdetail("It is still held with version %lld, by a lower priority.",
						   (long long) result->version),
				 errhint("Try again, or take it with force => true.")));
	return result->answer == DLOCK_IS_GRANTED;
}

Datum
dlock_acquire(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;

	dlock_funcs_prevent_read_only("dlock_acquire()");
	get_acquire(fcinfo, &request);
	if (!do_acquire(&request, &result))
		PG_RETURN_NULL();
	PG_RETURN_INT64(result.version);
}

/*
 * CALL dlock_lock(): the same, but a long wait keeps no snapshot, so that it
 * is not in the way of VACUUM.  That works where the CALL is not part of a
 * larger transaction and that does not use one snapshot throughout.
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

	dlock_funcs_prevent_read_only("dlock_lock()");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type of dlock_lock must be a row type");

	get_acquire(fcinfo, &request);
	request.without_snapshot = !call->atomic && !IsolationUsesXactSnapshot();
	if (do_acquire(&request, &result))
	{
		version = Int64GetDatum(result.version);
		isnull = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  &version, &isnull)));
}

/* Writes nothing, so a read-only transaction may watch; a standby cannot tell. */
Datum
dlock_watch(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	bool		is_held = !PG_ARGISNULL(1);
	int64		version = is_held ? PG_GETARG_INT64(1) : 0;
	int64		timeout;

	dlock_funcs_require_primary("dlock_watch()");

	get_key(fcinfo, &request);
	timeout = PG_ARGISNULL(2) ? DLOCK_NEVER : get_span(fcinfo, 2, "timeout");
	if (!dlock_lock_watch(request.key, request.keylen, is_held, &version, timeout))
		PG_RETURN_NULL();
	PG_RETURN_INT64(version);
}

Datum
dlock_refresh(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;

	dlock_funcs_prevent_read_only("dlock_refresh()");

	get_key(fcinfo, &request);
	request.ttl = get_ttl(fcinfo, 2);
	get_claim(fcinfo, 1, 3, DLOCK_REFRESH, &request);

	dlock_lock_execute(&request, &result);
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
			elog(ERROR, "unexpected answer %d of a lock", (int) answer);
	}
}

Datum
dlock_release(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;

	dlock_funcs_prevent_read_only("dlock_release()");

	get_key(fcinfo, &request);
	get_claim(fcinfo, 1, 2, DLOCK_RELEASE, &request);

	dlock_lock_execute(&request, &result);
	return answer_text(result.answer);
}

Datum
dlock_release_session(PG_FUNCTION_ARGS)
{
	dlock_funcs_prevent_read_only("dlock_release_session()");
	PG_RETURN_INT32(dlock_session_end_release(true));
}

/* Writes nothing, so a read-only transaction may ask; a standby cannot tell. */
Datum
dlock_check(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;

	dlock_funcs_require_primary("dlock_check()");

	get_key(fcinfo, &request);
	get_claim(fcinfo, 1, 2, DLOCK_CHECK, &request);

	dlock_lock_execute(&request, &result);
	return answer_text(result.answer);
}

void
dlock_funcs_fence(const char *key, int keylen, int64 version, Oid role)
{
	DlockRequest request = {0};
	DlockResult result;
	char	   *shown;

	request.claim.op = DLOCK_FENCE;
	request.claim.role = role;
	request.claim.by_version = true;
	request.claim.version = version;
	request.key = key;
	request.keylen = keylen;

	dlock_lock_execute(&request, &result);
	if (result.answer == DLOCK_IS_HELD)
		return;

	shown = pnstrdup(key, keylen);
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_FENCED),
			 errmsg("lock \"%s\" is not held with version %lld", shown, (long long) version),
			 result.answer == DLOCK_IS_NOT_HELD ?
			 errdetail("It has expired or was released.") :
			 errdetail("It is held by another grant or by another role."),
			 errhint("Roll back, acquire the lock again, and repeat the work with the new version.")));
}

Datum
dlock_fence(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};

	dlock_funcs_prevent_read_only("dlock_fence()");

	get_key(fcinfo, &request);
	if (PG_ARGISNULL(1))
		null_argument("version");
	dlock_funcs_fence(request.key, request.keylen, PG_GETARG_INT64(1),
					  dlock_role_current());
	PG_RETURN_VOID();
}

/*
 * The administrator's way round the holder.  The event is sent by the
 * caller's own transaction: it must not be sent if that rolls back.
 */
Datum
dlock_force_release(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;
	char	   *reason;
	char	   *key;
	char	   *role;

	dlock_funcs_prevent_read_only("dlock_force_release()");

	get_key(fcinfo, &request);
	reason = get_text(fcinfo, 1, "reason", MAX_REASON);
	if (reason == NULL)
		null_argument("reason");
	request.claim.op = DLOCK_FORCE;
	request.claim.role = dlock_role_current();

	dlock_lock_execute(&request, &result);
	if (result.answer != DLOCK_IS_RELEASED)
		PG_RETURN_NULL();

	key = pnstrdup(request.key, request.keylen);
	role = GetUserNameFromId(request.claim.role, false);
	ereport(LOG,
			(errmsg("lock \"%s\" with version %lld was forcibly released by role \"%s\"",
					key, (long long) result.version, role),
			 errdetail("Reason: %s", reason)));
	dlock_event_forced(key, result.version, request.claim.role, reason);
	PG_RETURN_INT64(result.version);
}
