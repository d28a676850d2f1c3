/*-------------------------------------------------------------------------
 *
 * indexes.h
 *	  The indexes of dlock.locks that get an entry for a new row version.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_INDEXES_H
#define DLOCK_INDEXES_H

#include "nodes/execnodes.h"

#include "store.h"

typedef struct DlockIndex
{
	Relation	rel;
	IndexInfo  *info;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
} DlockIndex;

typedef struct DlockIndexes
{
	int			n;
	int			primary;		/* the one that rows are found by */
	DlockIndex *indexes;
} DlockIndexes;

extern void dlock_indexes_open(DlockIndexes *indexes, const DlockStore *store,
							   HeapTuple tuple);
extern Relation dlock_indexes_primary(const DlockIndexes *indexes);
extern void dlock_indexes_load(const DlockIndexes *indexes);
extern bool dlock_indexes_insert(DlockIndexes *indexes, const DlockStore *store,
								 HeapTuple tuple, bool unchanged, bool check);
extern void dlock_indexes_close(DlockIndexes *indexes);
extern List *dlock_indexes_invalid(const DlockStore *store);

#endif							/* DLOCK_INDEXES_H */
