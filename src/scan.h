/*-------------------------------------------------------------------------
 *
 * scan.h
 *	  Reading all rows of dlock.locks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SCAN_H
#define DLOCK_SCAN_H

#include "access/htup.h"
#include "storage/block.h"
#include "utils/snapshot.h"

#include "store.h"

/* Called for each row of a scan; false ends the scan after this block. */
typedef bool (*DlockVisitor) (const DlockStore *store, HeapTuple tuple, void *arg);

extern BlockNumber dlock_scan(const DlockStore *store, Snapshot snapshot,
							  BlockNumber start, BlockNumber limit,
							  DlockVisitor visit, void *arg);

#endif							/* DLOCK_SCAN_H */
