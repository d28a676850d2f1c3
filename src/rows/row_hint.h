/*-------------------------------------------------------------------------
 *
 * row_hint.h
 *	  Where the newest version of a row was last seen.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_ROW_HINT_H
#define DLOCK_ROWS_ROW_HINT_H

#include "storage/itemptr.h"

extern Size dlock_row_hint_shmem_size(void);
extern void dlock_row_hint_shmem_init(void);

extern bool dlock_row_hint_get(uint64 row, ItemPointer tid);
extern void dlock_row_hint_set(uint64 row, ItemPointer tid);

#endif							/* DLOCK_ROWS_ROW_HINT_H */
