/*-------------------------------------------------------------------------
 *
 * record.h
 *	  What the commit of a change counts and logs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RECORD_H
#define DLOCK_RECORD_H

#include "find.h"
#include "fsm.h"

/* The row of a grant that ends, and the request that ends it. */
typedef struct DlockEnding
{
	const DlockStore *store;
	const DlockKey *key;
	const DlockState *state;
	const DlockRow *row;
	const DlockRequest *request;
	int64		now;
	int			change;
} DlockEnding;

extern void dlock_record_taken(const DlockEnding *ending);
extern void dlock_record_ended(const DlockEnding *ending, DlockAnswer answer);

#endif							/* DLOCK_RECORD_H */
