/*-------------------------------------------------------------------------
 *
 * renewal.h
 *	  The statement that renews locks.  All need the mutex.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RENEWAL_H
#define DLOCK_RENEWAL_H

#include "handle.h"

extern bool dlock_renewal_choose(dlock_handle *handle, int64_t now);
extern bool dlock_renewal_send(dlock_handle *handle, DlockConn *conn,
							   int64_t *sent_at, int64_t *answer_by);
extern void dlock_renewal_answered(dlock_handle *handle, const DlockReply *reply,
								   int64_t sent_at, int64_t now);
extern void dlock_renewal_refused(dlock_handle *handle, int64_t now);
extern void dlock_renewal_landed(dlock_handle *handle);

#endif							/* DLOCK_RENEWAL_H */
