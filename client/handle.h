/*-------------------------------------------------------------------------
 *
 * handle.h
 *	  Handles and locks.  handle.c and acquire.c make them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HANDLE_H
#define DLOCK_HANDLE_H

#include <pthread.h>
#include <sys/types.h>

#include "bell.h"
#include "conn.h"
#include "constants.h"
#include "dlock.h"
#include "sql.h"

typedef enum DlockHold
{
	DLOCK_HOLD_OURS,
	DLOCK_HOLD_LOST,
	DLOCK_HOLD_RELEASED
} DlockHold;

struct dlock_lock
{
	/* constant */
	dlock_handle *handle;
	char	   *key;
	char	   *owner;			/* NULL: adopted without one */
	int64_t		version;
	int32_t		slots;
	bool		renew;
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
	int			holds;			/* releases that are due; see reenter.c */
	int			users;			/* pointers that are to be freed */

	/* the lease; see lease.c */
	int64_t		ttl_ms;
	DlockHold	hold;
	dlock_reason reason;
	int64_t		deadline;		/* from then on it is not ours */
	int64_t		danger_at;		/* when to warn, unless it is renewed */
	int64_t		connect_at;		/* when the thread needs a connection for it */
	int64_t		due;			/* next renewal */

	/* its renewal; see renewal.c */
	int			index;			/* in the statement in flight, or -1 */
	bool		renewing;		/* its turn has come, so that statement renews
								 * it, or only checks it if renew is not set */
	int			held_off;		/* not to be renewed now, if not 0 */
	bool		alone;			/* the last statement with others failed */
	bool		asked;			/* to yield, and the event was or will be told */

	/* what was heard of it on channel dlock; see events.c */
	bool		heard;			/* an event, not asked about yet */
	bool		asking;			/* about it, in the statement in flight */
	bool		forced;			/* an event said so, which may be false */

	/* events to be told; see tell.c */
	bool		tell_preempted;
	int64_t		yield_until;
	bool		tell_danger;
	bool		tell_lost;
};

/* Who is to be woken; see waker.c. */
typedef struct DlockWaker
{
	/* a thread */
	bool		sleeps;			/* it may */
	int			woken;			/* DLOCK_WOKEN_...; atomic */
	int		   *shared;			/* the word that it sleeps on; NULL: woken */
	bool		expects;		/* DLOCK_WOKEN_DONE is on its way */

	/* or one of many that a thread looks after */
	struct DlockWoken *list;	/* where it is put; NULL: it is a thread */
	bool		listed;
	struct DlockWaker *next;	/* in that list, or of those to be woken */
} DlockWaker;

/* Those that were woken, in their order, and the thread that looks after them. */
typedef struct DlockWoken
{
	DlockWaker *first;
	DlockWaker *last;
	bool		sleeps;			/* until the bell rings */
	bool		roused;			/* since it looked */
	DlockBell	bell;
} DlockWoken;

/* Calls of a program with an event loop; see async.c and pilot.c. */
typedef struct DlockAsync
{
	bool		running;
	bool		stopping;
	pthread_t	pilot;
	DlockWoken	woken;			/* the pilot looks after them */
	dlock_op   *under_way;
	dlock_op   *done;
	dlock_op   *last_done;
	DlockBell	bell;			/* of the program: calls are done */
} DlockAsync;

/* Calls that go together, on a connection; see flight.c. */
typedef struct DlockFlight
{
	struct DlockCall *air[DLOCK_MAX_FLIGHT];	/* what was sent; NULL for one
												 * whose owner has left */
	int			nair;
	int			first[DLOCK_KINDS]; /* of each kind, in the air */
	bool		is_quick;		/* nothing in the air waits for a flush */
	bool		driven;			/* a thread sees to it, and uses the
								 * connection without the mutex */
	bool		loading;		/* and what is in the air */
	DlockWaker *landed;			/* threads whose call is done, and which have
								 * not been told */
	DlockConn  *conn;			/* NULL: none */
	bool		is_fresh;		/* it has carried nothing yet */
	bool		is_knock;		/* it was opened for nothing but to look
								 * whether the server is there */
	bool		is_old;			/* it had, before this flight */
	int64_t		sent_at;
	int64_t		answer_by;
	int64_t		retry_at;		/* to connect */
	int64_t		backoff;
	dlock_error error;			/* why it is not connected */
} DlockFlight;

/* Those that wait for a flight; see queue.c. */
typedef struct DlockQueue
{
	struct DlockCall *first;
	struct DlockCall *last;
	int			n;
	int			nquick;			/* of them, those that wait for no flush */
	/* quick or not: the number of the party that can be joined */
	unsigned int party[2];
	bool		has_leader[2];	/* ... which has one */
	int			words[2][DLOCK_PARTIES];	/* where parties sleep; atomic */
} DlockQueue;

struct dlock_handle
{
	/* constant */
	pid_t		pid;			/* of the process that opened it */
	DlockTarget *target;
	int64_t		ttl_ms;
	int64_t		timeout_ms;
	int			max_connections;
	dlock_callback callback;
	void	   *callback_arg;
	DlockBell	bell;			/* of the renewal thread */

	pthread_mutex_t mutex;		/* protects everything below, and the locks */
	pthread_cond_t changed;		/* a renewal or a callback has ended */
	dlock_lock *locks;
	struct DlockOrphan *orphans;
	struct DlockEntry *entering;	/* calls that acquire; see reenter.c */

	DlockQueue	queue;
	DlockFlight main;
	DlockFlight second;			/* beside it, if many calls wait */
	int			leaving;		/* so many wait until their call is loaded */

	/* requests that wait by ticket; see wait.c */
	struct DlockOp *waits[DLOCK_WAIT_BUCKETS];
	int			nwaits;
	int64_t		early[DLOCK_MAX_EARLY]; /* heard of, and not known yet */
	unsigned int nearly;
	int64_t		asked_at;		/* the last question about all of them */
	int64_t		ask_at;			/* at the latest */
	int64_t		nudge_at;		/* or then, if it does not listen; 0: no */
	int64_t		alive_at;		/* the renewal thread has seen a server */
	dlock_error keeper_error;	/* why it does not, if so */

	DlockAsync	async;

	/* connections; see pool.c */
	int			nconns;			/* without those of session locks */
	int			nspare;			/* in use by calls of their own */
	DlockConn  *idle[DLOCK_POOL_SIZE];
	int			nidle;
	DlockConn  *returned;		/* to the renewal thread, which had lent it */
	int			wanted;			/* so many callers want to borrow it */
	bool		lends;			/* it has one, and will look at wanted */

	/* the renewal thread; see keepalive.c and renewal.c */
	bool		running;		/* also read without the mutex: atomic; thread
								 * is there before it is set */
	bool		stopping;
	bool		closing;		/* dlock_close() was called in a callback */
	pthread_t	thread;
	int64_t		sleeps_until;	/* unless it is woken; 0: it does not sleep */
	dlock_lock **batch;			/* in flight; NULL for one freed meanwhile */
	int			nbatch;
	int			jitter;			/* of the next renewal, below DLOCK_JITTER */
	int64_t		heard_until;	/* questions about events are paid for */
};

extern void dlock_handle_destroy(dlock_handle *handle);
extern dlock_status dlock_may_ask(dlock_handle *handle, dlock_error *err);
extern int64_t dlock_timeout(const dlock_handle *handle, int64_t timeout_ms);
extern bool dlock_take_options(void *to, size_t to_size, const void *from,
							   size_t from_size);

#endif							/* DLOCK_HANDLE_H */
