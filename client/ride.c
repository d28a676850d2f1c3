/*-------------------------------------------------------------------------
 *
 * ride.c
 *	  A thread that waits for its call: it drives the flights (flight.c), or
 *	  sleeps while another thread does.
 *
 *-------------------------------------------------------------------------
 */
#include "clock.h"
#include "flight.h"
#include "util.h"
#include "waker.h"

static bool
wake_driver(DlockWaker *waker)
{
	if (waker == NULL)
		return false;
	if (waker->list != NULL)
		dlock_rouse(waker->list);
	else
		dlock_waker_wake(waker, DLOCK_WOKEN_LOOK);
	return true;
}

/*
 * One of those whose call it carries, if possible one that can be woken alone.
 * False: there is none.
 */
static bool
wake_passenger(const DlockFlight *flight)
{
	DlockWaker *waker = NULL;

	for (int i = 0; i < flight->nair; i++)
	{
		const DlockCall *call = flight->air[i];

		if (call == NULL || call->waker == NULL)
			continue;
		waker = call->waker;
		if (call->shared == NULL)
			break;
	}
	return wake_driver(waker);
}

/*
 * Nobody waits for what is under way.  If the second flight is still connecting, it is
 * left to whoever has a call next: the main one carries the calls meanwhile, and a
 * connection that is given up each time would never be there.
 */
static void
drop_if_deserted(dlock_handle *handle, DlockFlight *flight)
{
	bool		connects = flight->nair == 0;

	if (flight->driven || flight->conn == NULL || !dlock_flight_is_deserted(flight))
		return;
	if (!connects || !dlock_flight_is_second(handle, flight))
	{
		flight->nair = 0;
		dlock_flight_drop_conn(handle, flight);
	}
}

/* What nobody waits for is not left half open. */
void
dlock_flight_drop_deserted(dlock_handle *handle)
{
	if (handle->queue.first != NULL || handle->main.nair > 0)
		return;
	drop_if_deserted(handle, &handle->second);
	drop_if_deserted(handle, &handle->main);
}

/*
 * Other threads have to drive, if there is anything to do.  The caller sees to one
 * flight itself, or to none.
 */
void
dlock_flight_hand_over(dlock_handle *handle, const DlockFlight *own)
{
	dlock_flight_drop_deserted(handle);
	if (own != &handle->second && !handle->second.driven)
		(void) wake_passenger(&handle->second);
	if (own == &handle->main || handle->main.driven || wake_passenger(&handle->main))
		return;
	for (DlockCall *call = handle->queue.first; call != NULL; call = call->next)
		if (wake_driver(call->waker))
			return;
}

/* Does a thread use it without the mutex? */
bool
dlock_flight_is_loading(const DlockCall *call)
{
	return call->state == DLOCK_CALL_FLYING && call->flight->loading;
}

/*
 * The time of the call is up, or its owner does not want it any more.  While another
 * thread loads it, this lets go of the mutex, and the call may be answered meanwhile.
 */
void
dlock_flight_leave(dlock_handle *handle, DlockCall *call)
{
	handle->leaving++;
	while (dlock_flight_is_loading(call))
		pthread_cond_wait(&handle->changed, &handle->mutex);
	handle->leaving--;
	if (call->state == DLOCK_CALL_FLYING)
	{
		DlockFlight *flight = call->flight;

		for (int i = 0; i < flight->nair; i++)
			if (flight->air[i] == call)
				flight->air[i] = NULL;
		call->in_doubt = true;
		dlock_fail(&call->error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
				   (long long) (dlock_now() - call->sent_at));
	}
	else if (call->state == DLOCK_CALL_QUEUED)
	{
		dlock_queue_take_out(&handle->queue, call);
		/* the error of an earlier try says more than a timeout */
		if (call->error.message[0] == '\0' && handle->main.nair > 0)
			dlock_fail(&call->error, DLOCK_TIMEOUT, "no answer from the server in %lld ms",
					   (long long) call->timeout_ms);
		else if (call->error.message[0] == '\0' && handle->main.error.message[0] != '\0')
			call->error = handle->main.error;
		else if (call->error.message[0] == '\0')
			dlock_fail(&call->error, DLOCK_UNREACHABLE, "could not reach a server in %lld ms",
					   (long long) call->timeout_ms);
	}
	call->state = DLOCK_CALL_DONE;
	drop_if_deserted(handle, &handle->second);
	if (handle->queue.first == NULL)
		drop_if_deserted(handle, &handle->main);
}

/*
 * Until a call that was added is done, or its time is up.  This is the only place
 * where a thread waits for a flight.  Returns false if the mutex has been let go:
 * another thread has told us that it is done, so there is no need for it.
 */
static bool
wait_for(dlock_handle *handle, DlockCall *call)
{
	DlockWaker	waker = {0};
	bool		has_mutex = true;

	while (call->state != DLOCK_CALL_DONE)
	{
		int64_t		until = dlock_flight_limit(call);
		DlockFlight *flight = dlock_flight_to_drive(handle, call);

		if (dlock_now() >= until)
		{
			dlock_flight_leave(handle, call);
			break;
		}

		/*
		 * we may have driven the other one, for an earlier call or for this
		 * one
		 */
		dlock_flight_hand_over(handle, flight);
		if (flight != NULL)
		{
			int64_t		idle_until = dlock_flight_drive(handle, flight, call, until);

			if (idle_until == 0)
				continue;
			until = dlock_min(until, idle_until);
		}
		until = dlock_min(until, dlock_flight_look_at(call));
		dlock_waker_prepare(&waker, call->shared);

		/* only until the end of this function */
		/* cppcheck-suppress autoVariables */
		call->waker = &waker;
		pthread_mutex_unlock(&handle->mutex);
		if (dlock_waker_sleep(&waker, DLOCK_WOKEN_LOOK | DLOCK_WOKEN_DONE, until) & DLOCK_WOKEN_DONE)
		{
			has_mutex = false;
			break;
		}
		pthread_mutex_lock(&handle->mutex);
		call->waker = NULL;
	}
	/* it is about to be woken, and must be there then */
	if (has_mutex && waker.expects)
	{
		pthread_mutex_unlock(&handle->mutex);
		dlock_waker_sleep(&waker, DLOCK_WOKEN_DONE, DLOCK_NEVER);
		has_mutex = false;
	}
	call->waker = NULL;
	return has_mutex;
}

/* The same, with the mutex before and afterwards. */
void
dlock_flight_wait(dlock_handle *handle, DlockCall *call)
{
	if (!wait_for(handle, call))
		pthread_mutex_lock(&handle->mutex);
}

/* A call from its beginning to its end.  The caller does not have the mutex. */
void
dlock_flight_call(dlock_handle *handle, DlockCall *call)
{
	pthread_mutex_lock(&handle->mutex);
	dlock_flight_add(handle, call);
	if (!wait_for(handle, call))
		return;
	dlock_flight_hand_over(handle, NULL);
	pthread_mutex_unlock(&handle->mutex);
}
