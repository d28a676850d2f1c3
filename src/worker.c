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
