/*-------------------------------------------------------------------------
 *
 * all.c
 *	  Several keys, or none of them.
 *
 * The keys are acquired one after the other, by the ordinary way and with what
 * is left of one wait.  The order is that of their bytes, whatever the caller's,
 * so two such calls never wait for each other.  What was won stays ours while
 * we wait for the next key: the rows are written, but not committed.
 *
 * All of it happens in a subtransaction.  If a key is not to be had, rolling the
 * subtransaction back gives back the others, and wakes those that wait for
 * them.  A call that may not wait looks at all keys first, so that one that
 * fails writes nothing.
 *
 * The first TTL must not run while we wait for the last key.  So the TTLs are
 * counted anew from when the last key was won, unless that took no longer than
 * a millisecond, which is as exact as a TTL is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/resowner.h"

#include "all.h"
#include "await.h"
#include "clock.h"
#include "stats.h"

#define EXACT_US	INT64CONST(1000)

static int
compare_keys(const void *a, const void *b)
{
	const DlockRequest *x = *(const DlockRequest *const *) a;
	const DlockRequest *y = *(const DlockRequest *const *) b;
	int			cmp = memcmp(x->key, y->key, Min(x->keylen, y->keylen));

	return cmp != 0 ? cmp : x->keylen - y->keylen;
}

/* The requests in the order of their keys, none of which comes twice. */
static const DlockRequest **
sort_requests(const DlockRequest *requests, int n)
{
	const DlockRequest **sorted = palloc(n * sizeof(DlockRequest *));

	for (int i = 0; i < n; i++)
		sorted[i] = &requests[i];
	qsort(sorted, n, sizeof(DlockRequest *), compare_keys);
	for (int i = 1; i < n; i++)
		if (compare_keys(&sorted[i - 1], &sorted[i]) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("key \"%s\" is given more than once",
							pnstrdup(sorted[i]->key, sorted[i]->keylen))));
	return sorted;
}

/* Let a TTL count from the given lease time. */
static void
stamp(const DlockRequest *granted, int64 version, int64 from)
{
	DlockRequest request = {.op = DLOCK_REFRESH};
	DlockResult result;

	request.key = granted->key;
	request.keylen = granted->keylen;
	request.role = granted->role;
	request.by_version = true;
	request.version = version;
	request.ttl = granted->ttl;
	request.stamp = from;
	dlock_lock_execute(&request, &result);
	if (result.answer != DLOCK_IS_HELD)
		elog(ERROR, "version %lld has been lost while others were acquired",
			 (long long) version);
}

/*
 * Acquire all.  Returns the number of a request that failed, or -1.  The results
 * are in the order of the requests.
 */
static int
acquire_sorted(const DlockRequest **sorted, const DlockRequest *requests, int n,
			   DlockResult *results)
{
	int64		wait = sorted[0]->wait;
	int64		until = wait == DLOCK_NEVER ? 0 : dlock_clock_now() + wait;
	int64		earliest = DLOCK_NEVER;
	int64		latest = 0;

	for (int i = 0; i < n; i++)
	{
		DlockRequest request = *sorted[i];
		int			number = sorted[i] - requests;

		CHECK_FOR_INTERRUPTS();
		if (wait != DLOCK_NEVER && i > 0)
			request.wait = Max(until - dlock_clock_now(), 0);
		dlock_await_acquire(&request, &results[number]);
		if (results[number].answer != DLOCK_IS_GRANTED)
			return number;
		earliest = Min(earliest, results[number].expires);
		latest = Max(latest, results[number].expires);
	}
	if (latest - earliest > EXACT_US)
		for (int i = 0; i < n; i++)
			stamp(sorted[i], results[sorted[i] - requests].version,
				  latest - sorted[i]->ttl);
	return -1;
}

int
dlock_all_acquire(const DlockRequest *requests, int n, DlockResult *results)
{
	const DlockRequest **sorted = sort_requests(requests, n);
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			failed;

	for (int i = 0; i < n; i++)
		dlock_await_check_policy(sorted[i]);
	if (sorted[0]->wait == 0)
		for (int i = 0; i < n; i++)
			if (dlock_lock_is_busy(sorted[i]))
			{
				DlockKey	key;

				failed = sorted[i] - requests;
				results[failed].answer = DLOCK_IS_BUSY;
				dlock_key_set(&key, sorted[i]->key, sorted[i]->keylen);
				dlock_stats_busy(&key);
				return failed;
			}

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		failed = acquire_sorted(sorted, requests, n, results);
	}
	PG_CATCH();
	{
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (failed < 0)
		ReleaseCurrentSubTransaction();
	else
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return failed;
}
