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
	int64		version;		/* unique in the database; the hash key */
	char	   *key;
	int			keylen;
	Oid			role;
	bool		released;		/* by a transaction that has not ended */
	bool		fresh;			/* added by a transaction that has not ended */
	SubTransactionId subid;		/* ... in this subtransaction */
} DlockSessionGrant;

extern void dlock_session_init(pg_on_exit_callback at_exit);
extern void dlock_session_prepare(void);
extern void dlock_session_add(const DlockKey *key, Oid role, int64 version);
extern void dlock_session_released(int64 version);
extern void dlock_session_at_abort_sub(SubTransactionId subid);
extern void dlock_session_at_end(bool committed);
extern bool dlock_session_any(void);
extern DlockSessionGrant *dlock_session_list(int *n);

#endif							/* DLOCK_SESSION_H */
