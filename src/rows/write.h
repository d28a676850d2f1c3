/*-------------------------------------------------------------------------
 *
 * write.h
 *	  Adding and changing rows of dlock.locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_WRITE_H
#define DLOCK_ROWS_WRITE_H

#include "rows/find.h"
#include "rows/row.h"

/* The indexes of the table, opened to insert entries. */
typedef struct DlockIndexes
{
	int			n;
	int			primary;		/* the one that rows are found by */
	struct DlockIndex *indexes;
} DlockIndexes;

/* A row that is being added. */
typedef struct DlockInsertion
{
	const DlockTable *store;
	const DlockKey *key;
	int64		slot;
	HeapTuple	tuple;
	bool		is_whole;		/* or else it is to be updated */
	DlockIndexes indexes;
} DlockInsertion;

extern void dlock_write_prepare_insert(DlockInsertion *insertion,
									   const DlockTable *store,
									   const DlockKey *key, int64 slot,
									   const DlockGrant *grant);
extern void dlock_write_load_insert(const DlockInsertion *insertion);
extern void dlock_write_begin_insert(const DlockInsertion *insertion);
extern bool dlock_write_is_there(const DlockInsertion *insertion);
extern void dlock_write_cancel_insert(DlockInsertion *insertion);
extern void dlock_write_end_insert(DlockInsertion *insertion,
								   const DlockGrant *grant, DlockRow *row);

extern void dlock_write_grant(const DlockTable *store, const DlockKey *key,
							  int64 slot, DlockRow *row, const DlockGrant *grant);
extern void dlock_write_renewal(const DlockTable *store, const DlockKey *key,
								DlockRow *row, const DlockRenewal *renewal);
extern void dlock_write_free(const DlockTable *store, const DlockKey *key,
							 DlockRow *row, int64 now, int64 cools_until);
extern void dlock_write_remove(const DlockTable *store, const DlockKey *key,
							   DlockRow *row);

#endif							/* DLOCK_ROWS_WRITE_H */
