/*-------------------------------------------------------------------------
 *
 * place_count.h
 *	  What is known of the rows of a key: how many places it has at most, and that
 *	  it has no head.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_PLACE_COUNT_H
#define DLOCK_ROWS_PLACE_COUNT_H

#include "rows/places.h"

/* The places have not been counted, or nobody knows how many there are. */
#define DLOCK_NOT_COUNTED	(-1)

typedef struct DlockPlaceCount
{
	uint64		at_most;		/* places, whatever they are; UINT64_MAX: any
								 * number */
	bool		no_head;
} DlockPlaceCount;

extern void dlock_place_count_init(void);
extern Size dlock_place_count_shmem_size(void);
extern void dlock_place_count_shmem_init(void);

extern DlockPlaceCount dlock_place_count_get(const DlockKey *key, Oid file,
											 const DlockClaims *claims);
extern void dlock_place_count_set(const DlockKey *key, Oid file,
								  const DlockClaims *claims, bool has_head,
								  int places);

extern void dlock_place_count_removed(const DlockKey *key, int64 slot, Oid file);
extern void dlock_place_count_by_sql(void);
extern int	dlock_place_count_removals(const DlockKey *key);

#endif							/* DLOCK_ROWS_PLACE_COUNT_H */
