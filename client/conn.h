/*-------------------------------------------------------------------------
 *
 * conn.h
 *	  The inside of a connection, for the files that make one up.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONN_H
#define DLOCK_CONN_H

#include <libpq-fe.h>

#include "internal.h"

struct DlockConn
{
	DlockTarget *target;
	DlockConnState state;
	PGconn	   *pg;
	short		events;			/* what to poll for */
	int64_t		until;			/* the address must have taken us by then */
	int64_t		connect_ms;
	int			host;			/* in target->hosts */
	int			tried;			/* hosts of this round */
	DlockResolve *resolve;
	char	  **addresses;
	int			naddresses;
	int			address;		/* the one being tried */
	char	   *schema;			/* of the extension, quoted */
	int64_t		default_ttl;
	bool		direct;			/* no pooler in between */
	PGresult   *result;			/* of the statement */
	bool		unconfirmed;	/* it may be lost in a failover */
	dlock_error error;
	bool		retry;
	bool		timed_out;		/* by a timeout of the server */
	int64_t		sent_at;		/* the statement */
	int64_t		statement_timeout;	/* as the server has it; 0: none */
	int64_t		turned_away_at; /* a server was there but did not take us */
	int			full_host;		/* it was full, or -1 */
	DlockNotified notified;
	void	   *notified_arg;
	bool		listens;
	DlockConn  *next;			/* of the target */
	DlockConn  *prev;
};

#endif							/* DLOCK_CONN_H */
