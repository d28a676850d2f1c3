/*-------------------------------------------------------------------------
 *
 * events.h
 *	  Notifications on channel "dlock".
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_EVENTS_H
#define DLOCK_LOCK_EVENTS_H

extern void dlock_event_send(void (*send) (void *), void *arg);
extern void dlock_event_expired(const char *key, int64 version);
extern void dlock_event_forced(const char *key, int64 version, Oid by,
							   const char *reason);
extern void dlock_event_preempt(const char *key, int64 version, Oid by,
								int32 priority, int64 deadline);
extern void dlock_event_granted(const char *key, int64 version, int64 ticket);
extern void dlock_event_missed(const char *key, int64 ticket, const char *code,
							   const char *reason);

#endif							/* DLOCK_LOCK_EVENTS_H */
