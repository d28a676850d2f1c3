/*-------------------------------------------------------------------------
 *
 * internal.h
 *	  What the files of libdlock share.
 *
 * Calls go downwards only:
 *
 *	  handle.c		handles and options
 *	  lock.c		locks: acquire, release, refresh, check, elections
 *	  keys.c		keys: info, lists, watch, and grants without a dlock_lock
 *	  keepalive.c	the renewal thread
 *	  lease.c		how long a lock is ours
 *	  events.c		what is heard on channel dlock
 *	  orphan.c		grants that nobody knows of
 *	  call.c		one question to the server, retried until it is answered
 *	  pool.c		connections that nobody uses
 *	  fork.c		handles in a process that did not open them
 *	  conn.c		one connection, never blocking; the only one who talks to libpq
 *	  reply.c		what a server answered
 *	  target.c		the connection string, taken apart
 *	  resolve.c		names of hosts, without blocking
 *	  errors.c		what an error of a server means
 *	  sql.c			the statements
 *	  util.c		clock, randomness, errors, strings
 *
 * Times are milliseconds of dlock_now(), if they are points in time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_INTERNAL_H
#define DLOCK_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "buffer.h"
#include "dlock.h"

#define DLOCK_NEVER INT64_MAX

#if defined(__GNUC__)
#define dlock_printf(f, a) __attribute__((format(printf, f, a)))
#else
#define dlock_printf(f, a)
#endif

/*
 * util.c
 */
extern int64_t dlock_now(void);
extern void dlock_sleep_until(int64_t until);
extern int	dlock_poll_timeout(int64_t until, int64_t now);

/* a + b, where either may be DLOCK_NEVER; b is not negative */
extern int64_t dlock_later(int64_t a, int64_t b);
extern int64_t dlock_min(int64_t a, int64_t b);
extern int64_t dlock_max(int64_t a, int64_t b);

extern bool dlock_random_bytes(void *to, size_t size);
extern uint32_t dlock_random(void);
extern int64_t dlock_jitter(int64_t about);
extern bool dlock_random_owner(char *to);

#define DLOCK_OWNER_SIZE 33

extern dlock_status dlock_fail(dlock_error *err, dlock_status status,
							   const char *fmt,...) dlock_printf(3, 4);
extern void dlock_error_clear(dlock_error *err);
extern dlock_status dlock_error_copy(dlock_error *to, const dlock_error *from);
extern void dlock_clip(char *to, size_t size, const char *from, size_t len);

extern void dlock_append_quoted(PQExpBuffer buffer, const char *text);
extern char *dlock_strdup(const char *text);

/*
 * errors.c
 */
extern void dlock_error_make(dlock_error *error, const char *code,
							 const char *text, const char *detail,
							 const char *hint);
extern void dlock_error_parse(dlock_error *error, const char *text);
extern bool dlock_error_classify(dlock_error *error);
extern bool dlock_error_turned_away(const dlock_error *error);
extern bool dlock_error_timed_out(dlock_error *error, const char *function,
								  int64_t took_ms, int64_t statement_timeout_ms);

/*
 * resolve.c
 */
typedef struct DlockResolve DlockResolve;

extern DlockResolve *dlock_resolve_start(const char *host);
extern int	dlock_resolve_fd(const DlockResolve *job);
extern int	dlock_resolve_take(DlockResolve *job, char ***addresses,
							   char *message, size_t size);
extern void dlock_resolve_abandon(DlockResolve *job);
extern bool dlock_resolve_needed(const char *host);

/*
 * target.c
 */
typedef struct DlockHost
{
	char	   *host;			/* NULL: libpq's default */
	char	   *hostaddr;
	char	   *port;
} DlockHost;

typedef struct DlockConn DlockConn;

/* Never changes, but for preferred and conns. */
typedef struct DlockTarget
{
	char	  **keywords;		/* without those of DlockHost */
	char	  **values;
	int			nparams;
	DlockHost  *hosts;
	int			nhosts;
	int64_t		connect_ms;		/* for one address */
	int			preferred;		/* the host that took us last; atomic */
	pthread_mutex_t mutex;
	DlockConn  *conns;			/* all there are; protected by mutex */
} DlockTarget;

extern dlock_status dlock_target_make(const char *conninfo,
									  const dlock_open_options *options,
									  DlockTarget **target, dlock_error *err);
extern void dlock_target_free(DlockTarget *target);
extern int64_t dlock_target_round_ms(const DlockTarget *target);

/*
 * conn.c
 */

typedef enum DlockConnState
{
	DLOCK_CONN_CLOSED,			/* never started, or failed: see error */
	DLOCK_CONN_RESOLVING,
	DLOCK_CONN_CONNECTING,
	DLOCK_CONN_LOOKUP,			/* asks where the extension is */
	DLOCK_CONN_LISTEN,
	DLOCK_CONN_READY,
	DLOCK_CONN_BUSY,			/* a statement was sent */
	DLOCK_CONN_DONE				/* and this is its answer */
} DlockConnState;

/* An answer without an error. */
typedef struct DlockReply
{
	struct pg_result *result;	/* a PGresult */
} DlockReply;

/* of a notification on channel dlock */
typedef void (*DlockNotified) (void *arg, const char *payload);

extern DlockConn *dlock_conn_new(DlockTarget *target);
extern void dlock_conn_free(DlockConn *conn);
extern void dlock_conn_listen(DlockConn *conn, DlockNotified notified, void *arg,
							  int64_t patience, int64_t now);
extern bool dlock_conn_listens(const DlockConn *conn);
extern void dlock_conn_start(DlockConn *conn, int64_t connect_ms, int64_t now);
extern void dlock_conn_close(DlockConn *conn);
extern void dlock_conn_step(DlockConn *conn, short revents, int64_t now);
extern bool dlock_conn_send(DlockConn *conn, const char *sql, int nparams,
							const char *const *params);
extern DlockConnState dlock_conn_state(const DlockConn *conn);
extern bool dlock_conn_connecting(const DlockConn *conn);
extern int	dlock_conn_fd(const DlockConn *conn, short *events);
extern int64_t dlock_conn_until(const DlockConn *conn);
extern int64_t dlock_conn_default_ttl(const DlockConn *conn);
extern bool dlock_conn_same_server(const DlockConn *a, const DlockConn *b);

/*
 * Why it is closed, or what the statement got.  retry: it may succeed later,
 * perhaps on another host, and must be asked on a new connection.
 */
extern const dlock_error *dlock_conn_error(const DlockConn *conn, bool *retry);
extern bool dlock_conn_timed_out(const DlockConn *conn);
extern int64_t dlock_conn_turned_away_at(const DlockConn *conn);
extern bool dlock_conn_found_full(const DlockConn *conn, const DlockConn *where);

/* In state DONE: the answer, or NULL if it was an error.  Now it is READY. */
extern DlockReply *dlock_conn_take(DlockConn *conn);

/*
 * sql.c; the number of parameters is that of the caller
 */
extern const char dlock_sql_lookup[];
extern const char dlock_sql_probe[];
extern const char dlock_sql_listen[];
extern const char dlock_sql_try[];
extern const char dlock_sql_wait[];
extern const char dlock_sql_release[];
extern const char dlock_sql_check[];
extern const char dlock_sql_refresh_key[];
extern const char dlock_sql_refresh[];
extern const char dlock_sql_force_release[];
extern const char dlock_sql_renew[];
extern const char dlock_sql_orphans[];
extern const char dlock_sql_info[];
extern const char dlock_sql_list[];
extern const char dlock_sql_waiters[];
extern const char dlock_sql_watch[];

/*
 * reply.c
 */
extern int	dlock_reply_rows(const DlockReply *reply);
extern const char *dlock_reply_get(const DlockReply *reply, int row, int column);
extern int64_t dlock_reply_int(const DlockReply *reply, int row, int column);
extern void dlock_reply_free(DlockReply *reply);

/*
 * call.c
 */
typedef struct DlockCall
{
	/* "@." is the schema of the extension */
	const char *sql;
	int			nparams;
	const char **params;

	int64_t		timeout_ms;		/* how long the server may be silent */
	int64_t		until;			/* and the end of it all */
	bool		once;			/* no second try */
	bool		knocks;			/* a server that is full is there, too */

	/* if the server is asked to wait: which parameter says so, and till when */
	int			wait_param;		/* from 1, or 0 */
	int64_t		wait_until;

	/* if not NULL: *ttl_ms, or the server's default if that is 0 */
	int			ttl_param;
	int64_t    *ttl_ms;

	/* if not NULL: *conn is used, kept, and where needed replaced */
	DlockConn **conn;

	/* what comes out */
	DlockReply *reply;
	int64_t		sent_at;		/* the clock before the answered try was sent */
	bool		in_doubt;		/* a try was sent and not answered */
} DlockCall;

extern dlock_status dlock_call(dlock_handle *handle, DlockCall *call,
							   dlock_error *err);
extern void dlock_call_init(DlockCall *call, const char *sql,
							int nparams, const char **params,
							int64_t timeout_ms);

/*
 * pool.c
 */
#define DLOCK_POOL_SIZE 4

extern DlockConn *dlock_pool_take(dlock_handle *handle, bool may_borrow,
								  int64_t until);
extern DlockConn *dlock_pool_take_open(dlock_handle *handle, bool may_borrow,
									   int64_t until);
extern void dlock_pool_give(dlock_handle *handle, DlockConn *conn);
extern void dlock_pool_close(dlock_handle *handle);
extern void dlock_pool_finish(DlockConn *conn, int64_t until);

/*
 * Handles and locks: handle.c and lock.c make them, keepalive.c watches over
 * them.
 */
typedef enum DlockHold
{
	DLOCK_HOLD_OURS,
	DLOCK_HOLD_LOST,
	DLOCK_HOLD_RELEASED
} DlockHold;

struct dlock_lock
{
	/* never change */
	dlock_handle *handle;
	char	   *key;
	char	   *owner;
	int64_t		version;
	bool		renew;
	dlock_callback callback;
	void	   *callback_arg;
	DlockConn  *conn;			/* of a session lock */

	/* protected by the mutex of the handle */
	dlock_lock *prev;
	dlock_lock *next;
	int64_t		ttl_ms;
	DlockHold	hold;
	dlock_reason reason;
	int64_t		deadline;		/* from then on it is not ours */
	int64_t		danger_at;		/* when to worry, unless renewed */
	int64_t		connect_at;		/* when the thread needs a connection for it */
	int64_t		due;			/* next renewal */
	int			index;			/* in the statement in flight, or -1 */
	bool		renewing;		/* which renews it, or looks at it in turn */
	int			held_off;		/* not to be renewed now, if not 0 */
	bool		alone;			/* the last statement failed: without others */
	bool		silent;			/* no more events */
	bool		asked;			/* to yield, and the event is on its way or
								 * told */
	bool		heard;			/* of in an event, and not yet asked about */
	bool		asking;			/* about that, in the statement in flight */
	bool		forced;			/* an event says so, which may be false */
	bool		in_callback;
	bool		freed;			/* in its own callback */
	/* events to be told */
	bool		tell_preempted;
	int64_t		yield_until;
	bool		tell_danger;
	bool		tell_lost;
};

/* A request that may have been granted without our knowing. */
typedef struct DlockOrphan
{
	struct DlockOrphan *next;
	char	   *key;
	char	   *owner;
	int64_t		until;			/* then it has ended by itself */
	int64_t		due;			/* next try to release it */
	int64_t		pause;
	bool		in_flight;
} DlockOrphan;

struct dlock_handle
{
	pid_t		pid;			/* of the process that opened it */
	DlockTarget *target;
	int64_t		ttl_ms;
	int64_t		timeout_ms;
	dlock_callback callback;
	void	   *callback_arg;

	pthread_mutex_t mutex;		/* protects what follows, and the locks */
	pthread_cond_t changed;		/* a renewal or a callback has ended */
	DlockConn  *idle[DLOCK_POOL_SIZE];
	int			nidle;
	DlockConn  *returned;		/* to the thread, by whom it had lent it to */
	int			wanted;			/* so many want to borrow it */
	bool		lends;			/* it has one, and can answer to that */
	int64_t		heard_until;	/* questions about events are paid for */
	dlock_lock *locks;
	DlockOrphan *orphans;
	dlock_lock **batch;			/* in flight; NULL for those freed meanwhile */
	int			nbatch;
	int			jitter;			/* of the next renewal, 0 to 199 */
	bool		running;
	bool		stopping;
	bool		closing;		/* dlock_close() was called in a callback */
	pthread_t	thread;
	int			wake[2];		/* a byte wakes the thread */
};

/*
 * keepalive.c
 */
extern dlock_status dlock_keepalive_start(dlock_handle *handle, dlock_error *err);
extern void dlock_keepalive_stop(dlock_handle *handle);
extern void dlock_keepalive_stop_later(dlock_handle *handle);
extern void dlock_keepalive_wake(dlock_handle *handle);
extern bool dlock_in_callback(dlock_handle *handle);

/*
 * lease.c; all need the mutex
 */
extern void dlock_keepalive_add(dlock_lock *lock);
extern void dlock_keepalive_remove(dlock_lock *lock);
extern bool dlock_keepalive_wait(dlock_handle *handle, int64_t until);
extern bool dlock_keepalive_hold_off(dlock_lock *lock, int64_t until);
extern void dlock_lease_renewed(dlock_lock *lock, int64_t sent_at);
extern void dlock_lease_lost(dlock_lock *lock, dlock_reason reason);
extern void dlock_lease_gone(dlock_lock *lock, const char *state);
extern bool dlock_lease_overdue(dlock_lock *lock, int64_t now);
extern int64_t dlock_lease_next_due(const dlock_lock *lock, int64_t from);

/*
 * events.c; all but the first two need the mutex
 */
#define DLOCK_HEAR_PAUSE_MS 250
#define DLOCK_HEAR_BURST 4

extern bool dlock_event_parse(const char *payload, char **key,
							  int64_t *version, bool *forced);
extern void dlock_events_hear(void *arg, const char *payload);
extern void dlock_events_missed(dlock_handle *handle);
extern bool dlock_events_ripe(const dlock_lock *lock, int64_t now);
extern int64_t dlock_events_ripe_at(const dlock_handle *handle);
extern void dlock_events_asked(dlock_handle *handle, dlock_lock *const *locks,
							   int n, int64_t now);
extern void dlock_events_refuted(dlock_lock *lock);
extern void dlock_events_unanswered(dlock_lock *lock);

/*
 * orphan.c; all but the first two need the mutex
 */
extern void dlock_orphans_add(dlock_handle *handle, const char *key,
							  const char *owner, int64_t ttl_ms);
extern bool dlock_orphans_forget(dlock_handle *handle, const char *key,
								 const char *owner, int64_t until);
extern bool dlock_orphans_send(dlock_handle *handle, DlockConn *conn, int64_t now);
extern void dlock_orphans_landed(dlock_handle *handle, const DlockReply *reply,
								 int64_t now);
extern void dlock_orphans_drop(dlock_handle *handle, int64_t now);
extern int64_t dlock_orphans_due(const dlock_handle *handle);

/* How much of a lease is ours to use: the rest is for clocks that differ. */
#define dlock_lease_ms(ttl) ((ttl) * 9 / 10)

/*
 * fork.c
 */
extern bool dlock_forked(const dlock_handle *handle);
extern void dlock_forked_close(dlock_handle *handle);

/* lock.c */
extern void dlock_lock_destroy(dlock_lock *lock);
extern dlock_status dlock_checked(const char *state);

/* handle.c */
extern void dlock_handle_destroy(dlock_handle *handle);
extern dlock_status dlock_may_ask(dlock_handle *handle, dlock_error *err);
extern int64_t dlock_timeout(const dlock_handle *handle, int64_t timeout_ms);
extern bool dlock_take_options(void *to, size_t to_size, const void *from,
							   size_t from_size);

#endif							/* DLOCK_INTERNAL_H */
