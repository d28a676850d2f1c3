/*-------------------------------------------------------------------------
 *
 * conn.h
 *	  One connection that never blocks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONN_H
#define DLOCK_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "net/conninfo.h"
#include "net/reply.h"

typedef struct DlockConn DlockConn;

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

extern DlockConn *dlock_conn_new(DlockConninfo *conninfo);
extern DlockConn *dlock_conn_share(DlockConn *conn);
extern void dlock_conn_free(DlockConn *conn);
extern void dlock_conn_disown(DlockConn *conn, bool was_idle);
extern void dlock_conn_listen(DlockConn *conn, DlockNotified notified, void *arg,
							  int64_t patience, int64_t now);
extern bool dlock_conn_listens(const DlockConn *conn);
extern bool dlock_conn_is_routed(const DlockConn *conn);
extern void dlock_conn_start(DlockConn *conn, int64_t connect_ms, int64_t now);
extern void dlock_conn_close(DlockConn *conn);
extern void dlock_conn_abort(DlockConn *conn, const dlock_error *error);
extern void dlock_conn_step(DlockConn *conn, short revents, int64_t now);
extern bool dlock_conn_send(DlockConn *conn, const char *sql,
							const DlockParams *params);
extern DlockConnState dlock_conn_state(const DlockConn *conn);
extern bool dlock_conn_connecting(const DlockConn *conn);
extern int	dlock_conn_fd(const DlockConn *conn, short *events);
extern int64_t dlock_conn_until(const DlockConn *conn);
extern int64_t dlock_conn_default_ttl(const DlockConn *conn);
extern int	dlock_conn_host(const DlockConn *conn);

/*
 * Why it is closed, or the error of the statement.  *retry: it may succeed
 * later, perhaps on another host, on a new connection.
 */
extern const dlock_error *dlock_conn_error(const DlockConn *conn, bool *retry);
extern bool dlock_conn_timed_out(const DlockConn *conn);
extern int64_t dlock_conn_turned_away_at(const DlockConn *conn);
extern int	dlock_conn_full_host(const DlockConn *conn);
extern bool dlock_conn_found_full(const DlockConn *conn);

/* In state DONE: the reply, or NULL after an error.  Then it is READY. */
extern DlockReply *dlock_conn_take(DlockConn *conn);

#endif							/* DLOCK_CONN_H */
