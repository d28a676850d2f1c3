/*-------------------------------------------------------------------------
 *
 * check_keys.c
 *	  What happened to each key, in order of time.
 *
 * Keys are independent of each other, except that no version is granted twice.
 * So each is checked by itself, and memory is needed for only one.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "check.h"

/*
 * Lines of one file are in the order in which they were written; between
 * files, those of the same microsecond are in no order, and no check may
 * depend on it.
 */
static int
compare(const void *a, const void *b)
{
	const Point *x = a;
	const Point *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->line < y->line ? -1 : x->line > y->line;
}

static void
add(Point *point, Time at, Line line, uint32_t index, What what)
{
	point->at = at;
	point->line = line;
	point->index = index;
	point->what = (uint8_t) what;
}

void
check_keys(void)
{
	Point	   *points;
	size_t		room = 0;
	uint32_t	note = 0;

	for (uint32_t i = 0; i < history.nkeys; i++)
		if (history.keys[i].nops > room)
			room = history.keys[i].nops;
	points = check_alloc(2 * room + history.nnotes, sizeof(Point));

	for (uint32_t i = 0; i < history.nkeys; i++)
	{
		const Key  *key = &history.keys[i];
		uint32_t	n = 0;

		for (uint32_t j = key->first; j < key->first + key->nops; j++)
		{
			const Op   *op = &history.ops[history.by_key[j]];

			add(&points[n++], op->called, op->call_line, history.by_key[j], POINT_CALL);
			if (op->done_line != 0)
				add(&points[n++], op->done, op->done_line, history.by_key[j], POINT_DONE);
		}
		for (; note < history.nnotes && history.notes[note].key == i; note++)
			add(&points[n++], history.notes[note].at, history.notes[note].line, note, POINT_NOTE);
		qsort(points, n, sizeof(Point), compare);
		check_lease(i, points, n);
		check_wait(i, points, n);
	}
	free(points);
}
