/*-------------------------------------------------------------------------
 *
 * version.h
 *	  The versions of grants, which are the fencing tokens.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ROWS_VERSION_H
#define DLOCK_ROWS_VERSION_H

#include "rows/table.h"

/* The state of the versions of a database. */
typedef struct DlockVersions
{
	bool		drawn;			/* has a version ever been drawn? */
	int64		last;
	bool		leaps;			/* the next one leaps ahead first */
} DlockVersions;

extern void dlock_version_look(const DlockTable *store, bool in_recovery,
							   DlockVersions *versions);
extern void dlock_version_prepare(const DlockTable *store);
extern void dlock_version_load(const DlockTable *store);
extern int64 dlock_version_next(const DlockTable *store);
extern int64 dlock_version_advance(const DlockTable *store, int64 above);

#endif							/* DLOCK_ROWS_VERSION_H */
