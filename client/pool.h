/*-------------------------------------------------------------------------
 *
 * pool.h
 *	  The connections of a handle.  All but the last need the mutex.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_POOL_H
#define DLOCK_POOL_H

#include "handle.h"

extern DlockConn *dlock_pool_new(dlock_handle *handle);
extern void dlock_pool_drop(dlock_handle *handle, DlockConn *conn);
extern DlockConn *dlock_pool_take(dlock_handle *handle, bool may_borrow,
								  int64_t until);
extern DlockConn *dlock_pool_take_open(dlock_handle *handle, bool may_borrow,
									   int64_t until);
extern DlockConn *dlock_pool_spare(dlock_handle *handle, bool may_borrow,
								   int64_t until);
extern void dlock_pool_give(dlock_handle *handle, DlockConn *conn);
extern void dlock_pool_give_spare(dlock_handle *handle, DlockConn *conn);
extern void dlock_pool_distrust(dlock_handle *handle);
extern void dlock_pool_close(dlock_handle *handle);
extern void dlock_pool_finish(DlockConn *conn, int64_t until);

#endif							/* DLOCK_POOL_H */
