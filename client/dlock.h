/*-------------------------------------------------------------------------
 *
 * dlock.h
 *	  libdlock: the client of the PostgreSQL extension dlock.
 *
 * A lock is a lease: it ends at its TTL unless it is renewed.  The library
 * renews it in a thread of its own, and tells at once, and before the server
 * would give the lock to somebody else, when that does not succeed any more.
 *
 * Times are in milliseconds.  Functions may be called from any thread, and a
 * handle and its locks may be shared between threads; the exceptions are
 * dlock_close() and dlock_free(), which must be the last use of their
 * argument.
 *
 * A handle belongs to the process that opened it.  After fork(), what would
 * talk to the server returns DLOCK_INVALID in the child, no lock is the
 * child's (dlock_is_owner() is 0), and dlock_close() frees the copy without a
 * word to the server: the parent's connections and locks stay as they are.
 *
 * A function that can fail returns a dlock_status and, if err is not NULL,
 * fills *err.  The library never prints, exits, or touches signals.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_H
#define DLOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C"
{
#endif

/* The version of this header; dlock_lib_version() is that of the library. */
#define DLOCK_LIB_VERSION 10000 /* 1.0.0 */

/* What became of a call.  The values never change. */
typedef enum dlock_status
{
	DLOCK_OK = 0,				/* done: granted, refreshed, released, held */
	DLOCK_BUSY = 1,				/* somebody else has it, and the wait is over */
	DLOCK_NOT_HELD = 2,			/* the key is free, or its lease has expired */
	DLOCK_HELD_BY_OTHER = 3,	/* another grant, owner or role has the key */
	DLOCK_PREEMPTING = 4,		/* still ours, but we were asked to yield */
	DLOCK_LOST = 5,				/* was ours, and is not any more */
	DLOCK_REFUSED = 6,			/* the holder did not yield (55P03) */
	DLOCK_UNCHANGED = 7,		/* watching: nothing happened in time */
	DLOCK_TIMEOUT = 8,			/* connected, but no answer in time, or a
								 * timeout of the server came first */
	DLOCK_UNREACHABLE = 9,		/* no server of the list took us in time */
	DLOCK_DENIED = 10,			/* no such role or database, wrong password,
								 * no privilege */
	DLOCK_NOT_READY = 11,		/* the server cannot serve locks: extension
								 * not installed or not preloaded, another
								 * function beside one of its own, or
								 * dlock.require_sync refuses */
	DLOCK_INVALID = 12,			/* bad argument, conninfo, or wrong use */
	DLOCK_SERVER_ERROR = 13,	/* anything else that the server raised; see
								 * the sqlstate */
	DLOCK_NO_MEMORY = 14		/* or no thread, or no descriptor */
} dlock_status;

/* The name of a status, "busy" and so on; never NULL. */
extern const char *dlock_status_name(dlock_status status);

/* The caller's copy of an error.  Strings are cut to fit. */
typedef struct dlock_error
{
	dlock_status status;
	char		sqlstate[6];	/* of the server, else "" */
	char		message[512];	/* one line, no newline; "" if there is none */
	char		hint[512];		/* what to do about it, or "" */
} dlock_error;

/* A connection string with its connections, and the thread that renews. */
typedef struct dlock_handle dlock_handle;

/* A grant. */
typedef struct dlock_lock dlock_lock;


/*
 * Events
 */
typedef enum dlock_event_type
{
	/* We were asked to yield, and have left_ms to release.  Once a request. */
	DLOCK_EVENT_PREEMPTED = 1,

	/*
	 * Renewals do not succeed; the lock will be lost in left_ms if that goes
	 * on.  Once until a renewal succeeds.
	 */
	DLOCK_EVENT_DANGER = 2,

	/* The lock is lost; reason tells why.  Once, and the last event. */
	DLOCK_EVENT_LOST = 3
} dlock_event_type;

typedef enum dlock_reason
{
	DLOCK_REASON_NONE = 0,
	/* no renewal succeeded in time: we gave up before the server did */
	DLOCK_REASON_DEADLINE = 1,
	/* the server has no such grant any more, and we do not know why */
	DLOCK_REASON_EXPIRED = 2,
	/* we were asked to yield and did not in time */
	DLOCK_REASON_PREEMPTED = 3,

	/*
	 * taken away without notice, by a higher priority or an administrator:
	 * the server says that another one has it before our time was up, or that
	 * it is gone, and an event said so
	 */
	DLOCK_REASON_FORCED = 4
} dlock_reason;

extern const char *dlock_event_name(dlock_event_type type);
extern const char *dlock_reason_name(dlock_reason reason);

typedef struct dlock_event
{
	size_t		size;			/* of this struct, as the library knows it */
	dlock_event_type type;
	dlock_reason reason;		/* LOST */
	int64_t		left_ms;		/* PREEMPTED, DANGER */
	dlock_lock *lock;
	const char *key;
	int64_t		version;
} dlock_event;

/*
 * Called in the renewal thread: be quick, all locks of the handle wait for
 * you.  Setting a flag, writing to a pipe and the functions marked "local"
 * below are fine.  A function that talks to the server returns DLOCK_INVALID
 * here.  dlock_close() of this handle takes effect when the callback returns.
 */
typedef void (*dlock_callback) (const dlock_event *event, void *arg);


/*
 * Handles
 */

/* Fill with dlock_open_options_init(), then change what you like. */
typedef struct dlock_open_options
{
	size_t		size;			/* set by dlock_open_options_init() */

	/*
	 * The TTL that the locks will have, about: connect_timeout,
	 * tcp_user_timeout and keepalives are derived from it unless they are in
	 * the conninfo.  Default 20000.
	 */
	int64_t		ttl_ms;

	/*
	 * How long the servers may be silent or unreachable before a call gives
	 * up, where the call does not say.  Default 10000.  One that is full, or
	 * is starting or stopping, is neither: a wait for a lock goes on.
	 */
	int64_t		timeout_ms;

	/* Default of application_name; NULL is "libdlock". */
	const char *application_name;

	/* For locks that have no callback of their own. */
	dlock_callback callback;
	void	   *callback_arg;
} dlock_open_options;

extern void dlock_open_options_init_size(dlock_open_options *options, size_t size);
#define dlock_open_options_init(options) \
	dlock_open_options_init_size((options), sizeof(dlock_open_options))

/*
 * Make a handle.  conninfo is any connection string or URI of libpq, with
 * several hosts if you like; NULL or "" takes it all from the PG* variables.
 * target_session_attrs is read-write unless given.  options may be NULL.
 *
 * Nothing is connected yet; DLOCK_INVALID tells of a bad conninfo.
 */
extern dlock_status dlock_open(const char *conninfo,
							   const dlock_open_options *options,
							   dlock_handle **handle, dlock_error *err);

/*
 * Connect and see whether the server can do locks.  timeout_ms as in
 * dlock_open_options, with -1 for that of the handle, as in all functions
 * below.  Retries until then, so that a server that is starting or failing
 * over is no error; 0 tries each host once.
 */
extern dlock_status dlock_ping(dlock_handle *handle, int64_t timeout_ms,
							   dlock_error *err);

/*
 * Stop the renewal, close the connections, and free the handle and all its
 * locks, which must not be used any more.  Releases nothing: what is held
 * ends by its TTL.  NULL is fine.  Takes a second at most, if the server does
 * not answer.
 *
 * In a callback of this handle it returns at once.  No other callback of it
 * is called, and the renewal thread does the rest when this one returns; until
 * then the event and its lock may be looked at.
 */
extern void dlock_close(dlock_handle *handle);


/*
 * Locks
 */

/* Fill with dlock_options_init(), then change what you like. */
typedef struct dlock_options
{
	size_t		size;			/* set by dlock_options_init() */

	/* 0, the default: dlock.default_ttl of the server, which is 20 s. */
	int64_t		ttl_ms;

	/*
	 * Renew at a third of the TTL until it is released: 1 yes, 0 no, -1, the
	 * default: yes if ttl_ms is 0, no if you gave a TTL.
	 */
	int			renew;

	/*
	 * How long to queue for the lock: 0, the default, tries and does not
	 * wait, -1 waits without limit.
	 */
	int64_t		wait_ms;

	/*
	 * How long the servers may be silent or unreachable, -1 (the default) for
	 * the handle's.  So the call is back after wait_ms + timeout_ms at most,
	 * and without a limit on the wait after timeout_ms without a server.
	 */
	int64_t		timeout_ms;

	/* Kept with the grant, seen by others; NULL for none. */
	const char *value;

	/*
	 * The name of the request; NULL, the default, generates a random one.
	 * Give one only if you know why: the same name gets the same grant.
	 */
	const char *owner;

	/* 0, the default, to 2147483647. */
	int32_t		priority;

	/* The time that we want to yield in if a higher priority asks us to. */
	int64_t		cleanup_ms;

	/* Take it from a lower priority that does not yield. */
	int			force;

	/*
	 * Release it when its connection ends, too.  Keeps a connection of its
	 * own until the release.  Not through a pooler.
	 */
	int			session;

	/* NULL: the handle's. */
	dlock_callback callback;
	void	   *callback_arg;
} dlock_options;

extern void dlock_options_init_size(dlock_options *options, size_t size);
#define dlock_options_init(options) \
	dlock_options_init_size((options), sizeof(dlock_options))

/*
 * Get a lock.  DLOCK_OK: *lock is the grant, to be freed with dlock_free().
 * Otherwise *lock is NULL, and the key is not ours: DLOCK_BUSY, DLOCK_REFUSED
 * and the errors.  If there was no answer, the request may have been granted
 * nevertheless; then the library has tried to release it, and it ends by its
 * TTL at the latest.
 *
 * Lost answers, broken connections and failovers are retried with the same
 * owner, so there is one grant or none.  options may be NULL.
 */
extern dlock_status dlock_acquire(dlock_handle *handle, const char *key,
								  const dlock_options *options,
								  dlock_lock **lock, dlock_error *err);

/*
 * Stop the renewal of the lock, wait for one that is under way, and give the
 * lock back.  DLOCK_OK, DLOCK_NOT_HELD (it had expired), DLOCK_HELD_BY_OTHER
 * (it had been lost to another), or an error, after which it ends by its TTL.
 * From here on there are no more events.  The struct stays, until
 * dlock_free().
 */
extern dlock_status dlock_release(dlock_lock *lock, int64_t timeout_ms,
								  dlock_error *err);

/*
 * Keep it for another TTL, a new one if ttl_ms is not 0.  DLOCK_OK or
 * DLOCK_LOST, or an error, after which it may be ours or not; see
 * dlock_is_owner().  A lock that was lost is never brought back.
 */
extern dlock_status dlock_refresh(dlock_lock *lock, int64_t ttl_ms,
								  int64_t timeout_ms, dlock_error *err);

/*
 * Ask the server: DLOCK_OK (held), DLOCK_PREEMPTING (held, too), DLOCK_LOST,
 * DLOCK_NOT_HELD (only after a release), DLOCK_HELD_BY_OTHER (likewise).
 */
extern dlock_status dlock_check(dlock_lock *lock, int64_t timeout_ms,
								dlock_error *err);

/*
 * Stop the renewal and forget the lock, without a release.  The server keeps
 * it for what is left of its TTL.  Local.  NULL is fine.  After a fork, the
 * child's copy stays until dlock_close().
 */
extern void dlock_free(dlock_lock *lock);

/*
 * Is it ours, as far as we know?  1 only until the local deadline, which is
 * before the server's expiry.  Local.
 *
 * This is for stopping early.  What must not happen twice needs the fence,
 * dlock_fence(key, version) in the transaction that does it.
 */
extern int	dlock_is_owner(const dlock_lock *lock);

/* Time to the local deadline; 0 if it is not ours.  Local. */
extern int64_t dlock_left_ms(const dlock_lock *lock);

/* Why it was lost; DLOCK_REASON_NONE if it was not.  Local. */
extern dlock_reason dlock_lost_reason(const dlock_lock *lock);

/* The version, which is the fencing token.  Local, as are the next. */
extern int64_t dlock_version(const dlock_lock *lock);
extern const char *dlock_key(const dlock_lock *lock);
extern const char *dlock_owner(const dlock_lock *lock);
extern int64_t dlock_ttl_ms(const dlock_lock *lock);


/*
 * Leader election: the leader is who has the lock, its version is the term.
 */

/*
 * dlock_acquire() that waits without limit and renews, whatever options say
 * of that, unless wait_ms is positive.
 */
extern dlock_status dlock_campaign(dlock_handle *handle, const char *key,
								   const dlock_options *options,
								   dlock_lock **lock, dlock_error *err);

/* dlock_release(), so that the next one is elected at once. */
extern dlock_status dlock_resign(dlock_lock *lock, int64_t timeout_ms,
								 dlock_error *err);

struct dlock_info;

/*
 * Wait until there is a leader whose term is not the given one (0 for any),
 * and tell who it is; free *leader with dlock_info_free().  wait_ms as in
 * dlock_options; DLOCK_UNCHANGED when it is over.
 */
extern dlock_status dlock_observe(dlock_handle *handle, const char *key,
								  int64_t version, int64_t wait_ms,
								  struct dlock_info **leader,
								  dlock_error *err);


/*
 * Looking at keys
 */

/* A row of the view dlock_locks. */
typedef struct dlock_info
{
	char	   *key;
	int64_t		version;
	char	   *owner;			/* NULL: none, or not for our eyes */
	char	   *role;
	char	   *value;			/* NULL: none, or not for our eyes */
	char	   *state;			/* "held", "preempting" */
	int32_t		priority;
	int64_t		acquired_at_ms; /* Unix time, by the server's clock */
	int64_t		refreshed_at_ms;
	int64_t		expires_at_ms;
	int64_t		remaining_ms;
	int64_t		ttl_ms;
	int32_t		pid;			/* of a session lock, else 0 */
	int			has_requestor;	/* is somebody asking the holder to yield? */
	char	   *requestor_owner;	/* NULL: none, or not for our eyes */
	int32_t		requestor_priority;
	int64_t		requestor_since_ms; /* Unix time */
	int64_t		requestor_deadline_ms;	/* Unix time */
	int64_t		requestor_left_ms;
} dlock_info;

/* A row of the view dlock_waiters. */
typedef struct dlock_waiter
{
	char	   *key;
	int32_t		pid;
	char	   *owner;			/* NULL: none, or not for our eyes */
	int			watches;		/* 1: only watches, has no position */
	int32_t		priority;
	int32_t		position;		/* 1 is next */
	int64_t		since_ms;		/* Unix time */
	int64_t		until_ms;		/* Unix time, 0: without limit */
	int64_t		waited_ms;
} dlock_waiter;

/* DLOCK_OK and *info, to be freed, or DLOCK_NOT_HELD and NULL: it is free. */
extern dlock_status dlock_get_info(dlock_handle *handle, const char *key,
								   int64_t timeout_ms, dlock_info **info,
								   dlock_error *err);
extern void dlock_info_free(dlock_info *info);

/*
 * All live grants whose key matches a LIKE pattern (NULL: all), by key, limit
 * at most (0: all).  *infos is an array of *n, to be freed as a whole.
 */
extern dlock_status dlock_list(dlock_handle *handle, const char *pattern,
							   int64_t limit, int64_t timeout_ms,
							   dlock_info **infos, size_t *n,
							   dlock_error *err);
extern void dlock_list_free(dlock_info *infos, size_t n);

/* Likewise those who wait, by key and position. */
extern dlock_status dlock_list_waiters(dlock_handle *handle,
									   const char *pattern, int64_t limit,
									   int64_t timeout_ms,
									   dlock_waiter **waiters, size_t *n,
									   dlock_error *err);
extern void dlock_waiters_free(dlock_waiter *waiters, size_t n);

/*
 * Wait until the version of the key is another than *version, where 0 is
 * free, and put it there.  wait_ms as in dlock_options.  DLOCK_OK, or
 * DLOCK_UNCHANGED when the time is over.
 */
extern dlock_status dlock_watch(dlock_handle *handle, const char *key,
								int64_t *version, int64_t wait_ms,
								dlock_error *err);


/*
 * Grants that no dlock_lock stands for, named by version (0: any), owner
 * (NULL: any) or both.
 */

/* DLOCK_OK, DLOCK_PREEMPTING, DLOCK_NOT_HELD, DLOCK_HELD_BY_OTHER. */
extern dlock_status dlock_check_key(dlock_handle *handle, const char *key,
									int64_t version, const char *owner,
									int64_t timeout_ms, dlock_error *err);

/* DLOCK_OK or DLOCK_LOST; *expires_at_ms (may be NULL) is Unix time. */
extern dlock_status dlock_refresh_key(dlock_handle *handle, const char *key,
									  int64_t version, const char *owner,
									  int64_t ttl_ms, int64_t timeout_ms,
									  int64_t *expires_at_ms,
									  dlock_error *err);

/* DLOCK_OK, DLOCK_NOT_HELD, DLOCK_HELD_BY_OTHER. */
extern dlock_status dlock_release_key(dlock_handle *handle, const char *key,
									  int64_t version, const char *owner,
									  int64_t timeout_ms, dlock_error *err);

/*
 * Take it away from whoever has it; *version (may be NULL) is what was taken.
 * DLOCK_OK, or DLOCK_NOT_HELD: it is free.  Needs the privilege.
 */
extern dlock_status dlock_force_release(dlock_handle *handle, const char *key,
										const char *reason,
										int64_t timeout_ms, int64_t *version,
										dlock_error *err);

/* The version of the library, as DLOCK_LIB_VERSION. */
extern int	dlock_lib_version(void);

#ifdef __cplusplus
}
#endif

#endif							/* DLOCK_H */
