/*-------------------------------------------------------------------------
 *
 * request.h
 *	  A request for locks, until it is granted or refused.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_REQUEST_H
#define DLOCK_REQUEST_H

#include "handle.h"

typedef struct DlockRequest
{
	const dlock_options *options;
	dlock_lock **locks;			/* what is asked for, without a grant yet */
	size_t		n;
	int64_t		wait_until;

	/*
	 * The statement.  Parameter 2 is the TTL, and the last one the wait if
	 * there is one.  Of a request for several locks, it returns rows with the
	 * number of a lock, from 1, and its version.
	 */
	const char *sql;
	int			nparams;
	const char **params;
	DlockKind	kind;			/* of the statement */
	bool		several;
} DlockRequest;

extern dlock_status dlock_request(dlock_handle *handle, DlockRequest *request,
								  dlock_error *err);
extern dlock_status dlock_request_options(const dlock_options *given,
										  dlock_options *options, dlock_error *err);
extern dlock_lock *dlock_request_lock(dlock_handle *handle, const char *key,
									  const char *owner,
									  const dlock_options *options);
extern dlock_status dlock_request_confirm(dlock_lock **locks, size_t n,
										  int64_t sent_at, int64_t timeout_ms,
										  int64_t until, dlock_error *err);

#endif							/* DLOCK_REQUEST_H */
