/*-------------------------------------------------------------------------
 *
 * events.h
 *	  Notifications on channel "dlock".
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_EVENTS_H
#define DLOCK_EVENTS_H

extern void dlock_event_expired(const char *key, int64 version);
extern void dlock_event_forced(const char *key, int64 version, Oid by,
							   const char *reason);
extern void dlock_event_preempt(const char *key, int64 version, Oid by,
								int32 priority, int64 deadline);

#endif							/* DLOCK_EVENTS_H */
