/*-------------------------------------------------------------------------
 *
 * engine.h
 *	  What the files of the engine share: handles, locks, requests, connections,
 *	  and the functions of each file.  README describes how they work together.
 *
 * "With the mutex" is that of the handle.  Every function below needs it, unless
 * it says otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ENGINE_H
#define DLOCK_ENGINE_H

#include <pthread.h>
#include <semaphore.h>
#include <sys/types.h>

#include "base/constants.h"
#include "base/sql.h"
#include "base/util.h"
#include "net/conn.h"

typedef struct DlockLink DlockLink;
typedef struct DlockRequest DlockRequest;
typedef struct DlockSleeper DlockSleeper;

/*
 * Parameters while they are collected: texts, and arrays, whose bytes are one
 * behind the other and may move while they grow.
 */
typedef struct DlockParamList
{
	PQExpBufferData bytes;
	int			n;
	size_t		starts[DLOCK_MAX_PARAMS];	/* of an array, in bytes */
	int			lengths[DLOCK_MAX_PARAMS];
	int			formats[DLOCK_MAX_PARAMS];	/* 1: it is an array */
	const char *values[DLOCK_MAX_PARAMS];
} DlockParamList;

/*
 * Locks
 */

typedef enum DlockHold
{
	DLOCK_HOLD_OURS,
	DLOCK_HOLD_LOST,
	DLOCK_HOLD_RELEASED
} DlockHold;

struct dlock_lock
{
	/* constant once it is granted */
	dlock_handle *handle;
	char	   *key;
	char	   *owner;			/* NULL: adopted without one */
	int64_t		version;
	int32_t		slots;
	bool		renew;
	int64_t		max_hold_ms;	/* 0: without limit */
	dlock_callback callback;
	void	   *callback_arg;
	DlockConn  *conn;			/* of a session lock; those that were acquired
								 * together share it */

	/* protected by the mutex of the handle, as is everything below */
	dlock_lock *prev;
	dlock_lock *next;
	bool		silent;			/* no more events */
	bool		freed;			/* in its own callback */
	bool		in_callback;
	int			holds;			/* releases until it is given back; see
								 * dlock_acquire() with reentrant */
	int			users;			/* pointers that are to be freed */

	/* the lease; see lease.c */
	int64_t		ttl_ms;
	int64_t		left_ms;		/* what the last refresh has left of it */
	DlockHold	hold;
	dlock_reason reason;
	int64_t		deadline;		/* from then on it is not ours */
	int64_t		danger_at;		/* when to warn, unless it is renewed */
	int64_t		connect_at;		/* when a connection is needed for it */
	int64_t		due;			/* next renewal */
	int64_t		ends_at;		/* of max_hold_ms; 0: not granted yet */
	bool		held_out;		/* that is near, so it is not renewed any more */

	/* its renewal; see background.c */
	int			index;			/* in the renewal that was sent, or -1 */
	bool		renewing;		/* its turn has come, so that statement renews
								 * it, or only checks it if renew is not set */
	int			held_off;		/* not to be renewed now, if not 0 */
	bool		alone;			/* the last renewal with others failed */
	bool		asked;			/* to yield, and the event was or will be told */
	int64_t		ours_until;		/* deadline when its release began; 0: lost */

	/* what was heard of it on channel dlock; see events.c */
	bool		heard;			/* an event, not asked about yet */
	bool		asking;			/* about it, in the statement that was sent */
	bool		forced;			/* an event said so, which may be false */
	char		forced_by[352]; /* and by whom and why, or "" */

	/* events to be told; see callbacks.c */
	bool		tell_preempted;
	dlock_reason yield_reason;
	int64_t		yield_until;
	bool		tell_danger;
	bool		tell_lost;
};

/*
 * Requests: one statement each
 */

typedef enum DlockRequestState
{
	DLOCK_REQUEST_NEW,
	DLOCK_REQUEST_QUEUED,		/* in a queue, or bound to a link that
								 * connects */
	DLOCK_REQUEST_SENT,
	DLOCK_REQUEST_DONE			/* see reply and error */
} DlockRequestState;

/* Which connection a request needs, and what a connection is used for. */
typedef enum DlockUse
{
	DLOCK_USE_NONE,				/* of a link: idle */
	DLOCK_USE_BATCH,			/* shared with other requests */
	DLOCK_USE_SECOND,			/* of a link: a second batch beside that one */
	DLOCK_USE_OWN,				/* for one request that may take long */
	DLOCK_USE_SESSION,			/* the same, and then for a session lock */
	DLOCK_USE_BACKGROUND		/* for what background.c sends */
} DlockUse;

struct DlockRequest
{
	/* "@." in sql is the schema of the extension */
	const char *sql;
	int			nparams;
	const char **params;
	const int  *lengths;		/* of those that are binary; NULL: none is */
	const int  *formats;
	DlockKind	kind;			/* what it can be sent together with */
	DlockUse	use;

	int64_t		timeout_ms;		/* how long the servers may be silent */
	int64_t		until;			/* when it must end */
	bool		once;			/* no second try */
	bool		is_probe;		/* a server that is full is an answer */

	/* if it may wait for a row that is in use: the number of lock_timeout */
	int			row_param;		/* from 1, or 0 */

	/* if the server is to wait: the number of that parameter, and until when */
	int			wait_param;		/* from 1, or 0 */
	int64_t		wait_until;

	/*
	 * if not 0: the number of the parameter that allows the owner the grant
	 * that it has already, which is so after a try without an answer
	 */
	int			again_param;

	/*
	 * if not 0: the number of the parameter that is *ttl_ms; 0 there is
	 * replaced by the server's default, or by ttl_least if that is longer
	 */
	int			ttl_param;
	int64_t    *ttl_ms;
	int64_t		ttl_least;

	/* called when it is done, with the mutex; NULL: a thread waits for it */
	void		(*done) (dlock_handle *handle, DlockRequest *request);
	void	   *arg;

	/* results */
	DlockReply *reply;			/* NULL: see error */
	dlock_error error;
	int64_t		sent_at;		/* the clock before the answered try was sent */
	bool		in_doubt;		/* a try was sent and not answered */
	bool		polled;			/* the server did not wait; ask again */
	bool		full;			/* a probe: the server is there, and full */
	int			host;			/* which answered, or is full */
	DlockConn  *conn;			/* SESSION: on which it was answered */

	/* while it is on its way; protected by the mutex */
	DlockRequestState state;
	DlockRequest *prev;			/* in its queue */
	DlockRequest *next;
	DlockLink  *link;			/* SENT, or QUEUED and bound to one */
	bool		alone;			/* not together with others */
	bool		waits_for_row;	/* so it has a connection of its own */
	int64_t		ready_at;		/* not to be sent before */
	int64_t		silent_until;	/* a server must have shown up by then */
	int64_t		backoff;		/* OWN, SESSION: the next pause */
	DlockSleeper *sleeper;		/* the thread that waits for it, or NULL */
	char		wait_text[32];
	char		ttl_text[32];
};

/* Requests that wait to be sent. */
typedef struct DlockQueue
{
	DlockRequest *first;
	DlockRequest *last;
	int			n;
	int			nquick;			/* of them, those that need no flush */
} DlockQueue;

/* A connection of the handle, and what was sent on it; see links.c and batch.c. */
struct DlockLink
{
	DlockLink  *next;
	DlockConn  *conn;			/* NULL: it is about to be dropped */
	DlockUse	use;
	int64_t		used_since;
	bool		is_dropped;		/* it is out of use, and will be freed */
	DlockRequest *bound;		/* OWN, SESSION, BACKGROUND: what will be sent
								 * when it is connected */
	DlockRequest *sent[DLOCK_MAX_BATCH];	/* NULL: nobody waits for it any
											 * more */
	int			nsent;
	int			first[DLOCK_KINDS]; /* of each kind, in sent */
	bool		is_quick;		/* nothing that was sent needs a flush */
	bool		is_for_batch;	/* it was used for batches last */
	bool		is_used;		/* it has carried a statement before */
	bool		was_used;		/* ... before the last one */
	bool		is_for_probe;	/* it was opened for nothing but a probe */
	bool		connects;		/* or listens; not seen READY yet */
	bool		is_new;			/* the background link: nothing was asked yet */
	bool		is_full;		/* the server had no connection left for it */
	int64_t		connect_ms;		/* for each address; 0: as the conninfo says */
	int64_t		sent_at;
	int64_t		answer_by;
	int64_t		retry_at;		/* to connect */
	int64_t		backoff;
	int64_t		probe_at;		/* the server waits: when to ask whether it is
								 * still there */
	DlockRequest probe;			/* that question */
	short		revents;		/* of the last poll() */
	int			poll_index;		/* in its array; -1: not polled */
};

/*
 * Acquires and releases: a few requests each
 */

typedef enum DlockStage
{
	DLOCK_STAGE_START,			/* nothing yet, or a pause before it */
	DLOCK_STAGE_TRY,
	DLOCK_STAGE_ENQUEUE,
	DLOCK_STAGE_WAIT,			/* for its ticket; see tickets.c */
	DLOCK_STAGE_CLAIM,			/* asks what has become of the ticket */
	DLOCK_STAGE_CONFIRM,
	DLOCK_STAGE_DEQUEUE,
	DLOCK_STAGE_RELEASE,
	DLOCK_STAGE_END
} DlockStage;

typedef enum DlockOpKind
{
	DLOCK_OP_ACQUIRE,			/* by tries and a ticket */
	DLOCK_OP_STATEMENT,			/* by one statement that waits on the server */
	DLOCK_OP_ADOPT,
	DLOCK_OP_RELEASE
} DlockOpKind;

struct dlock_op
{
	/* constant */
	dlock_handle *handle;
	DlockOpKind kind;
	dlock_options options;		/* checked; its texts are the caller's */
	int64_t		timeout_ms;
	int64_t		wait_until;
	int64_t		until;			/* wait_until and the timeout */

	/* protected by the mutex of the handle, as is everything below */
	dlock_lock *lock;			/* the first one */
	dlock_lock **locks;			/* what is asked for, or released */
	size_t		n;
	bool		several;		/* locks is not &lock */
	DlockStage	stage;
	int64_t		due;			/* START, WAIT: when to continue */
	DlockRequest request;
	bool		in_doubt;		/* a try may have been granted */
	bool		in_queue;		/* a ticket may wait, or have been granted */
	dlock_status status;		/* END */
	dlock_error error;

	/* the ticket; see tickets.c */
	dlock_op   *prev_wait;
	dlock_op   *next_wait;
	bool		waits;
	int64_t		ticket;			/* 0: none */
	bool		heard;			/* its turn may have come */
	int64_t		quiet_until;	/* what is heard before is not acted upon */
	int64_t		asked_at;		/* when a server last knew of it */
	bool		said_missed;	/* an event did, and why: see error */
	int			missed;			/* how often without one */

	/* a release */
	bool		stopped;		/* the renewals of its locks */
	size_t		nasked;			/* locks in the statement */

	/* who waits for it: a thread, or a program with an event loop */
	dlock_op   *prev;			/* under way, or done */
	dlock_op   *next;
	DlockSleeper *sleeper;
	dlock_done	done;			/* NULL: a thread */
	void	   *arg;
	char	   *value;			/* a copy of options.value */

	/* parameters */
	char		texts[6][32];
	const char *params[14];
	DlockParamList *list;		/* of several locks */
};

/*
 * Waking up
 */

/* A pipe: a thread that polls it wakes up while there is a byte in it. */
typedef struct DlockWakeup
{
	int			fds[2];
} DlockWakeup;

/*
 * A thread that waits for its call while another one runs the loop.  It is in memory of
 * that thread, protected by the mutex of the handle.
 */
struct DlockSleeper
{
	sem_t		semaphore;
	DlockSleeper *prev;
	DlockSleeper *next;
	bool		listed;			/* nobody is about to wake it */
	bool		woken;			/* atomic */
	bool		is_over;		/* what it waits for; so it need not look */
	bool		for_change;		/* it waits for a lock, not for an answer */
};

/* A call that is about to acquire a key; see dlock_acquire() with reentrant. */
typedef struct DlockEntry
{
	struct DlockEntry *next;
	const char *key;
} DlockEntry;

/*
 * Handles
 */
struct dlock_handle
{
	/* constant */
	pid_t		pid;			/* of the process that opened it */
	DlockConninfo *conninfo;
	int64_t		ttl_ms;
	int64_t		timeout_ms;
	int			max_connections;
	dlock_callback callback;
	void	   *callback_arg;

	pthread_mutex_t mutex;		/* protects everything below, and the locks */

	/* the loop; see loop.c */
	bool		running;		/* a thread runs it, and only that one uses
								 * the links */
	unsigned int turn;			/* how often it was taken over */
	bool		polls;			/* that thread sleeps in poll() ... */
	int64_t		polls_until;	/* ... until then at most */
	DlockWakeup wakeup;
	DlockSleeper *sleepers;
	DlockSleeper *next_leader;	/* to whom it was handed over, and who has not
								 * woken up yet */
	DlockSleeper *signals[DLOCK_MAX_SIGNALS];	/* to be woken */
	int			nsignals;
	unsigned int changes;		/* see dlock_loop_changed() */
	int64_t		expire_at;		/* when a request or an op may be out of time */
	struct pollfd *fds[2];		/* of the background thread, and of others */
	int			nfds[2];

	/* the background thread; see background.c */
	bool		has_background; /* also read without the mutex: atomic; thread
								 * is there before it is set */
	bool		stopping;
	bool		closing;		/* dlock_close() was called in a callback */
	pthread_t	thread;
	DlockWakeup background_wakeup;
	int64_t		background_until;	/* it sleeps in poll() until then at most;
									 * 0: it does not sleep */
	int			background_fd;	/* or until this descriptor is readable */
	int			watch_fd;		/* which it is to watch; -1: none */
	int64_t		background_at;	/* when to look at locks, tickets and
								 * abandoned requests */

	/* requests and connections; see request.c and links.c */
	DlockQueue	queue;			/* BATCH */
	DlockQueue	others;			/* OWN, SESSION */
	DlockLink  *links;
	int			nlinks;			/* without those of sessions */
	int			nspare;			/* of them, OWN and SECOND */
	DlockLink  *main;			/* BATCH; NULL: none */
	DlockLink  *second;			/* SECOND; NULL: none */
	DlockLink  *background;		/* which listens, or will; it may be lent to a
								 * batch.  NULL: none */
	int64_t		second_retry_at;
	int64_t		background_retry_at;
	int64_t		background_backoff;
	dlock_error main_error;		/* why there is no connection for batches */

	/* locks, and calls that acquire one by the same handle */
	dlock_lock *locks;
	DlockEntry *entering;

	/* what background.c has sent */
	DlockRequest background_request;
	DlockParamList background_params;
	char		background_text[32];
	dlock_lock **renewing;		/* NULL in it: freed meanwhile */
	int			nrenewing;
	int			jitter;			/* of the next renewal, below DLOCK_JITTER */
	int64_t		heard_until;	/* questions about events are paid for */

	/* requests that wait by ticket; see tickets.c */
	dlock_op   *waits[DLOCK_WAIT_BUCKETS];
	int			nwaits;
	int64_t		early[DLOCK_MAX_EARLY]; /* heard of, and not known yet */
	unsigned int nearly;
	int64_t		tickets_asked_at;	/* the last question about all of them */
	int64_t		tickets_at;		/* the next one at the latest */
	int64_t		early_poll_at;	/* or then, if it does not listen; 0: no */
	int64_t		alive_at;		/* when a server showed up in the background */
	dlock_error background_error;	/* why none does */

	struct DlockAbandoned *abandoned;

	/* acquires and releases; see op.c */
	dlock_op   *ops;			/* under way */
	dlock_op   *done;			/* for dlock_handle_process() */
	dlock_op   *last_done;
	DlockWakeup done_wakeup;
};

/* api/handle.c; without the mutex */
extern void dlock_handle_destroy(dlock_handle *handle);

/* loop.c */
typedef bool (*DlockIsOver) (const void *arg);
extern void dlock_loop_wait(dlock_handle *handle, DlockIsOver is_over,
							const void *arg, DlockSleeper **sleeper);
extern bool dlock_loop_wait_for_change(dlock_handle *handle, int64_t until);
extern void dlock_loop_changed(dlock_handle *handle);
extern void dlock_loop_signal(dlock_handle *handle, DlockSleeper *sleeper);
extern void dlock_loop_wake(dlock_handle *handle);
extern void dlock_loop_wake_background(dlock_handle *handle);
extern void dlock_loop_due(dlock_handle *handle, int64_t *which, int64_t at);
extern void dlock_loop_try(dlock_handle *handle);
extern bool dlock_loop_run_background(dlock_handle *handle, bool was_read);
extern void dlock_loop_finish(dlock_handle *handle, int64_t until);
extern void dlock_loop_free(dlock_handle *handle);

extern void dlock_wakeup_init(DlockWakeup *wakeup);
extern bool dlock_wakeup_make(DlockWakeup *wakeup);
extern void dlock_wakeup_ring(const DlockWakeup *wakeup);
extern void dlock_wakeup_clear(const DlockWakeup *wakeup);

/* links.c */
extern void dlock_links_settle(dlock_handle *handle, int64_t now);
extern int64_t dlock_links_schedule(dlock_handle *handle, int64_t now);
extern bool dlock_links_could_send(const dlock_handle *handle, const DlockRequest *request);
extern bool dlock_links_in_use(const dlock_handle *handle);
extern bool dlock_links_is_waiting(const DlockLink *link);
extern DlockLink *dlock_links_for_background(dlock_handle *handle, int64_t connect_ms, int64_t now);
extern void dlock_links_bind(dlock_handle *handle, DlockLink *link, DlockRequest *request);
extern void dlock_links_free(dlock_handle *handle);
extern void dlock_links_disown(dlock_handle *handle);

/* batch.c */
extern bool dlock_batch_has(const dlock_handle *handle, bool is_second, int64_t now);
extern void dlock_batch_send(dlock_handle *handle, DlockLink *link, int64_t now);
extern void dlock_batch_send_bound(dlock_handle *handle, DlockLink *link);
extern void dlock_batch_answered(dlock_handle *handle, DlockLink *link, DlockReply *reply);
extern void dlock_batch_refused(dlock_handle *handle, DlockLink *link);
extern void dlock_batch_broken(dlock_handle *handle, DlockLink *link, const dlock_error *error);
extern bool dlock_batch_is_deserted(const DlockLink *link);

/* request.c; init and call without the mutex */
extern void dlock_request_init(DlockRequest *request, const char *sql, int nparams,
							   const char **params, int64_t timeout_ms);
extern void dlock_request_use_list(DlockRequest *request, DlockParamList *list);
extern dlock_status dlock_request_call(dlock_handle *handle, DlockRequest *request,
									   dlock_error *err);
extern bool dlock_request_is_quick(const DlockRequest *request);
extern void dlock_request_set_params(DlockRequest *request, const DlockConn *conn,
									 int64_t now, const char *row_limit, bool may_wait);
extern void dlock_request_submit(dlock_handle *handle, DlockRequest *request);
extern void dlock_request_requeue(dlock_handle *handle, DlockRequest *request);
extern void dlock_request_take_out(dlock_handle *handle, DlockRequest *request);
extern void dlock_request_finish(dlock_handle *handle, DlockRequest *request);
extern void dlock_request_fail(dlock_handle *handle, DlockRequest *request,
							   const dlock_error *error);
extern int64_t dlock_request_limit(const DlockRequest *request);
extern void dlock_request_leave(dlock_handle *handle, DlockRequest *request);
extern void dlock_request_expire(dlock_handle *handle, int64_t now);

/* op.c; the first five without the mutex */
extern void dlock_op_init(dlock_op *op, dlock_handle *handle, DlockOpKind kind,
						  int64_t timeout_ms, int64_t wait_until);
extern void dlock_op_set_lock(dlock_op *op, dlock_lock *lock);
extern void dlock_op_set_locks(dlock_op *op, dlock_lock **locks, size_t n,
							   DlockParamList *list);
extern bool dlock_op_can_wait(const dlock_options *options);
extern dlock_status dlock_op_run(dlock_op *op, dlock_error *err);
extern void dlock_op_start(dlock_op *op);
extern void dlock_op_step(dlock_op *op);
extern void dlock_op_step_releases(dlock_handle *handle);
extern int64_t dlock_op_due(const dlock_op *op);
extern void dlock_op_abandon(dlock_op *op, dlock_status status, const char *why);

/* lease.c; make and destroy without the mutex */
extern dlock_lock *dlock_lock_make(dlock_handle *handle, const char *key,
								   const char *owner, const dlock_options *options);
extern void dlock_lock_destroy(dlock_lock *lock);
extern void dlock_lock_list_add(dlock_lock *lock);
extern void dlock_lock_list_remove(dlock_lock *lock);
extern bool dlock_lock_is_active(const dlock_lock *lock);
extern dlock_status dlock_lock_lost(const dlock_lock *lock, dlock_error *err);
extern bool dlock_lease_answered(dlock_lock *lock, const DlockReply *reply, int row, int column);
extern void dlock_lease_renewed(dlock_lock *lock, int64_t sent_at);
extern void dlock_lease_lost(dlock_lock *lock, dlock_reason reason);
extern void dlock_lease_gone(dlock_lock *lock, const char *state);
extern bool dlock_lease_overdue(dlock_lock *lock, int64_t now);
extern void dlock_lease_check_all(dlock_handle *handle, int64_t now);
extern int64_t dlock_lease_next_due(const dlock_lock *lock, int64_t from);
extern bool dlock_lease_renews(const dlock_lock *lock);
extern int64_t dlock_lease_renews_until(const dlock_lock *lock);
extern void dlock_lease_ask(dlock_lock *lock, dlock_reason reason, int64_t until);

/* background.c; start, stop and in_callback without the mutex */
extern dlock_status dlock_background_start(dlock_handle *handle, dlock_error *err);
extern void dlock_background_stop(dlock_handle *handle);
extern void dlock_background_stop_later(dlock_handle *handle);
extern bool dlock_background_is_here(dlock_handle *handle);
extern void dlock_background_look(dlock_handle *handle, int64_t now);
extern void dlock_background_free(dlock_handle *handle);

/* callbacks.c */
extern bool dlock_callbacks_next(dlock_handle *handle, int64_t now);
extern bool dlock_callbacks_pending(const dlock_handle *handle);

/* events.c; scan without the mutex */

/* What an event says. */
typedef struct DlockEvent
{
	int64_t		version;		/* 0: none */
	int64_t		ticket;			/* 0: none */
	const char *key;			/* as in the payload, with its escapes */
	size_t		key_len;
	bool		forced;
	bool		missed;
	char		by[64];			/* a role, truncated */
	char		code[6];		/* SQLSTATE of the error that ended its wait,
								 * or "" */
	char		reason[256];	/* its message, truncated */
} DlockEvent;

extern bool dlock_events_scan(const char *payload, DlockEvent *event);
extern void dlock_events_hear(void *arg, const char *payload);
extern void dlock_events_missed(dlock_handle *handle);
extern bool dlock_events_ripe(const dlock_lock *lock, int64_t now);
extern int64_t dlock_events_ripe_at(const dlock_handle *handle);
extern void dlock_events_asked(dlock_handle *handle, dlock_lock *const *locks,
							   int n, int64_t now);
extern void dlock_events_refuted(dlock_lock *lock);
extern void dlock_events_unanswered(dlock_lock *lock);

/* params.c; without the mutex */
extern void dlock_params_init(DlockParamList *list);
extern void dlock_params_free(DlockParamList *list);
extern void dlock_params_add_text(DlockParamList *list, const char *text);
extern void dlock_params_add_array(DlockParamList *list, DlockType type, int n);
extern void dlock_params_add_element(DlockParamList *list, DlockType type, const char *text);
extern void dlock_params_add_number(DlockParamList *list, int64_t number);
extern bool dlock_params_finish(DlockParamList *list);

/* tickets.c */
extern void dlock_tickets_add(dlock_op *op);
extern void dlock_tickets_remove(dlock_op *op);
extern bool dlock_tickets_is_silent(const dlock_op *op, int64_t now);
extern void dlock_tickets_hear(dlock_handle *handle, const DlockEvent *event);
extern void dlock_tickets_poll_early(dlock_handle *handle);
extern int64_t dlock_tickets_due(const dlock_handle *handle, bool listens);
extern int	dlock_tickets_params(dlock_handle *handle, DlockParamList *list, int64_t now);
extern void dlock_tickets_answered(dlock_handle *handle, const DlockReply *reply,
								   int64_t now);

/* abandoned.c */
extern void dlock_abandoned_add(dlock_handle *handle, const char *key,
								const char *owner, int64_t ttl_ms, bool in_queue,
								bool by_owner, int64_t ticket);
extern bool dlock_abandoned_forget(dlock_handle *handle, const char *key,
								   const char *owner);
extern int	dlock_abandoned_params(dlock_handle *handle, DlockParamList *list, int64_t now);
extern void dlock_abandoned_answered(dlock_handle *handle, const DlockReply *reply,
									 int64_t now);
extern void dlock_abandoned_drop(dlock_handle *handle, int64_t now);
extern int64_t dlock_abandoned_due(const dlock_handle *handle);

#endif							/* DLOCK_ENGINE_H */
