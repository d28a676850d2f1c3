/*-------------------------------------------------------------------------
 *
 * shown.h
 *	  What the functions behind the views have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SHOWN_H
#define DLOCK_SHOWN_H

#include "nodes/execnodes.h"

extern bool dlock_shown_sees_all(void);
extern bool dlock_shown_may_see(bool sees_all, Oid role);
extern void dlock_shown_check_columns(const ReturnSetInfo *rsinfo, int known);
extern Datum dlock_shown_interval(int64 us);
extern Datum dlock_shown_slots(int32 slots, bool *isnull);

#endif							/* DLOCK_SHOWN_H */
