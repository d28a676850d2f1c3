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

extern void dlock_version_prepare(const DlockStore *store);
extern int64 dlock_version_next(const DlockStore *store);

#endif							/* DLOCK_VERSION_H */
