/*-------------------------------------------------------------------------
 *
 * connection_fence.c
 *	  The fence of a whole connection: dlock.fence and dlock.require_fence.
 *
 * With dlock.fence = '17:leader', every transaction of the session that has written
 * something is judged when it commits.  If the current role does not hold that grant
 * then, the commit is an error.  If it does, the row of the grant is locked as
 * dlock_fence() locks it, so nobody can take the lock until the commit is visible.
 * That is as good as a fence before the first write: a version that has ended never
 * becomes valid again, so a grant that is held now was held all the time since it was
 * acquired, and nobody sees what was written before it is judged.
 *
 * dlock.require_fence, which an ordinary user cannot change, is a prefix: a
 * transaction that has written commits only under a fence on such a key.
 *
 * What counts as a write is in dlock_xact_wrote_other(): whatever gives a transaction
 * an id, except lock operations.  Without that exception a session that has lost its
 * lock could not acquire it again.
 *
 * PRE_COMMIT comes after deferred triggers.  Callbacks run in the reverse order of
 * their registration, and some write: so ours is registered when the library is
 * loaded, before all that are registered in the session or by libraries that are
 * loaded later.
 *
 * These are never judged:
 *
 * - a parallel worker, whose transaction is its leader's; it has events of its own
 * - autovacuum, and the workers of dlock (worker.c) and of logical replication: the
 *	 settings of a role or database are not meant for them, and they would repeat what
 *	 was refused for ever.  A background worker of another extension runs what a user
 *	 has asked for, and is judged
 * - VACUUM, which changes no data.  It may have an id, because it has truncated the
 *	 table; but then its snapshot does not keep the rows that we would read.  So what
 *	 functions in an index have written meanwhile is refused
 * - a backend that exits: it drops its temporary tables, and nothing is left to tell
 *	 anybody
 * - pg_upgrade, which has noted the next transaction id
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/snapmgr.h"

#include "errors.h"
#include "fence/connection_fence.h"
#include "fence/fence_trigger.h"
#include "guc.h"
#include "lock/xact.h"
#include "shmem.h"
#include "stats/stats.h"

static bool
is_exempt(void)
{
	return proc_exit_inprogress || IsBinaryUpgrade ||
		MyBackendType == B_AUTOVAC_WORKER || IsLogicalWorker();
}

/* VACUUM itself writes without commands. */
static void
check_vacuum(void)
{
	CommandCounterIncrement();
	if (GetCurrentCommandId(false) != FirstCommandId)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot write in VACUUM under a fence of the connection"),
				 errdetail("A function in an index of the table has written something."),
				 errhint("Run VACUUM in a session without a fence.")));
}

/* The key of dlock.fence, or NULL if that is not set. */
static const char *
fenced_key(void)
{
	const char *colon = strchr(dlock_connection_fence, ':');

	return colon != NULL ? colon + 1 : NULL;
}

static void
check_required(const char *key)
{
	if (key != NULL && strncmp(key, dlock_require_fence, strlen(dlock_require_fence)) == 0)
		return;

	dlock_stats_count(DLOCK_STAT_FENCE_REJECTED);
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_FENCED),
			 errmsg("writes are committed only under a fence on a lock whose key begins with \"%s\"",
					dlock_require_fence),
			 key == NULL ? errdetail("Setting dlock.fence is empty.") :
			 errdetail("The fence is on lock \"%s\".", key),
			 errhint("Acquire such a lock, and in the transaction that writes run "
					 "SET LOCAL dlock.fence = '<version>:<key>'.")));
}

/* A statement that calls nothing of dlock may get an error, or wait for the row. */
static void
add_context(void *arg)
{
	errcontext("fence of the connection, judged at COMMIT: dlock.fence = '%s'",
			   dlock_connection_fence);
}

static void
judge(void)
{
	ErrorContextCallback context;
	const char *data = fenced_key();
	DlockKey	key;

	if (MyProc->statusFlags & PROC_IN_VACUUM)
	{
		check_vacuum();
		return;
	}
	dlock_shmem_require();
	context.callback = add_context;
	context.arg = NULL;
	context.previous = error_context_stack;
	error_context_stack = &context;

	check_required(data);
	if (data != NULL)
	{
		dlock_key_set(&key, data, strlen(data));
		PushActiveSnapshot(GetTransactionSnapshot());
		dlock_fence_require(&key, strtoi64(dlock_connection_fence, NULL, 10), GetUserId(), false,
							_("Acquire the lock again, set dlock.fence to the new version, and repeat "
							  "the transaction. Where connections are pooled, use SET LOCAL, so that "
							  "the setting does not reach another client."));
		PopActiveSnapshot();
	}
	error_context_stack = context.previous;
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (*dlock_connection_fence == '\0' && *dlock_require_fence == '\0')
		return;
	if (event == XACT_EVENT_PRE_COMMIT && dlock_xact_wrote_other() && !is_exempt())
		judge();
	if (event == XACT_EVENT_PRE_PREPARE && !is_exempt())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction under a fence of the connection"),
				 errdetail("A fence does not last until COMMIT PREPARED."),
				 errhint("End the transaction with COMMIT, or reset dlock.fence and dlock.require_fence.")));
}

/* At load time, before anything else of dlock that runs at the end of a transaction. */
void
dlock_connection_fence_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
}
