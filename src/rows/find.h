/*-------------------------------------------------------------------------
 *
 * find.h
 *	  Finding the rows of a key, and locking one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_FIND_H
#define DLOCK_ROWS_FIND_H

#include "access/htup.h"
#include "nodes/lockoptions.h"
#include "storage/itemptr.h"
#include "utils/snapshot.h"

#include "rows/row.h"
#include "rows/table.h"
#include "rules/key.h"
#include "rules/lock_rules.h"

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
 * Rows of a key, for lock_rules.c to decide on: states[i] is what rows[i] says.  Mostly
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

typedef enum DlockFind
{
	DLOCK_FIND_HINTED,			/* if the hint leads to it; a miss says
								 * nothing */
	DLOCK_FIND_NEWEST,			/* that another transaction is changing it is
								 * enough, and a miss is not believed */
	DLOCK_FIND_COMMITTED,		/* the last committed row */
	DLOCK_FIND_WHOLE			/* ... with a copy of it */
} DlockFind;

typedef enum DlockLocked
{
	DLOCK_LOCKED,
	DLOCK_LOCK_BUSY,			/* would have to wait */
	DLOCK_LOCK_CHANGED			/* look again */
} DlockLocked;

extern void dlock_find_nothing(DlockRows *found);
extern bool dlock_find_slot(const DlockTable *store, const DlockKey *key,
							int64 slot, DlockFind how, DlockRows *found);
extern bool dlock_find_version(const DlockTable *store, const DlockKey *key,
							   int64 version, DlockRows *found);
extern void dlock_find_places(const DlockTable *store, const DlockKey *key,
							  DlockFind how, bool with_head, int64 owners_of,
							  int max, DlockRows *found);
extern void dlock_find_committed(const DlockTable *store, const DlockKey *key,
								 DlockRows *found);
extern bool dlock_find_any(const DlockTable *store, Relation index,
						   const DlockKey *key, int64 slot);
extern DlockLocked dlock_find_lock(const DlockTable *store, const DlockKey *key,
								   DlockState *state, DlockRow *row,
								   LockTupleMode mode, LockWaitPolicy policy);

#endif							/* DLOCK_ROWS_FIND_H */
