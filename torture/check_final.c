/*-------------------------------------------------------------------------
 *
 * check_final.c
 *	  What holds across all keys: every call has one outcome, no version is
 *	  granted twice, nothing is left behind.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "check.h"

void
check_outcomes(void)
{
	for (uint32_t i = 0; i < history.nextras; i++)
	{
		const Op   *op = &history.ops[history.extras[i].op];

		if (check_violation(OUTCOME, "Call %u of client %lld has a second completion.",
							op->number, CLIENT(op)))
		{
			check_show_op(history.extras[i].op);
			check_show_line(history.extras[i].line);
			check_violation_end();
		}
	}
	for (uint32_t i = 0; i < history.nclients; i++)
	{
		const Client *client = &history.clients[i];

		if (client->begun != NEVER && client->ended == NEVER && client->killed == NEVER &&
			check_violation(OUTCOME, "Client %lld neither ended nor was killed.",
							(long long) client->number))
		{
			check_show_line(client->begun_line);
			check_show_line(client->last_line);
			check_violation_end();
		}
	}
	for (uint32_t i = 0; i < history.nops; i++)
	{
		const Op   *op = &history.ops[i];
		const Client *client = &history.clients[op->client];

		if (op->call_line == 0)
		{
			if (check_violation(OUTCOME, "Call %u of client %lld has a completion, but was never made.",
								op->number, CLIENT(op)))
			{
				check_show_op(i);
				check_violation_end();
			}
		}
		else if (op->done_line == 0 && client->killed == NEVER)
		{
			if (check_violation(OUTCOME, "Call %u of client %lld has no completion, though nobody killed that client.",
								op->number, CLIENT(op)))
			{
				check_show_op(i);
				check_show_line(client->last_line);
				check_violation_end();
			}
		}
	}
}

/*
 * Versions
 */

static int
compare(const void *a, const void *b)
{
	const Op   *x = &history.ops[*(const uint32_t *) a];
	const Op   *y = &history.ops[*(const uint32_t *) b];

	if (x->version != y->version)
		return x->version < y->version ? -1 : 1;
	return x->done < y->done ? -1 : x->done > y->done;
}

/* The first of this version or a higher one. */
static uint32_t
first_of(const uint32_t *grants, uint32_t n, int64_t version)
{
	uint32_t	low = 0;

	while (low < n)
	{
		uint32_t	middle = low + (n - low) / 2;

		if (history.ops[grants[middle]].version < version)
			low = middle + 1;
		else
			n = middle;
	}
	return low;
}

/* The rows at the end reflect all that was granted. */
static void
check_final_versions(const uint32_t *grants, uint32_t n)
{
	uint32_t   *newest = check_alloc(history.nkeys, sizeof(uint32_t));

	for (uint32_t i = 0; i < history.nkeys; i++)
		newest[i] = NONE;
	for (uint32_t i = 0; i < n; i++)
		if (history.ops[grants[i]].key != NONE)
			newest[history.ops[grants[i]].key] = grants[i];
	for (uint32_t i = 0; i < history.nversions; i++)
	{
		const FinalVersion *last = &history.versions[i];
		uint32_t	grant = newest[last->key];
		uint32_t	same = first_of(grants, n, last->version);

		if (same < n && history.ops[grants[same]].version == last->version &&
			history.ops[grants[same]].key != last->key &&
			check_violation(VERSIONS, "Version %lld, which key %.*s has at the end, was granted for another key.",
							(long long) last->version, KEY_ARGS(last->key)))
		{
			check_show_op(grants[same]);
			check_show_line(last->line);
			check_violation_end();
		}
		if (grant != NONE && last->version < history.ops[grant].version &&
			!check_may_be_lost(history.ops[grant].called, NEVER) &&
			check_violation(VERSIONS, "Key %.*s has version %lld at the end, though version %lld of it was granted.",
							KEY_ARGS(last->key), (long long) last->version,
							(long long) history.ops[grant].version))
		{
			check_show_op(grant);
			check_show_line(last->line);
			check_violation_end();
		}
	}
	free(newest);
}

/*
 * The same owner gets the same version again as long as it has the lock.  No
 * other owner ever does, for any key.
 */
void
check_unique(void)
{
	uint32_t   *grants = check_alloc(history.nops, sizeof(uint32_t));
	uint32_t	n = 0;

	for (uint32_t i = 0; i < history.nops; i++)
		if (history.ops[i].outcome == OUT_GRANTED && history.ops[i].call_line != 0)
			grants[n++] = i;
	qsort(grants, n, sizeof(uint32_t), compare);
	for (uint32_t i = 1; i < n; i++)
	{
		const Op   *a = &history.ops[grants[i - 1]];
		const Op   *b = &history.ops[grants[i]];

		if (a->version != b->version || (a->key == b->key && a->owner == b->owner))
			continue;
		if (check_violation(VERSIONS, "Version %lld was granted twice: for key %.*s to client %lld, and for key %.*s"
							" to client %lld.", (long long) a->version, KEY_ARGS(a->key), CLIENT(a),
							KEY_ARGS(b->key), CLIENT(b)))
		{
			check_show_op(grants[i - 1]);
			check_show_op(grants[i]);
			check_violation_end();
		}
	}
	if (history.complete)
		check_final_versions(grants, n);
	free(grants);
}

void
check_leaks(void)
{
	for (uint32_t i = 0; i < history.ncounts; i++)
	{
		const FinalCount *count = &history.counts[i];

		if (count->value != count->expect &&
			check_violation(LEAKS, "At the end there are %lld %.*s, where %lld are expected.",
							(long long) count->value, TEXT_ARGS(count->what),
							(long long) count->expect))
		{
			check_show_line(count->line);
			check_violation_end();
		}
	}
}
