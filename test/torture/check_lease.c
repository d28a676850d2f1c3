/*-------------------------------------------------------------------------
 *
 * check_lease.c
 *	  The leases of one key: none vanishes, none comes back; and what the
 *	  clients believe, for check_overlap.c, and how long the server keeps each,
 *	  for check_places.c.
 *
 * A lease is known from the moment that its client was told of the grant.
 * From then on the server keeps it at least until "until": the TTL after the
 * call of the last acquire or refresh that succeeded, or after a later moment
 * that the client names as the base of its TTL.  The server's lease ends later,
 * because it counts from when the server processes the call.  So the client may
 * believe in the lease until "until".
 *
 * The TTL may change.  While a refresh with a shorter TTL is under way, or if
 * its outcome is unknown, the shortest TTL counts.
 *
 * The kind may change, too, if the same owner asks for another one.  From the
 * call on, an exclusive lease that is to become a shared one counts as shared.
 * A shared one that is to become exclusive gets a new version, so it counts as
 * released, unless the answer is "busy".
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "check_lease.h"

#define FORGET 60000000

static uint32_t *current;		/* those that no later grant has ended */
static uint32_t ncurrent;
static uint32_t the_key;

/* what follows the current point */
static const Point *following;
static const Point *following_end;

/* Requests are repeated after lost answers, so without peace an error proves nothing. */
static bool
may_count(const Op *op)
{
	return op->outcome != OUT_ERROR || !check_calm(op->called, op->done);
}

/*
 * What the client believes
 */

static void
add_belief(const Lease *lease, Time to)
{
	const Client *client = &history.clients[lease->client];
	Belief		belief;

	memset(&belief, 0, sizeof(belief));
	belief.from = lease->believes_from;
	belief.to = lease->until;
	if (to < belief.to)
	{
		belief.to = to;
		belief.ended = lease->stopped_line;
	}
	if (client->killed < belief.to)
	{
		belief.to = client->killed;
		belief.ended = client->killed_line;
	}
	if (client->ended < belief.to)
	{
		belief.to = client->ended;
		belief.ended = 0;
	}
	belief.version = lease->version;
	belief.client = lease->client;
	belief.grant = lease->grant;
	belief.last = lease->last;
	belief.renewed = lease->renewed;
	belief.session = history.ops[lease->grant].session;
	belief.shared = lease->shared;
	check_overlap_add(&belief);
}

static void
stop_believing(Lease *lease, Time at, Line line)
{
	lease->stopped = at;
	lease->stopped_line = line;
	if (lease->believes)
		add_belief(lease, at);
	lease->believes = false;
}

/* The server keeps it until then, as the client knows from now on. */
static void
keep_until(Lease *lease, Time at, Time until, uint32_t last, Line renewed)
{
	if (until <= lease->until)
		return;
	if (lease->believes && lease->until < at)
	{
		/* it believed nothing in between */
		add_belief(lease, lease->until);
		lease->believes_from = at;
	}
	lease->until = until;
	lease->last = last;
	lease->renewed = renewed;
}

/*
 * Renewals
 */

/* From now on others may share it. */
static void
becomes_shared(Lease *lease, Time at)
{
	if (lease->shared)
		return;
	if (lease->believes)
	{
		add_belief(lease, at);
		lease->believes_from = at;
	}
	lease->shared = true;
}

static void
renewal_called(Lease *lease, uint32_t i)
{
	const Op   *op = &history.ops[i];
	Time		until = op->called + (Time) op->ttl * 1000;

	if (op->kind == OP_ACQUIRE)
	{
		if (op->slots != EXCLUSIVE)
			becomes_shared(lease, op->called);
		if (op->at_least < lease->at_least)
			lease->at_least = op->at_least;
		if (op->delay < lease->delay)
			lease->delay = op->delay;
	}

	lease->alone = lease->pending++ == 0 && !lease->unknown ? i : NONE;
	if (op->ttl < lease->ttl)
		lease->ttl = op->ttl;
	if (until < lease->until)
		lease->until = until;
}

static void
renewal_done(Lease *lease, uint32_t i)
{
	const Op   *op = &history.ops[i];

	if (op->outcome == OUT_UNKNOWN || op->outcome == OUT_ERROR)
		lease->unknown = true;
	if (lease->pending > 0)
		lease->pending--;
	if (op->outcome != OUT_OK && op->outcome != OUT_GRANTED)
		return;
	if (lease->alone == i && lease->pending == 0)
		lease->ttl = op->ttl;
	keep_until(lease, op->done, op->base + (Time) lease->ttl * 1000, i, 0);
}

/*
 * Vanish and revive
 */

static void
show_lease(const Lease *lease)
{
	check_show_op(lease->grant);
	if (lease->last != NONE)
		check_show_op(lease->last);
	check_show_line(lease->renewed);
	if (lease->release != NONE)
		check_show_op(lease->release);
}

/*
 * Was a release called by then, other than this one?  Some that have the same
 * microsecond may still follow.
 */
static bool
was_released(const Lease *lease, Time by, uint32_t self)
{
	if (lease->released <= by)
		return lease->release != self;
	for (const Point *point = following; point < following_end && point->at <= by; point++)
	{
		const Op   *op;

		if (point->what != POINT_CALL)
			continue;
		op = &history.ops[point->index];
		if (op->kind == OP_RELEASE && op->version == lease->version && may_count(op))
			return true;
	}
	return false;
}

/*
 * A client was told, or could see, between "called" and "done" that the lease
 * is over, although it was known to last until "until".
 */
static bool
vanished(Lease *lease, Time called, Time done, Time until, uint32_t self,
		 const char *how, Line line)
{
	Time		asked = history.ops[lease->grant].called;

	if (done >= until - options.slack_us || lease->reported ||
		was_released(lease, done, self) ||
		check_may_be_lost(asked, done) || check_may_be_stale(called, done) ||
		(history.ops[lease->grant].session && !check_calm(asked, done)))
		return false;
	lease->reported = true;
	if (check_violation(VANISH, "Version %lld of key %.*s, granted to client %lld and not released, was to"
						" last until %lld at least, but at %lld %s.",
						(long long) lease->version, KEY_ARGS(the_key),
						(long long) history.clients[lease->client].number,
						(long long) until, (long long) done, how))
	{
		show_lease(lease);
		if (self != NONE)
			check_show_op(self);
		check_show_line(line);
		check_show_client(lease->client);
		check_violation_end();
	}
	return true;
}

static void
is_gone(Lease *lease, Time at, Line line)
{
	if (lease->gone != NEVER)
		return;
	lease->gone = at;
	lease->gone_line = line;
}

/* An operation found the lease. */
static void
is_there(Lease *lease, uint32_t i)
{
	const Op   *op = &history.ops[i];

	if (lease->reported || op->called <= lease->gone ||
		!check_calm(history.ops[lease->grant].called, op->done))
		return;
	lease->reported = true;
	if (check_violation(REVIVE, "Version %lld of key %.*s, granted to client %lld, was known to be over at %lld,"
						" but was there for a call of client %lld at %lld.",
						(long long) lease->version, KEY_ARGS(the_key),
						(long long) history.clients[lease->client].number,
						(long long) lease->gone, CLIENT(op), (long long) op->called))
	{
		show_lease(lease);
		check_show_line(lease->gone_line);
		check_show_op(i);
		check_violation_end();
	}
}

/*
 * Grants
 */

static bool
is_dead(uint32_t client, Time at)
{
	return history.clients[client].killed <= at || history.clients[client].ended <= at;
}

/* Does its owner ask by then for another kind of lock?  See was_released(). */
static bool
is_changing(const Lease *lease, Time by)
{
	uint64_t	owner = history.ops[lease->grant].owner;

	for (const Point *point = following; point < following_end && point->at <= by; point++)
	{
		const Op   *op = &history.ops[point->index];

		if (point->what == POINT_CALL && op->kind == OP_ACQUIRE && op->owner == owner &&
			op->slots != EXCLUSIVE)
			return true;
	}
	return false;
}

/* A later version ends those before it, unless both are shared. */
static void
end_earlier(uint32_t i)
{
	const Op   *op = &history.ops[i];
	uint32_t	n = 0;

	for (uint32_t j = 0; j < ncurrent; j++)
	{
		Lease	   *lease = &leases[current[j]];

		if (lease->version >= op->version)
		{
			current[n++] = current[j];
			continue;
		}
		if (op->slots != EXCLUSIVE && (lease->shared || is_changing(lease, op->done)))
		{
			/* what ended long ago is of no interest any more */
			if (lease->until > op->called - FORGET)
				current[n++] = current[j];
			continue;
		}
		/* if both believe, check_overlap.c reports it */
		if (lease->release == i)
			;					/* its own owner replaces it */
		else if (!lease->believes || is_dead(lease->client, op->done) ||
				 is_dead(op->client, op->done) || op->done >= op->base + (Time) op->ttl * 1000)
			vanished(lease, op->called, op->done, lease->until, i,
					 "another client had been granted the key", 0);
		else if (op->done < lease->until)
			lease->reported = true;
		is_gone(lease, op->done, op->done_line);
	}
	ncurrent = n;
}

static void
granted(uint32_t i)
{
	const Op   *op = &history.ops[i];
	Lease	   *lease = check_table_find(op->version, op->client);

	check_versions_granted(i, lease != NULL && lease->client == op->client && lease->shared);
	if (lease != NULL && lease->client == op->client)
	{
		is_there(lease, i);
		renewal_done(lease, i);
		if (!lease->believes && op->called >= lease->stopped)
		{
			lease->believes = true;
			lease->believes_from = op->done;
		}
		return;
	}
	end_earlier(i);
	lease = check_table_add(op->version, op->client);
	lease->grant = i;
	lease->until = op->base + (Time) op->ttl * 1000;
	lease->last = lease->alone = lease->release = NONE;
	lease->ttl = op->ttl;
	lease->shared = op->slots != EXCLUSIVE;
	lease->at_least = op->at_least;
	lease->delay = op->delay;
	lease->believes = true;
	lease->believes_from = op->done;
	lease->released = lease->gone = lease->stopped = NEVER;
	check_grow(&current, ncurrent, sizeof(uint32_t));
	current[ncurrent++] = nleases - 1;
}

/*
 * One point in time
 */

static void
may_be_released(Lease *lease, uint32_t i)
{
	const Op   *op = &history.ops[i];

	if (lease->client == op->client)
		stop_believing(lease, op->called, op->call_line);
	if (lease->released == NEVER)
	{
		lease->released = op->called;
		lease->release = i;
	}
}

/* An acquire that may renew or replace the lock of its owner without an answer. */
static void
acquire_called(uint32_t i)
{
	const Op   *op = &history.ops[i];
	Lease	   *same = op->outcome == OUT_GRANTED ? check_table_find(op->version, op->client) : NULL;

	check_versions_called(i);
	if (same != NULL && same->client == op->client)
	{
		renewal_called(same, i);
		return;
	}
	if (op->outcome == OUT_BUSY || !may_count(op))
		return;
	for (uint32_t j = 0; j < ncurrent; j++)
	{
		Lease	   *lease = &leases[current[j]];

		if (history.ops[lease->grant].owner != op->owner)
			continue;
		if (lease->shared && op->slots == EXCLUSIVE)
			may_be_released(lease, i);
		else if (op->outcome != OUT_GRANTED)
		{
			renewal_called(lease, i);
			lease->unknown = true;
		}
	}
}

static void
op_called(uint32_t i)
{
	Op		   *op = &history.ops[i];
	Lease	   *lease;

	if (op->kind == OP_CHECK)
		return;
	if (op->kind == OP_ACQUIRE)
	{
		acquire_called(i);
		return;
	}
	lease = check_table_find(op->version, op->client);
	op->scratch = lease != NULL ? lease->until : INT64_MIN;
	if (lease == NULL)
		return;
	if (op->kind == OP_REFRESH)
	{
		/*
		 * In the last tenth of the TTL it may be the library that says
		 * "lost"; it counts whole milliseconds.
		 */
		op->scratch -= (Time) lease->ttl * 1000 / 10 + 1000;
		if (may_count(op))
			renewal_called(lease, i);
	}
	if (op->kind != OP_RELEASE)
		return;
	if (may_count(op))
		may_be_released(lease, i);
	else if (lease->client == op->client)
		stop_believing(lease, op->called, op->call_line);
}

static void
op_done(uint32_t i)
{
	const Op   *op = &history.ops[i];
	bool		names = op->kind != OP_ACQUIRE && op->kind != OP_CHECK;
	Lease	   *lease = names ? check_table_find(op->version, op->client) : NULL;

	if (op->kind == OP_ACQUIRE && op->outcome == OUT_GRANTED)
		granted(i);
	if (lease == NULL)
		return;
	if (op->kind == OP_REFRESH && may_count(op))
		renewal_done(lease, i);
	switch ((Outcome) op->outcome)
	{
		case OUT_OK:
			is_there(lease, i);
			break;
		case OUT_RELEASED:
			is_there(lease, i);
			is_gone(lease, op->done, op->done_line);
			break;
		case OUT_LOST:
			vanished(lease, op->called, op->done, op->scratch, i,
					 "a refresh of it was answered lost", 0);
			break;
		case OUT_NOT_HELD:
		case OUT_HELD_BY_OTHER:
			/* asked twice, the second answer may come from the first release */
			if (check_calm(op->called, op->done))
				vanished(lease, op->called, op->done, op->scratch, i,
						 "a release found it gone", 0);
			is_gone(lease, op->done, op->done_line);
			break;
		case OUT_FENCED:
			vanished(lease, op->called, op->done, op->scratch, i,
					 "a write with it was fenced off", 0);
			is_gone(lease, op->done, op->done_line);
			break;
		default:
			break;
	}
}

static void
note_made(const Note *note)
{
	Lease	   *lease = check_table_find(note->version, note->client);

	if (lease == NULL || lease->client != note->client)
		return;
	switch ((NoteKind) note->kind)
	{
		case NOTE_GONE:
			vanished(lease, history.ops[lease->grant].called, note->at, lease->until, NONE,
					 "its client was told that it is gone", note->line);
			is_gone(lease, note->at, note->line);
			stop_believing(lease, note->at, note->line);
			break;
		case NOTE_GAVE_UP:
			stop_believing(lease, note->at, note->line);
			break;
		case NOTE_RENEWED:
			if (lease->believes)
			{
				int32_t		ttl = note->ttl;

				if ((lease->pending > 0 || lease->unknown) && lease->ttl < ttl)
					ttl = lease->ttl;
				keep_until(lease, note->at, note->base + (Time) ttl * 1000, NONE, note->line);
			}
			break;
		case NOTE_OWNS:
			if (!lease->believes || note->at >= lease->until)
			{
				Lease		now = *lease;

				now.believes_from = note->at;
				now.until = note->at + 1;
				now.renewed = note->line;
				add_belief(&now, NEVER);
			}
			break;
	}
}

/* How long the server keeps it, at the least, and the key busy after it. */
static void
add_hold(const Lease *lease)
{
	const Op   *op = &history.ops[lease->grant];
	Time		least = op->called + (Time) lease->at_least * 1000;
	Hold		hold;

	hold.version = lease->version;
	hold.grant = lease->grant;
	hold.release = lease->release;
	hold.shared = lease->shared;
	hold.end = lease->released < lease->until ? lease->released : lease->until;
	hold.busy = hold.end;
	if (lease->released == NEVER && !op->session)
		hold.busy += (Time) lease->delay * 1000;
	/* not if its owner has replaced it */
	if (least > hold.busy &&
		(lease->release == NONE || history.ops[lease->release].kind == OP_RELEASE))
		hold.busy = least;
	check_places_add(&hold);
}

void
check_lease(uint32_t key, const Point *points, uint32_t n)
{
	the_key = key;
	ncurrent = 0;
	check_table_begin(key);
	check_versions_begin();
	following_end = points + n;
	for (uint32_t i = 0; i < n; i++)
	{
		following = &points[i + 1];
		switch ((What) points[i].what)
		{
			case POINT_CALL:
				op_called(points[i].index);
				break;
			case POINT_DONE:
				op_done(points[i].index);
				break;
			case POINT_NOTE:
				note_made(&history.notes[points[i].index]);
				break;
		}
	}
	for (uint32_t i = 0; i < nleases; i++)
	{
		if (leases[i].believes)
			add_belief(&leases[i], NEVER);
		add_hold(&leases[i]);
	}
	check_overlap(key);
	check_places(key);
}
