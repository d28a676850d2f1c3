/*-------------------------------------------------------------------------
 *
 * all.h
 *	  Several keys, or none of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ALL_H
#define DLOCK_ALL_H

#include "lock.h"

extern int	dlock_all_acquire(const DlockRequest *requests, int n,
							  DlockResult *results);

#endif							/* DLOCK_ALL_H */
