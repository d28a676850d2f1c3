/*-------------------------------------------------------------------------
 *
 * check_versions.c
 *	  The versions of a key rise in the order of its grants, no version is
 *	  granted twice, and the rows at the end have the last ones.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "check.h"

/* the highest version that was acknowledged: before "newest_at", and then */
static uint32_t newest_before;
static uint32_t newest;
static Time newest_at;

/* owners that have asked before, without an answer that tells */
static uint64_t *ghosts;
static uint32_t nghosts;

void
check_versions_begin(void)
{
	nghosts = 0;
	newest = newest_before = NONE;
	newest_at = INT64_MIN;
}

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
	const Op   *op = &history.ops[i];

	if (op->scratch != NONE)
	{
		const Op   *before = &history.ops[op->scratch];

		/* a stale primary continues with its old versions, far behind */
		if (before->version > op->version &&
			!(before->version - op->version >= (int64_t) 1 << 31 &&
			  check_may_be_lost(before->called, op->done)) &&
			check_violation(VERSIONS, "Key %.*s was granted to client %lld with version %lld at %lld; client %lld"
							" asked for it later, at %lld, and was granted the lower version %lld.",
							KEY_ARGS(op->key), CLIENT(before), (long long) before->version,
							(long long) before->done, CLIENT(op), (long long) op->called,
							(long long) op->version))
		{
			check_show_op((uint32_t) op->scratch);
			check_show_op(i);
			check_violation_end();
		}
	}
}

/* An acquire is called: what has been acknowledged by now? */
void
check_versions_called(uint32_t i)
{
	Op		   *op = &history.ops[i];

	op->scratch = op->called > newest_at ? higher(newest_before, newest) : newest_before;
	if (op->outcome == OUT_GRANTED || op->outcome == OUT_BUSY)
		return;
	check_grow(&ghosts, nghosts, sizeof(uint64_t));
	ghosts[nghosts++] = op->owner;
}

static bool
is_ghost(uint64_t owner)
{
	for (uint32_t i = 0; i < nghosts; i++)
		if (ghosts[i] == owner)
			return true;
	return false;
}

/*
 * An owner that asks again gets its version again.  If it shares the lock, others
 * may be newer.
 */
void
check_versions_granted(uint32_t i, bool again)
{
	const Op   *op = &history.ops[i];

	if (!again && !(op->slots != EXCLUSIVE && is_ghost(op->owner)))
		check_order(i);
	if (op->done > newest_at)
	{
		newest_before = higher(newest_before, newest);
		newest = i;
		newest_at = op->done;
	}
	else
		newest = higher(newest, i);
}

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

/* The heads at the end reflect all exclusive grants. */
static void
check_final_versions(const uint32_t *grants, uint32_t n)
{
	uint32_t   *last_of = check_alloc(history.nkeys, sizeof(uint32_t));

	for (uint32_t i = 0; i < history.nkeys; i++)
		last_of[i] = NONE;
	for (uint32_t i = 0; i < n; i++)
		if (history.ops[grants[i]].slots == EXCLUSIVE)
			last_of[history.ops[grants[i]].key] = grants[i];
	for (uint32_t i = 0; i < history.nversions; i++)
	{
		const FinalVersion *last = &history.versions[i];
		uint32_t	grant = last_of[last->key];
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
	free(last_of);
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
