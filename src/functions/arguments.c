/*-------------------------------------------------------------------------
 *
 * arguments.c
 *	  Reading and checking the arguments of the SQL functions.
 *
 * Everything that a caller can get wrong is found here, before anything is
 * looked up, with an error that names the argument and its limit.
 *
 * A function may have been created by the script of an older version, and then
 * has fewer arguments than this library knows.  Those that are missing have
 * their defaults, so that a database that has not been updated yet
 * continues to work.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "functions/arguments.h"
#include "guc.h"
#include "lock/grant.h"
#include "rows/places.h"
#include "rules/key.h"
#include "shmem.h"

#define MAX_SLOTS		10000

/* of a wait, a cleanup or a timeout; NULL waits for longer */
#define MAX_SPAN_DAYS	36500
#define MAX_SPAN_US		(MAX_SPAN_DAYS * USECS_PER_DAY)

/*
 * Which server this is
 */

/* For functions that write nothing, but that a standby cannot answer. */
void
dlock_arguments_require_primary(const char *what)
{
	dlock_shmem_require();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s on a standby", what),
				 errhint("Connect to the primary, for instance with target_session_attrs=read-write.")));
	PreventCommandIfParallelMode(what);
}

/* For functions that write. */
void
dlock_arguments_prevent_read_only(const char *what)
{
	dlock_arguments_require_primary(what);
	PreventCommandIfReadOnly(what);

	/* pg_upgrade has noted the next transaction id of this server */
	if (IsBinaryUpgrade)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot execute %s during a binary upgrade", what)));
}

/*
 * Single arguments
 */

static bool
is_known(FunctionCallInfo fcinfo, int argno)
{
	return argno < PG_NARGS();
}

static bool
is_given(FunctionCallInfo fcinfo, int argno)
{
	return is_known(fcinfo, argno) && !PG_ARGISNULL(argno);
}

void
dlock_arguments_null(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", name)));
}

static void
check_length(const char *name, int len, int limit)
{
	if (len > limit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", name),
				 errdetail("It has %d bytes; the limit is %d.", len, limit)));
}

void
dlock_arguments_check_key(const char *key, int keylen)
{
	if (keylen == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("key must not be empty")));
	check_length("key", keylen, DLOCK_MAX_KEY);
}

char *
dlock_arguments_text(FunctionCallInfo fcinfo, int argno, const char *name, int limit)
{
	text	   *arg;

	if (!is_given(fcinfo, argno))
		return NULL;
	arg = PG_GETARG_TEXT_PP(argno);
	check_length(name, VARSIZE_ANY_EXHDR(arg), limit);
	return text_to_cstring(arg);
}

void
dlock_arguments_key(FunctionCallInfo fcinfo, DlockRequest *request)
{
	text	   *key;

	if (PG_ARGISNULL(0))
		dlock_arguments_null("key");
	key = PG_GETARG_TEXT_PP(0);
	dlock_arguments_check_key(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	dlock_key_set(&request->key, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
}

/* Microseconds of an interval, in which a day has 24 hours. */
static int64
interval_us(const Interval *span, const char *name)
{
	int64		us;

	if (!DLOCK_INTERVAL_IS_FINITE(span))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be finite", name)));
	if (span->month != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not contain months or years", name),
				 errdetail("Their length varies. Use days or smaller units.")));
	if (pg_mul_s64_overflow(span->day, USECS_PER_DAY, &us) ||
		pg_add_s64_overflow(us, span->time, &us))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", name)));
	return us;
}

/*
 * How many may hold the key: 1 (exclusive), N (one of N places), or any number
 * (shared).  The owner is known.
 */
static void
set_slots(DlockRequest *request, NullableDatum slots, NullableDatum shared)
{
	int32		n = DatumGetInt32(slots.value);

	if (shared.isnull)
		dlock_arguments_null("shared");
	if (slots.isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("slots must not be null"),
				 errhint("Pass shared => true for a shared lock.")));
	if (n < 1 || n > MAX_SLOTS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("slots must be between 1 and %d", MAX_SLOTS),
				 errhint("Pass 1 for an exclusive lock, or shared => true for a shared lock.")));
	if (n != 1 && DatumGetBool(shared.value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("shared and slots cannot be combined")));

	request->terms.capacity = DatumGetBool(shared.value) ? DLOCK_SHARED : n;
	if (request->terms.capacity != DLOCK_EXCLUSIVE && request->terms.owner != NULL)
		request->slot = dlock_places_owner_slot(request->terms.role, request->terms.owner);
}

/* A TTL that was given, or 0. */
int64
dlock_arguments_ttl(FunctionCallInfo fcinfo, int argno)
{
	int64		ttl;

	if (!is_given(fcinfo, argno))
		return 0;
	ttl = interval_us(PG_GETARG_INTERVAL_P(argno), "ttl");
	if (ttl <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl must be greater than zero")));
	if (ttl > (int64) dlock_max_ttl * 1000)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl exceeds \"dlock.max_ttl\""),
				 errdetail("\"dlock.max_ttl\" is %s.",
						   GetConfigOptionByName("dlock.max_ttl", NULL, false)),
				 errhint("Use a shorter TTL and renew it with dlock_refresh.")));
	return ttl;
}

static int64
span_us(const Interval *span, const char *name)
{
	int64		us = interval_us(span, name);

	if (us < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", name)));
	if (us > MAX_SPAN_US)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", name),
				 errdetail("The limit is %d days.", MAX_SPAN_DAYS)));
	return us;
}

/* A span of time, zero by default.  An acquire has four, mostly not given. */
static inline int64
get_span(FunctionCallInfo fcinfo, int argno, const char *name)
{
	const Interval *span;

	if (!is_known(fcinfo, argno))
		return 0;
	if (PG_ARGISNULL(argno))
		dlock_arguments_null(name);
	span = PG_GETARG_INTERVAL_P(argno);
	if (span->time == 0 && span->day == 0 && span->month == 0)
		return 0;
	return span_us(span, name);
}

int64
dlock_arguments_span(FunctionCallInfo fcinfo, int argno, const char *name)
{
	return get_span(fcinfo, argno, name);
}

/* A span of time, zero by default, where NULL means without limit. */
int64
dlock_arguments_wait(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (is_known(fcinfo, argno) && PG_ARGISNULL(argno))
		return DLOCK_NEVER;
	return get_span(fcinfo, argno, name);
}

/* An argument as it was given, or its default. */
static NullableDatum
get_datum(FunctionCallInfo fcinfo, int argno, Datum builtin)
{
	NullableDatum arg = {builtin, false};

	if (is_known(fcinfo, argno))
		arg = fcinfo->args[argno];
	return arg;
}

static bool
get_flag(FunctionCallInfo fcinfo, int argno, const char *name, bool builtin)
{
	NullableDatum flag = get_datum(fcinfo, argno, BoolGetDatum(builtin));

	if (flag.isnull)
		dlock_arguments_null(name);
	return DatumGetBool(flag.value);
}

static int32
get_priority(FunctionCallInfo fcinfo, int argno)
{
	int32		priority;

	if (!is_known(fcinfo, argno))
		return 0;
	if (PG_ARGISNULL(argno))
		dlock_arguments_null("priority");
	priority = PG_GETARG_INT32(argno);
	if (priority < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("priority must not be negative")));
	return priority;
}

/*
 * Several arguments
 */

/* Which grant is meant: by version, by owner, or both.  request->op is set. */
void
dlock_arguments_claim(FunctionCallInfo fcinfo, int version_arg, int owner_arg,
					  DlockRequest *request)
{
	request->terms.role = GetUserId();
	if (version_arg != DLOCK_NO_ARG && is_given(fcinfo, version_arg))
	{
		request->by_version = true;
		request->version = PG_GETARG_INT64(version_arg);
	}
	if (owner_arg != DLOCK_NO_ARG)
		request->terms.owner = dlock_arguments_text(fcinfo, owner_arg, "owner", DLOCK_MAX_OWNER);

	/* all callers that forget to choose a name would share this one */
	if (request->terms.owner != NULL && request->terms.owner[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("owner must not be empty"),
				 errhint("Pass NULL for no owner, or a name that is unique to this request.")));
	if (request->op != DLOCK_ACQUIRE && !request->by_version &&
		request->terms.owner == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("neither version nor owner is given"),
				 errhint("Pass the version that dlock_acquire returned, or the owner that was passed to it.")));
}

/* The key would stay busy without a holder for longer than any TTL. */
static void
check_max_ttl(int64 span, const char *name)
{
	if (span > (int64) dlock_max_ttl * 1000)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s exceeds \"dlock.max_ttl\"", name),
				 errdetail("\"dlock.max_ttl\" is %s.",
						   GetConfigOptionByName("dlock.max_ttl", NULL, false))));
}

/* How the grant ends: three arguments, from the given one on. */
static void
get_ending(FunctionCallInfo fcinfo, int first, DlockRequest *request)
{
	request->terms.at_least = get_span(fcinfo, first, "at_least");
	request->terms.delay = get_span(fcinfo, first + 1, "delay");
	request->terms.lazy = get_flag(fcinfo, first + 2, "lazy", false);
	dlock_grant_check_at_least(request->terms.at_least, request->terms.ttl);
	check_max_ttl(request->terms.delay, "delay");
	if (request->terms.lazy && request->terms.delay > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lazy and delay cannot be combined"),
				 errdetail("A lazy lock goes to the next one who wants it, without a delay.")));
}

/* What every acquire needs besides its key. */
static void
get_terms(FunctionCallInfo fcinfo, int max_value, DlockRequest *request)
{
	request->op = DLOCK_ACQUIRE;
	request->terms.ttl = dlock_arguments_ttl(fcinfo, 1);
	if (request->terms.ttl == 0)
		request->terms.ttl = (int64) Min(dlock_default_ttl, dlock_max_ttl) * 1000;
	dlock_arguments_claim(fcinfo, DLOCK_NO_ARG, 2, request);
	request->terms.value = dlock_arguments_text(fcinfo, 3, "value", max_value);
	request->terms.wait = dlock_arguments_wait(fcinfo, 4, "wait");
	request->terms.priority = get_priority(fcinfo, 5);
}

/*
 * What dlock_acquire, dlock_lock and dlock_enqueue have in common: from the key to
 * "force", and from "slots", which is the given argument, to "again".
 */
static void
get_request(FunctionCallInfo fcinfo, int max_value, int slots_arg, DlockRequest *request)
{
	dlock_arguments_key(fcinfo, request);
	get_terms(fcinfo, max_value, request);
	request->terms.cleanup = get_span(fcinfo, 6, "cleanup");
	request->terms.force = get_flag(fcinfo, 7, "force", false);
	set_slots(request, get_datum(fcinfo, slots_arg, Int32GetDatum(1)),
			  get_datum(fcinfo, slots_arg + 4, BoolGetDatum(false)));
	get_ending(fcinfo, slots_arg + 1, request);
	request->terms.anew = !get_flag(fcinfo, slots_arg + 5, "again", true);
}

/* The arguments of dlock_acquire and dlock_lock. */
void
dlock_arguments_acquire(FunctionCallInfo fcinfo, DlockRequest *request)
{
	get_request(fcinfo, DLOCK_MAX_VALUE, 9, request);
	request->session = get_flag(fcinfo, 8, "session", false);
}

/* Those of dlock_limit: the terms of a place that cools for "per". */
void
dlock_arguments_limit(FunctionCallInfo fcinfo, DlockRequest *request)
{
	int32		n;

	dlock_arguments_key(fcinfo, request);
	request->op = DLOCK_ACQUIRE;
	request->terms.spent = true;
	request->terms.role = GetUserId();
	if (PG_ARGISNULL(1))
		dlock_arguments_null("n");
	n = PG_GETARG_INT32(1);
	if (n < 1 || n > MAX_SLOTS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("n must be between 1 and %d", MAX_SLOTS)));
	request->terms.capacity = n;
	request->terms.ttl = get_span(fcinfo, 2, "per");
	if (request->terms.ttl == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("per must be greater than zero")));
	check_max_ttl(request->terms.ttl, "per");
	request->terms.wait = dlock_arguments_wait(fcinfo, 3, "wait");
	request->terms.priority = get_priority(fcinfo, 4);
}

/* Those of dlock_enqueue: a ticket has an owner, a short value, and no session. */
void
dlock_arguments_enqueue(FunctionCallInfo fcinfo, DlockRequest *request)
{
	get_request(fcinfo, DLOCK_MAX_TICKET_VALUE, 8, request);
	if (request->terms.owner == NULL)
		dlock_arguments_null("owner");
}

/* An array that has an element for each of the keys, or NULL if it is not given. */
static NullableDatum *
get_array(FunctionCallInfo fcinfo, int argno, const char *name, Oid type, int size,
		  int nkeys)
{
	NullableDatum *elements;
	Datum	   *values;
	bool	   *isnull;
	int			n;

	if (!is_given(fcinfo, argno))
		return NULL;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argno), type, size, true,
					  size == sizeof(bool) ? TYPALIGN_CHAR : TYPALIGN_INT,
					  &values, &isnull, &n);
	if (n != nkeys)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must have as many elements as keys", name),
				 errdetail("It has %d, and keys has %d.", n, nkeys)));
	elements = palloc(n * sizeof(NullableDatum));
	for (int i = 0; i < n; i++)
		elements[i] = (NullableDatum)
	{
		values[i], isnull[i]
	};
	return elements;
}

/*
 * The arguments of dlock_acquire_all: a request for each key, in the order of
 * the caller.
 */
DlockRequest *
dlock_arguments_acquire_all(FunctionCallInfo fcinfo, int *nkeys)
{
	DlockRequest each = {0};
	DlockRequest *requests;
	const NullableDatum one = {Int32GetDatum(1), false};
	const NullableDatum no = {BoolGetDatum(false), false};
	NullableDatum *slots;
	NullableDatum *shared;
	Datum	   *keys;
	bool	   *isnull;

	if (PG_ARGISNULL(0))
		dlock_arguments_null("keys");
	get_terms(fcinfo, DLOCK_MAX_VALUE, &each);
	each.session = get_flag(fcinfo, 6, "session", false);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &keys, &isnull, nkeys);
	if (*nkeys == 0 || *nkeys > DLOCK_MAX_KEYS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("keys must have between 1 and %d elements", DLOCK_MAX_KEYS),
				 errdetail("It has %d.", *nkeys)));
	slots = get_array(fcinfo, 7, "slots", INT4OID, sizeof(int32), *nkeys);
	shared = get_array(fcinfo, 8, "shared", BOOLOID, sizeof(bool), *nkeys);

	requests = palloc(*nkeys * sizeof(DlockRequest));
	for (int i = 0; i < *nkeys; i++)
	{
		text	   *key;

		requests[i] = each;
		if (isnull[i])
			dlock_arguments_null("key");
		key = DatumGetTextPP(keys[i]);
		dlock_arguments_check_key(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
		dlock_key_set(&requests[i].key, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
		set_slots(&requests[i], slots != NULL ? slots[i] : one,
				  shared != NULL ? shared[i] : no);
	}
	return requests;
}
