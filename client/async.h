/*-------------------------------------------------------------------------
 *
 * async.h
 *	  Calls of a program with an event loop.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ASYNC_H
#define DLOCK_ASYNC_H

#include "handle.h"

extern void dlock_async_stop(dlock_handle *handle);
extern void dlock_async_free(dlock_handle *handle);

#endif							/* DLOCK_ASYNC_H */
