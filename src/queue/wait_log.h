/*-------------------------------------------------------------------------
 *
 * wait_log.h
 *	  Log messages about long waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_WAIT_LOG_H
#define DLOCK_QUEUE_WAIT_LOG_H

#include "rows/find.h"
#include "rules/key.h"

/* One wait. */
typedef struct DlockWaitLog
{
	const DlockKey *key;
	int64		began;			/* lease time */
	bool		logged;
	int64		ticket;			/* 0: our own */
} DlockWaitLog;

extern void dlock_wait_log_still(DlockWaitLog *log, const DlockRows *found,
								 int64 now);
extern void dlock_wait_log_end(const DlockWaitLog *log, bool granted, int64 now);

#endif							/* DLOCK_QUEUE_WAIT_LOG_H */
