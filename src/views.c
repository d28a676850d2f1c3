/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The function behind the view dlock_waiters.
 *
 * Any role can see that a process or a ticket waits, and for which key.  Only
 * members of its role see the owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "compat.h"
#include "queue.h"
#include "shmem.h"
#include "shown.h"
#include "state.h"

PG_FUNCTION_INFO_V1(dlock_waiters_shown);

#define WAITER_COLUMNS	10

/* The last position of a key so far. */
typedef struct Line
{
	uint64		hash;			/* of key and database */
	int			n;
} Line;

static HTAB *
make_lines(void)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64),.entrysize = sizeof(Line)};

	ctl.hcxt = CurrentMemoryContext;
	return hash_create("dlock lines", 128, &ctl,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* The waiters are in the order of their queue, so that this counts them. */
static int
next_position(HTAB *lines, const DlockWaiter *waiter)
{
	bool		found;
	Line	   *line = hash_search(lines, &waiter->hash, HASH_ENTER, &found);

	if (!found)
		line->n = 0;
	return ++line->n;
}

Datum
dlock_waiters_shown(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockWaiter *waiters;
	HTAB	   *lines = make_lines();
	int			nwaiters;
	bool		sees_all = dlock_shown_sees_all();

	dlock_shmem_require();
	PreventCommandIfParallelMode("dlock_waiters");
	InitMaterializedSRF(fcinfo, 0);

	dlock_shown_check_columns(rsinfo, WAITER_COLUMNS);
	waiters = dlock_queue_copy_all(&nwaiters);
	for (int i = 0; i < nwaiters; i++)
	{
		DlockWaiter *waiter = &waiters[i];
		bool		in_line = waiter->kind == DLOCK_WAIT_TURN;
		Datum		values[WAITER_COLUMNS];
		bool		isnull[WAITER_COLUMNS] = {false};

		if (waiter->dboid != MyDatabaseId)
			continue;

		values[0] = CStringGetTextDatum(waiter->key);
		isnull[1] = waiter->pid == 0;
		values[1] = Int32GetDatum(waiter->pid);
		values[2] = ObjectIdGetDatum(waiter->role);
		isnull[3] = waiter->owner == NULL || !dlock_shown_may_see(sees_all, waiter->role);
		values[3] = isnull[3] ? (Datum) 0 : CStringGetTextDatum(waiter->owner);
		isnull[4] = !in_line;
		values[4] = Int32GetDatum(waiter->priority);
		values[5] = dlock_shown_slots(in_line ? waiter->slots : DLOCK_SHARED, &isnull[5]);
		isnull[6] = !in_line;
		values[6] = Int32GetDatum(in_line ? next_position(lines, waiter) : 0);
		values[7] = TimestampTzGetDatum(dlock_clock_to_wall(waiter->since));
		isnull[8] = waiter->until == DLOCK_NEVER;
		values[8] = isnull[8] ? (Datum) 0 :
			TimestampTzGetDatum(dlock_clock_to_wall(waiter->until));
		isnull[9] = waiter->ticket == 0;
		values[9] = Int64GetDatum(waiter->ticket);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	pfree(waiters);
	return (Datum) 0;
}
