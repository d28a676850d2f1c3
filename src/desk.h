/*-------------------------------------------------------------------------
 *
 * desk.h
 *	  Which process grants the tickets of a database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DESK_H
#define DLOCK_DESK_H

#include "ready.h"

extern Size dlock_desk_shmem_size(void);
extern void dlock_desk_shmem_init(void);

extern DlockReady *dlock_desk_ready(int db);

/* the lock of the tickets is held exclusively */
extern void dlock_desk_come(int db);
extern void dlock_desk_go(int db);

/* for those that start a granter */
extern bool dlock_desk_call(int db, int64 now);
extern void dlock_desk_call_failed(int db);
extern int64 dlock_desk_call_at(int db);

/* for a granter */
extern bool dlock_desk_open(int db);
extern bool dlock_desk_close_if_idle(int db);
extern bool dlock_desk_close(int db);

#endif							/* DLOCK_DESK_H */
