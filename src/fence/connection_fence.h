/*-------------------------------------------------------------------------
 *
 * connection_fence.h
 *	  The fence of a whole connection.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FENCE_CONNECTION_FENCE_H
#define DLOCK_FENCE_CONNECTION_FENCE_H

extern void dlock_connection_fence_init(void);

#endif							/* DLOCK_FENCE_CONNECTION_FENCE_H */
