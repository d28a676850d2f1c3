/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  What the background workers have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WORKER_H
#define DLOCK_WORKER_H

#include "postmaster/bgworker.h"

extern void dlock_worker_describe(BackgroundWorker *worker, const char *name,
								  int restart_time);
extern void dlock_worker_set_up(const char *lock_timeout);

#endif							/* DLOCK_WORKER_H */
