/*-------------------------------------------------------------------------
 *
 * session_end.c
 *	  Releasing the grants that end with this connection.
 *
 * They are released when the backend exits for any reason: the client
 * disconnects or vanishes, or the backend is terminated.  DISCARD ALL releases
 * them, too, as it does session-level advisory locks, because a pooler runs it
 * before it gives the connection to another client.  dlock_release_session()
 * does the same on request.
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
 * Release those of the given role, or of all roles if that is InvalidOid, and
 * return how many there were.  A backend that exits cannot wait for another
 * transaction that is using a row, such as a fence.  It does not need to, because
 * the grant is not live without its process.  A backend that continues has to
 * wait.  If they are lost, because the client is gone, a grant with a delay
 * keeps others out for that long.
 */
int
dlock_session_end_release(Oid role, bool is_lost, bool wait)
{
	int			ngrants;
	int			released = 0;
	DlockSessionGrant *grants = dlock_session_list(&ngrants);

	PushActiveSnapshot(GetTransactionSnapshot());
	for (int i = 0; i < ngrants; i++)
	{
		DlockRequest request = {.op = DLOCK_RELEASE};
		DlockResult result;

		if (OidIsValid(role) && role != grants[i].role)
			continue;
		request.role = grants[i].role;
		request.by_version = true;
		request.version = grants[i].version;
		request.pid = MyProcPid;
		request.is_lost = is_lost;
		request.key = grants[i].key;
		request.keylen = grants[i].keylen;
		request.skip_used = !wait;
		dlock_lock_execute(&request, &result);
		if (result.answer == DLOCK_IS_RELEASED)
			released++;

		/* what is not ours any more need not be remembered */
		dlock_session_released(grants[i].version);
	}
	PopActiveSnapshot();
	return released;
}

/*
 * As RemoveTempRelationsCallback() does for temporary tables.  A backend that
 * exits can be neither cancelled nor terminated, so it must not wait: not for a
 * lock on the table or its indexes, and not for a safe snapshot, which a
 * transaction that is SERIALIZABLE, READ ONLY and DEFERRABLE would do.  If it
 * gives up, the grants end with the process all the same.
 */
static void
release_at_exit(int code, Datum arg)
{
	if (!dlock_session_any())
		return;

	AbortOutOfAnyTransaction();
	DefaultXactIsoLevel = XACT_READ_COMMITTED;
	DefaultXactReadOnly = false;
	DefaultXactDeferrable = false;
	StartTransactionCommand();
	if (dlock_store_lock_if_free())
		(void) dlock_session_end_release(InvalidOid, true, false);
	CommitTransactionCommand();
}

/* The extension may have been dropped, and the grants with it. */
static void
release_at_discard(void)
{
	DlockStore	store;

	if (!dlock_session_any())
		return;
	if (dlock_store_open(&store, true, true))
	{
		dlock_store_close(&store, true);
		(void) dlock_session_end_release(InvalidOid, true, true);
	}
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
		release_at_discard();
}

void
dlock_session_end_init(void)
{
	dlock_session_init(release_at_exit);
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
}
