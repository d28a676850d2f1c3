/*-------------------------------------------------------------------------
 *
 * session_end.h
 *	  Releasing the grants that end with this connection.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SESSION_END_H
#define DLOCK_SESSION_END_H

extern void dlock_session_end_init(void);
extern int	dlock_session_end_release(Oid role, bool is_lost, bool wait);

#endif							/* DLOCK_SESSION_END_H */
