/*-------------------------------------------------------------------------
 *
 * check_wait.c
 *	  Nobody starves: in times of peace every call is answered within its
 *	  wait and a bound, and no waiter is overtaken again and again.
 *
 * An acquire that waits without limit waits as long as others hold the key.
 * It starves if nothing happens to the key for longer than any lease lasts.
 * A request whose answer was lost may still be granted, and then nobody knows
 * its lease.  Each such request may take that time once.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* by then a waiter is in the queue */
#define QUEUED 2000000

#define SHOWN 3

typedef struct Waiter
{
	uint32_t	op;
	int			overtaken;
	Time		since;
	uint32_t	first[SHOWN];	/* those that overtook it, and */
	uint32_t	last;
} Waiter;

static Waiter *waiters;
static uint32_t nwaiters;
static Time *progress;			/* when something happened to the key */
static uint32_t nprogress;

/* When it was answered, or could no longer be. */
static Time
end_of(const Op *op)
{
	const Client *client = &history.clients[op->client];
	Time		end = op->done;

	if (client->killed < end)
		end = client->killed;
	return end == NEVER ? history.last : end;
}

static void
starves(uint32_t i, Time from, Time time)
{
	const Op   *op = &history.ops[i];
	const Client *client = &history.clients[op->client];

	if (check_violation(STARVE, "Call %u of client %lld, on key %.*s, %s for %lld ms from %lld on, without any fault.",
						op->number, (long long) client->number, KEY_ARGS(op->key),
						op->kind == OP_ACQUIRE && op->wait < 0 ?
						"waited though nothing happened to the key" : "had no answer",
						(long long) (time / 1000), (long long) from))
	{
		check_show_op(i);
		check_show_line(client->killed_line);
		check_violation_end();
	}
}

/* All calls but those that wait without limit. */
void
check_answers(void)
{
	for (uint32_t i = 0; i < history.nops; i++)
	{
		const Op   *op = &history.ops[i];
		Time		limit = options.bound_ms * 1000;
		Time		end = end_of(op);
		Time		start;
		Time		time;

		if (op->call_line == 0 || (op->kind == OP_ACQUIRE && op->wait < 0))
			continue;
		if (op->kind == OP_ACQUIRE)
			limit += (Time) op->wait * 1000;
		if (end - op->called <= limit)
			continue;
		time = check_peace(op->called, end, &start);
		if (time > limit)
			starves(i, start, time);
	}
}

/*
 * Overtaking
 */

static void
overtakes(Waiter *waiter, uint32_t i)
{
	const Op   *op = &history.ops[i];
	const Op   *waits = &history.ops[waiter->op];
	Time		peace = check_peace_since(op->done);
	Time		since = waits->called + QUEUED;

	if (peace == NEVER || op->priority > waits->priority || op->owner == waits->owner)
		return;
	/* it may have to notice that its server is gone, and ask another */
	if (peace != INT64_MIN && peace + options.bound_ms * 1000 > since)
		since = peace + options.bound_ms * 1000;
	if (since != waiter->since)
		waiter->overtaken = 0;
	waiter->since = since;
	if (op->called <= since)
		return;
	if (waiter->overtaken < SHOWN)
		waiter->first[waiter->overtaken] = i;
	waiter->last = i;
	if (++waiter->overtaken != options.overtake + 1)
		return;
	if (check_violation(STARVE, "Client %lld waited for key %.*s since %lld, and was overtaken by %d requests that"
						" came at least %d ms later and were granted, without any fault.",
						CLIENT(waits), KEY_ARGS(waits->key), (long long) waits->called,
						waiter->overtaken, QUEUED / 1000))
	{
		check_show_op(waiter->op);
		for (int j = 0; j < SHOWN && j < waiter->overtaken; j++)
			check_show_op(waiter->first[j]);
		check_show_op(i);
		check_violation_end();
	}
}

static void
wait_begins(uint32_t i)
{
	Waiter		waiter;

	memset(&waiter, 0, sizeof(waiter));
	waiter.op = i;
	waiter.since = INT64_MIN;
	check_grow(&waiters, nwaiters, sizeof(Waiter));
	waiters[nwaiters++] = waiter;
}

static void
look_at_waiters(uint32_t i)
{
	const Op   *op = &history.ops[i];
	uint32_t	n = 0;

	for (uint32_t j = 0; j < nwaiters; j++)
	{
		Waiter	   *waiter = &waiters[j];

		if (waiter->op == i || end_of(&history.ops[waiter->op]) < op->done)
			continue;
		if (op->outcome == OUT_GRANTED)
			overtakes(waiter, i);
		waiters[n++] = *waiter;
	}
	nwaiters = n;
}

/*
 * Waits without limit
 */

/* How long may nothing happen to a key from this time on? */
static Time
longest_lease(uint32_t key, Time from)
{
	Time		bound = options.bound_ms * 1000;
	Time		longest = 0;
	int64_t		ghosts = 0;

	for (uint32_t i = 0; i < history.keys[key].nops; i++)
	{
		const Op   *op = &history.ops[history.by_key[history.keys[key].first + i]];
		Time		ttl = ((Time) op->ttl + op->delay) * 1000;

		if (ttl > longest)
			longest = ttl;
		if (op->kind == OP_ACQUIRE && (op->outcome == OUT_UNKNOWN || op->outcome == OUT_OPEN) &&
			(op->wait < 0 || op->called + (Time) op->wait * 1000 + ttl + bound >= from))
			ghosts++;
	}
	return bound + longest * (1 + ghosts);
}

static uint32_t
first_progress(Time after)
{
	uint32_t	low = 0;
	uint32_t	high = nprogress;

	while (low < high)
	{
		uint32_t	middle = low + (high - low) / 2;

		if (progress[middle] <= after)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void
check_unlimited(uint32_t i)
{
	const Op   *op = &history.ops[i];
	Time		end = end_of(op);
	Time		at = op->called;

	if (end - at <= options.bound_ms * 1000)
		return;
	for (uint32_t j = first_progress(at); at < end; j++)
	{
		Time		next = j < nprogress && progress[j] < end ? progress[j] : end;
		Time		start;
		Time		time;

		if (next - at > options.bound_ms * 1000)
		{
			time = check_peace(at, next, &start);
			if (time > options.bound_ms * 1000 && time > longest_lease(op->key, start))
			{
				starves(i, start, time);
				return;
			}
		}
		at = next;
	}
}

void
check_wait(uint32_t key, const Point *points, uint32_t n)
{
	const Key  *the_key = &history.keys[key];

	nwaiters = nprogress = 0;
	for (uint32_t i = 0; i < n; i++)
	{
		bool		holds = false;

		if (points[i].what == POINT_NOTE)
			holds = history.notes[points[i].index].kind == NOTE_RENEWED;
		else
		{
			const Op   *op = &history.ops[points[i].index];

			if (op->kind == OP_ACQUIRE && points[i].what == POINT_DONE)
				look_at_waiters(points[i].index);

			/*
			 * one of a group waits for the others before it waits for this
			 * key
			 */
			else if (op->kind == OP_ACQUIRE && op->wait != 0 && op->with == 0)
				wait_begins(points[i].index);
			holds = points[i].what == POINT_DONE &&
				(op->outcome == OUT_GRANTED || op->outcome == OUT_OK);
		}
		if (holds)
		{
			check_grow(&progress, nprogress, sizeof(Time));
			progress[nprogress++] = points[i].at;
		}
	}
	for (uint32_t i = the_key->first; i < the_key->first + the_key->nops; i++)
	{
		const Op   *op = &history.ops[history.by_key[i]];

		if (op->kind == OP_ACQUIRE && op->wait < 0)
			check_unlimited(history.by_key[i]);
	}
}
