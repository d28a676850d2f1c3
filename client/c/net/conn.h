/*-------------------------------------------------------------------------
 *
 * conn.h
 *	  One connection that never blocks: what to connect to, and the connection.
 *
 * The files of this folder write the structs.  The engine reads them, and calls the
 * functions in the first part of each list.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONN_H
#define DLOCK_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dlock.h"
#include "net/reply.h"

/*
 * What to connect to; see conninfo.c
 */

typedef struct DlockHost
{
	char	   *host;			/* NULL: libpq's default */
	char	   *hostaddr;
	char	   *port;
} DlockHost;

/* Constant, except for preferred, unflushed, portable and by_text. */
typedef struct DlockConninfo
{
	char	  **keywords;		/* without those of DlockHost */
	char	  **values;
	int			nparams;
	DlockHost  *hosts;
	int			nhosts;
	int64_t		connect_ms;		/* for one address */
	int64_t		only_ms;		/* for the only one that there is */
	int			preferred;		/* the host that accepted us last; atomic */
	char	   *schema;			/* that the program has named, or NULL */
	bool		unflushed;		/* no grant waits for a flush; atomic */
	bool		portable;		/* its servers have no tickets; atomic */
	bool		by_text;		/* its servers forget statements that were
								 * prepared; atomic */
} DlockConninfo;

extern dlock_status dlock_conninfo_make(const char *text,
										const dlock_open_options *options,
										DlockConninfo **conninfo, dlock_error *err);
extern void dlock_conninfo_free(DlockConninfo *conninfo);
extern int64_t dlock_conninfo_round_ms(const DlockConninfo *conninfo);

/*
 * A connection
 */

/* The order counts: between CLOSED and READY it is connecting. */
typedef enum DlockConnState
{
	DLOCK_CONN_CLOSED,			/* never started, or failed: see error */
	DLOCK_CONN_RESOLVING,
	DLOCK_CONN_CONNECTING,
	DLOCK_CONN_LOOKUP,			/* asks for the schema of the extension */
	DLOCK_CONN_LISTEN,
	DLOCK_CONN_READY,
	DLOCK_CONN_BUSY,			/* a statement was sent */
	DLOCK_CONN_DONE				/* and its reply has arrived */
} DlockConnState;

/* Parameters, as libpq wants them. */
typedef struct DlockParams
{
	int			n;
	const char *const *values;
	const int  *lengths;		/* of those that are binary; NULL: none is */
	const int  *formats;		/* 0 or 1; NULL: all are texts */
} DlockParams;

/* Called with each notification on channel dlock. */
typedef void (*DlockNotified) (void *arg, const char *payload);

typedef struct DlockResolve DlockResolve;

typedef struct DlockConn
{
	DlockConninfo *conninfo;
	DlockConnState state;
	struct pg_conn *pg;			/* a PGconn */
	short		events;			/* what to poll for */
	int			users;			/* who free it; atomic */
	struct DlockConn *left_behind;	/* in a child, the next that cannot be
									 * freed */

	/* connecting */
	int64_t		until;			/* the address must have accepted us by then */
	int64_t		connect_ms;
	int			host;			/* in conninfo->hosts */
	int			tried;			/* hosts of this round */
	DlockResolve *resolve;
	char	  **addresses;
	int			naddresses;
	int			address;		/* the one being tried */
	int64_t		turned_away_at; /* when a server was there, but did not accept
								 * us; 0: none */
	int			full_host;		/* which had no connection left; -1: none */

	/* what the server told us then */
	char	   *schema;			/* of the extension, quoted */
	int64_t		default_ttl;
	bool		direct;			/* there is no pooler in between */
	bool		routed;			/* it is a router, not a server with locks */
	bool		portable;		/* it has the portable edition */
	int64_t		statement_timeout;	/* as the server has it; 0: none */

	struct DlockPrepareds *prepareds;	/* see prepare.c; NULL: none */

	/* the statement */
	int64_t		sent_at;
	struct pg_result *result;	/* a PGresult */
	bool		unconfirmed;	/* a failover may undo it */
	bool		timed_out;		/* a timeout of the server ended it */

	/*
	 * why it is closed, or the error of the statement, and whether it may
	 * succeed later, perhaps on another host, on a new connection
	 */
	dlock_error error;
	bool		retry;

	DlockNotified notified;
	void	   *notified_arg;
	bool		listens;
} DlockConn;

/* conn.c and connect.c */
extern DlockConn *dlock_conn_new(DlockConninfo *conninfo);
extern DlockConn *dlock_conn_share(DlockConn *conn);
extern void dlock_conn_free(DlockConn *conn);
extern void dlock_conn_disown(DlockConn *conn, bool was_idle);
extern void dlock_conn_listen(DlockConn *conn, DlockNotified notified, void *arg,
							  int64_t patience, int64_t now);
extern void dlock_conn_start(DlockConn *conn, int64_t connect_ms, int64_t now);
extern void dlock_conn_close(DlockConn *conn);
extern void dlock_conn_abort(DlockConn *conn, const dlock_error *error);
extern void dlock_conn_step(DlockConn *conn, short revents, int64_t now);
extern bool dlock_conn_send(DlockConn *conn, const char *sql,
							const DlockParams *params);
extern bool dlock_conn_connecting(const DlockConn *conn);
extern dlock_status dlock_conn_not_installed(const DlockConninfo *conninfo, const char *database, dlock_error *error);
extern int	dlock_conn_fd(const DlockConn *conn, short *events);
extern int64_t dlock_conn_until(const DlockConn *conn);
extern DlockReply *dlock_conn_take(DlockConn *conn);

/*
 * Within this folder
 */

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
extern bool dlock_prepare_is_lost(DlockConn *conn, const struct pg_result *result);
extern void dlock_prepare_forget(DlockConn *conn);

/* conn.c */
extern void dlock_conn_disconnect(DlockConn *conn);
extern void dlock_conn_no_memory(DlockConn *conn);
extern void dlock_conn_result_error(DlockConn *conn, const struct pg_result *result);
extern int	dlock_conn_transfer(DlockConn *conn, short revents);
extern void dlock_conn_send_listen(DlockConn *conn);

/* resolve.c */
extern DlockResolve *dlock_resolve_start(const char *host);
extern int	dlock_resolve_fd(const DlockResolve *job);
extern int	dlock_resolve_take(DlockResolve *job, char ***addresses,
							   char *message, size_t size);
extern void dlock_resolve_abandon(DlockResolve *job);
extern bool dlock_resolve_needed(const char *host);

#endif							/* DLOCK_CONN_H */
