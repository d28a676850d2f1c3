/*-------------------------------------------------------------------------
 *
 * announce.h
 *	  Requests to yield that have not been announced yet.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ANNOUNCE_H
#define DLOCK_ANNOUNCE_H

#include "queue.h"

extern bool dlock_announce_take(Oid dboid, DlockNamedWaiter *waiter);

#endif							/* DLOCK_ANNOUNCE_H */
