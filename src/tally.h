/*-------------------------------------------------------------------------
 *
 * tally.h
 *	  The places that a transaction adds and removes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TALLY_H
#define DLOCK_TALLY_H

#include "key.h"

extern void dlock_tally_added(const DlockKey *key, int64 slot);
extern void dlock_tally_removed(const DlockKey *key, int64 slot, Oid file);
extern void dlock_tally_taken_back(const DlockKey *key, int64 slot);
extern void dlock_tally_by_sql(void);
extern int	dlock_tally_removals(const DlockKey *key);
extern void dlock_tally_at_end(bool committed);
extern void dlock_tally_at_abort_sub(SubTransactionId subid);

#endif							/* DLOCK_TALLY_H */
