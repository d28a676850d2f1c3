/*-------------------------------------------------------------------------
 *
 * wait_log.c
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

#include "fence/statement_role.h"
#include "queue/queue.h"
#include "queue/wait_log.h"
#include "queue/wait_report.h"

/* Of more holders, and of a longer queue, the others are only counted. */
#define MAX_NAMED	50

/*
 * One that we wait for: an open transaction, or a grant with its role, owner and
 * process.
 */
static void
append_holder(StringInfo out, const DlockState *state, const DlockRow *row)
{
	int			pid = state->pid;

	if (out->len > 0)
		appendStringInfoString(out, "; ");
	if (!state->exists || !state->held)
	{
		appendStringInfo(out, _("process %d, in an open transaction"),
						 dlock_wait_report_user_of_xid(row->pending));
		return;
	}
	appendStringInfo(out, _("version %lld of role \"%s\""),
					 (long long) state->version,
					 dlock_statement_role_name(state->terms.role));
	if (state->terms.owner != NULL)
		appendStringInfo(out, _(", owner \"%s\""), state->terms.owner);
	if (pid == 0)
		pid = dlock_wait_report_user_of_xid(row->pending);
	if (pid != 0)
		appendStringInfo(out, _(", process %d"), pid);
}

/* How many of n are not named. */
static void
append_more(StringInfo out, int n)
{
	if (n > MAX_NAMED)
		appendStringInfo(out, _(" and %d more"), n - MAX_NAMED);
}

/* What the last look has found in the way, which may be gone by now. */
static void
append_holders(StringInfo out, const DlockRows *found)
{
	for (int i = 0; i < Min(found->n, MAX_NAMED); i++)
		append_holder(out, &found->states[i], &found->rows[i]);
	append_more(out, found->n);
	if (out->len == 0)
		appendStringInfoString(out, _("none"));
}

/* Those that wait for the key, in order, ourselves included. */
static void
append_queue(StringInfo out, const DlockKey *key)
{
	DlockInLine line[MAX_NAMED];
	int			n = dlock_queue_line(key, line, MAX_NAMED);

	for (int i = 0; i < Min(n, MAX_NAMED); i++)
	{
		if (i > 0)
			appendStringInfoString(out, ", ");
		if (line[i].ticket != 0)
			appendStringInfo(out, _("ticket %lld"), (long long) line[i].ticket);
		else
			appendStringInfo(out, "%d", line[i].pid);
	}
	append_more(out, n);
}

/* Who waits: the first words of a message. */
static char *
name_waiter(const DlockWaitLog *log)
{
	return log->ticket != 0 ? psprintf(_("ticket %lld"), (long long) log->ticket) :
		psprintf(_("process %d"), MyProcPid);
}

/* Log once that we still wait for the grants that were found. */
void
dlock_wait_log_still(DlockWaitLog *log, const DlockRows *found, int64 now)
{
	int64		waited = now - log->began;
	StringInfoData holders;
	StringInfoData queue;

	if (log->logged || !log_lock_waits || waited < DeadlockTimeout * INT64CONST(1000))
		return;
	log->logged = true;

	initStringInfo(&holders);
	append_holders(&holders, found);
	initStringInfo(&queue);
	append_queue(&queue, log->key);
	ereport(LOG_SERVER_ONLY,
			(errmsg("%s still waiting for lock \"%s\" after %lld.%03d ms",
					name_waiter(log), pnstrdup(log->key->data, log->key->len),
					(long long) (waited / 1000), (int) (waited % 1000)),
			 errdetail("Holder: %s. Wait queue: %s.", holders.data, queue.data)));
}

/* The wait is over.  Log it if the message above was logged. */
void
dlock_wait_log_end(const DlockWaitLog *log, bool granted, int64 now)
{
	int64		waited = now - log->began;
	char	   *key;

	if (!log->logged)
		return;
	key = pnstrdup(log->key->data, log->key->len);
	if (granted)
		ereport(LOG_SERVER_ONLY,
				(errmsg("%s acquired lock \"%s\" after %lld.%03d ms",
						name_waiter(log), key,
						(long long) (waited / 1000), (int) (waited % 1000))));
	else
		ereport(LOG_SERVER_ONLY,
				(errmsg("%s failed to acquire lock \"%s\" after %lld.%03d ms",
						name_waiter(log), key,
						(long long) (waited / 1000), (int) (waited % 1000))));
}
