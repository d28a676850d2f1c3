/*-------------------------------------------------------------------------
 *
 * check_places.c
 *	  Shared locks: never more than there are places for.  Locks that cool:
 *	  nobody gets them meanwhile.  Groups of keys: all or nothing.
 *
 * The server keeps each lease at least until the end that its client knows, and
 * the key busy for longer if the lease was to last at least so long, or has a
 * delay and was not released.  Versions show the order in which grants of a key
 * were won.  So a lease with a lower version that lasts until after a grant was
 * answered was there when that grant was won.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

static Hold *holds;
static uint32_t nholds;

static const Hold **active;		/* those that may last beyond the current
								 * grant */
static uint32_t nactive;

static const Hold **in_the_way;
static uint32_t nin_the_way;

void
check_places_add(const Hold *hold)
{
	check_grow(&holds, nholds, sizeof(Hold));
	holds[nholds++] = *hold;
}

static int
compare_called(const void *a, const void *b)
{
	Time		x = history.ops[((const Hold *) a)->grant].called;
	Time		y = history.ops[((const Hold *) b)->grant].called;

	return x < y ? -1 : x > y;
}

static int
compare_done(const void *a, const void *b)
{
	Time		x = history.ops[(*(const Hold *const *) a)->grant].done;
	Time		y = history.ops[(*(const Hold *const *) b)->grant].done;

	return x < y ? -1 : x > y;
}

static void
show(const Hold *hold)
{
	check_show_op(hold->grant);
	if (hold->release != NONE)
		check_show_op(hold->release);
}

/* Was the first one certainly there, or cooling, when the second one was won? */
static bool
was_there(const Hold *a, const Hold *b)
{
	const Op   *x = &history.ops[a->grant];
	const Op   *y = &history.ops[b->grant];
	Time		called = x->called < y->called ? x->called : y->called;

	/* a higher priority takes what it needs, an owner replaces its own */
	return a->version < b->version && a->busy - options.slack_us > y->done &&
		x->priority >= y->priority && x->owner != y->owner &&
		!check_may_be_lost(called, y->done) &&
		!(x->session && !check_calm(called, y->done));
}

static void
too_many(const Hold *hold)
{
	const Op   *op = &history.ops[hold->grant];

	if (!check_violation(SLOTS, "Client %lld was granted one of %d places of key %.*s with version %lld at %lld,"
						 " though %u grants before it last longer.",
						 CLIENT(op), op->slots, KEY_ARGS(op->key), (long long) op->version,
						 (long long) op->done, nin_the_way))
		return;
	for (uint32_t i = 0; i < nin_the_way; i++)
		show(in_the_way[i]);
	check_show_op(hold->grant);
	check_violation_end();
}

static void
too_early(const Hold *a, const Hold *b)
{
	const Op   *x = &history.ops[a->grant];
	const Op   *y = &history.ops[b->grant];

	if (!check_violation(COOLING, "Key %.*s, granted to client %lld with version %lld, was to stay busy until %lld,"
						 " but client %lld was granted it with version %lld at %lld.",
						 KEY_ARGS(x->key), CLIENT(x), (long long) a->version, (long long) a->busy,
						 CLIENT(y), (long long) b->version, (long long) y->done))
		return;
	show(a);
	check_show_op(b->grant);
	check_violation_end();
}

static void
check_grant(const Hold *hold)
{
	const Op   *op = &history.ops[hold->grant];
	uint32_t	n = 0;

	nin_the_way = 0;
	for (uint32_t i = 0; i < nactive; i++)
	{
		const Hold *other = active[i];

		if (other->busy <= op->done)
			continue;
		active[n++] = other;
		if (!was_there(other, hold))
			continue;
		if (other->shared && op->slots != EXCLUSIVE)
			in_the_way[nin_the_way++] = other;

		/* an overlap is reported as such */
		else if (op->done >= other->end)
			too_early(other, hold);
	}
	nactive = n;
	if (op->slots > EXCLUSIVE && nin_the_way >= (uint32_t) op->slots)
		too_many(hold);
}

/* All leases of the key have been added. */
void
check_places(uint32_t key)
{
	const Hold **grants = check_alloc(nholds, sizeof(Hold *));
	uint32_t	next = 0;

	(void) key;
	active = check_alloc(nholds, sizeof(Hold *));
	in_the_way = check_alloc(nholds, sizeof(Hold *));
	if (nholds > 1)
		qsort(holds, nholds, sizeof(Hold), compare_called);
	for (uint32_t i = 0; i < nholds; i++)
		grants[i] = &holds[i];
	if (nholds > 1)
		qsort(grants, nholds, sizeof(Hold *), compare_done);

	nactive = 0;
	for (uint32_t i = 0; i < nholds; i++)
	{
		Time		done = history.ops[grants[i]->grant].done;

		for (; next < nholds && history.ops[holds[next].grant].called <= done; next++)
			active[nactive++] = &holds[next];
		check_grant(grants[i]);
	}
	nholds = 0;
	free(grants);
	free(active);
	free(in_the_way);
}

/*
 * All or nothing
 */

static void
report_whole(const char *what, uint32_t a, uint32_t b)
{
	const Op   *op = &history.ops[b];

	if (!check_violation(WHOLE, "Call %u of client %lld, key %.*s: %s.", op->number, CLIENT(op),
						 KEY_ARGS(op->key), what))
		return;
	check_show_op(a);
	check_show_op(b);
	check_violation_end();
}

void
check_whole(void)
{
	for (uint32_t i = 0; i < history.nops; i++)
	{
		const Op   *op = &history.ops[i];
		uint32_t	first;

		if (op->with == 0 || op->call_line == 0)
			continue;
		first = check_find_op(history.clients[op->client].number, op->with);
		if (first == NONE || history.ops[first].kind != OP_ACQUIRE)
			report_whole("it names a call that was never made", i, i);
		else if (op->kind == OP_ACQUIRE && op->outcome != history.ops[first].outcome &&
				 op->done_line != 0 && history.ops[first].done_line != 0)
			report_whole("it has another outcome than the rest of its group", first, i);
		else if (op->kind == OP_CHECK && op->outcome == OUT_HELD &&
				 history.ops[first].outcome == OUT_BUSY)
			report_whole("it is held, although the request was answered busy", first, i);
	}
}
