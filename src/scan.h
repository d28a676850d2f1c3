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
#include "storage/buf.h"
#include "utils/snapshot.h"

#include "store.h"

typedef enum DlockSeen
{
	DLOCK_SEEN_NOT,
	DLOCK_SEEN_COMMITTED,		/* or written by our own transaction */
	DLOCK_SEEN_PENDING			/* inserted by another open transaction */
} DlockSeen;

/* Called for each row of a scan; false ends the scan after this block. */
typedef bool (*DlockVisitor) (const DlockStore *store, HeapTuple tuple,
							  DlockSeen seen, void *arg);

extern DlockSeen dlock_scan_see(HeapTuple tuple, Snapshot snapshot, Buffer buffer);
extern BlockNumber dlock_scan(const DlockStore *store, Snapshot snapshot,
							  BlockNumber start, BlockNumber limit,
							  DlockVisitor visit, void *arg);

#endif							/* DLOCK_SCAN_H */
