/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The function behind the view dlock_waiters.
 *
 * Any role can see that a process waits, and for which key.  Only members of its
 * role see the owner.
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
#include "shmem.h"
#include "shown.h"
#include "state.h"
#include "wait.h"

PG_FUNCTION_INFO_V1(dlock_waiters_shown);

#define WAITER_COLUMNS	9

/* How many waiters of the same key come before this one. */
static int
count_before(const DlockWaiter *waiters, int i)
{
	int			n = 0;

	/* copied bucket by bucket, each in the order of its queue */
	for (int j = 0; j < i; j++)
		if (waiters[j].kind == DLOCK_WAIT_TURN &&
			waiters[j].dboid == waiters[i].dboid &&
			waiters[j].hash == waiters[i].hash &&
			strcmp(waiters[j].key, waiters[i].key) == 0)
			n++;
	return n;
}

Datum
dlock_waiters_shown(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockWaiter *waiters;
	int			nwaiters;
	bool		sees_all = dlock_shown_sees_all();

	dlock_shmem_require();
	PreventCommandIfParallelMode("dlock_waiters");
	InitMaterializedSRF(fcinfo, 0);

	dlock_shown_check_columns(rsinfo, WAITER_COLUMNS);
	waiters = dlock_wait_copy_all(&nwaiters);
	for (int i = 0; i < nwaiters; i++)
	{
		DlockWaiter *waiter = &waiters[i];
		bool		in_line = waiter->kind == DLOCK_WAIT_TURN;
		Datum		values[WAITER_COLUMNS];
		bool		isnull[WAITER_COLUMNS] = {false};

		if (waiter->dboid != MyDatabaseId)
			continue;

		values[0] = CStringGetTextDatum(waiter->key);
		values[1] = Int32GetDatum(waiter->pid);
		values[2] = ObjectIdGetDatum(waiter->role);
		isnull[3] = !waiter->has_owner || !dlock_shown_may_see(sees_all, waiter->role);
		values[3] = isnull[3] ? (Datum) 0 : CStringGetTextDatum(waiter->owner);
		isnull[4] = !in_line;
		values[4] = Int32GetDatum(waiter->priority);
		values[5] = dlock_shown_slots(in_line ? waiter->slots : DLOCK_SHARED, &isnull[5]);
		isnull[6] = !in_line;
		values[6] = Int32GetDatum(in_line ? count_before(waiters, i) + 1 : 0);
		values[7] = TimestampTzGetDatum(dlock_clock_to_wall(waiter->since));
		isnull[8] = waiter->until == DLOCK_NEVER;
		values[8] = isnull[8] ? (Datum) 0 :
			TimestampTzGetDatum(dlock_clock_to_wall(waiter->until));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	pfree(waiters);
	return (Datum) 0;
}
