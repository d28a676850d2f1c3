/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  dlock's shared memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SHMEM_H
#define DLOCK_SHMEM_H

#include "port/atomics.h"
#include "storage/block.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#define DLOCK_NEVER				PG_INT64_MAX
#define DLOCK_MAX_DATABASES		1024
#define DLOCK_HINTS				(1 << 18)	/* 8 bytes each */

typedef enum DlockVisit
{
	DLOCK_VISIT_GOOD,			/* or none yet */
	DLOCK_VISIT_NO_WORKER,		/* max_worker_processes are running */
	DLOCK_VISIT_FAILED			/* it ended with an error */
} DlockVisit;

/*
 * What is known of one database.  A slot is given to a database by its first
 * use and taken back when the database is gone, so a backend may keep the
 * pointer for as long as it lives.
 */
typedef struct DlockDatabase
{
	Oid			dboid;			/* protected by the database lock */

	/* the incarnation whose versions are known to be above all earlier ones */
	pg_atomic_uint64 incarnation;

	/* lease time at which the reaper has something to do, or DLOCK_NEVER */
	pg_atomic_uint64 due;

	/* are there requests to yield to be announced? */
	pg_atomic_uint32 events;

	/* the reaper's transaction while it deletes, else InvalidTransactionId */
	pg_atomic_uint32 reap_xid;

	/* how the visits of the reaper go; set by the launcher */
	pg_atomic_uint32 visit;		/* DlockVisit, of the last one */
	pg_atomic_uint64 visited;	/* lease time of the last good one, or 0 */

	/* of the launcher and the one worker that it runs at a time */
	int64		not_before;		/* lease time; no pass before that */
	BlockNumber next_block;		/* where the next pass goes on */
	int64		sweep_next;		/* when a row seen so far falls due */
	bool		pass_ended;		/* the worker came to its end */
} DlockDatabase;

typedef struct DlockShmem
{
	/* see hint.c; at the beginning, which is aligned to a cache line */
	pg_atomic_uint64 hints[DLOCK_HINTS];

	/* set while the postmaster starts, read-only afterwards */
	int64		base_wall;		/* TimestampTz */
	int64		base_mono;		/* monotonic clock at the same moment, us */
	int64		run;			/* names this run of the server */

	/* lease time at which this run began to accept writes; 0 = not yet */
	pg_atomic_uint64 started;

	/* the launcher's; PGPROCs stay where they are, so it never dangles */
	Latch	   *volatile launcher_latch;

	DlockDatabase databases[DLOCK_MAX_DATABASES];
} DlockShmem;

extern DlockShmem *dlock_shmem;

extern void dlock_shmem_init(void);
extern void dlock_shmem_require(void);
extern LWLock *dlock_shmem_database_lock(void);
extern LWLock *dlock_shmem_deadlock_lock(void);
extern LWLock *dlock_shmem_partition(uint64 hash);
extern DlockDatabase *dlock_shmem_database(Oid dboid);
extern void dlock_shmem_report_due(int64 when);
extern void dlock_shmem_report_event(void);

#endif							/* DLOCK_SHMEM_H */
