/*-------------------------------------------------------------------------
 *
 * fence_trigger.h
 *	  Fencing: an error unless a grant is held until the transaction ends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FENCE_FENCE_TRIGGER_H
#define DLOCK_FENCE_FENCE_TRIGGER_H

#include "access/tupdesc.h"

#include "rules/key.h"

extern void dlock_fence_require(const DlockKey *key, int64 version, Oid role,
								bool exclusive_only, const char *hint);

/* the text of a column, as it is in the key of a trigger */
extern char *dlock_key_text(Datum value, Form_pg_attribute att);

#endif							/* DLOCK_FENCE_FENCE_TRIGGER_H */
