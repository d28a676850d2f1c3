/*-------------------------------------------------------------------------
 *
 * outlook.h
 *	  What a request that has to wait tells the others.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_OUTLOOK_H
#define DLOCK_OUTLOOK_H

#include "lock.h"
#include "queue.h"

extern bool dlock_outlook_is_settled(const DlockRows *found);
extern void dlock_outlook_make(const DlockRequest *request, DlockTurn *turn,
							   const DlockRows *found, const DlockResult *result,
							   int64 looked_at, int64 now,
							   DlockOutlook *outlook);

#endif							/* DLOCK_OUTLOOK_H */
