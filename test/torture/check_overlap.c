/*-------------------------------------------------------------------------
 *
 * check_overlap.c
 *	  No two clients believe at the same time that they hold one key, unless
 *	  both share it.
 *
 * The beliefs of a key are read in order of their beginning.  Of the earlier
 * ones, only two need to be remembered: the one that lasts longest, and the one
 * of another grant that lasts longest.  A belief in a shared lock is compared
 * only with exclusive ones, so these are remembered separately, too.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

static Belief *beliefs;
static uint32_t nbeliefs;

void
check_overlap_add(const Belief *belief)
{
	if (belief->to <= belief->from)
		return;
	check_grow(&beliefs, nbeliefs, sizeof(Belief));
	beliefs[nbeliefs++] = *belief;
}

static int
compare(const void *a, const void *b)
{
	const Belief *x = a;
	const Belief *y = b;

	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return x->version < y->version ? -1 : x->version > y->version;
}

static bool
same(const Belief *a, const Belief *b)
{
	return a->version == b->version && a->client == b->client;
}

/* Why the first still believes after the beginning of the second. */
static void
show_first(const Belief *belief)
{
	check_show_op(belief->grant);
	if (belief->last != NONE)
		check_show_op(belief->last);
	check_show_line(belief->renewed);
	check_show_line(belief->ended);
}

/* Why the second believes. */
static void
show_second(const Belief *belief)
{
	check_show_op(belief->grant);
	if (belief->from == history.ops[belief->grant].done)
		return;
	if (belief->last != NONE)
		check_show_op(belief->last);
	check_show_line(belief->renewed);
}

static bool
violates(uint32_t key, const Belief *a, const Belief *b)
{
	const Client *x = &history.clients[a->client];
	const Client *y = &history.clients[b->client];
	Time		to = a->to < b->to ? a->to : b->to;
	Time		called = history.ops[a->grant].called;

	if (history.ops[b->grant].called < called)
		called = history.ops[b->grant].called;
	if (to - b->from <= options.slack_us || check_may_be_lost(called, b->from))
		return false;
	/* the end of a connection ends a session lock before the client knows */
	if ((a->session || b->session) && !check_calm(called, b->from))
		return false;
	if (check_violation(OVERLAP, "Clients %lld and %lld both believed that they held key %.*s, for %lld us"
						" from %lld to %lld: client %lld with version %lld since %lld and until %lld,"
						" client %lld with version %lld since %lld and until %lld.",
						(long long) x->number, (long long) y->number, KEY_ARGS(key),
						(long long) (to - b->from), (long long) b->from, (long long) to,
						(long long) x->number, (long long) a->version,
						(long long) a->from, (long long) a->to,
						(long long) y->number, (long long) b->version,
						(long long) b->from, (long long) b->to))
	{
		show_first(a);
		show_second(b);
		check_violation_end();
	}
	return true;
}

/* The beliefs that last longest, of two grants. */
typedef struct Longest
{
	const Belief *first;
	const Belief *other;
} Longest;

static const Belief *
rival_of(const Longest *longest, const Belief *belief)
{
	return longest->first != NULL && same(longest->first, belief) ?
		longest->other : longest->first;
}

static void
remember(Longest *longest, const Belief *belief)
{
	if (longest->first == NULL || belief->to > longest->first->to)
	{
		if (longest->first != NULL && !same(longest->first, belief))
			longest->other = longest->first;
		longest->first = belief;
	}
	else if (!same(longest->first, belief) &&
			 (longest->other == NULL || belief->to > longest->other->to))
		longest->other = belief;
}

/* All beliefs of the key have been added. */
void
check_overlap(uint32_t key)
{
	Longest		all = {NULL, NULL};
	Longest		exclusive = {NULL, NULL};
	const Belief *reported = NULL;

	if (nbeliefs > 1)
		qsort(beliefs, nbeliefs, sizeof(Belief), compare);
	for (uint32_t i = 0; i < nbeliefs; i++)
	{
		const Belief *belief = &beliefs[i];
		const Belief *rival = rival_of(belief->shared ? &exclusive : &all, belief);

		/* report each pair once */
		if (rival != NULL && rival->to > belief->from &&
			!(reported != NULL && (same(reported, belief) || same(reported, rival))) &&
			violates(key, rival, belief))
			reported = belief;
		remember(&all, belief);
		if (!belief->shared)
			remember(&exclusive, belief);
	}
	nbeliefs = 0;
}
