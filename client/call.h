/*-------------------------------------------------------------------------
 *
 * call.h
 *	  One statement, retried until it is answered.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CALL_H
#define DLOCK_CALL_H

#include "conn.h"
#include "dlock.h"

typedef struct DlockCall
{
	/* "@." is the schema of the extension */
	const char *sql;
	int			nparams;
	const char **params;

	int64_t		timeout_ms;		/* how long the servers may be silent */
	int64_t		until;			/* when the call must end */
	bool		once;			/* no second try */
	bool		knocks;			/* a server that is full is an answer */

	/* if the server is to wait: the number of that parameter, and until when */
	int			wait_param;		/* from 1, or 0 */
	int64_t		wait_until;

	/*
	 * if not 0: the number of the parameter that is *ttl_ms; 0 there is
	 * replaced by the server's default, or by ttl_least if that is longer
	 */
	int			ttl_param;
	int64_t    *ttl_ms;
	int64_t		ttl_least;

	/* if not NULL: *conn is used, kept, and replaced where necessary */
	DlockConn **conn;

	/* results */
	DlockReply *reply;
	int64_t		sent_at;		/* the clock before the answered try was sent */
	bool		in_doubt;		/* a try was sent and not answered */
} DlockCall;

extern dlock_status dlock_call(dlock_handle *handle, DlockCall *call,
							   dlock_error *err);
extern void dlock_call_init(DlockCall *call, const char *sql,
							int nparams, const char **params,
							int64_t timeout_ms);

#endif							/* DLOCK_CALL_H */
