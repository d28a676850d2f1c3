/*-------------------------------------------------------------------------
 *
 * indexes.h
 *	  The indexes of dlock.locks that a new row version goes to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_INDEXES_H
#define DLOCK_INDEXES_H

#include "nodes/execnodes.h"

#include "store.h"

#define DLOCK_MAX_INDEXES	16

typedef struct DlockIndexes
{
	int			n;
	Relation	rels[DLOCK_MAX_INDEXES];
	IndexInfo  *infos[DLOCK_MAX_INDEXES];
} DlockIndexes;

extern void dlock_indexes_open(DlockIndexes *indexes, const DlockStore *store);
extern void dlock_indexes_insert(const DlockIndexes *indexes,
								 const DlockStore *store, HeapTuple tuple,
								 bool unchanged);
extern void dlock_indexes_close(DlockIndexes *indexes);

#endif							/* DLOCK_INDEXES_H */
