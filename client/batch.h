/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  The statement of a flight.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BATCH_H
#define DLOCK_BATCH_H

#include "call.h"

extern void dlock_batch_sort(DlockCall **calls, int n);
extern bool dlock_batch_send(DlockConn *conn, DlockCall *const *calls, int n);
extern int	dlock_batch_find(DlockCall *const *calls, int n, DlockKind kind);

#endif							/* DLOCK_BATCH_H */
