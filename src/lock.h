/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  The engine: every change of a lock goes through dlock_lock_execute().
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "fsm.h"

typedef struct DlockRequest
{
	DlockClaim	claim;
	const char *key;
	int			keylen;

	/* for a grant; a renewal takes the TTL */
	int64		ttl;			/* us; 0 = the grant's own */
	const char *value;
	int64		cleanup;		/* us */
	bool		session;		/* ends with our connection */

	/* how to wait for it */
	int64		wait;			/* us; DLOCK_NEVER = without limit */
	bool		without_snapshot;	/* the caller is a procedure */

	/* the holder's own operations: give up rather than wait for the row */
	bool		skip_used;
} DlockRequest;

typedef struct DlockResult
{
	DlockAnswer answer;
	int64		version;		/* of the grant that the answer is about */
	int64		expires;		/* its expiry, lease time */
} DlockResult;

extern void dlock_lock_execute(const DlockRequest *request, DlockResult *result);
extern bool dlock_lock_watch(const char *key, int keylen, bool is_held,
							 int64 *version, int64 timeout);

#endif							/* DLOCK_LOCK_H */
