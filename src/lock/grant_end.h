/*-------------------------------------------------------------------------
 *
 * grant_end.h
 *	  How a grant ends: what its end counts as, and the log.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_GRANT_END_H
#define DLOCK_LOCK_GRANT_END_H

#include "rows/find.h"
#include "rules/lock_rules.h"

/* The row of a grant that ends, and the request that ends it. */
typedef struct DlockEnding
{
	const DlockTable *store;
	const DlockState *state;
	const DlockRow *row;
	const DlockRequest *request;
	int64		now;
} DlockEnding;

extern void dlock_grant_end_init(void);
extern void dlock_grant_end_taken(const DlockEnding *ending);
extern void dlock_grant_end_ended(const DlockEnding *ending, DlockAnswer answer);

/* for a process that must not read catalogs while it changes rows */
extern void dlock_grant_end_defer(void);
extern void dlock_grant_end_log_deferred(void);

#endif							/* DLOCK_LOCK_GRANT_END_H */
