/*-------------------------------------------------------------------------
 *
 * check_faults.c
 *	  What the faults mean for the checks: when there was peace, and when an
 *	  acknowledged commit may be lost.
 *
 * A fault of a kind that can be healed lasts until it is healed, or until the
 * next "healthy".  The others end at once.  After either, peace begins only
 * SETTLE later: the nemesis writes its line before it acts, and the effect takes
 * a while to be noticed.
 *
 * While there is a "split-brain", and around a promotion that says stale=1, an
 * old primary may answer what needs no commit.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SETTLE 1000000

typedef struct Span
{
	Time		from;
	Time		to;
} Span;

typedef struct Spans
{
	Span	   *at;
	uint32_t	n;
} Spans;

static Spans trouble;			/* by time, disjoint */
static Spans losses;			/* commits of this time may be lost */
static Spans stales;			/* an old primary may answer */
static Spans promotions;		/* until the old primary is gone */

static void
add(Spans *spans, Time from, Time to)
{
	check_grow(&spans->at, spans->n, sizeof(Span));
	spans->at[spans->n].from = from;
	spans->at[spans->n++].to = to;
}

static Time
later(Time at, Time by)
{
	return at == NEVER ? NEVER : at + by;
}

static int
compare(const void *a, const void *b)
{
	const Span *x = a;
	const Span *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

static bool
same_kind(const Fault *a, const Fault *b)
{
	return a->kind.len == b->kind.len && memcmp(a->kind.at, b->kind.at, a->kind.len) == 0;
}

/* The heal of any fault of this kind; kinds are few. */
static void
find_lasting(void)
{
	uint32_t	nkinds = 0;
	uint32_t   *kinds = check_alloc(history.nfaults, sizeof(uint32_t));

	for (uint32_t i = 0; i < history.nfaults; i++)
	{
		uint32_t	j = 0;

		while (j < nkinds && !same_kind(&history.faults[kinds[j]], &history.faults[i]))
			j++;
		if (j == nkinds)
			kinds[nkinds++] = i;
		history.faults[kinds[j]].lasts |= history.faults[i].heal;
	}
	for (uint32_t i = 0; i < history.nfaults; i++)
		for (uint32_t j = 0; j < nkinds; j++)
			if (same_kind(&history.faults[kinds[j]], &history.faults[i]))
				history.faults[i].lasts = history.faults[kinds[j]].lasts;
	free(kinds);
}

static Time
next_healthy(uint32_t i)
{
	for (; i < history.nfaults; i++)
		if (history.faults[i].healthy)
			return history.faults[i].at;
	return NEVER;
}

static Time
healed_at(uint32_t i)
{
	const Fault *fault = &history.faults[i];

	while (++i < history.nfaults)
	{
		const Fault *next = &history.faults[i];

		if (next->healthy ||
			(next->heal && next->target == fault->target && same_kind(next, fault)))
			return next->at;
	}
	return NEVER;
}

static void
merge(Spans *spans)
{
	uint32_t	n = 0;

	if (spans->n == 0)
		return;
	qsort(spans->at, spans->n, sizeof(Span), compare);
	for (uint32_t i = 1; i < spans->n; i++)
		if (spans->at[i].from > spans->at[n].to)
			spans->at[++n] = spans->at[i];
		else if (spans->at[i].to > spans->at[n].to)
			spans->at[n].to = spans->at[i].to;
	spans->n = n + 1;
}

/* The first span that ends at or after this time. */
static uint32_t
first_after(const Spans *spans, Time at)
{
	uint32_t	low = 0;
	uint32_t	high = spans->n;

	while (low < high)
	{
		uint32_t	middle = low + (high - low) / 2;

		if (spans->at[middle].to < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * The time from what led to a promotion until its old primary is gone: the
 * faults of nodes around it, or otherwise all until the next "healthy".
 */
static void
find_promotion(uint32_t promotion, Time *from, Time *to)
{
	Time		at = history.faults[promotion].at;
	bool		found = false;

	*from = at;
	*to = at;
	for (uint32_t i = 0; i < history.nfaults && history.faults[i].at <= at; i++)
	{
		const Fault *fault = &history.faults[i];

		if (!fault->lasts || !fault->node || fault->heal || later(fault->until, SETTLE) < at)
			continue;
		found = true;
		if (fault->at < *from)
			*from = fault->at;
		if (later(fault->until, SETTLE) > *to)
			*to = later(fault->until, SETTLE);
	}
	if (!found)
		*to = next_healthy(promotion);
}

void
check_faults_prepare(void)
{
	find_lasting();
	for (uint32_t i = 0; i < history.nfaults; i++)
	{
		Fault	   *fault = &history.faults[i];

		if (fault->healthy || fault->heal)
			continue;
		fault->until = fault->lasts ? healed_at(i) : fault->at;
		add(&trouble, fault->at, later(fault->until, SETTLE));
		if (fault->split)
			add(&stales, fault->at, later(fault->until, SETTLE));
	}
	merge(&trouble);

	for (uint32_t i = 0; i < history.nfaults; i++)
	{
		const Fault *fault = &history.faults[i];
		Time		from;
		Time		to;

		if (!fault->promote)
			continue;
		if (history.sync && fault->lost)
			check_malformed(fault->line, "a promotion in mode sync loses nothing");
		find_promotion(i, &from, &to);
		add(&promotions, from, to);
		if (!history.sync && (fault->lost || fault->stale))
			add(&losses, from, to);
		if (fault->stale)
			add(&stales, from, to);
	}
}

static bool
any(const Spans *spans, Time from, Time to)
{
	for (uint32_t i = 0; i < spans->n; i++)
		if (spans->at[i].from <= to && spans->at[i].to >= from)
			return true;
	return false;
}

/*
 * There was no fault in all of this time, and the server that we used was not
 * about to be replaced.
 */
bool
check_calm(Time from, Time to)
{
	uint32_t	i = first_after(&trouble, from);

	if (i < trouble.n && trouble.at[i].from <= to)
		return false;
	return !any(&promotions, from, to);
}

/* May a server not know what was acknowledged between these times? */
bool
check_may_be_lost(Time from, Time to)
{
	return any(&losses, from, to);
}

/* A promotion loses all that the new primary does not have, even if it is old. */
bool
check_write_may_be_lost(Time called)
{
	return any(&losses, called, NEVER);
}

bool
check_may_be_stale(Time from, Time to)
{
	return any(&stales, from, to);
}

/* The longest time of peace in between. */
Time
check_peace(Time from, Time to, Time *start)
{
	Time		longest = 0;
	Time		at = from;

	*start = from;
	for (uint32_t i = first_after(&trouble, from); at < to; i++)
	{
		Time		until = to;

		if (i < trouble.n && trouble.at[i].from < to)
			until = trouble.at[i].from;
		if (until - at > longest)
		{
			longest = until - at;
			*start = at;
		}
		if (i >= trouble.n)
			break;
		at = trouble.at[i].to;
	}
	return longest;
}

/* Since when there is peace; NEVER: there is none at this time. */
Time
check_peace_since(Time at)
{
	uint32_t	i = first_after(&trouble, at);

	if (i < trouble.n && trouble.at[i].from <= at)
		return NEVER;
	return i > 0 ? trouble.at[i - 1].to : INT64_MIN;
}

uint32_t
check_faults_after(Time at)
{
	uint32_t	low = 0;
	uint32_t	high = history.nfaults;

	while (low < high)
	{
		uint32_t	middle = low + (high - low) / 2;

		if (history.faults[middle].at < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}
