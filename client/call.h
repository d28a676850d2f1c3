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
#include "sql.h"

/* Where a call is on its way through flight.c. */
typedef enum DlockCallState
{
	DLOCK_CALL_NEW,
	DLOCK_CALL_QUEUED,
	DLOCK_CALL_FLYING,			/* sent with the flight that is under way */
	DLOCK_CALL_DONE				/* see reply, blocked and error */
} DlockCallState;

typedef struct DlockCall
{
	/* "@." is the schema of the extension */
	const char *sql;
	int			nparams;
	const char **params;
	DlockKind	kind;			/* what it can go together with */

	int64_t		timeout_ms;		/* how long the servers may be silent */
	int64_t		until;			/* when the call must end */
	bool		once;			/* no second try */
	bool		knocks;			/* a server that is full is an answer */

	/* if it may wait for a row that is in use: the number of lock_timeout */
	int			row_param;		/* from 1, or 0 */

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
	bool		polled;			/* the server did not wait; ask again */
	bool		full;			/* knocks: the server is there, and full */
	int			host;			/* which answered, or is full; see conn.h */

	/* on its way; protected by the mutex of the handle.  See flight.c */
	DlockCallState state;
	struct DlockCall *next;
	struct DlockFlight *flight; /* FLYING: with this one */
	bool		alone;			/* a flight with others failed */
	bool		blocked;		/* a row is in use */
	int64_t		ready_at;		/* not to be sent before */
	int64_t		silent_until;	/* a server must have shown up by then */
	struct DlockWaker *waker;	/* of its owner; NULL: does not sleep */
	int		   *shared;			/* the word that it sleeps on, or NULL */
	dlock_error error;
	char		wait_text[32];
	char		ttl_text[32];
} DlockCall;

extern dlock_status dlock_call(dlock_handle *handle, DlockCall *call,
							   dlock_error *err);
extern void dlock_call_init(DlockCall *call, const char *sql,
							int nparams, const char **params,
							int64_t timeout_ms);
extern bool dlock_call_is_sound(const DlockCall *call);
extern void dlock_call_set_params(DlockCall *call, const DlockConn *conn,
								  int64_t now, const char *row_limit,
								  bool may_wait);

#endif							/* DLOCK_CALL_H */
