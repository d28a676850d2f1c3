/*-------------------------------------------------------------------------
 *
 * direct_writes.h
 *	  Keeps logical replication from writing to dlock.locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HEALTH_DIRECT_WRITES_H
#define DLOCK_HEALTH_DIRECT_WRITES_H

extern void dlock_direct_writes_init(void);

#endif							/* DLOCK_HEALTH_DIRECT_WRITES_H */
