/*-------------------------------------------------------------------------
 *
 * router.c
 *	  What the router cannot do in SQL: the shard of a key, and refusing what
 *	  does not work through it.
 *
 * PL/Proxy sends each call to the cluster that serves the shard of the key.  The
 * number that RUN ON gets is the shard, computed here; the foreign server
 * "dlock_router" has a partition for each shard.
 *
 * The cluster commits each call by itself.  A transaction of the caller does not
 * contain it, and a rollback does not undo it.  Somebody who takes a lock or
 * releases it in a transaction expects otherwise, so that is an error: in a
 * transaction block, in a subtransaction, after the transaction has written, and
 * at commit if it wrote afterwards.  That last one comes too late for the lock,
 * but not for what was written.  dlock_router.autocommit_ok turns this off.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "shard/shard_of.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(dlock_router_shard);
PG_FUNCTION_INFO_V1(dlock_router_to_read);
PG_FUNCTION_INFO_V1(dlock_router_to_write);
PG_FUNCTION_INFO_V1(dlock_router_to_write_all);
PG_FUNCTION_INFO_V1(dlock_router_to_ticket);
PG_FUNCTION_INFO_V1(dlock_router_refuse_fence);
PG_FUNCTION_INFO_V1(dlock_router_refuse_admin);

void		_PG_init(void);

/* the foreign server; dlock_router.apply() sets its version and its options */
#define SERVER	"dlock_router"

static bool autocommit_ok = false;

/* Has a call of this transaction changed a lock? */
static bool has_called = false;

/*
 * What must hold before a call
 */

/* Without clusters, the server has no version. */
static void
require_clusters(void)
{
	HeapTuple	tuple = SearchSysCache1(FOREIGNSERVERNAME, CStringGetDatum(SERVER));
	bool		isnull = true;

	if (HeapTupleIsValid(tuple))
	{
		(void) SysCacheGetAttr(FOREIGNSERVERNAME, tuple,
							   Anum_pg_foreign_server_srvversion, &isnull);
		ReleaseSysCache(tuple);
	}
	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the router has no clusters"),
				 errhint("Insert the clusters and their shards into table \"dlock_router.clusters\".")));
}

static void
refuse_transaction(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("a lock cannot be changed through a router as a part of a transaction"),
			 errdetail("The cluster commits the change by itself, and a rollback does not undo it."),
			 errhint("Call the function in a statement of its own, outside of a transaction block. If that does not matter, SET dlock_router.autocommit_ok = on.")));
}

static void
require_no_transaction(void)
{
	PreventCommandIfReadOnly("changing a lock");
	if (autocommit_ok)
		return;
	if (IsTransactionBlock() || IsSubTransaction() ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		refuse_transaction();
	has_called = true;
}

static void
refuse_session(bool session)
{
	if (session)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("session locks are not available through a router"),
				 errdetail("The cluster does not see when your connection ends."),
				 errhint("Connect to the cluster, or use a short TTL and renew it.")));
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (has_called && TransactionIdIsValid(GetTopTransactionIdIfAny()))
				refuse_transaction();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			has_called = false;
			break;
		default:
			break;
	}
}

void
_PG_init(void)
{
	DefineCustomBoolVariable("dlock_router.autocommit_ok",
							 "Allows calls that change a lock as a part of a transaction, although a rollback does not undo them.",
							 NULL, &autocommit_ok, false, PGC_USERSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("dlock_router");
	RegisterXactCallback(xact_callback, NULL);
}

/*
 * Where to send a call.  A cluster rejects an invalid key with the right error,
 * and any of them will do.
 */

static int
shard_of(text *key)
{
	return dlock_shard_of(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
}

Datum
dlock_router_shard(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(shard_of(PG_GETARG_TEXT_PP(0)));
}

Datum
dlock_router_to_read(PG_FUNCTION_ARGS)
{
	require_clusters();
	PG_RETURN_INT32(PG_ARGISNULL(0) ? 0 : shard_of(PG_GETARG_TEXT_PP(0)));
}

/* key, session */
Datum
dlock_router_to_write(PG_FUNCTION_ARGS)
{
	require_clusters();
	refuse_session(!PG_ARGISNULL(1) && PG_GETARG_BOOL(1));
	require_no_transaction();
	PG_RETURN_INT32(PG_ARGISNULL(0) ? 0 : shard_of(PG_GETARG_TEXT_PP(0)));
}

/*
 * keys, session.  All keys must have the same shard, not only the same cluster:
 * otherwise a call would stop working when a shard moves.
 */
Datum
dlock_router_to_write_all(PG_FUNCTION_ARGS)
{
	int			shard = -1;

	require_clusters();
	refuse_session(!PG_ARGISNULL(1) && PG_GETARG_BOOL(1));
	if (!PG_ARGISNULL(0))
	{
		Datum	   *keys;
		bool	   *nulls;
		int			n;

		deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
						  &keys, &nulls, &n);
		for (int i = 0; i < n; i++)
		{
			int			of_key;

			CHECK_FOR_INTERRUPTS();
			if (nulls[i])
				continue;
			of_key = shard_of(DatumGetTextPP(keys[i]));
			if (shard >= 0 && of_key != shard)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("keys of several shards cannot be acquired at once"),
						 errdetail("Among the keys are some of shard %d and of shard %d.",
								   shard, of_key),
						 errhint("Acquire them one by one, always in the same order.")));
			shard = of_key;
		}
	}
	require_no_transaction();
	PG_RETURN_INT32(Max(shard, 0));
}

/*
 * A ticket of the router is that of the cluster, followed by the shard in the
 * last ten bits.
 */
Datum
dlock_router_to_ticket(PG_FUNCTION_ARGS)
{
	require_clusters();
	if (PG_GETARG_BOOL(1))
		require_no_transaction();
	PG_RETURN_INT32(PG_ARGISNULL(0) ? 0 : (int) (PG_GETARG_INT64(0) & (DLOCK_SHARDS - 1)));
}

/*
 * What does not work at all
 */

static void
refuse(FunctionCallInfo fcinfo, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s() is not available through a router",
					get_func_name(fcinfo->flinfo->fn_oid)),
			 errhint("%s", hint)));
}

Datum
dlock_router_refuse_fence(PG_FUNCTION_ARGS)
{
	refuse(fcinfo, "A fence protects data that is in the same database as the lock. Call it there.");
	PG_RETURN_NULL();
}

Datum
dlock_router_refuse_admin(PG_FUNCTION_ARGS)
{
	refuse(fcinfo, "Call it on each cluster.");
	PG_RETURN_NULL();
}
