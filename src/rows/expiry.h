/*-------------------------------------------------------------------------
 *
 * expiry.h
 *	  Where in the table the next row falls due.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_EXPIRY_H
#define DLOCK_ROWS_EXPIRY_H

#include "storage/block.h"

#include "database.h"

/* Slots that are due and follow each other. */
typedef struct DlockDueRun
{
	uint32		first;
	uint32		n;				/* 0: none is due from "first" on */
} DlockDueRun;

extern Size dlock_expiry_shmem_size(void);
extern void dlock_expiry_shmem_init(void);

extern void dlock_expiry_note(DlockDatabase *db, BlockNumber block, int64 when);

/* for the reaper */
extern void dlock_expiry_forget(DlockDatabase *db);
extern void dlock_expiry_unknown(DlockDatabase *db, BlockNumber nblocks);
extern DlockDueRun dlock_expiry_begin(DlockDatabase *db, BlockNumber nblocks,
									  uint32 from, int64 now);
extern bool dlock_expiry_blocks(const DlockDueRun *run, BlockNumber nblocks, int piece,
								BlockNumber *first, BlockNumber *n);
extern bool dlock_expiry_may_stop(const DlockDueRun *run, BlockNumber block);
extern void dlock_expiry_stop(DlockDatabase *db, DlockDueRun *run, BlockNumber block);
extern bool dlock_expiry_more(BlockNumber nblocks, uint32 from);
extern int64 dlock_expiry_earliest(DlockDatabase *db, BlockNumber nblocks);

#endif							/* DLOCK_ROWS_EXPIRY_H */
