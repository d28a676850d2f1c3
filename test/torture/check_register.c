/*-------------------------------------------------------------------------
 *
 * check_register.c
 *	  The register at the end: each acknowledged write is there once, no
 *	  refused write is, and no old token comes after a newer one.
 *
 * The number n of a row was assigned under a lock, so it shows the order of the
 * writes.  A write came later than its own call and that of each write before
 * it.  Of these calls the last counts: if a newer grant was acknowledged before
 * it, then either the token of that write is too old, or a later row has an
 * older token than that write.
 *
 * Holders that share a lock write in any order.  A token of a shared grant is too
 * old only if an exclusive one is newer.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"

static uint32_t *grants;		/* of a key, by their completion */
static uint32_t ngrants;
static int64_t *shared;			/* versions of the key that were shared, in
								 * order */
static uint32_t nshared;

static int
compare_rows(const void *a, const void *b)
{
	const Row  *x = a;
	const Row  *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	if (x->n != y->n)
		return x->n < y->n ? -1 : 1;
	return x->line < y->line ? -1 : x->line > y->line;
}

static int
compare_grants(const void *a, const void *b)
{
	Time		x = history.ops[*(const uint32_t *) a].done;
	Time		y = history.ops[*(const uint32_t *) b].done;

	return x < y ? -1 : x > y;
}

static int
compare_versions(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return x < y ? -1 : x > y;
}

static void
find_grants(uint32_t key)
{
	const Key  *the_key = &history.keys[key];

	ngrants = nshared = 0;
	for (uint32_t i = the_key->first; i < the_key->first + the_key->nops; i++)
	{
		const Op   *op = &history.ops[history.by_key[i]];

		if (op->outcome != OUT_GRANTED)
			continue;
		check_grow(&grants, ngrants, sizeof(uint32_t));
		grants[ngrants++] = history.by_key[i];
		if (op->slots == EXCLUSIVE)
			continue;
		check_grow(&shared, nshared, sizeof(int64_t));
		shared[nshared++] = op->version;
	}
	if (ngrants > 1)
		qsort(grants, ngrants, sizeof(uint32_t), compare_grants);
	if (nshared > 1)
		qsort(shared, nshared, sizeof(int64_t), compare_versions);
}

static bool
is_shared(int64_t version)
{
	return nshared > 0 &&
		bsearch(&version, shared, nshared, sizeof(int64_t), compare_versions) != NULL;
}

/* Two rows of one key, and what is wrong with them. */
static void
report_rows(const char *what, const Row *a, const Row *b, uint32_t grant)
{
	if (!check_violation(FENCE, "The register of key %.*s, row n=%lld with token %lld: %s.",
						 KEY_ARGS(b->key), (long long) b->n, (long long) b->token, what))
		return;
	if (a != NULL)
	{
		check_show_line(a->line);
		if (a->write != NONE)
			check_show_op(a->write);
	}
	check_show_line(b->line);
	if (b->write != NONE)
		check_show_op(b->write);
	if (grant != NONE)
		check_show_op(grant);
	check_violation_end();
}

static void
report_write(const char *what, uint32_t write, const Row *row)
{
	const Op   *op = &history.ops[write];

	if (!check_violation(OUTCOME, "Write %u of client %lld to key %.*s %s.", op->number, CLIENT(op),
						 KEY_ARGS(op->key), what))
		return;
	check_show_op(write);
	if (row != NULL)
	{
		if (op->scratch > 0)
			check_show_line(history.rows[op->scratch - 1].line);
		check_show_line(row->line);
	}
	check_violation_end();
}

/* Which write made the row, and may it be there? */
static void
check_row(uint32_t i)
{
	Row		   *row = &history.rows[i];
	Op		   *op;

	row->write = NONE;
	if (row->client < 0)
		return;
	row->write = check_find_op(row->client, row->op);
	if (row->write == NONE || history.ops[row->write].kind != OP_WRITE ||
		history.ops[row->write].key != row->key ||
		history.ops[row->write].version != row->token)
	{
		if (check_violation(OUTCOME, "The register of key %.*s has a row n=%lld that no call asked for.",
							KEY_ARGS(row->key), (long long) row->n))
		{
			check_show_line(row->line);
			if (row->write != NONE)
				check_show_op(row->write);
			check_violation_end();
		}
		row->write = NONE;
		return;
	}
	op = &history.ops[row->write];
	if (op->scratch > 0)
		report_write("is in the register twice", row->write, row);
	else if (op->outcome == OUT_FENCED || op->outcome == OUT_ERROR)
		report_write(op->outcome == OUT_FENCED ? "was answered fenced, but is in the register" :
					 "was answered with an error, but is in the register", row->write, row);
	else if (op->outcome == OUT_OK && op->owner != (uint64_t) row->n)
		report_write("was answered with another n than the register has", row->write, row);
	op->scratch = (int64_t) i + 1;
}

/* The newest of something: of all kinds, and of the exclusive ones. */
typedef struct Newest
{
	uint32_t	any;
	uint32_t	exclusive;
} Newest;

/* What a token must not be older than. */
static uint32_t
bound(const Newest *newest, int64_t token)
{
	return is_shared(token) ? newest->exclusive : newest->any;
}

/* The newest of the grants that were acknowledged before the time. */
static void
grants_before(Newest *newest, uint32_t *next, Time at)
{
	for (; *next < ngrants && history.ops[grants[*next]].done < at; (*next)++)
	{
		int64_t		version = history.ops[grants[*next]].version;

		if (newest->any == NONE || version > history.ops[newest->any].version)
			newest->any = grants[*next];
		if (!is_shared(version) && (newest->exclusive == NONE ||
									version > history.ops[newest->exclusive].version))
			newest->exclusive = grants[*next];
	}
}

/* The i'th row is in the order of the tokens, or has been reported. */
static void
accept_row(Newest *newest, uint32_t i, bool reported)
{
	int64_t		token = history.rows[i].token;

	if (newest->any == NONE || reported || token >= history.rows[newest->any].token)
		newest->any = i;
	if (reported ||
		(!is_shared(token) &&
		 (newest->exclusive == NONE || token >= history.rows[newest->exclusive].token)))
		newest->exclusive = i;
}

static void
check_order(uint32_t first, uint32_t last)
{
	Newest		rows = {NONE, NONE};
	Newest		granted = {NONE, NONE};
	const Row  *called = NULL;	/* the one of those before called last */
	uint32_t	g = 0;

	find_grants(history.rows[first].key);
	for (uint32_t i = first; i < last; i++)
	{
		const Row  *before = i > first ? &history.rows[i - 1] : NULL;
		const Row  *row = &history.rows[i];
		const Op   *op = row->write != NONE ? &history.ops[row->write] : NULL;
		int64_t		n = before != NULL ? before->n : 0;
		uint32_t	newer = bound(&rows, row->token);
		bool		is_old = newer != NONE && row->token < history.rows[newer].token;

		if (row->n == n && before != NULL)
			report_rows("there are two rows of this n", before, row, NONE);
		else if (row->n != n + 1)
			report_rows("rows before it are missing", before, row, NONE);
		else if (is_old)
			report_rows("a row before it has a newer token", &history.rows[newer], row, NONE);
		else if (op != NULL && called != NULL && op->done < history.ops[called->write].called)
			report_rows("it was complete before a write was called that is before it", called, row, NONE);
		accept_row(&rows, i, is_old);
		if (op == NULL || (called != NULL && op->called <= history.ops[called->write].called))
			continue;
		called = row;

		/* what comes after a newer token has been reported above */
		grants_before(&granted, &g, op->called);
		newer = bound(&granted, row->token);
		if (newer != NONE && row->token < history.ops[newer].version &&
			!check_may_be_lost(history.ops[newer].called, op->done))
			report_rows("a newer version had been granted and acknowledged before this write was called",
						NULL, row, newer);
	}
}

void
check_register(void)
{
	uint32_t	first = 0;

	for (uint32_t i = 0; i < history.nops; i++)
		history.ops[i].scratch = 0;
	if (history.nrows > 0)
		qsort(history.rows, history.nrows, sizeof(Row), compare_rows);
	for (uint32_t i = 0; i < history.nrows; i++)
		check_row(i);
	for (uint32_t i = 1; i <= history.nrows; i++)
		if (i == history.nrows || history.rows[i].key != history.rows[first].key)
		{
			check_order(first, i);
			first = i;
		}

	for (uint32_t i = 0; i < history.nops; i++)
	{
		const Op   *op = &history.ops[i];

		if (op->kind == OP_WRITE && op->outcome == OUT_OK && op->call_line != 0 &&
			op->scratch == 0 && !check_write_may_be_lost(op->called))
			report_write("was answered ok, but is not in the register", i, NULL);
	}
}
