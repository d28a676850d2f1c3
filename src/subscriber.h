/*-------------------------------------------------------------------------
 *
 * subscriber.h
 *	  Keeps logical replication from writing to dlock.locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SUBSCRIBER_H
#define DLOCK_SUBSCRIBER_H

extern void dlock_subscriber_init(void);

#endif							/* DLOCK_SUBSCRIBER_H */
