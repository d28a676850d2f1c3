/*-------------------------------------------------------------------------
 *
 * keepalive.c
 *	  The renewal thread of a handle.
 *
 * One thread with one connection renews all locks of the handle, those that
 * are due and those that soon will be in one statement, and asks for the
 * others whether they are still ours.  It never blocks but in poll(), so that
 * neither a server nor a network that hangs delays what is told of a lock:
 * that it is in danger, and that it is lost when its local deadline comes.
 *
 * The deadline of a lock is nine tenths of its TTL after the moment before the
 * last successful request was sent.  The server counts from when it got the
 * request, so it gives the lock to somebody else only later.  What comes after
 * the deadline, a late answer say, does not bring the lock back; so deadlines
 * are looked at before answers.
 *
 * The mutex of the handle protects the locks; the connection is the thread's
 * own.  The mutex is never held while calling back, polling or connecting.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* at most so many in one statement */
#define BATCH_MAX 10000

#define BACKOFF_FIRST_MS 50
#define BACKOFF_LAST_MS 1000

typedef enum Flight
{
	NOTHING,
	RENEWAL,
	ORPHANS
} Flight;

/* The thread's own. */
typedef struct Keeper
{
	dlock_handle *handle;
	DlockConn  *conn;
	Flight		flight;
	int64_t		sent_at;
	int64_t		answer_by;
	int64_t		backoff;
	int64_t		retry_at;
} Keeper;

/*
 * Locks.  The caller has the mutex.
 */

/*
 * A third of the TTL, with jitter: many clients that started together must
 * not stay together.  The locks of one handle shall.
 */
static int64_t
next_due(const dlock_lock *lock, int64_t from)
{
	return from + dlock_max(lock->ttl_ms * (900 + lock->handle->jitter) / 3000, 1);
}

void
dlock_keepalive_renewed(dlock_lock *lock, int64_t sent_at)
{
	lock->deadline = sent_at + dlock_lease_ms(lock->ttl_ms);
	lock->danger_at = sent_at + lock->ttl_ms * 6 / 10;
	lock->due = next_due(lock, sent_at);
	lock->tell_danger = false;
}

void
dlock_keepalive_lost(dlock_lock *lock, dlock_reason reason)
{
	if (lock->state != DLOCK_STATE_HELD)
		return;
	lock->state = DLOCK_STATE_LOST;
	lock->reason = reason;
	lock->tell_lost = true;
	lock->tell_danger = false;
	lock->tell_preempted = false;
	dlock_keepalive_wake(lock->handle);
}

/* The server says that it is not ours, but free or another's. */
void
dlock_keepalive_gone(dlock_lock *lock, const char *state)
{
	dlock_reason reason = DLOCK_REASON_EXPIRED;

	/* before our deadline it cannot have expired and been taken */
	if (lock->asked)
		reason = DLOCK_REASON_PREEMPTED;
	else if (lock->forced)
		reason = DLOCK_REASON_FORCED;
	else if (state != NULL && strcmp(state, "held_by_other") == 0)
		reason = DLOCK_REASON_FORCED;
	dlock_keepalive_lost(lock, reason);
}

/* Has its deadline passed?  Then it is lost. */
bool
dlock_keepalive_overdue(dlock_lock *lock, int64_t now)
{
	if (lock->state == DLOCK_STATE_HELD && now >= lock->deadline)
		dlock_keepalive_lost(lock, DLOCK_REASON_DEADLINE);
	return lock->state != DLOCK_STATE_HELD;
}

void
dlock_keepalive_add(dlock_lock *lock)
{
	dlock_handle *handle = lock->handle;

	lock->index = -1;
	lock->prev = NULL;
	lock->next = handle->locks;
	if (lock->next != NULL)
		lock->next->prev = lock;
	handle->locks = lock;
	dlock_keepalive_wake(handle);
}

void
dlock_keepalive_remove(dlock_lock *lock)
{
	if (lock->prev != NULL)
		lock->prev->next = lock->next;
	else
		lock->handle->locks = lock->next;
	if (lock->next != NULL)
		lock->next->prev = lock->prev;
}

/* Wait for the thread to get something done; false: the time is up. */
bool
dlock_keepalive_wait(dlock_handle *handle, int64_t until)
{
	struct timespec ts;
	int64_t		now = dlock_now();
	int64_t		left = dlock_min(until - now, 60000);

	if (now >= until)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_sec += left / 1000;
	ts.tv_nsec += left % 1000 * 1000000;
	if (ts.tv_nsec >= 1000000000)
	{
		ts.tv_sec++;
		ts.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(&handle->changed, &handle->mutex, &ts);
	return true;
}

/*
 * No renewal until held_off is taken back, and none is under way, nor an
 * event if there are to be no more: true.  False: the time is up.
 */
bool
dlock_keepalive_hold_off(dlock_lock *lock, int64_t until)
{
	lock->held_off++;
	while (lock->index >= 0 || (lock->in_callback && lock->silent))
		if (!dlock_keepalive_wait(lock->handle, until))
			return false;
	return true;
}

/*
 * Events
 */

/* What is to be told of a lock; the most important first, none: false. */
static bool
next_event(dlock_lock *lock, dlock_event *event, int64_t now)
{
	memset(event, 0, sizeof(*event));
	event->size = sizeof(*event);
	event->lock = lock;
	event->key = lock->key;
	event->version = lock->version;
	if (lock->silent || lock->freed)
		return false;
	if (lock->tell_lost)
	{
		event->type = DLOCK_EVENT_LOST;
		event->reason = lock->reason;
		lock->tell_lost = false;
	}
	else if (lock->tell_preempted)
	{
		event->type = DLOCK_EVENT_PREEMPTED;
		event->left_ms = dlock_max(lock->yield_until - now, 0);
		lock->tell_preempted = false;
	}
	else if (lock->tell_danger)
	{
		event->type = DLOCK_EVENT_DANGER;
		event->left_ms = dlock_max(lock->deadline - now, 0);
		lock->tell_danger = false;
	}
	else
		return false;
	return lock->callback != NULL;
}

/* Tell one; true if there was one, and the list may be another now. */
static bool
tell(dlock_handle *handle, int64_t now)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		dlock_event event;

		if (!next_event(lock, &event, now))
			continue;
		lock->in_callback = true;
		pthread_mutex_unlock(&handle->mutex);
		lock->callback(&event, lock->callback_arg);
		pthread_mutex_lock(&handle->mutex);
		lock->in_callback = false;
		if (lock->freed)
		{
			dlock_keepalive_remove(lock);
			dlock_lock_destroy(lock);
		}
		pthread_cond_broadcast(&handle->changed);
		return true;
	}
	return false;
}

static void
look_at_clock(Keeper *keeper, int64_t now)
{
	for (dlock_lock *lock = keeper->handle->locks; lock != NULL; lock = lock->next)
	{
		if (dlock_keepalive_overdue(lock, now))
			continue;
		if (lock->renew && lock->danger_at <= now)
		{
			lock->danger_at = DLOCK_NEVER;
			lock->tell_danger = true;
		}
	}
}

/* "version": 17 of a lock of ours: have a look at it now. */
static void
notified(void *arg, const char *payload)
{
	dlock_handle *handle = arg;
	const char *version = strstr(payload, "\"version\": ");
	bool		forced = strstr(payload, "\"event\": \"forced\"") != NULL;
	int64_t		number;

	if (version == NULL)
		return;
	number = strtoll(version + strlen("\"version\": "), NULL, 10);
	pthread_mutex_lock(&handle->mutex);
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->version == number)
		{
			lock->due = 0;
			lock->forced = lock->forced || forced;
		}
	pthread_mutex_unlock(&handle->mutex);
}

/*
 * Renewals.  The caller has the mutex.
 */

static bool
wants_renewal(const dlock_lock *lock, int64_t now)
{
	return lock->state == DLOCK_STATE_HELD && lock->held_off == 0 &&
		!lock->freed && lock->due <= now;
}

/*
 * Which ones: if any is due, all that will be within the better half of their
 * period, so that they are due together the next time.
 * Those of a statement that failed have their turn when no others are due, one
 * by one.
 */
static int
choose(dlock_handle *handle, int64_t now)
{
	dlock_lock *alone = NULL;
	bool		any = false;
	int			n = 0;

	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		n++;
		if (!wants_renewal(lock, now))
			continue;
		if (!lock->alone)
			any = true;
		else if (alone == NULL || lock->deadline < alone->deadline)
			alone = lock;
	}
	if (!any && alone == NULL)
		return 0;
	n = n < BATCH_MAX ? n : BATCH_MAX;
	handle->batch = calloc((size_t) n, sizeof(dlock_lock *));
	handle->nbatch = 0;
	if (handle->batch == NULL)
		return 0;
	for (dlock_lock *lock = handle->locks; lock != NULL && handle->nbatch < n;
		 lock = lock->next)
		if (any ? !lock->alone && wants_renewal(lock, now + lock->ttl_ms / 5) : lock == alone)
		{
			lock->index = handle->nbatch;
			handle->batch[handle->nbatch++] = lock;
		}
	return handle->nbatch;
}

static bool
send_renewal(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;
	DlockString keys = {0};
	DlockString versions = {0};
	DlockString renew = {0};
	char		number[32];
	const char *params[4];
	int64_t		patience = DLOCK_NEVER;
	bool		sent = false;

	if (choose(handle, now) == 0)
		return false;
	for (int i = 0; i < handle->nbatch; i++)
	{
		dlock_lock *lock = handle->batch[i];
		const char *comma = i == 0 ? "{" : ",";

		dlock_string_puts(&keys, comma);
		dlock_string_quoted(&keys, lock->key);
		snprintf(number, sizeof(number), "%s%lld", comma, (long long) lock->version);
		dlock_string_puts(&versions, number);
		dlock_string_puts(&renew, comma);
		dlock_string_puts(&renew, lock->renew ? "t" : "f");
		patience = dlock_min(patience, lock->ttl_ms / 3);
	}
	dlock_string_puts(&keys, "}");
	dlock_string_puts(&versions, "}");
	dlock_string_puts(&renew, "}");
	patience = dlock_max(patience, 20);
	snprintf(number, sizeof(number), "%lldms", (long long) dlock_max(patience / 3, 1));
	params[0] = keys.data;
	params[1] = versions.data;
	params[2] = renew.data;
	params[3] = number;

	/* before it is sent, and the clock is read again: building takes time */
	keeper->sent_at = dlock_now();
	keeper->answer_by = keeper->sent_at + patience;
	keeper->flight = RENEWAL;
	handle->jitter = (int) (dlock_random() % 200);
	if (!keys.broken && !versions.broken && !renew.broken)
		sent = dlock_conn_send(keeper->conn, dlock_sql_renew, 4, params);
	dlock_string_free(&keys);
	dlock_string_free(&versions);
	dlock_string_free(&renew);
	return sent;
}

/* Nothing is in flight any more; those who waited for that may go on. */
static void
land(Keeper *keeper, const DlockAnswer *answer, int64_t now)
{
	dlock_handle *handle = keeper->handle;

	if (keeper->flight == ORPHANS)
		dlock_orphans_landed(handle, answer, now);
	for (int i = 0; i < handle->nbatch; i++)
		if (handle->batch[i] != NULL)
			handle->batch[i]->index = -1;
	free(handle->batch);
	handle->batch = NULL;
	handle->nbatch = 0;
	keeper->flight = NOTHING;
	pthread_cond_broadcast(&handle->changed);
}

static void
renewal_answered(Keeper *keeper, const DlockAnswer *answer, int64_t now)
{
	dlock_handle *handle = keeper->handle;

	for (int row = 0; row < dlock_answer_rows(answer); row++)
	{
		int64_t		i = dlock_answer_int(answer, row, 0) - 1;
		const char *refreshed = dlock_answer_get(answer, row, 1);
		const char *state = dlock_answer_get(answer, row, 2);
		dlock_lock *lock;

		if (i < 0 || i >= handle->nbatch || state == NULL)
			continue;
		lock = handle->batch[i];
		if (lock == NULL || dlock_keepalive_overdue(lock, now))
			continue;
		lock->alone = false;
		if (strcmp(state, "held") != 0 && strcmp(state, "preempting") != 0)
		{
			dlock_keepalive_gone(lock, state);
			continue;
		}
		if (refreshed != NULL && refreshed[0] == 't')
			dlock_keepalive_renewed(lock, keeper->sent_at);
		else
			lock->due = next_due(lock, keeper->sent_at);

		if (strcmp(state, "held") == 0)
			lock->asked = false;
		else if (!lock->asked)
		{
			lock->asked = true;
			lock->tell_preempted = true;
			lock->yield_until = now + dlock_answer_int(answer, row, 3);
		}
	}
}

/* The statement has come to an end, good or bad. */
static void
flight_ended(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;
	DlockAnswer *answer = NULL;

	if (dlock_conn_state(keeper->conn) == DLOCK_CONN_DONE)
		answer = dlock_conn_take(keeper->conn);
	if (answer != NULL)
	{
		if (keeper->flight == RENEWAL)
			renewal_answered(keeper, answer, now);
		land(keeper, answer, now);
		dlock_answer_free(answer);
		return;
	}

	/*
	 * The server is there but did not like it, perhaps because of one lock of
	 * many: each for itself then, and not at once.
	 */
	if (dlock_conn_state(keeper->conn) == DLOCK_CONN_READY)
		for (int i = 0; i < handle->nbatch; i++)
		{
			dlock_lock *lock = handle->batch[i];

			if (lock == NULL)
				continue;
			if (lock->alone || handle->nbatch == 1)
				lock->due = now + dlock_max(lock->ttl_ms / 10, 1);
			lock->alone = true;
		}
	land(keeper, NULL, now);
}

/*
 * The thread
 */

static void
start_connecting(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;
	int64_t		ttl = handle->ttl_ms;

	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->state == DLOCK_STATE_HELD)
			ttl = dlock_min(ttl, lock->ttl_ms);
	/* resolving and connecting must not wait for those who have the mutex */
	pthread_mutex_unlock(&handle->mutex);
	dlock_conn_start(keeper->conn, dlock_max(ttl / 4, 100), now);
	pthread_mutex_lock(&handle->mutex);
}

static bool
has_work(dlock_handle *handle, int64_t now)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->state == DLOCK_STATE_HELD && !lock->silent)
			return true;
	dlock_orphans_drop(handle, now);
	return handle->orphans != NULL;
}

/* Start what can be started; when to look again at the latest? */
static int64_t
plan(Keeper *keeper, int64_t now)
{
	dlock_handle *handle = keeper->handle;
	int64_t		until = DLOCK_NEVER;
	DlockConnState state = dlock_conn_state(keeper->conn);

	if (state == DLOCK_CONN_CLOSED && has_work(handle, now))
	{
		if (now >= keeper->retry_at)
		{
			keeper->retry_at = now + dlock_jitter(keeper->backoff);
			keeper->backoff = dlock_min(2 * keeper->backoff, BACKOFF_LAST_MS);
			start_connecting(keeper, now);
		}
		else
			until = keeper->retry_at;
	}
	else if (state == DLOCK_CONN_READY)
	{
		keeper->backoff = BACKOFF_FIRST_MS;
		dlock_orphans_drop(handle, now);
		if (!send_renewal(keeper, now) && keeper->flight == NOTHING &&
			dlock_orphans_send(handle, keeper->conn, now))
		{
			keeper->flight = ORPHANS;
			keeper->answer_by = now + dlock_max(handle->ttl_ms / 3, 20);
		}
		if (keeper->flight != NOTHING &&
			dlock_conn_state(keeper->conn) != DLOCK_CONN_BUSY)
			flight_ended(keeper, now);
	}

	state = dlock_conn_state(keeper->conn);
	if (state == DLOCK_CONN_CLOSED && has_work(handle, now))
		until = dlock_min(until, keeper->retry_at);
	if (state == DLOCK_CONN_BUSY)
		until = dlock_min(until, keeper->answer_by);
	until = dlock_min(until, dlock_conn_until(keeper->conn));
	if (state == DLOCK_CONN_READY)
		until = dlock_min(until, dlock_orphans_due(handle));
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
	{
		if (lock->state != DLOCK_STATE_HELD || lock->silent)
			continue;
		until = dlock_min(until, lock->deadline);
		if (lock->renew)
			until = dlock_min(until, lock->danger_at);
		if (state == DLOCK_CONN_READY && lock->held_off == 0)
			until = dlock_min(until, lock->due);
	}
	return until;
}

static void
drain(int fd)
{
	char		bytes[64];

	while (read(fd, bytes, sizeof(bytes)) > 0)
		;
}

static void *
keeper_main(void *arg)
{
	Keeper		keeper;
	dlock_handle *handle = arg;

	memset(&keeper, 0, sizeof(keeper));
	keeper.handle = handle;
	keeper.backoff = BACKOFF_FIRST_MS;
	keeper.conn = dlock_conn_new(handle->target);

	pthread_mutex_lock(&handle->mutex);
	if (keeper.conn != NULL)
		dlock_conn_listen(keeper.conn, notified, handle);
	while (!handle->stopping)
	{
		struct pollfd fds[2];
		int64_t		now = dlock_now();
		int64_t		until = DLOCK_NEVER;
		int			n;

		look_at_clock(&keeper, now);
		if (tell(handle, now))
			continue;
		if (keeper.conn == NULL)
		{
			/* no memory when we started: perhaps now */
			keeper.conn = dlock_conn_new(handle->target);
			until = now + BACKOFF_LAST_MS;
		}
		else
			until = plan(&keeper, now);

		fds[0].fd = handle->wake[0];
		fds[0].events = POLLIN;
		fds[0].revents = 0;
		fds[1].fd = -1;
		fds[1].events = 0;
		fds[1].revents = 0;
		if (keeper.conn != NULL)
			fds[1].fd = dlock_conn_fd(keeper.conn, &fds[1].events);
		pthread_mutex_unlock(&handle->mutex);

		n = poll(fds, 2, dlock_poll_timeout(until, dlock_now()));
		if (n > 0 && fds[0].revents != 0)
			drain(handle->wake[0]);
		now = dlock_now();
		if (keeper.conn != NULL)
			dlock_conn_step(keeper.conn, n > 0 ? fds[1].revents : 0, now);

		pthread_mutex_lock(&handle->mutex);
		/* a lock whose time is up is lost, whatever the answer is */
		look_at_clock(&keeper, now);
		if (keeper.flight != NOTHING)
		{
			if (dlock_conn_state(keeper.conn) != DLOCK_CONN_BUSY)
				flight_ended(&keeper, now);
			else if (now >= keeper.answer_by)
			{
				/*
				 * another connection may be better, and a refresh can be
				 * asked twice
				 */
				dlock_conn_close(keeper.conn);
				flight_ended(&keeper, now);
			}
		}
	}
	if (keeper.flight != NOTHING)
		land(&keeper, NULL, dlock_now());
	pthread_mutex_unlock(&handle->mutex);
	dlock_conn_free(keeper.conn);
	return NULL;
}

void
dlock_keepalive_wake(dlock_handle *handle)
{
	/* if the pipe is full, it will wake anyway */
	if (handle->running && write(handle->wake[1], "", 1) < 0)
		return;
}

dlock_status
dlock_keepalive_start(dlock_handle *handle, dlock_error *err)
{
	sigset_t	all;
	sigset_t	before;
	int			failed = 0;

	pthread_mutex_lock(&handle->mutex);
	if (!handle->running)
	{
		/* signals are for the threads of the application */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		failed = pthread_create(&handle->thread, NULL, keeper_main, handle);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		handle->running = failed == 0;
	}
	pthread_mutex_unlock(&handle->mutex);
	if (failed)
		return dlock_fail(err, DLOCK_NO_MEMORY, "could not start the renewal thread: %s",
						  strerror(failed));
	return DLOCK_OK;
}

void
dlock_keepalive_stop(dlock_handle *handle)
{
	bool		running;

	pthread_mutex_lock(&handle->mutex);
	running = handle->running;
	handle->stopping = true;
	dlock_keepalive_wake(handle);
	pthread_mutex_unlock(&handle->mutex);
	if (running)
		pthread_join(handle->thread, NULL);
	dlock_orphans_drop(handle, DLOCK_NEVER);
}

/* Is this the renewal thread? */
bool
dlock_in_callback(dlock_handle *handle)
{
	bool		in_callback;

	pthread_mutex_lock(&handle->mutex);
	in_callback = handle->running && pthread_equal(handle->thread, pthread_self());
	pthread_mutex_unlock(&handle->mutex);
	return in_callback;
}
