/*-------------------------------------------------------------------------
 *
 * version.h
 *	  The versions of grants, which are the fencing tokens.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_VERSION_H
#define DLOCK_VERSION_H

#include "store.h"

/* The state of the versions of a database. */
typedef struct DlockVersions
{
	bool		drawn;			/* has a version ever been drawn? */
	int64		last;
	bool		leaps;			/* the next one leaps ahead first */
} DlockVersions;

extern void dlock_version_look(const DlockStore *store, bool in_recovery,
							   DlockVersions *versions);
extern void dlock_version_prepare(const DlockStore *store);
extern void dlock_version_load(const DlockStore *store);
extern int64 dlock_version_next(const DlockStore *store);
extern int64 dlock_version_advance(const DlockStore *store, int64 above);

#endif							/* DLOCK_VERSION_H */
