/*-------------------------------------------------------------------------
 *
 * range.h
 *	  Reading the rows of a range of keys.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RANGE_H
#define DLOCK_RANGE_H

#include "scan.h"

/* The keys that begin with a prefix, in the order of their bytes. */
typedef struct DlockRange
{
	const char *prefix;			/* need not be terminated */
	int			prefixlen;
	const char *after;			/* only keys after this one; NULL: all */
	int			afterlen;
} DlockRange;

extern void dlock_range(const DlockStore *store, const DlockRange *range,
						Snapshot snapshot, DlockVisitor visit, void *arg);
extern int	dlock_range_compare(const char *a, int alen, const char *b, int blen);

#endif							/* DLOCK_RANGE_H */
