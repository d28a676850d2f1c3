/*-------------------------------------------------------------------------
 *
 * session_end.c
 *	  Releasing the grants that end with this connection.
 *
 * They are released when the backend exits, however it does: the client says
 * goodbye or vanishes, or the backend is terminated.  They are also released
 * by DISCARD ALL, as session-level advisory locks are: a pooler runs it before
 * it gives the connection to another client.  dlock_release_session() does the
 * same by hand.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/snapmgr.h"

#include "lock.h"
#include "session.h"
#include "session_end.h"
#include "store.h"

static ProcessUtility_hook_type prev_ProcessUtility = NULL;

/*
 * Release all, and return how many that were.  A backend that exits cannot
 * wait for another transaction that is using a row (a fence, say), and need
 * not: without its process the grant counts for nothing.  One that stays has
 * to wait.
 */
int
dlock_session_end_release(bool wait)
{
	int			ngrants;
	int			released = 0;
	DlockSessionGrant *grants = dlock_session_list(&ngrants);
	DlockStore	store;

	if (ngrants == 0)
		return 0;

	PushActiveSnapshot(GetTransactionSnapshot());

	/* the extension may have been dropped; then so were the grants */
	if (dlock_store_open(&store, true, true))
	{
		dlock_store_close(&store, true);
		for (int i = 0; i < ngrants; i++)
		{
			DlockRequest request = {0};
			DlockResult result;

			request.claim.op = DLOCK_RELEASE;
			request.claim.role = grants[i].role;
			request.claim.pid = MyProcPid;
			request.key = grants[i].key;
			request.keylen = grants[i].keylen;
			request.skip_used = !wait;
			dlock_lock_execute(&request, &result);
			if (result.answer == DLOCK_IS_RELEASED)
				released++;
		}
	}
	PopActiveSnapshot();
	return released;
}

/* As RemoveTempRelationsCallback() does for temporary tables. */
static void
release_at_exit(int code, Datum arg)
{
	if (!dlock_session_any())
		return;

	AbortOutOfAnyTransaction();
	StartTransactionCommand();
	(void) dlock_session_end_release(false);
	CommitTransactionCommand();
}

static void
process_utility(PlannedStmt *statement, const char *text, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *environment, DestReceiver *dest,
				QueryCompletion *completion)
{
	bool		discards = IsA(statement->utilityStmt, DiscardStmt) &&
	((DiscardStmt *) statement->utilityStmt)->target == DISCARD_ALL;

	if (prev_ProcessUtility)
		prev_ProcessUtility(statement, text, readOnlyTree, context, params,
							environment, dest, completion);
	else
		standard_ProcessUtility(statement, text, readOnlyTree, context, params,
								environment, dest, completion);
	if (discards)
		(void) dlock_session_end_release(true);
}

void
dlock_session_end_init(void)
{
	dlock_session_init(release_at_exit);
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
