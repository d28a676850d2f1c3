/*-------------------------------------------------------------------------
 *
 * absent.h
 *	  Keys that are known to have no head.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ABSENT_H
#define DLOCK_ABSENT_H

#include "key.h"

extern bool dlock_absent_is(const DlockKey *key, uint64 heads);
extern void dlock_absent_note(const DlockKey *key, uint64 heads);
extern void dlock_absent_forget(void);

#endif							/* DLOCK_ABSENT_H */
