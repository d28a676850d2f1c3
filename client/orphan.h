/*-------------------------------------------------------------------------
 *
 * orphan.h
 *	  Grants that nobody knows of.  All need the mutex.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ORPHAN_H
#define DLOCK_ORPHAN_H

#include "handle.h"

/* A request that may have been granted without our knowledge. */
typedef struct DlockOrphan
{
	struct DlockOrphan *next;
	char	   *key;
	char	   *owner;
	int64_t		until;			/* by then it has ended by itself */
	int64_t		due;			/* next try to release it */
	int64_t		pause;
	bool		in_queue;		/* its ticket may still wait */
	bool		in_flight;
} DlockOrphan;

extern void dlock_orphans_add(dlock_handle *handle, const char *key,
							  const char *owner, int64_t ttl_ms,
							  bool in_queue);
extern bool dlock_orphans_forget(dlock_handle *handle, const char *key,
								 const char *owner);
extern bool dlock_orphans_send(dlock_handle *handle, DlockConn *conn, int64_t now);
extern void dlock_orphans_landed(dlock_handle *handle, const DlockReply *reply,
								 int64_t now);
extern void dlock_orphans_drop(dlock_handle *handle, int64_t now);
extern int64_t dlock_orphans_due(const dlock_handle *handle);

#endif							/* DLOCK_ORPHAN_H */
