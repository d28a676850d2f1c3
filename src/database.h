/*-------------------------------------------------------------------------
 *
 * database.h
 *	  What shared memory knows about each database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DATABASE_H
#define DLOCK_DATABASE_H

#include "port/atomics.h"
#include "storage/block.h"
#include "storage/latch.h"

#define DLOCK_MAX_DATABASES		1024

/* How the last visit of a reaper went. */
typedef enum DlockVisit
{
	DLOCK_VISIT_GOOD,			/* or there was none yet */
	DLOCK_VISIT_NO_WORKER,		/* max_worker_processes are running */
	DLOCK_VISIT_FAILED			/* it ended with an error */
} DlockVisit;

/* How far the reaper has come, kept from one visit to the next. */
typedef struct DlockProgress
{
	int64		next_visit;		/* lease time; no visit before that */
	int64		not_before;		/* lease time; no pass before that */
	uint32		next_slot;		/* where the next pass continues (expiry.c) */
	Oid			file;			/* ... in this file of the table */
	BlockNumber nblocks;		/* ... which had this many blocks */
	int64		linger;			/* what the bounds were computed with */
	int64		lapse;
	bool		reading;		/* some bounds have been taken away */
	bool		hurries;		/* this pass reads all, for once */
	bool		ended;			/* the visit came to its end */
	bool		from_start;		/* all slots before next_slot were read since
								 * all bounds were forgotten */
} DlockProgress;

/*
 * A slot is given to a database by its first use and taken back when the
 * database is gone, so a backend may keep the pointer for as long as it lives.
 * Each field has one file that writes it, but for the progress.
 */
typedef struct DlockDatabase
{
	/* database.c; protected by the database lock */
	Oid			dboid;

	/* database.c: lease time at which the reaper is wanted, or DLOCK_NEVER */
	pg_atomic_uint64 due;

	/* database.c: is a request to yield to be announced? */
	pg_atomic_uint32 announce;

	/*
	 * version.c: the incarnation whose versions are known to be above all
	 * earlier ones
	 */
	pg_atomic_uint64 incarnation;

	/*
	 * reaper.c: its transaction while it deletes, or InvalidTransactionId;
	 * grant.c and listing.c read it
	 */
	pg_atomic_uint32 reaper_xid;

	/* places.c: DlockPlacesKnown; launcher.c reads it */
	pg_atomic_uint32 places_known;

	/*
	 * database.c: a number that no database has had before, whenever rows may
	 * be there that nobody has counted; place_count.c reads it
	 */
	pg_atomic_uint64 epoch;

	/* shard.c: how often it was changed which shards are served */
	pg_atomic_uint64 served_changes;

	/* launcher.c; health.c reads them */
	pg_atomic_uint32 last_visit;	/* DlockVisit */
	pg_atomic_uint64 last_good_visit;	/* lease time, or 0 */

	/* reaper.c while one runs, launcher.c otherwise */
	DlockProgress progress;
} DlockDatabase;

extern Size dlock_database_shmem_size(void);
extern void dlock_database_shmem_init(void);

extern DlockDatabase *dlock_database(Oid dboid);
extern void dlock_database_want_reaper(int64 when);
extern void dlock_database_want_announcement(void);
extern void dlock_database_wake_launcher(void);
extern void dlock_database_begin_epoch(DlockDatabase *db);

/* for the launcher and its reapers */
extern DlockDatabase *dlock_database_at(int i);
extern int	dlock_database_number(const DlockDatabase *db);
extern void dlock_database_set_due(DlockDatabase *db, int64 when);
extern bool dlock_database_take_announcement(DlockDatabase *db);
extern void dlock_database_list(Oid *dboids);
extern void dlock_database_forget(const Oid *dboids);
extern void dlock_database_set_launcher(Latch *latch);
extern bool dlock_database_has_launcher(void);

#endif							/* DLOCK_DATABASE_H */
