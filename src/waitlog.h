/*-------------------------------------------------------------------------
 *
 * waitlog.h
 *	  Log messages about long waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAITLOG_H
#define DLOCK_WAITLOG_H

#include "find.h"
#include "key.h"

/* One wait. */
typedef struct DlockWaitLog
{
	const DlockKey *key;
	int64		began;			/* lease time */
	bool		logged;
	int64		ticket;			/* 0: our own */
} DlockWaitLog;

extern void dlock_waitlog_still(DlockWaitLog *log, const DlockRows *found,
								int64 now);
extern void dlock_waitlog_end(const DlockWaitLog *log, bool granted, int64 now);

#endif							/* DLOCK_WAITLOG_H */
