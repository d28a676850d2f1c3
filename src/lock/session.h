/*-------------------------------------------------------------------------
 *
 * session.h
 *	  The grants that end with this connection.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_LOCK_SESSION_H
#define DLOCK_LOCK_SESSION_H

#include "rules/key.h"

extern void dlock_session_init(void);
extern void dlock_session_prepare(void);
extern void dlock_session_add(const DlockKey *key, Oid role, int64 version);
extern int	dlock_session_release(Oid role, bool is_lost, bool wait);

#endif							/* DLOCK_LOCK_SESSION_H */
