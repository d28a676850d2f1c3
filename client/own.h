/*-------------------------------------------------------------------------
 *
 * own.h
 *	  A call on a connection of its own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_OWN_H
#define DLOCK_OWN_H

#include "call.h"

extern dlock_status dlock_own_session(dlock_handle *handle, DlockCall *call,
									  dlock_error *err);
extern bool dlock_own_call(dlock_handle *handle, DlockCall *call,
						   dlock_status *status, dlock_error *err);

#endif							/* DLOCK_OWN_H */
