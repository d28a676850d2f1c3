/*-------------------------------------------------------------------------
 *
 * scan.h
 *	  Reading all rows of dlock.locks, or those of a range of keys.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_SCAN_H
#define DLOCK_ROWS_SCAN_H

#include "access/htup.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "utils/snapshot.h"

#include "rows/table.h"

typedef enum DlockSeen
{
	DLOCK_SEEN_NOT,
	DLOCK_SEEN_COMMITTED,		/* or written by our own transaction */
	DLOCK_SEEN_PENDING,			/* inserted by another open transaction */
	DLOCK_SEEN_LATER			/* updated by one, or newer than the snapshot;
								 * only dlock_scan_blocks() has these */
} DlockSeen;

/* Called for each row of a scan; false ends the scan after this block. */
typedef bool (*DlockVisitor) (const DlockTable *store, HeapTuple tuple,
							  DlockSeen seen, void *arg);

/* The keys that begin with a prefix, in the order of their bytes. */
typedef struct DlockRange
{
	const char *prefix;			/* need not be terminated */
	int			prefixlen;
	bool		is_whole;		/* only the key that is the prefix */
	const char *after;			/* only keys after this one; NULL: all */
	int			afterlen;
} DlockRange;

extern BlockNumber dlock_scan_blocks(const DlockTable *store, Snapshot snapshot,
									 BlockNumber start, BlockNumber limit,
									 DlockVisitor visit, void *arg);
extern void dlock_scan_range(const DlockTable *store, const DlockRange *range,
							 Snapshot snapshot, DlockVisitor visit, void *arg);

#endif							/* DLOCK_ROWS_SCAN_H */
