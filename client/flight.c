/*-------------------------------------------------------------------------
 *
 * flight.c
 *	  Calls that go together: one statement carries those of many threads.
 *
 * A flight is one statement.  A call that finds none under way goes at once, on the
 * main connection of the handle.  Calls that come meanwhile are queued, and are the
 * next flight, all together.  So many threads share one round trip and one flush,
 * and one thread is not slowed down.
 *
 * While a flight waits for its flush, neither the server nor the client has much
 * to do.  So a second flight may leave meanwhile, on another connection.  It carries
 * the calls that are quick, because they need no flush (queue.c), and while it does,
 * the main flight leaves such calls to it.  If there are none, and twice as many calls
 * are queued as are in the air, the second flight carries them all.  If nothing is
 * flushed, no call is quicker than others, and it carries all if as many are queued.
 *
 * There is no thread for this.  One of the threads that wait for an answer drives
 * a flight: it connects, sends, polls and hands out the answers, without the mutex
 * where that may take time.  The others sleep, and are woken when their call is
 * done, or to drive when the driver has its answer and leaves.  The calls of a
 * program with an event loop have one thread in common, which can drive both flights
 * (pilot.c).
 *
 * landing.c has what happens when a flight fails.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "batch.h"
#include "clock.h"
#include "flight.h"
#include "pool.h"
#include "queue.h"
#include "util.h"
#include "waker.h"

/*
 * Everything here needs the mutex, unless it says otherwise.
 */

/* Its owner waits no longer; others may, for the same flight. */
bool
dlock_flight_is_deserted(const DlockFlight *flight)
{
	for (int i = 0; i < flight->nair; i++)
		if (flight->air[i] != NULL)
			return false;
	return true;
}

/*
 * The connection
 */

bool
dlock_flight_is_second(const dlock_handle *handle, const DlockFlight *flight)
{
	return flight == &handle->second;
}

/* Is there something to wait for at its connection? */
bool
dlock_flight_is_waiting(const DlockFlight *flight)
{
	return flight->conn != NULL && (dlock_conn_connecting(flight->conn) ||
									dlock_conn_state(flight->conn) == DLOCK_CONN_BUSY);
}

void
dlock_flight_drop_conn(dlock_handle *handle, DlockFlight *flight)
{
	if (flight->conn != NULL && dlock_flight_is_second(handle, flight))
		handle->nspare--;
	dlock_pool_drop(handle, flight->conn);
	flight->conn = NULL;
}

/* It is not needed now. */
static void
give_conn(dlock_handle *handle, DlockFlight *flight)
{
	if (dlock_flight_is_second(handle, flight))
		dlock_pool_give_spare(handle, flight->conn);
	else
		dlock_pool_give(handle, flight->conn);
	flight->conn = NULL;
}

/*
 * Flights
 */

/*
 * Which calls would it carry?  Those that the main flight leaves to a quick one go when
 * that has landed.  If that takes too long, something is wrong with it, and the main one
 * takes them along.
 */
static DlockWhich
boarding(const dlock_handle *handle, const DlockFlight *flight)
{
	const DlockQueue *queue = &handle->queue;
	const DlockFlight *main = &handle->main;
	const DlockFlight *second = &handle->second;
	bool		unflushed = __atomic_load_n(&handle->target->unflushed, __ATOMIC_RELAXED);

	if (unflushed)
		return !dlock_flight_is_second(handle, flight) ||
			queue->n >= dlock_max(main->nair, DLOCK_SECOND_LEAST) ? DLOCK_ALL : DLOCK_NONE;
	if (!dlock_flight_is_second(handle, flight))
		return second->nair > 0 && second->is_quick &&
			dlock_now() < second->sent_at + DLOCK_HOLD_MS &&
			queue->n > queue->nquick ? DLOCK_SLOW : DLOCK_ALL;
	if (queue->nquick > 0)
		return DLOCK_QUICK;
	return queue->n >= 2 * dlock_max(main->nair, DLOCK_SECOND_LEAST) ? DLOCK_ALL : DLOCK_NONE;
}

/* Without the mutex: nobody else touches what is in the air meanwhile. */
static void
load_and_send(DlockFlight *flight)
{
	for (int i = 0; i < flight->nair; i++)
		dlock_call_set_params(flight->air[i], flight->conn, flight->sent_at, DLOCK_ROW_WAIT,
							  flight->air[i]->kind != DLOCK_OTHER);
	/* if it fails, the state of the connection tells */
	(void) dlock_batch_send(flight->conn, flight->air, flight->nair);
}

/* Those whose calls are done. */
static DlockWaker *
take_landed(DlockFlight *flight)
{
	DlockWaker *landed = flight->landed;

	flight->landed = NULL;
	return landed;
}

/* The connection is ready: send what is queued. */
static void
launch(dlock_handle *handle, DlockFlight *flight, const DlockCall *own)
{
	DlockWaker *landed;
	int64_t		until = 0;

	flight->sent_at = dlock_now();
	dlock_queue_board(&handle->queue, flight, boarding(handle, flight), own,
					  dlock_flight_is_second(handle, flight), flight->sent_at);
	if (flight->nair == 0)
		return;
	for (int i = 0; i < flight->nair; i++)
	{
		DlockCall  *call = flight->air[i];

		flight->is_knock = flight->is_knock && call->knocks;
		call->sent_at = flight->sent_at;
		if (!call->once)
			call->silent_until = dlock_later(flight->sent_at, call->timeout_ms);
		until = dlock_max(until, dlock_flight_limit(call));
	}
	flight->answer_by = until;
	flight->is_old = !flight->is_fresh;
	flight->is_fresh = false;
	flight->loading = true;
	landed = take_landed(flight);
	pthread_mutex_unlock(&handle->mutex);
	load_and_send(flight);
	/* the server is at work, and those who have their answers can be */
	dlock_waker_wake_list(landed, DLOCK_WOKEN_DONE);
	pthread_mutex_lock(&handle->mutex);
	flight->loading = false;
	if (handle->leaving > 0)
		pthread_cond_broadcast(&handle->changed);
}

/* Nothing is under way: connect, or send what is queued. */
static int64_t
start(dlock_handle *handle, DlockFlight *flight, const DlockCall *own, int64_t now,
	  int64_t until)
{
	int64_t		ready_at = dlock_queue_next_ready(&handle->queue);
	bool		is_main = !dlock_flight_is_second(handle, flight);

	if (ready_at > now && !dlock_flight_is_waiting(flight))
		return ready_at;
	if (flight->conn == NULL)
	{
		flight->conn = is_main ? dlock_pool_take(handle, true, until) :
			dlock_pool_spare(handle, false, now);
		flight->is_fresh = false;
		flight->is_knock = false;
		flight->retry_at = 0;
		dlock_error_clear(&flight->error);
		if (flight->conn == NULL)
		{
			if (is_main)
				dlock_flight_no_memory(handle, flight);
			else
				flight->retry_at = now + DLOCK_SECOND_PAUSE_MS;
			return 0;
		}
	}
	if (dlock_conn_state(flight->conn) == DLOCK_CONN_READY)
	{
		launch(handle, flight, own);
		/* those that it would carry are not ready yet */
		if (flight->nair == 0 && is_main)
			return now + DLOCK_GLANCE_MS;
	}
	else if (dlock_conn_state(flight->conn) == DLOCK_CONN_CLOSED)
	{
		if (flight->retry_at > now)
			return flight->retry_at;
		flight->is_fresh = true;
		flight->is_knock = is_main;
		/* resolving and connecting may take a while */
		pthread_mutex_unlock(&handle->mutex);
		dlock_conn_start(flight->conn, 0, now);
		pthread_mutex_lock(&handle->mutex);
	}
	return 0;
}

/* Would it carry that one? */
static bool
would_carry(const dlock_handle *handle, const DlockFlight *flight, const DlockCall *call)
{
	DlockWhich	which = boarding(handle, flight);

	return which == DLOCK_ALL || (which == DLOCK_QUICK && dlock_call_is_quick(call));
}

/* The second flight: does it have a connection, or can it have one? */
static bool
has_conn(const dlock_handle *handle, const DlockFlight *second, int64_t now)
{
	return second->conn != NULL ||
		(second->retry_at <= now &&
		 handle->nspare + 1 < handle->max_connections - DLOCK_MIN_CONNECTIONS);
}

/* May it leave now? */
static bool
may_leave(const dlock_handle *handle, const DlockFlight *second, const DlockCall *call)
{
	int64_t		now = dlock_now();

	return handle->main.nair > 0 && call->ready_at <= now && would_carry(handle, second, call) &&
		has_conn(handle, second, now);
}

/* Is there anything to do for it, and nobody who does? */
bool
dlock_flight_needs_driver(const dlock_handle *handle, const DlockFlight *flight)
{
	int64_t		now = dlock_now();

	if (flight->driven)
		return false;
	if (!dlock_flight_is_second(handle, flight))
		return flight->nair > 0 || handle->queue.first != NULL;
	if (flight->conn != NULL)
		return true;			/* it is in the air, or connects */
	return handle->main.nair > 0 && has_conn(handle, flight, now) &&
		dlock_queue_has(&handle->queue, boarding(handle, flight), now);
}

/* Can one of those whose call it carries be woken to drive it? */
static bool
has_sleeper(const DlockFlight *flight)
{
	for (int i = 0; i < flight->nair; i++)
		if (flight->air[i] != NULL && flight->air[i]->waker != NULL)
			return true;
	return false;
}

/*
 * Which one is the owner of this call to drive?  NULL: none.
 *
 * A call that is ready boards what its owner drives.  So the owner of a quick one leaves
 * a main flight that is in the air to those whose calls it carries.  The second flight
 * leaves a spare connection to calls that need one.
 */
DlockFlight *
dlock_flight_to_drive(dlock_handle *handle, const DlockCall *call)
{
	DlockFlight *second = &handle->second;

	if (call->state == DLOCK_CALL_FLYING)
		return call->flight->driven ? NULL : call->flight;
	if (!handle->main.driven &&
		!(dlock_call_is_quick(call) && may_leave(handle, second, call) && has_sleeper(&handle->main)))
		return &handle->main;
	if (second->driven)
		return NULL;
	if (second->conn != NULL)
		return second;			/* it is in the air, or connects */
	return may_leave(handle, second, call) ? second : NULL;
}

/*
 * When does the owner of a call that is queued have to look again by itself?  A second
 * flight may have become possible meanwhile.
 */
int64_t
dlock_flight_look_at(const DlockCall *call)
{
	return call->state == DLOCK_CALL_QUEUED && dlock_call_is_quick(call) ?
		dlock_now() + DLOCK_POLL_MS : DLOCK_NEVER;
}

/*
 * Drive it, as the only one that does, and as the owner of that call, if it is not
 * NULL.  First, send what there is to send.  Returns 0, or when there will be something
 * to do.  *until: wait no longer than that.
 */
int64_t
dlock_flight_depart(dlock_handle *handle, DlockFlight *flight, const DlockCall *own,
					int64_t *until)
{
	int64_t		now = dlock_now();
	int64_t		idle_until = 0;

	flight->driven = true;
	if (flight->nair == 0)
		idle_until = start(handle, flight, own, now, *until);
	if (flight->nair > 0)
	{
		int64_t		patience = flight->sent_at + dlock_probe_ms(handle->timeout_ms);

		*until = dlock_min(*until, flight->answer_by);
		if (patience > now)
			*until = dlock_min(*until, patience);
	}
	return idle_until;
}

/* Then, when its connection has been looked at, see what has become of it. */
void
dlock_flight_arrive(dlock_handle *handle, DlockFlight *flight, const DlockCall *own,
					int64_t idle_until)
{
	if (idle_until == 0 && flight->conn != NULL)
		dlock_flight_settle(handle, flight);

	/* the next flight leaves before its passengers are all awake */
	if (flight->conn != NULL && flight->nair == 0 &&
		dlock_conn_state(flight->conn) == DLOCK_CONN_READY)
	{
		if (dlock_queue_next_ready(&handle->queue) <= dlock_now() &&
			boarding(handle, flight) != DLOCK_NONE)
			launch(handle, flight, own);
		if (flight->nair == 0 && flight->is_knock)
			dlock_flight_drop_conn(handle, flight); /* all that wait would
													 * need one */
		else if (flight->nair == 0)
			give_conn(handle, flight);
	}
	if (flight->landed != NULL)
	{
		DlockWaker *landed = take_landed(flight);

		pthread_mutex_unlock(&handle->mutex);
		dlock_waker_wake_list(landed, DLOCK_WOKEN_DONE);
		pthread_mutex_lock(&handle->mutex);
	}
	flight->driven = false;
}

/*
 * All of that, for a thread that waits for its call, until then at most.  Returns 0, or
 * when there will be something to do.
 */
int64_t
dlock_flight_drive(dlock_handle *handle, DlockFlight *flight, const DlockCall *own,
				   int64_t until)
{
	int64_t		idle_until = dlock_flight_depart(handle, flight, own, &until);

	if (idle_until == 0 && dlock_flight_is_waiting(flight))
	{
		if (!dlock_flight_is_second(handle, flight))
			until = dlock_min(until, dlock_flight_look_at(own));
		else if (own->state != DLOCK_CALL_FLYING || own->flight != flight)
		{
			/* the other one may have its answer, or carry it */
			until = dlock_min(until, dlock_now() + DLOCK_GLANCE_MS);
		}
		pthread_mutex_unlock(&handle->mutex);
		dlock_conn_work(flight->conn, until);
		pthread_mutex_lock(&handle->mutex);
	}
	dlock_flight_arrive(handle, flight, own, idle_until);
	return idle_until;
}
