/*-------------------------------------------------------------------------
 *
 * dlock.h
 *	  libdlock: the client of the PostgreSQL extension dlock.
 *
 * A lock is a lease: it ends at its TTL unless it is renewed.  The library
 * renews it in a thread of its own.  If that fails, it tells the program before
 * the server can grant the lock to another client.
 *
 * Times are in milliseconds.  Functions may be called from any thread, and a
 * handle and its locks may be shared between threads; the exceptions are
 * dlock_close() and dlock_free(), which must be the last use of their
 * argument.
 *
 * A handle belongs to the process that opened it.  After fork(), the child owns
 * no lock (dlock_is_owner() is 0), functions that call the server return
 * DLOCK_INVALID, and dlock_close() only frees the child's copy: the connections
 * and locks of the parent stay as they are.
 *
 * A function that can fail returns a dlock_status and, if err is not NULL,
 * fills *err.  The library never prints, exits, or changes signals.
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

/* The result of a call.  The values never change. */
typedef enum dlock_status
{
	DLOCK_OK = 0,				/* done: granted, refreshed, released, held */
	DLOCK_BUSY = 1,				/* another client holds it, and the wait is
								 * over */
	DLOCK_NOT_HELD = 2,			/* the key is free, or its lease has expired */
	DLOCK_HELD_BY_OTHER = 3,	/* another grant, owner or role holds the key */
	DLOCK_PREEMPTING = 4,		/* still ours, but we were asked to yield */
	DLOCK_LOST = 5,				/* it was ours, and is not any more */
	DLOCK_REFUSED = 6,			/* the holder did not yield (55P03) */
	DLOCK_UNCHANGED = 7,		/* watching: nothing happened in time */
	DLOCK_TIMEOUT = 8,			/* connected, but no answer in time, or a
								 * timeout of the server ended it */
	DLOCK_UNREACHABLE = 9,		/* no server of the list accepted us in time */
	DLOCK_DENIED = 10,			/* no such role or database, wrong password,
								 * no privilege */
	DLOCK_NOT_READY = 11,		/* the server cannot grant locks: extension
								 * not installed or not preloaded, a function
								 * of the same name makes a call ambiguous, or
								 * dlock.require_sync refuses */
	DLOCK_INVALID = 12,			/* invalid argument or conninfo, or a call
								 * that is not allowed here */
	DLOCK_SERVER_ERROR = 13,	/* any other error of the server; see sqlstate */
	DLOCK_NO_MEMORY = 14,		/* or no thread, or no descriptor */
	DLOCK_CANCELLED = 15		/* dlock_op_cancel() was called */
} dlock_status;

/* The name of a status, "busy" and so on; never NULL. */
extern const char *dlock_status_name(dlock_status status);

typedef struct dlock_error		/* strings are truncated to fit */
{
	dlock_status status;
	char		sqlstate[6];	/* of the server, or "" */
	char		message[512];	/* one line, no newline; "" if there is none */
	char		hint[512];		/* what the user can do about it, or "" */
} dlock_error;

/* A connection string, its connections, and the thread that renews locks. */
typedef struct dlock_handle dlock_handle;

/* A grant. */
typedef struct dlock_lock dlock_lock;

/*
 * Events
 */
typedef enum dlock_event_type
{
	/*
	 * We were asked to yield, and have left_ms to release.  Once per request,
	 * and once for max_hold_ms, which the reason then is.
	 */
	DLOCK_EVENT_PREEMPTED = 1,

	/*
	 * Renewals fail.  The lock will be lost in left_ms unless one succeeds.
	 * Comes again only after a renewal has succeeded.
	 */
	DLOCK_EVENT_DANGER = 2,

	/* The lock is lost, for the given reason.  The last event of a lock. */
	DLOCK_EVENT_LOST = 3
} dlock_event_type;

typedef enum dlock_reason
{
	DLOCK_REASON_NONE = 0,
	/* no renewal succeeded before the local deadline */
	DLOCK_REASON_DEADLINE = 1,
	/* the server does not have the grant any more, for an unknown reason */
	DLOCK_REASON_EXPIRED = 2,
	/* we were asked to yield and did not do so in time */
	DLOCK_REASON_PREEMPTED = 3,

	/*
	 * taken away without notice, by a higher priority or an administrator:
	 * another client holds it before our deadline, or it is gone after an
	 * event that said so
	 */
	DLOCK_REASON_FORCED = 4,
	/* it has been held for max_hold_ms */
	DLOCK_REASON_MAX_HOLD = 5
} dlock_reason;

extern const char *dlock_event_name(dlock_event_type type);
extern const char *dlock_reason_name(dlock_reason reason);

typedef struct dlock_event
{
	size_t		size;			/* of this struct, as the library knows it */
	dlock_event_type type;
	dlock_reason reason;		/* LOST; PREEMPTED: MAX_HOLD or NONE */
	int64_t		left_ms;		/* PREEMPTED, DANGER */
	dlock_lock *lock;
	const char *key;
	int64_t		version;
} dlock_event;

/*
 * Called in the renewal thread.  It must return quickly, because all locks of
 * the handle wait for it.  It may set a flag, write to a pipe, and call the
 * functions marked "local" below.  A function that calls the server returns
 * DLOCK_INVALID here.  dlock_close() of this handle takes effect when the
 * callback returns.
 */
typedef void (*dlock_callback) (const dlock_event *event, void *arg);

/*
 * Handles
 */

/* Initialize with dlock_open_options_init(), then change what you need. */
typedef struct dlock_open_options
{
	size_t		size;			/* set by dlock_open_options_init() */

	/*
	 * The approximate TTL of the locks.  connect_timeout, tcp_user_timeout
	 * and keepalives are derived from it unless the conninfo sets them.
	 * Default 20000.
	 */
	int64_t		ttl_ms;

	/*
	 * How long the servers may be silent or unreachable before a call gives
	 * up, unless the call says otherwise.  Default 10000.  A server that is
	 * full, starting or shutting down is neither: a wait for a lock
	 * continues.
	 */
	int64_t		timeout_ms;

	/* The default for application_name; NULL: "libdlock". */
	const char *application_name;

	/* For locks that have no callback of their own. */
	dlock_callback callback;
	void	   *callback_arg;

	/*
	 * The bound on connections, 2 or more, whatever the number of threads and
	 * locks.  Default 4.  One carries the calls of all threads, one is for
	 * renewals, and the rest for calls that the server makes wait; without
	 * one, these ask a few times a second.  Session locks come on top.
	 */
	int			max_connections;

	/*
	 * The schema of the functions, if the portable edition was installed
	 * there without an extension.  NULL: that of the extension.
	 */
	const char *schema;
} dlock_open_options;

extern void dlock_open_options_init_size(dlock_open_options *options, size_t size);
#define dlock_open_options_init(options) \
	dlock_open_options_init_size((options), sizeof(dlock_open_options))

/*
 * Make a handle.  conninfo is a connection string or URI of libpq and may name
 * several hosts; with NULL or "" everything comes from the PG* variables.
 * target_session_attrs is read-write unless given.  options may be NULL.
 *
 * This does not connect.  DLOCK_INVALID: the conninfo is invalid.
 */
extern dlock_status dlock_open(const char *conninfo,
							   const dlock_open_options *options,
							   dlock_handle **handle, dlock_error *err);

/*
 * Connect and check that the server can grant locks.  timeout_ms is as in
 * dlock_open_options; here and in all functions below, -1 is that of the handle.
 * Retries until then, so a server that is starting or failing over is not an
 * error; 0 tries each host once.
 */
extern dlock_status dlock_ping(dlock_handle *handle, int64_t timeout_ms,
							   dlock_error *err);

/*
 * Stop renewals, close the connections, and free the handle and all its locks,
 * which must not be used any more.  Releases nothing: locks that are held end
 * by their TTL.  Calls that were started end here, and do not call back.  NULL is
 * allowed.  Takes a second or two at most if the server does not answer.
 *
 * In a callback of this handle it returns at once.  No other callback is called,
 * and the renewal thread does the rest when this one returns; until then the
 * event and its lock remain valid.
 */
extern void dlock_close(dlock_handle *handle);

/*
 * Locks
 */

/* Initialize with dlock_options_init(), then change what you need. */
typedef struct dlock_options
{
	size_t		size;			/* set by dlock_options_init() */

	/* 0, the default: the server's dlock.default_ttl, 20 s unless changed. */
	int64_t		ttl_ms;

	/*
	 * 1, the default: renew it every third of the TTL until it is released.
	 * 0: it ends at its TTL.
	 */
	int			renew;

	/*
	 * How long to queue for the lock: 0, the default, does not wait, -1 waits
	 * without limit.  A wait takes no connection, except for session locks,
	 * in dlock_acquire_all(), and with a value of more than 1024 bytes.
	 */
	int64_t		wait_ms;

	/*
	 * How long the servers may be silent or unreachable; -1, the default: as
	 * in the handle.  So the call returns after wait_ms + timeout_ms at most,
	 * and a wait without limit after timeout_ms without a server.
	 */
	int64_t		timeout_ms;

	/* Text that is stored with the grant for others to see; NULL: none. */
	const char *value;

	/*
	 * The name of the request; NULL, the default: a random one.  A grant that
	 * this name has already is busy, as anybody's is, unless adopt is set.
	 */
	const char *owner;

	/*
	 * If the owner has a grant already, take it over instead: the lock of a
	 * process that has ended, or one whose kind is to be changed.
	 */
	int			adopt;

	/* 0, the default, to 2147483647. */
	int32_t		priority;

	/* How long we need to yield if a higher priority asks us to. */
	int64_t		cleanup_ms;

	/* Take it from a lower priority that does not yield in time. */
	int			force;

	/*
	 * Also release it when its connection ends.  The lock keeps a connection
	 * of its own until the release.  Does not work through a pooler.
	 */
	int			session;

	/* NULL: the handle's. */
	dlock_callback callback;
	void	   *callback_arg;

	/*
	 * How many may hold the key at once: 1, the default, is exclusive, and a
	 * number N from 2 to 10000 asks for one of N places.
	 */
	int32_t		slots;

	/* Share the key with any number of others that do.  slots is 1 then. */
	int			shared;

	/*
	 * The key stays busy for this long after the grant, even if it is
	 * released earlier.  At most the TTL, which is at least this if ttl_ms is
	 * 0.
	 */
	int64_t		at_least_ms;

	/* If the grant ends without a release, the key stays busy for this long. */
	int64_t		delay_ms;

	/*
	 * When its TTL has ended, the grant remains on the server until another
	 * client wants the key.  The library still reports the lock as lost at
	 * its deadline, because only the fence can tell from then on.
	 * dlock_release() gives it back even then.  Not together with delay_ms.
	 */
	int			lazy;

	/*
	 * If this handle already holds the key, return that lock and count it up:
	 * it takes as many releases to give it back, and each returned pointer is
	 * freed once.  The other options are those of the lock that is held.  If
	 * the handle holds the key, but not exclusively, an exclusive request
	 * returns DLOCK_INVALID, because it would wait for itself.  The threads
	 * of a handle share the lock, too; this does not keep them apart.
	 */
	int			reentrant;

	/*
	 * 0, the default: without limit.  Otherwise it is ours no longer than
	 * this after the grant, however often it is renewed.  Renewals stop nine
	 * tenths of the TTL before, and the program is told to release it
	 * (DLOCK_EVENT_PREEMPTED).  Not less than the TTL.
	 */
	int64_t		max_hold_ms;
} dlock_options;

extern void dlock_options_init_size(dlock_options *options, size_t size);
#define dlock_options_init(options) \
	dlock_options_init_size((options), sizeof(dlock_options))

/*
 * Acquire a lock.  DLOCK_OK: *lock is the grant, to be freed with dlock_free().
 * Otherwise *lock is NULL: DLOCK_BUSY, DLOCK_REFUSED, or an error.  A request
 * that got no answer may have been granted nevertheless.  Then the library
 * releases it as soon as it can, and it ends by its TTL at the latest.
 *
 * After lost answers, broken connections and failovers the request is repeated
 * with the same owner, so there is one grant or none.  Then it gets a grant that
 * this owner has, because that is its own; so two requests that are made at the
 * same time must not have the same owner.  options may be NULL.
 */
extern dlock_status dlock_acquire(dlock_handle *handle, const char *key,
								  const dlock_options *options,
								  dlock_lock **lock, dlock_error *err);

/*
 * Acquire all of n locks, or none.  DLOCK_OK: locks[i] is the grant of keys[i],
 * to be freed with dlock_free().  Otherwise they are all NULL.
 *
 * slots[i] and shared[i] count for keys[i]; both may be NULL, and then those of the
 * options count for all.  With an owner, adopt must be set.  There may be up to 1000 keys, none of them twice.  They may be in any
 * order: two of these calls never wait for each other in a circle.  wait_ms is
 * for all of them together, and the TTLs begin when the last one is granted.
 * cleanup_ms, force, at_least_ms, delay_ms, lazy and reentrant must not be set.
 *
 * The locks are renewed by one statement, and dlock_release_all() releases them
 * by one.  Otherwise each is a lock of its own: if one is lost, its event names
 * it, and the others remain ours and are renewed until they are released.  A
 * program that needs all of them stops and releases the rest.
 */
extern dlock_status dlock_acquire_all(dlock_handle *handle,
									  const char *const *keys, size_t n,
									  const int32_t *slots,
									  const int *shared,
									  const dlock_options *options,
									  dlock_lock **locks, dlock_error *err);

/*
 * Hold a grant that already exists, named by its version and, if that is not
 * NULL, its owner: it is refreshed, and from then on it is a lock as if
 * dlock_acquire() had returned it.  The role must be the same.  Another process
 * may hold the same grant, and each of them renews it; if one releases it, the
 * others have lost it.  Of the options, ttl_ms (0: the TTL of the grant), renew,
 * timeout_ms and the callback count; options may be NULL.  DLOCK_OK, or
 * DLOCK_LOST: there is no such grant.
 */
extern dlock_status dlock_adopt(dlock_handle *handle, const char *key,
								int64_t version, const char *owner,
								const dlock_options *options,
								dlock_lock **lock, dlock_error *err);

/*
 * Stop renewals of the lock, wait for one that is in flight, and release the
 * lock.  DLOCK_OK, DLOCK_NOT_HELD (it had expired), DLOCK_HELD_BY_OTHER (another
 * client holds it), or an error, after which it ends by its TTL.  There are no
 * more events.  The struct remains until dlock_free().
 *
 * If the lock was acquired several times (reentrant), all but the last release
 * only count down: DLOCK_OK, or DLOCK_LOST if it has been lost.
 */
extern dlock_status dlock_release(dlock_lock *lock, int64_t timeout_ms,
								  dlock_error *err);

/*
 * The same for n locks of one handle, by one statement.  If they cannot all be
 * released, the result is that of the first one that was not, and *err names it;
 * the others are released nevertheless.
 */
extern dlock_status dlock_release_all(dlock_lock *const *locks, size_t n,
									  int64_t timeout_ms, dlock_error *err);

/*
 * Keep the lock for another TTL, which is a new one if ttl_ms is not 0.  DLOCK_OK
 * or DLOCK_LOST, or an error, after which dlock_is_owner() tells whether it is
 * still ours.  A lock that was lost is never brought back.
 */
extern dlock_status dlock_refresh(dlock_lock *lock, int64_t ttl_ms,
								  int64_t timeout_ms, dlock_error *err);

/*
 * Give the lock to another owner of the same role, with a new version, which *version
 * is (may be NULL), and with another TTL if ttl_ms is not 0.  Nobody who waits comes
 * between.  The new owner holds it with dlock_adopt().  DLOCK_OK: it is ours no more, as
 * after a release.  DLOCK_LOST: it was lost before.  Or an error, after which it is
 * still ours and renewed, unless the server has done it and its answer is lost; then the
 * next renewal finds out.  DLOCK_INVALID: it was acquired several times (reentrant).
 */
extern dlock_status dlock_handover(dlock_lock *lock, const char *owner,
								   int64_t ttl_ms, int64_t timeout_ms,
								   int64_t *version, dlock_error *err);

/*
 * Ask the server: DLOCK_OK (held), DLOCK_PREEMPTING (held, but we were asked to
 * yield), DLOCK_LOST.  After a release also DLOCK_NOT_HELD, DLOCK_HELD_BY_OTHER.
 */
extern dlock_status dlock_check(dlock_lock *lock, int64_t timeout_ms,
								dlock_error *err);

/*
 * Stop renewals and forget the lock, without a release.  The server keeps it for
 * the rest of its TTL.  Local.  NULL is allowed.  After a fork, the child's copy
 * remains until dlock_close().  A lock that was acquired several times
 * (reentrant) is freed as often, and only the last time counts.
 */
extern void dlock_free(dlock_lock *lock);

/* Release it and forget it, whatever the release comes to, which is returned. */
extern dlock_status dlock_release_free(dlock_lock *lock, int64_t timeout_ms,
									   dlock_error *err);

/*
 * Is it ours, as far as we know?  1 only until the local deadline, which is
 * before the expiry on the server.  Local.
 *
 * Use it to stop early.  A write that must not happen twice needs the fence.
 */
extern int	dlock_is_owner(const dlock_lock *lock);

/*
 * The fence, in the transaction of the program that writes: conn is its PGconn, in
 * the database of the lock, within a transaction block.  DLOCK_OK: the lock is ours,
 * and nobody can take it until that transaction ends.  DLOCK_LOST: it is not, and the
 * transaction can only be rolled back.  DLOCK_INVALID: there is no transaction block,
 * so the fence would protect nothing.  Waits for the server as PQexec() does.
 */
struct pg_conn;
extern dlock_status dlock_fence(struct pg_conn *conn, const dlock_lock *lock,
								dlock_error *err);

/*
 * The fence of a whole connection of the program: from now on, what it writes is committed
 * only while the lock is ours, in autocommit, too.  A late COMMIT fails with LK001.  NULL
 * instead of a lock ends that.  Not for a connection that a pooler shares.
 */
extern dlock_status dlock_fence_connection(struct pg_conn *conn,
										   const dlock_lock *lock,
										   dlock_error *err);

/* The time until the local deadline; 0 if it is not ours.  Local. */
extern int64_t dlock_left_ms(const dlock_lock *lock);

/* Why it was lost; DLOCK_REASON_NONE if it was not.  Local. */
extern dlock_reason dlock_lost_reason(const dlock_lock *lock);

/*
 * If it was taken away, by whom and why, as the server announced it, for a person to
 * read: by role "ops": the host is gone.  Otherwise, and if that was not heard, "".
 * Any role can forge an announcement, so it explains a loss and proves nothing.
 * Valid until dlock_free().  Local.
 */
extern const char *dlock_lost_detail(const dlock_lock *lock);

/* The version, which is the fencing token.  These six are local. */
extern int64_t dlock_version(const dlock_lock *lock);
extern const char *dlock_key(const dlock_lock *lock);
extern const char *dlock_owner(const dlock_lock *lock); /* NULL: adopted without
														 * one */
extern int64_t dlock_ttl_ms(const dlock_lock *lock);
extern int32_t dlock_slots(const dlock_lock *lock); /* 0: it is shared */
extern int	dlock_is_shared(const dlock_lock *lock);

/*
 * Leader election: the leader holds the lock, whose version is the term.
 */

/* dlock_acquire() that waits without limit unless wait_ms is set. */
extern dlock_status dlock_campaign(dlock_handle *handle, const char *key,
								   const dlock_options *options,
								   dlock_lock **lock, dlock_error *err);

/* The next leader is elected at once. */
#define dlock_resign dlock_release


struct dlock_info;

/*
 * Wait until there is a leader with another term than the given one (0: any).
 * If several hold the key, the leader is the one with the highest version.
 * DLOCK_OK: *leader is to be freed with dlock_info_free().  wait_ms is as in
 * dlock_options; DLOCK_UNCHANGED: it is over.
 */
extern dlock_status dlock_observe(dlock_handle *handle, const char *key,
								  int64_t version, int64_t wait_ms,
								  struct dlock_info **leader,
								  dlock_error *err);

/*
 * Looking at keys
 */

/* A row of the view dlock_locks.  There are several if several hold the key. */
typedef struct dlock_info
{
	char	   *key;
	int64_t		version;		/* 0: pending */
	char	   *owner;			/* NULL: none, or not visible to us */
	char	   *role;
	char	   *value;			/* NULL: none, or not visible to us */

	/*
	 * "held", "preempting", "lapsed" (lazy, past its TTL), "cooling" (busy
	 * because of at_least or delay), or "pending" (an open transaction keeps
	 * it busy; then only key, state and using_pid are set)
	 */
	char	   *state;
	int32_t		priority;
	int64_t		acquired_at_ms; /* Unix time, by the server's clock */
	int64_t		refreshed_at_ms;
	int64_t		expires_at_ms;
	int64_t		remaining_ms;
	int64_t		ttl_ms;
	int32_t		pid;			/* of a session lock, or 0 */
	int			has_requestor;	/* has the holder been asked to yield? */
	char	   *requestor_owner;	/* NULL: none, or not visible to us */
	int32_t		requestor_priority;
	int64_t		requestor_since_ms; /* Unix time */
	int64_t		requestor_deadline_ms;	/* Unix time */
	int64_t		requestor_left_ms;
	int32_t		slots;			/* as in dlock_options; 0: it is shared */
	int			shared;
	int32_t		using_pid;		/* of an open transaction that uses it, or 0 */
	int			hidden;			/* 1: we may not see owner, value and origin */
	char	   *origin;			/* of a grant without an owner, the session
								 * that acquired it; NULL: not known */
} dlock_info;

/* A row of the view dlock_waiters. */
typedef struct dlock_waiter
{
	char	   *key;
	int32_t		pid;			/* 0: it waits by ticket */
	char	   *owner;			/* NULL: none, or not visible to us */
	int			watches;		/* 1: it only watches and has no position */
	int32_t		priority;
	int32_t		position;		/* 1 is next */
	int64_t		since_ms;		/* Unix time */
	int64_t		until_ms;		/* Unix time, 0: without limit */
	int64_t		waited_ms;
	int32_t		slots;			/* as in dlock_options; 0: it is shared */
	int			shared;
	int			hidden;			/* 1: we may not see its owner */
	int64_t		ticket;			/* 0: a session waits, the one with that pid */
} dlock_waiter;

/*
 * All grants of a key, the oldest first, and then what is pending.  *infos is an array
 * of *n, to be freed with dlock_list_free().  dlock_observe() looks for one that is held.
 */
extern dlock_status dlock_get_info(dlock_handle *handle, const char *key,
								   int64_t timeout_ms, dlock_info **infos,
								   size_t *n, dlock_error *err);

/* Free the one that dlock_observe() has returned. */
extern void dlock_info_free(dlock_info *info);

/*
 * The same of all keys that match a pattern (NULL: all) and come after a key (NULL: from
 * the first on), ordered by key; of at most limit keys, unless it is 0.  In a pattern,
 * * stands for any text, ? for one character, and \ makes the next one literal.
 * *infos is an array of *n, to be freed.  Read a long list in pages: pass the last key
 * as after.
 */
extern dlock_status dlock_list(dlock_handle *handle, const char *pattern,
							   const char *after, int64_t limit,
							   int64_t timeout_ms, dlock_info **infos,
							   size_t *n, dlock_error *err);
extern void dlock_list_free(dlock_info *infos, size_t n);

/* Those that wait for keys that match a pattern, ordered by key and position. */
extern dlock_status dlock_list_waiters(dlock_handle *handle,
									   const char *pattern, int64_t limit,
									   int64_t timeout_ms,
									   dlock_waiter **waiters, size_t *n,
									   dlock_error *err);
extern void dlock_waiters_free(dlock_waiter *waiters, size_t n);

/*
 * Wait until the version of the key, of several grants the highest, differs from
 * *version (0: free), and store it there.  wait_ms is as in dlock_options.
 * DLOCK_OK, or DLOCK_UNCHANGED when the time is over.
 */
extern dlock_status dlock_watch(dlock_handle *handle, const char *key,
								int64_t *version, int64_t wait_ms,
								dlock_error *err);

/*
 * Grants without a dlock_lock, named by version (0: any), owner (NULL: any) or
 * both.
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

/*
 * As dlock_handover(); here the version is needed.  DLOCK_OK or DLOCK_LOST; *new_version
 * may be NULL.
 */
extern dlock_status dlock_handover_key(dlock_handle *handle, const char *key,
									   int64_t version, const char *owner,
									   int64_t ttl_ms, int64_t timeout_ms,
									   int64_t *new_version, dlock_error *err);

/* DLOCK_OK, DLOCK_NOT_HELD, DLOCK_HELD_BY_OTHER. */
extern dlock_status dlock_release_key(dlock_handle *handle, const char *key,
									  int64_t version, const char *owner,
									  int64_t timeout_ms, dlock_error *err);

/*
 * Take the lock away from all holders, or from the one with that version (0: all).
 * *taken (may be NULL) is the version that was taken away, of several the highest.
 * DLOCK_OK, or DLOCK_NOT_HELD: the key is free.  Needs the privilege in SQL.
 */
extern dlock_status dlock_force_release(dlock_handle *handle, const char *key,
										int64_t version, const char *reason,
										int64_t timeout_ms, int64_t *taken,
										dlock_error *err);

/*
 * A rate: may we go ahead, if that may happen n times in any per_ms?  DLOCK_OK: yes, and
 * it counts.  DLOCK_BUSY: ask again after *again_ms (may be NULL).  wait_ms and priority
 * are as in dlock_options; a wait takes a connection.  After a lost answer the question
 * is repeated, and may count twice.
 */
extern dlock_status dlock_limit(dlock_handle *handle, const char *key, int32_t n,
								int64_t per_ms, int64_t wait_ms,
								int32_t priority, int64_t timeout_ms,
								int64_t *again_ms, dlock_error *err);

/* The version of the library, as DLOCK_LIB_VERSION. */
extern int	dlock_lib_version(void);

/*
 * Event loops: calls that do not block
 *
 * A call is started, and the program continues.  When calls are done, the
 * descriptor of the handle is readable.  Then dlock_handle_process() calls back
 * for each of them.  One thread can have thousands under way: they share a few
 * connections, and a request that waits takes none.
 *
 * The library uses a thread of its own for this, so the program has no timeouts
 * to care for.  These functions may be called from any thread, and also in
 * callbacks.
 */

/* A call that was started and has not come to its end. */
typedef struct dlock_op dlock_op;

/*
 * Called by dlock_handle_process().  lock is that of the acquire if status is
 * DLOCK_OK, otherwise NULL; of a release, it is the lock.  err and op are valid
 * until this returns.  It must not call dlock_close().
 */
typedef void (*dlock_done) (dlock_op *op, dlock_status status, dlock_lock *lock,
							const dlock_error *err, void *arg);

/*
 * As dlock_acquire(), but session and reentrant must not be set, and the value of
 * a request that waits may have 1024 bytes at most.  DLOCK_OK: it was started, done
 * will be called, and *op (may be NULL) names it until then.  Otherwise done will
 * not be called.
 */
extern dlock_status dlock_acquire_start(dlock_handle *handle, const char *key,
										const dlock_options *options,
										dlock_done done, void *arg,
										dlock_op **op, dlock_error *err);

/* As dlock_release().  The lock must not be freed before done is called. */
extern dlock_status dlock_release_start(dlock_lock *lock, int64_t timeout_ms,
										dlock_done done, void *arg,
										dlock_op **op, dlock_error *err);

/*
 * The acquire is not wanted any more: done is called soon, with DLOCK_CANCELLED,
 * unless it has come to another end before.  A request that is in the queue is
 * withdrawn.  A release continues.
 */
extern void dlock_op_cancel(dlock_op *op);

/*
 * A descriptor for poll(), the same one as long as the handle is open.  It is
 * readable when calls are done.  Do not read it.  -1: there is no descriptor left.
 */
extern int	dlock_handle_fd(dlock_handle *handle);

/*
 * Call back for all calls that are done; returns how many there were.  Never
 * waits.
 */
extern int	dlock_handle_process(dlock_handle *handle);

#ifdef __cplusplus
}
#endif

#endif							/* DLOCK_H */
