/*-------------------------------------------------------------------------
 *
 * watch.h
 *	  Wait until a key changes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_WATCH_H
#define DLOCK_LOCK_WATCH_H

#include "rules/key.h"

extern bool dlock_watch_key(const DlockKey *key, bool is_held, int64 *version,
							int64 timeout);

#endif							/* DLOCK_LOCK_WATCH_H */
