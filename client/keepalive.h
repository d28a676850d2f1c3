/*-------------------------------------------------------------------------
 *
 * keepalive.h
 *	  The renewal thread of a handle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KEEPALIVE_H
#define DLOCK_KEEPALIVE_H

#include "handle.h"

extern dlock_status dlock_keepalive_start(dlock_handle *handle, dlock_error *err);
extern void dlock_keepalive_stop(dlock_handle *handle);
extern void dlock_keepalive_stop_later(dlock_handle *handle);
extern bool dlock_in_callback(dlock_handle *handle);

#endif							/* DLOCK_KEEPALIVE_H */
