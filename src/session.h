/*-------------------------------------------------------------------------
 *
 * session.h
 *	  Grants that end with their connection.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SESSION_H
#define DLOCK_SESSION_H

#include "store.h"

extern void dlock_session_prepare(void);
extern void dlock_session_add(const DlockKey *key, Oid role);
extern void dlock_session_released(const DlockKey *key);
extern void dlock_session_at_end(bool committed);

#endif							/* DLOCK_SESSION_H */
