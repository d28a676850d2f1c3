/*-------------------------------------------------------------------------
 *
 * store.h
 *	  The table dlock.locks, opened.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STORE_H
#define DLOCK_STORE_H

#include "storage/lockdefs.h"
#include "utils/rel.h"

typedef struct DlockStore
{
	Relation	heap;
	LOCKMODE	lockmode;		/* what the relations are locked with */
	Oid			index;			/* the primary key's, opened when needed */
	Oid			versions;		/* the sequences, locked when drawn from */
	Oid			incarnation;
} DlockStore;

extern void dlock_store_init(void);
extern bool dlock_store_open(DlockStore *store, bool write, bool missing_ok);
extern bool dlock_store_lock_if_free(void);
extern void dlock_store_close(DlockStore *store, bool changed);

/* The file of the table, which is another one when all of its rows may be others. */
static inline Oid
dlock_store_file(const DlockStore *store)
{
	return store->heap->rd_rel->relfilenode;
}

#endif							/* DLOCK_STORE_H */
