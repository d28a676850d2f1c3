/*-------------------------------------------------------------------------
 *
 * prepared.h
 *	  Sending a statement, which is prepared if it is sent more than once.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_PREPARED_H
#define DLOCK_PREPARED_H

#include <libpq-fe.h>

#include "conn.h"

/* False: it could not be sent. */
extern bool dlock_prepared_send(DlockConn *conn, const char *sql,
								const DlockParams *params);

/* Was that only to prepare it?  Then, if the answer is there, execute it. */
extern bool dlock_prepared_is_coming(const DlockConn *conn);
extern bool dlock_prepared_came(DlockConn *conn);

extern bool dlock_prepared_is_lost(DlockConn *conn, const PGresult *result);
extern void dlock_prepared_forget(DlockConn *conn);

#endif							/* DLOCK_PREPARED_H */
