/*-------------------------------------------------------------------------
 *
 * census.h
 *	  How many places a key has at most.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CENSUS_H
#define DLOCK_CENSUS_H

#include "places.h"

/* The count that a place is part of, if there is one. */
typedef struct DlockCensusPart
{
	int			entry;			/* or -1 */
	uint64		generation;
} DlockCensusPart;

extern Size dlock_census_shmem_size(void);
extern void dlock_census_shmem_init(void);

extern void dlock_census_set(const DlockKey *key, Oid file, const DlockClaims *claims,
							 int places);
extern bool dlock_census_has_room(const DlockKey *key, Oid file,
								  const DlockClaims *claims, int slots);
extern DlockCensusPart dlock_census_part(const DlockKey *key, Oid file);
extern void dlock_census_ended(uint64 hash, DlockCensusPart part);

#endif							/* DLOCK_CENSUS_H */
