/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  Calls that wait for the next flight, and which of them go together.
 *
 * A call is quick if the server need not flush anything before it answers: a check, a
 * release, mostly a refresh.  Quick calls may go by themselves, so that they do not wait
 * for a flush (flight.c).
 *
 * Calls that come between two flights are a party: they will mostly fly together,
 * and be answered together.  So their threads sleep on one word, and one call of the
 * kernel wakes them all.  Only the first of them, the leader, has a word of its own:
 * it can be woken alone, to drive (ride.c).  Quick calls are a party of their own.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "batch.h"
#include "clock.h"
#include "queue.h"
#include "util.h"
#include "waker.h"

int64_t
dlock_flight_limit(const DlockCall *call)
{
	return dlock_min(call->until, call->silent_until);
}

bool
dlock_call_is_quick(const DlockCall *call)
{
	return call->kind <= DLOCK_LAST_QUICK;
}

static void
append(DlockQueue *queue, DlockCall *call)
{
	DlockCall **at = &queue->first;

	if (queue->last != NULL)
		at = &queue->last->next;
	call->next = NULL;
	call->state = DLOCK_CALL_QUEUED;
	*at = call;
	queue->last = call;
	queue->n++;
	queue->nquick += dlock_call_is_quick(call);
}

/* Those of a flight that has failed come first, in their order. */
void
dlock_queue_put_back(DlockQueue *queue, DlockCall **calls, int n)
{
	for (int i = n - 1; i >= 0; i--)
	{
		calls[i]->state = DLOCK_CALL_QUEUED;
		calls[i]->next = queue->first;
		queue->first = calls[i];
		if (queue->last == NULL)
			queue->last = calls[i];
		queue->nquick += dlock_call_is_quick(calls[i]);
	}
	queue->n += n;
}

/* Take one out; "before" is the one before it. */
static void
unlink_call(DlockQueue *queue, DlockCall *call, DlockCall *before)
{
	if (before != NULL)
		before->next = call->next;
	else
		queue->first = call->next;
	if (queue->last == call)
		queue->last = before;
	queue->n--;
	queue->nquick -= dlock_call_is_quick(call);
}

void
dlock_queue_take_out(DlockQueue *queue, DlockCall *call)
{
	DlockCall  *before = NULL;

	for (DlockCall *at = queue->first; at != call; at = at->next)
		before = at;
	unlink_call(queue, call, before);
}

static void
join_party(DlockQueue *queue, DlockCall *call)
{
	bool		quick = dlock_call_is_quick(call);

	call->shared = queue->has_leader[quick] ?
		&queue->words[quick][queue->party[quick] % DLOCK_PARTIES] : NULL;
	queue->has_leader[quick] = true;
}

static void
end_party(DlockQueue *queue, bool quick)
{
	queue->party[quick]++;
	queue->has_leader[quick] = false;
}

/* Join the queue; the caller drives, or sleeps until it is woken. */
void
dlock_flight_add(dlock_handle *handle, DlockCall *call)
{
	call->reply = NULL;
	call->in_doubt = false;
	call->blocked = false;
	call->alone = call->alone || !dlock_call_is_sound(call);
	dlock_error_clear(&call->error);
	call->silent_until = call->once ? DLOCK_NEVER :
		dlock_later(dlock_max(dlock_now(), call->ready_at), call->timeout_ms);
	if (call->waker == NULL)
		join_party(&handle->queue, call);
	append(&handle->queue, call);
}

void
dlock_call_finish(DlockFlight *flight, DlockCall *call)
{
	DlockWaker *waker = call->waker;

	call->state = DLOCK_CALL_DONE;
	if (waker == NULL)
		return;
	if (waker->list != NULL)
	{
		dlock_wake(waker);
		return;
	}
	/* a thread is woken when others can have the mutex */
	waker->expects = true;
	waker->next = flight->landed;
	flight->landed = waker;
}

void
dlock_call_finish_with(DlockFlight *flight, DlockCall *call,
					   const dlock_error *error)
{
	call->error = *error;
	dlock_call_finish(flight, call);
}

/* When the next one may go. */
int64_t
dlock_queue_next_ready(const DlockQueue *queue)
{
	int64_t		at = DLOCK_NEVER;

	for (const DlockCall *call = queue->first; call != NULL; call = call->next)
		at = dlock_min(at, call->ready_at);
	return at;
}

/* About so many bytes; only a value is long. */
static size_t
size_of(const DlockCall *call)
{
	return call->kind == DLOCK_TRIES && call->params[3] != NULL ? strlen(call->params[3]) : 0;
}

/*
 * Is its owner woken when it is done?  A thread that is awake drives another flight, and
 * would not notice that this one has answered its call.
 */
static bool
is_heard(const DlockCall *call)
{
	return call->waker != NULL;
}

/*
 * Would the flight carry it?  "own" is the call of its driver, which goes with it, unless
 * it would make the others in a quick flight wait for a flush.  Besides, the second flight
 * carries only calls whose owners are woken: one of them can drive it later.
 */
static bool
is_aboard(const DlockCall *call, DlockWhich which, const DlockCall *own, bool is_second)
{
	if (call == own)
		return which != DLOCK_QUICK || dlock_call_is_quick(call);
	if (which == DLOCK_NONE)
		return false;
	if (is_second && !is_heard(call))
		return false;
	return which == DLOCK_ALL || (which == DLOCK_QUICK) == dlock_call_is_quick(call);
}

/* Is there one that the second flight would carry now? */
bool
dlock_queue_has(const DlockQueue *queue, DlockWhich which, int64_t now)
{
	for (const DlockCall *call = queue->first; call != NULL; call = call->next)
		if (call->ready_at <= now && is_aboard(call, which, NULL, true))
			return true;
	return false;
}

/* Take those that go together out of the queue. */
void
dlock_queue_board(DlockQueue *queue, DlockFlight *flight, DlockWhich which,
				  const DlockCall *own, bool is_second, int64_t now)
{
	DlockCall  *before = NULL;
	DlockCall  *next;
	size_t		size = 0;

	if (which != DLOCK_QUICK)
		end_party(queue, false);
	if (which != DLOCK_SLOW)
		end_party(queue, true);
	flight->is_quick = true;
	flight->nair = 0;
	for (DlockCall *call = queue->first;
		 call != NULL && flight->nair < DLOCK_MAX_FLIGHT; call = next)
	{
		bool		alone = call->alone || call->kind == DLOCK_OTHER;

		next = call->next;
		if (call->ready_at > now || (alone && flight->nair > 0) ||
			!is_aboard(call, which, own, is_second))
		{
			before = call;
			continue;
		}
		unlink_call(queue, call, before);
		flight->is_quick = flight->is_quick && dlock_call_is_quick(call);
		call->state = DLOCK_CALL_FLYING;
		call->flight = flight;
		flight->air[flight->nair++] = call;
		size += size_of(call);
		if (alone || size > DLOCK_MAX_FLIGHT_BYTES)
			break;
	}
	if (flight->nair > 1)
		dlock_batch_sort(flight->air, flight->nair);
	for (DlockKind kind = 0; kind < DLOCK_KINDS; kind++)
		flight->first[kind] = dlock_batch_find(flight->air, flight->nair, kind);
}
