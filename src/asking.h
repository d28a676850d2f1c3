/*-------------------------------------------------------------------------
 *
 * asking.h
 *	  Whom a waiter has asked to yield.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ASKING_H
#define DLOCK_ASKING_H

#include "waiter.h"

extern bool dlock_asking_grows(const DlockAsking *before, const DlockAsking *now);
extern bool dlock_asking_is_asked(const DlockWaiter *waiter,
								  const DlockState *grant);

#endif							/* DLOCK_ASKING_H */
