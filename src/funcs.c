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
#include "commands/async.h"
#include "common/int.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "errors.h"
#include "funcs.h"
#include "guc.h"
#include "lock.h"
#include "shmem.h"

#define MAX_KEY		1024
#define MAX_OWNER	1024
#define MAX_REASON	1024
#define MAX_VALUE	(64 * 1024)

#define CHANNEL		"dlock"

PG_FUNCTION_INFO_V1(dlock_acquire);
PG_FUNCTION_INFO_V1(dlock_refresh);
PG_FUNCTION_INFO_V1(dlock_release);
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
	check_length("key", keylen, MAX_KEY);
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

/* By version, by owner, or both. */
static void
get_claim(FunctionCallInfo fcinfo, int version_arg, int owner_arg,
		  DlockOp op, DlockRequest *request)
{
	request->claim.op = op;
	request->claim.role = GetUserId();
	if (version_arg >= 0 && !PG_ARGISNULL(version_arg))
	{
		request->claim.by_version = true;
		request->claim.version = PG_GETARG_INT64(version_arg);
	}
	if (owner_arg >= 0)
		request->claim.owner = get_text(fcinfo, owner_arg, "owner", MAX_OWNER);
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

void
dlock_funcs_prevent_read_only(const char *what)
{
	dlock_shmem_require();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s on a standby", what),
				 errhint("Connect to the primary, for instance with target_session_attrs=read-write.")));
	PreventCommandIfReadOnly(what);
	PreventCommandIfParallelMode(what);
}

/*
 * Functions
 */

Datum
dlock_acquire(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;

	dlock_funcs_prevent_read_only("dlock_acquire()");

	get_key(fcinfo, &request);
	request.ttl = get_ttl(fcinfo, 1);
	if (request.ttl == 0)
		request.ttl = (int64) Min(dlock_default_ttl, dlock_max_ttl) * 1000;
	get_claim(fcinfo, -1, 2, DLOCK_ACQUIRE, &request);
	request.value = get_text(fcinfo, 3, "value", MAX_VALUE);

	dlock_lock_execute(&request, &result);
	if (result.answer != DLOCK_IS_GRANTED)
		PG_RETURN_NULL();
	PG_RETURN_INT64(result.version);
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

/* Writes nothing, so a read-only transaction may ask; a standby cannot tell. */
Datum
dlock_check(PG_FUNCTION_ARGS)
{
	DlockRequest request = {0};
	DlockResult result;

	dlock_shmem_require();
	if (RecoveryInProgress())
		dlock_funcs_prevent_read_only("dlock_check()");

	get_key(fcinfo, &request);
	get_claim(fcinfo, 1, 2, DLOCK_CHECK, &request);

	dlock_lock_execute(&request, &result);
	return answer_text(result.answer);
}

void
dlock_funcs_fence(const char *key, int keylen, int64 version)
{
	DlockRequest request = {0};
	DlockResult result;
	char	   *shown;

	request.claim.op = DLOCK_FENCE;
	request.claim.role = GetUserId();
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
	dlock_funcs_fence(request.key, request.keylen, PG_GETARG_INT64(1));
	PG_RETURN_VOID();
}

/*
 * The administrator's way round the holder.  The one event that is sent by
 * the caller's own transaction: it is rare, and must not be sent if that
 * rolls back.
 */
static void
notify_forced(const char *key, int64 version, const char *role, const char *reason)
{
	StringInfoData event;

	initStringInfo(&event);
	appendStringInfoString(&event, "{\"event\": \"forced\", \"key\": ");
	escape_json(&event, key);
	appendStringInfo(&event, ", \"version\": " INT64_FORMAT ", \"by\": ", version);
	escape_json(&event, role);

	/* an escaped key and reason may be too much for a notification */
	if (event.len + 6 * strlen(reason) < 7900)
	{
		appendStringInfoString(&event, ", \"reason\": ");
		escape_json(&event, reason);
	}
	appendStringInfoChar(&event, '}');
	Async_Notify(CHANNEL, event.data);
}

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
	request.claim.role = GetUserId();

	dlock_lock_execute(&request, &result);
	if (result.answer != DLOCK_IS_RELEASED)
		PG_RETURN_NULL();

	key = pnstrdup(request.key, request.keylen);
	role = GetUserNameFromId(GetUserId(), false);
	ereport(LOG,
			(errmsg("lock \"%s\" with version %lld was forcibly released by role \"%s\"",
					key, (long long) result.version, role),
			 errdetail("Reason: %s", reason)));
	notify_forced(key, result.version, role, reason);
	PG_RETURN_INT64(result.version);
}
