/*-------------------------------------------------------------------------
 *
 * listing.h
 *	  What the functions behind the views have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FUNCTIONS_LISTING_H
#define DLOCK_FUNCTIONS_LISTING_H

#include "nodes/execnodes.h"

extern bool dlock_listing_sees_all(void);
extern bool dlock_listing_may_see(bool sees_all, Oid role);
extern void dlock_listing_check_columns(const ReturnSetInfo *rsinfo, int known);
extern Datum dlock_listing_interval(int64 us);
extern Datum dlock_listing_slots(int32 slots, bool *isnull);

#endif							/* DLOCK_FUNCTIONS_LISTING_H */
