/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Requests that wait by ticket.  All need the mutex.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WAIT_H
#define DLOCK_WAIT_H

#include "events.h"
#include "op.h"

extern void dlock_wait_add(DlockOp *op);
extern void dlock_wait_remove(DlockOp *op);
extern bool dlock_wait_is_silent(const DlockOp *op, int64_t now);
extern void dlock_wait_hear(dlock_handle *handle, const DlockHeard *heard);
extern void dlock_wait_missed(dlock_handle *handle);
extern void dlock_wait_nudge(dlock_handle *handle);
extern int64_t dlock_wait_ask_at(const dlock_handle *handle, bool listens);
extern bool dlock_wait_send(dlock_handle *handle, DlockConn *conn, int64_t now);
extern void dlock_wait_answered(dlock_handle *handle, const DlockReply *reply,
								int64_t now);

#endif							/* DLOCK_WAIT_H */
