/*-------------------------------------------------------------------------
 *
 * session.h
 *	  The grants that end with this connection.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SESSION_H
#define DLOCK_SESSION_H

#include "storage/ipc.h"

#include "key.h"

typedef struct DlockSessionGrant
{
	uint64		hash;			/* of the key; if two keys have the same hash,
								 * only one is remembered */
	char	   *key;
	int			keylen;
	Oid			role;
	bool		released;		/* by a transaction that has not ended */
	bool		fresh;			/* added by a transaction that has not ended */
} DlockSessionGrant;

extern void dlock_session_init(pg_on_exit_callback at_exit);
extern void dlock_session_prepare(void);
extern void dlock_session_add(const DlockKey *key, Oid role);
extern void dlock_session_released(const DlockKey *key);
extern void dlock_session_at_abort_sub(void);
extern void dlock_session_at_end(bool committed);
extern bool dlock_session_any(void);
extern DlockSessionGrant *dlock_session_list(int *n);

#endif							/* DLOCK_SESSION_H */
