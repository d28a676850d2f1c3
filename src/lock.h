/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  The engine: every change of a lock goes through dlock_lock_try().
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "find.h"
#include "fsm.h"

typedef struct DlockResult
{
	DlockAnswer answer;
	int64		version;		/* of the grant that the answer is about */
	int64		expires;		/* its expiry, lease time */
	bool		renewed;		/* granted, and it was ours before */
} DlockResult;

extern void dlock_lock_try(const DlockKey *key, const DlockRequest *request,
						   const DlockTurn *turn, DlockRows *found,
						   DlockResult *result);
extern void dlock_lock_execute(const DlockRequest *request, DlockResult *result);

#endif							/* DLOCK_LOCK_H */
