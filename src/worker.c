/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  What the background workers have in common.
 *
 * Who starts a worker, and what it does, is up to launcher.c, reaper.c and
 * granter.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"

#include "worker.h"

/*
 * A worker that runs dlock_<name>_main() and is shown as "dlock <name>".  A standby
 * has none, because there is nothing that they could write.
 */
void
dlock_worker_describe(BackgroundWorker *worker, const char *name, int restart_time)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = restart_time;
	snprintf(worker->bgw_library_name, BGW_MAXLEN, "dlock");
	snprintf(worker->bgw_function_name, BGW_MAXLEN, "dlock_%s_main", name);
	snprintf(worker->bgw_name, BGW_MAXLEN, "dlock %s", name);
	snprintf(worker->bgw_type, BGW_MAXLEN, "dlock %s", name);
}

static void
set(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/* In a worker that has connected to its database. */
void
dlock_worker_set_up(const char *lock_timeout)
{
	/* what does not contain a grant need not be flushed */
	set("synchronous_commit", "off");
	set("search_path", "pg_catalog, pg_temp");
	set("lock_timeout", lock_timeout);

	/* whatever is set for the database or the role */
	set("dlock.fence", "");
	set("dlock.require_fence", "");
	set("default_transaction_isolation", "read committed");
	set("default_transaction_read_only", "off");
	set("default_transaction_deferrable", "off");
	set("statement_timeout", "0");
	if (GetConfigOption("transaction_timeout", true, false) != NULL)
		set("transaction_timeout", "0");
}
