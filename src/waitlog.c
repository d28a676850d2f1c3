/*-------------------------------------------------------------------------
 *
 * waitlog.c
 *	  Log messages about long waits, as log_lock_waits asks for them.
 *
 * As for PostgreSQL's own locks, a wait is logged when it has lasted for
 * deadlock_timeout, and again when it ends.  The detail names the holders, with
 * their owners, because a lease has no process.  So the messages go to the
 * server's log only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "role.h"
#include "using.h"
#include "wait.h"
#include "waitlog.h"

static void
append_holder(StringInfo out, const DlockState *state, const DlockRow *row)
{
	int			pid = state->pid;

	if (out->len > 0)
		appendStringInfoString(out, "; ");
	if (!state->exists || !state->held)
	{
		appendStringInfo(out, _("process %d, in an open transaction"),
						 dlock_using_xid(row->pending));
		return;
	}
	appendStringInfo(out, _("version %lld of role \"%s\""),
					 (long long) state->version,
					 dlock_role_name(state->role));
	if (state->owner != NULL)
		appendStringInfo(out, _(", owner \"%s\""), state->owner);
	if (pid == 0)
		pid = dlock_using_xid(row->pending);
	if (pid != 0)
		appendStringInfo(out, _(", process %d"), pid);
}

static void
append_queue(StringInfo out, const DlockKey *key)
{
	DlockWaiter *waiters;
	int			nwaiters;

	waiters = dlock_wait_copy_all(&nwaiters);
	for (int i = 0; i < nwaiters; i++)
		if (waiters[i].kind == DLOCK_WAIT_TURN &&
			waiters[i].dboid == MyDatabaseId && waiters[i].keylen == key->len &&
			memcmp(waiters[i].key, key->data, key->len) == 0)
			appendStringInfo(out, out->len == 0 ? "%d" : ", %d", waiters[i].pid);
	pfree(waiters);
}

/* We are still waiting, for what was found. */
void
dlock_waitlog_still(DlockWaitLog *log, const DlockRows *found, int64 now)
{
	int64		waited = now - log->began;
	StringInfoData holders;
	StringInfoData queue;

	if (log->logged || !log_lock_waits || waited < DeadlockTimeout * INT64CONST(1000))
		return;
	log->logged = true;

	initStringInfo(&holders);
	for (int i = 0; i < found->n; i++)
		append_holder(&holders, &found->states[i], &found->rows[i]);
	if (holders.len == 0)
		appendStringInfoString(&holders, _("none"));
	initStringInfo(&queue);
	append_queue(&queue, log->key);
	ereport(LOG_SERVER_ONLY,
			(errmsg("process %d still waiting for lock \"%s\" after %lld.%03d ms",
					MyProcPid, pnstrdup(log->key->data, log->key->len),
					(long long) (waited / 1000), (int) (waited % 1000)),
			 errdetail("Holder: %s. Wait queue: %s.", holders.data, queue.data)));
}

/* The wait is over; the counterpart of the message above. */
void
dlock_waitlog_end(const DlockWaitLog *log, bool granted, int64 now)
{
	int64		waited = now - log->began;
	char	   *key;

	if (!log->logged)
		return;
	key = pnstrdup(log->key->data, log->key->len);
	if (granted)
		ereport(LOG_SERVER_ONLY,
				(errmsg("process %d acquired lock \"%s\" after %lld.%03d ms",
						MyProcPid, key,
						(long long) (waited / 1000), (int) (waited % 1000))));
	else
		ereport(LOG_SERVER_ONLY,
				(errmsg("process %d failed to acquire lock \"%s\" after %lld.%03d ms",
						MyProcPid, key,
						(long long) (waited / 1000), (int) (waited % 1000))));
}
