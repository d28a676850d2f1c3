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

extern void dlock_listing_check_columns(const ReturnSetInfo *rsinfo, int known);
extern Datum dlock_listing_interval(int64 us);

#endif							/* DLOCK_FUNCTIONS_LISTING_H */
