/*-------------------------------------------------------------------------
 *
 * found.h
 *	  The rows of a key that a lookup has found.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FOUND_H
#define DLOCK_FOUND_H

#include "access/htup.h"
#include "storage/itemptr.h"

#include "row.h"
#include "state.h"

/* Where a row is, and what the rules do not need to know of it. */
typedef struct DlockRow
{
	TransactionId writer;		/* the one that has written it */
	TransactionId pending;		/* the one that is changing it or has it
								 * locked */
	ItemPointerData tid;
	HeapTuple	tuple;			/* a copy, once it is locked, or if it was
								 * asked for; may be NULL otherwise */
} DlockRow;

/*
 * Rows of a key, for fsm.c to decide on: states[i] is what rows[i] says.  Mostly
 * there is one, the head, and no memory has to be allocated.
 */
typedef struct DlockRows
{
	int			n;
	int			max;
	DlockState *states;
	DlockRow   *rows;
	DlockState	one_state;
	DlockRow	one_row;
	DlockShortText one_owner;
} DlockRows;

extern void dlock_found_nothing(DlockRows *found);
extern int	dlock_found_add(DlockRows *found);
extern void dlock_found_set_pending(DlockRows *found, int i, int64 slot,
									TransactionId pending);
extern void dlock_found_set(DlockRows *found, int i, HeapTuple tuple,
							TransactionId pending, bool with_owner);

#endif							/* DLOCK_FOUND_H */
