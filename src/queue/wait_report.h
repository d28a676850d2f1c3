/*-------------------------------------------------------------------------
 *
 * wait_report.h
 *	  What a request that has to wait publishes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_WAIT_REPORT_H
#define DLOCK_QUEUE_WAIT_REPORT_H

#include "access/htup.h"

#include "queue/queue.h"
#include "rows/find.h"
#include "rules/lock_rules.h"

extern int	dlock_wait_report_user_of_xid(TransactionId xid);
extern int	dlock_wait_report_user_of_row(HeapTuple tuple);
extern int64 dlock_wait_report_free_at(const DlockRequest *request,
									   const DlockRows *found, int64 now);
extern bool dlock_wait_report_is_settled(const DlockRows *found);
extern void dlock_wait_report_make(const DlockRequest *request, DlockTurn *turn,
								   const DlockRows *found, const DlockResult *result,
								   int64 looked_at, int64 now,
								   DlockWaitReport *report);

#endif							/* DLOCK_QUEUE_WAIT_REPORT_H */
