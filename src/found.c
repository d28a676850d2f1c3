/*-------------------------------------------------------------------------
 *
 * found.c
 *	  The rows of a key that a lookup has found.
 *
 * find.c fills them in, fsm.c decides on them, and lock.c and grant.c change the
 * rows that they stand for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "storage/shmem.h"

#include "found.h"
#include "row.h"

void
dlock_found_nothing(DlockRows *found)
{
	found->n = 0;
	found->max = 1;
	found->states = &found->one_state;
	found->rows = &found->one_row;
}

/* Room for one more row, all zeroes; returns its number. */
int
dlock_found_add(DlockRows *found)
{
	if (found->n == found->max)
	{
		int			max = found->max * 8;
		DlockState *states = palloc(mul_size(max, sizeof(DlockState)));
		DlockRow   *rows = palloc(mul_size(max, sizeof(DlockRow)));

		memcpy(states, found->states, found->n * sizeof(DlockState));
		memcpy(rows, found->rows, found->n * sizeof(DlockRow));
		found->states = states;
		found->rows = rows;
		found->max = max;
	}
	memset(&found->states[found->n], 0, sizeof(DlockState));
	memset(&found->rows[found->n], 0, sizeof(DlockRow));
	return found->n++;
}

/* A row that only another open transaction knows. */
void
dlock_found_set_pending(DlockRows *found, int i, int64 slot, TransactionId pending)
{
	found->states[i].unsettled = true;
	found->states[i].slot = slot;
	found->rows[i].pending = pending;
}

/* A committed row, or one of our own; "pending" is changing it. */
void
dlock_found_set(DlockRows *found, int i, HeapTuple tuple, TransactionId pending,
				bool with_owner)
{
	DlockState *state = &found->states[i];
	DlockRow   *row = &found->rows[i];

	row->tid = tuple->t_self;
	row->writer = HeapTupleHeaderGetXmin(tuple->t_data);
	row->pending = pending;
	dlock_row_state(tuple, state, with_owner, i == 0 ? &found->one_owner : NULL);
	state->unsettled = TransactionIdIsValid(pending);
	if (!state->unsettled && !(tuple->t_data->t_infomask & HEAP_XMAX_INVALID))
		state->used = dlock_row_is_used(tuple->t_data, &row->pending);
}
