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

#endif							/* DLOCK_WORKER_H */
