/*-------------------------------------------------------------------------
 *
 * table.h
 *	  The table dlock.locks, opened.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_TABLE_H
#define DLOCK_ROWS_TABLE_H

#include "storage/lockdefs.h"
#include "utils/rel.h"

typedef struct DlockTable
{
	Relation	heap;
	LOCKMODE	lockmode;		/* what the relations are locked with */
	Oid			index;			/* the primary key's, opened when needed */
	Oid			versions;		/* the sequences, locked when drawn from */
	Oid			incarnation;
} DlockTable;

extern void dlock_table_init(void);
extern bool dlock_table_open(DlockTable *store, bool write, bool missing_ok);
extern bool dlock_table_lock_if_free(void);
extern void dlock_table_close(DlockTable *store, bool changed);
extern List *dlock_table_invalid_indexes(const DlockTable *store);

/* The file of the table, which is another one when all of its rows may be others. */
static inline Oid
dlock_table_file(const DlockTable *store)
{
	return store->heap->rd_rel->relfilenode;
}

#endif							/* DLOCK_ROWS_TABLE_H */
