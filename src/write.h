/*-------------------------------------------------------------------------
 *
 * write.h
 *	  Adding and changing rows of dlock.locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_WRITE_H
#define DLOCK_WRITE_H

#include "find.h"
#include "indexes.h"
#include "row.h"

/* A row that is being added. */
typedef struct DlockInsertion
{
	const DlockStore *store;
	const DlockKey *key;
	int64		slot;
	HeapTuple	tuple;
	bool		is_whole;		/* or else it is to be updated */
	bool		checks;			/* that the slot has no other row */
	DlockIndexes indexes;
} DlockInsertion;

extern void dlock_write_prepare_insert(DlockInsertion *insertion,
									   const DlockStore *store,
									   const DlockKey *key, int64 slot,
									   const DlockGrant *grant);
extern void dlock_write_load_insert(const DlockInsertion *insertion);
extern void dlock_write_begin_insert(const DlockInsertion *insertion);
extern bool dlock_write_is_there(const DlockInsertion *insertion);
extern void dlock_write_cancel_insert(DlockInsertion *insertion);
extern bool dlock_write_end_insert(DlockInsertion *insertion,
								   const DlockGrant *grant, DlockRow *row);

extern void dlock_write_grant(const DlockStore *store, const DlockKey *key,
							  int64 slot, DlockRow *row, const DlockGrant *grant);
extern void dlock_write_renewal(const DlockStore *store, const DlockKey *key,
								DlockRow *row, const char *value, int64 ttl,
								int64 now);
extern void dlock_write_free(const DlockStore *store, const DlockKey *key,
							 DlockRow *row, int64 now, int64 cools_until);
extern void dlock_write_remove(const DlockStore *store, const DlockKey *key,
							   DlockRow *row);
extern void dlock_write_take_back(const DlockStore *store, const DlockKey *key,
								  DlockRow *row);

#endif							/* DLOCK_WRITE_H */
