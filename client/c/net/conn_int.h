/*-------------------------------------------------------------------------
 *
 * conn_int.h
 *	  The inside of a connection, for conn.c, connect.c and prepare.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONN_INT_H
#define DLOCK_CONN_INT_H

#include <libpq-fe.h>

#include "net/conn.h"
#include "net/resolve.h"

struct DlockConn
{
	DlockConninfo *conninfo;
	DlockConnState state;
	PGconn	   *pg;
	short		events;			/* what to poll for */
	int			users;			/* who free it; atomic */
	DlockConn  *left_behind;	/* in a child, the next that cannot be freed */

	/* connecting */
	int64_t		until;			/* the address must have accepted us by then */
	int64_t		connect_ms;
	int			host;			/* in conninfo->hosts */
	int			tried;			/* hosts of this round */
	DlockResolve *resolve;
	char	  **addresses;
	int			naddresses;
	int			address;		/* the one being tried */
	int64_t		turned_away_at; /* a server was there but did not accept us */
	int			full_host;		/* which had no connection left, or -1 */

	/* what the server told us then */
	char	   *schema;			/* of the extension, quoted */
	int64_t		default_ttl;
	bool		direct;			/* there is no pooler in between */
	bool		routed;			/* it is a router, not a server with locks */
	int64_t		statement_timeout;	/* as the server has it; 0: none */

	struct DlockPrepareds *prepareds;	/* see prepare.c; NULL: none */

	/* the statement */
	int64_t		sent_at;
	PGresult   *result;
	bool		unconfirmed;	/* a failover may undo it */
	bool		timed_out;		/* a timeout of the server ended it */

	/* why the last step failed */
	dlock_error error;
	bool		retry;

	DlockNotified notified;
	void	   *notified_arg;
	bool		listens;
};

/* connect.c */
extern void dlock_connect_step(DlockConn *conn, short revents, int64_t now);
extern void dlock_connect_silent(DlockConn *conn, int64_t now);
extern void dlock_connect_error(DlockConn *conn);
extern void dlock_connect_forget(DlockConn *conn);

/* prepare.c */
extern bool dlock_prepare_send(DlockConn *conn, const char *sql,
							   const DlockParams *params);
extern bool dlock_prepare_is_coming(const DlockConn *conn);
extern bool dlock_prepare_came(DlockConn *conn);
extern bool dlock_prepare_is_lost(DlockConn *conn, const PGresult *result);
extern void dlock_prepare_forget(DlockConn *conn);

/* conn.c */
extern void dlock_conn_disconnect(DlockConn *conn);
extern void dlock_conn_no_memory(DlockConn *conn);
extern void dlock_conn_result_error(DlockConn *conn, const PGresult *result);
extern int	dlock_conn_transfer(DlockConn *conn, short revents);
extern void dlock_conn_send_listen(DlockConn *conn);

#endif							/* DLOCK_CONN_INT_H */
