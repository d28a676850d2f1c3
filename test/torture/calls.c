/*-------------------------------------------------------------------------
 *
 * calls.c
 *	  What a history tells of calls of libdlock, for the clients that make them.
 *
 *-------------------------------------------------------------------------
 */
#include "calls.h"
#include "history.h"

/*
 * When the TTL began.  The library reports the time left until its local
 * deadline, which is at nine tenths, in whole milliseconds.  0: nothing left.
 */
int64_t
base_of(const dlock_lock *lock)
{
	int64_t		now = now_us();
	int64_t		left = dlock_left_ms(lock);

	return left > 0 ? now + (left - 1) * 1000 - dlock_ttl_ms(lock) * 9 / 10 * 1000 : 0;
}

/* The client does not believe any more that it holds the lock. */
void
record_lost(int client, const dlock_event *event)
{
	history(now_us(), "lost %d key=%s version=%lld reason=%s", client, event->key,
			(long long) event->version, dlock_reason_name(event->reason));
}

/* The outcome of an operation that got no proper answer. */
void
record_otherwise(int client, long op, const char *what, dlock_status status,
				 const dlock_error *err)
{
	if (status == DLOCK_TIMEOUT || status == DLOCK_UNREACHABLE || status == DLOCK_LOST ||
		status == DLOCK_CANCELLED)
		history(now_us(), "done %d %ld %s unknown reason=%s", client, op, what,
				dlock_status_name(status));
	else
		history(now_us(), "done %d %ld %s error state=%s reason=%s", client, op, what,
				err->sqlstate[0] != '\0' ? err->sqlstate : "none", dlock_status_name(status));
}
