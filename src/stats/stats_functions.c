/*-------------------------------------------------------------------------
 *
 * stats_functions.c
 *	  The functions behind the views dlock_stats, dlock_wait_times and
 *	  dlock_contended, and dlock_stats_reset().
 *
 * They read shared memory only, so they work on a standby and in a read-only
 * transaction, too.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "compat.h"
#include "functions/listing.h"
#include "queue/queue.h"
#include "shmem.h"
#include "stats/stats.h"

PG_FUNCTION_INFO_V1(dlock_stats_shown);
PG_FUNCTION_INFO_V1(dlock_wait_times_shown);
PG_FUNCTION_INFO_V1(dlock_contended_shown);
PG_FUNCTION_INFO_V1(dlock_stats_reset);

/* the counts, yield_max, waiting and stats_reset */
#define STATS_COLUMNS		(DLOCK_NSTATS + 3)
#define WAIT_TIME_COLUMNS	2
#define CONTENDED_COLUMNS	5

static ReturnSetInfo *
begin_rows(FunctionCallInfo fcinfo, const char *what, int columns)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	dlock_shmem_require();
	PreventCommandIfParallelMode(what);
	InitMaterializedSRF(fcinfo, 0);
	dlock_listing_check_columns(rsinfo, columns);
	return rsinfo;
}

Datum
dlock_stats_shown(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = begin_rows(fcinfo, "dlock_stats", STATS_COLUMNS);
	DlockStats	stats;
	Datum		values[STATS_COLUMNS];
	bool		isnull[STATS_COLUMNS] = {false};
	int			n = 0;

	dlock_stats_read(&stats);
	for (int i = 0; i < DLOCK_NSTATS; i++)
	{
		if (i == DLOCK_STAT_WAIT_TIME || i == DLOCK_STAT_YIELD_TIME)
			values[n++] = dlock_listing_interval(stats.counts[i]);
		else
			values[n++] = Int64GetDatum(stats.counts[i]);
		if (i == DLOCK_STAT_YIELD_TIME)
			values[n++] = dlock_listing_interval(stats.yield_max);
	}
	values[n++] = Int64GetDatum(dlock_queue_count());
	values[n++] = TimestampTzGetDatum(stats.reset_at);
	Assert(n == STATS_COLUMNS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}

Datum
dlock_wait_times_shown(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = begin_rows(fcinfo, "dlock_wait_times", WAIT_TIME_COLUMNS);
	DlockStats	stats;

	dlock_stats_read(&stats);
	for (int i = 0; i < DLOCK_WAIT_BUCKETS; i++)
	{
		int64		upper = dlock_stats_bucket_upper(i);
		Datum		values[WAIT_TIME_COLUMNS] = {0};
		bool		isnull[WAIT_TIME_COLUMNS] = {false};

		if (upper == DLOCK_NEVER)
			isnull[0] = true;
		else
			values[0] = dlock_listing_interval(upper);
		values[1] = Int64GetDatum(stats.waits[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	return (Datum) 0;
}

Datum
dlock_contended_shown(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = begin_rows(fcinfo, "dlock_contended", CONTENDED_COLUMNS);
	int			n;
	DlockContended *list = dlock_contended_keys_list(&n);

	for (int i = 0; i < n; i++)
	{
		Datum		values[CONTENDED_COLUMNS];
		bool		isnull[CONTENDED_COLUMNS] = {false};

		values[0] = PointerGetDatum(cstring_to_text_with_len(list[i].key, list[i].keylen));
		values[1] = Int64GetDatum(list[i].busy);
		values[2] = Int64GetDatum(list[i].waits);
		values[3] = dlock_listing_interval(list[i].wait_time);
		values[4] = Int64GetDatum(list[i].lost);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	pfree(list);
	return (Datum) 0;
}

Datum
dlock_stats_reset(PG_FUNCTION_ARGS)
{
	dlock_shmem_require();
	dlock_stats_reset_all();
	PG_RETURN_VOID();
}
