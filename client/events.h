/*-------------------------------------------------------------------------
 *
 * events.h
 *	  Events on channel dlock.  All but the first two need the mutex.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_EVENTS_H
#define DLOCK_EVENTS_H

#include "handle.h"

/* What an event says. */
typedef struct DlockHeard
{
	char	   *key;			/* to be freed */
	int64_t		version;		/* 0: of a ticket that was missed */
	bool		forced;
	int64_t		ticket;			/* 0: of a grant */
	bool		missed;
	char		code[6];		/* SQLSTATE of the error that ended its wait,
								 * or "" */
	char		reason[256];	/* its message, truncated */
} DlockHeard;

extern bool dlock_event_parse(const char *payload, DlockHeard *heard);
extern void dlock_events_hear(void *arg, const char *payload);
extern void dlock_events_missed(dlock_handle *handle);
extern bool dlock_events_ripe(const dlock_lock *lock, int64_t now);
extern int64_t dlock_events_ripe_at(const dlock_handle *handle);
extern void dlock_events_asked(dlock_handle *handle, dlock_lock *const *locks,
							   int n, int64_t now);
extern void dlock_events_refuted(dlock_lock *lock);
extern void dlock_events_unanswered(dlock_lock *lock);

#endif							/* DLOCK_EVENTS_H */
