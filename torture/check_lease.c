/*-------------------------------------------------------------------------
 *
 * check_lease.c
 *	  The leases of one key: versions in order, none that vanishes, none that
 *	  comes back; and what the clients believe, for check_overlap.c.
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
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

typedef struct Lease
{
	int64_t		version;
	uint32_t	client;
	uint32_t	grant;			/* the operation */
	uint32_t	next;			/* of another client with this version */

	Time		until;
	uint32_t	last;			/* the operation that until comes from, */
	Line		renewed;		/* or the note */
	int32_t		ttl;			/* the shortest that may be in force */
	int			pending;		/* renewals that have no answer yet */
	uint32_t	alone;			/* the only one of them that can be in force */
	bool		unknown;		/* there was one whose outcome is unknown */

	bool		believes;
	Time		believes_from;
	Time		stopped;		/* when the client stopped believing, */
	Line		stopped_line;	/* by a call or a note */

	Time		released;		/* call of the first release that may count */
	uint32_t	release;
	Time		gone;			/* a client was told that it is over */
	Line		gone_line;
	bool		reported;
} Lease;

static Lease *leases;
static uint32_t nleases;
static uint32_t leases_room;
static uint32_t *by_version;
static uint32_t by_version_size;
static uint32_t *current;		/* those that no later grant has ended */
static uint32_t ncurrent;
static uint32_t the_key;

/* what follows the current point */
static const Point *following;
static const Point *following_end;

/* the highest version that was acknowledged: before "newest_at", and then */
static uint32_t newest_before;
static uint32_t newest;
static Time newest_at;

static uint32_t
version_slot(int64_t version)
{
	uint64_t	h = (uint64_t) version * 0x9e3779b97f4a7c15ULL;
	uint32_t	at = (uint32_t) (h >> 32) & (by_version_size - 1);

	while (by_version[at] != NONE && leases[by_version[at]].version != version)
		at = (at + 1) & (by_version_size - 1);
	return at;
}

/* The client's lease of this version, or otherwise that of any client. */
static Lease *
find(int64_t version, uint32_t client)
{
	uint32_t	first = by_version[version_slot(version)];

	for (uint32_t i = first; i != NONE; i = leases[i].next)
		if (leases[i].client == client)
			return &leases[i];
	return first != NONE ? &leases[first] : NULL;
}

static void
prepare(uint32_t key)
{
	uint32_t	grants = 0;

	the_key = key;
	for (uint32_t i = 0; i < history.keys[key].nops; i++)
		grants += history.ops[history.by_key[history.keys[key].first + i]].outcome == OUT_GRANTED;
	if (grants >= leases_room || leases == NULL)
	{
		free(leases);
		free(current);
		free(by_version);
		leases_room = 1024;
		while (grants >= leases_room)
			leases_room *= 2;
		leases = check_alloc(leases_room, sizeof(Lease));
		current = check_alloc(leases_room, sizeof(uint32_t));
		by_version = check_alloc((size_t) 2 * leases_room, sizeof(uint32_t));
	}
	by_version_size = 64;
	while (by_version_size < 2 * grants)
		by_version_size *= 2;
	memset(by_version, 0xff, by_version_size * sizeof(uint32_t));
	nleases = ncurrent = 0;
	newest = newest_before = NONE;
	newest_at = INT64_MIN;
}

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

static void
renewal_called(Lease *lease, uint32_t i)
{
	const Op   *op = &history.ops[i];
	Time		until = op->called + (Time) op->ttl * 1000;

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

static uint32_t
higher(uint32_t a, uint32_t b)
{
	if (a == NONE || b == NONE)
		return a == NONE ? b : a;
	return history.ops[a].version >= history.ops[b].version ? a : b;
}

/* Is its version higher than all that were acknowledged before it was asked for? */
static void
check_order(uint32_t i)
{
	Op		   *op = &history.ops[i];
	const Op   *before;

	if (op->scratch != NONE)
	{
		before = &history.ops[op->scratch];

		/* a stale primary continues with its old versions, far behind */
		if (before->version > op->version &&
			!(before->version - op->version >= (int64_t) 1 << 31 &&
			  check_may_be_lost(before->called, op->done)) &&
			check_violation(VERSIONS, "Key %.*s was granted to client %lld with version %lld at %lld; client %lld"
							" asked for it later, at %lld, and was granted the lower version %lld.",
							KEY_ARGS(the_key), CLIENT(before), (long long) before->version,
							(long long) before->done, CLIENT(op), (long long) op->called,
							(long long) op->version))
		{
			check_show_op((uint32_t) op->scratch);
			check_show_op(i);
			check_violation_end();
		}
	}
	if (op->done > newest_at)
	{
		newest_before = higher(newest_before, newest);
		newest = i;
		newest_at = op->done;
	}
	else
		newest = higher(newest, i);
}

static bool
is_dead(uint32_t client, Time at)
{
	return history.clients[client].killed <= at || history.clients[client].ended <= at;
}

/* A later version ends those before it. */
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
		/* if both believe, check_overlap.c reports it */
		if (!lease->believes || is_dead(lease->client, op->done) ||
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
	Lease	   *lease = find(op->version, op->client);
	uint32_t	slot;

	check_order(i);
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
	slot = version_slot(op->version);
	lease = &leases[nleases];
	memset(lease, 0, sizeof(Lease));
	lease->version = op->version;
	lease->client = op->client;
	lease->grant = i;
	lease->next = by_version[slot];
	lease->until = op->base + (Time) op->ttl * 1000;
	lease->last = lease->alone = lease->release = NONE;
	lease->ttl = op->ttl;
	lease->believes = true;
	lease->believes_from = op->done;
	lease->released = lease->gone = lease->stopped = NEVER;
	by_version[slot] = nleases;
	current[ncurrent++] = nleases++;
}

/*
 * One point in time
 */

/* An acquire that may renew the lock of its owner without an answer. */
static void
acquire_called(uint32_t i)
{
	Op		   *op = &history.ops[i];

	op->scratch = op->called > newest_at ? higher(newest_before, newest) : newest_before;
	if (op->outcome == OUT_GRANTED)
	{
		Lease	   *lease = find(op->version, op->client);

		if (lease != NULL && lease->client == op->client)
			renewal_called(lease, i);
		return;
	}
	if (op->outcome == OUT_BUSY || !may_count(op))
		return;
	for (uint32_t j = 0; j < ncurrent; j++)
	{
		Lease	   *lease = &leases[current[j]];

		if (history.ops[lease->grant].owner == op->owner)
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

	if (op->kind == OP_ACQUIRE)
	{
		acquire_called(i);
		return;
	}
	lease = find(op->version, op->client);
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
	if (lease->client == op->client)
		stop_believing(lease, op->called, op->call_line);
	if (may_count(op) && lease->released == NEVER)
	{
		lease->released = op->called;
		lease->release = i;
	}
}

static void
op_done(uint32_t i)
{
	const Op   *op = &history.ops[i];
	Lease	   *lease = op->kind == OP_ACQUIRE ? NULL : find(op->version, op->client);

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
	Lease	   *lease = find(note->version, note->client);

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

void
check_lease(uint32_t key, const Point *points, uint32_t n)
{
	prepare(key);
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
		if (leases[i].believes)
			add_belief(&leases[i], NEVER);
	check_overlap(key);
}
