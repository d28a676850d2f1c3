/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the major versions of PostgreSQL.
 *
 * This is the only file that looks at PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_COMPAT_H
#define DLOCK_COMPAT_H

#include "access/genam.h"
#include "access/heapam.h"
#include "access/tableam.h"
#include "catalog/pg_attribute.h"
#include "replication/walsender_private.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 200000
#error dlock is written for PostgreSQL 15 to 19
#endif

/* VARDATA and friends moved out of postgres.h in 16 */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* from 18 on, pg_get_loaded_modules() shows the version of the module */
#if PG_VERSION_NUM >= 180000
#define DLOCK_MODULE_MAGIC \
	PG_MODULE_MAGIC_EXT(.name = "dlock", .version = DLOCK_VERSION)
#else
#define DLOCK_MODULE_MAGIC PG_MODULE_MAGIC
#endif

/* 16 added update_indexes, and 19 added options */
static inline TM_Result
dlock_heap_update(Relation rel, ItemPointer otid, HeapTuple newtup,
				  CommandId cid, TM_FailureData *tmfd)
{
	LockTupleMode lockmode;
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes update_indexes;
#endif

#if PG_VERSION_NUM >= 190000
	return heap_update(rel, otid, newtup, cid, 0, InvalidSnapshot, true, tmfd,
					   &lockmode, &update_indexes);
#elif PG_VERSION_NUM >= 160000
	return heap_update(rel, otid, newtup, cid, InvalidSnapshot, true, tmfd,
					   &lockmode, &update_indexes);
#else
	return heap_update(rel, otid, newtup, cid, InvalidSnapshot, true, tmfd,
					   &lockmode);
#endif
}

/* 19 added options and dropped changingPart */
static inline TM_Result
dlock_heap_delete(Relation rel, ItemPointer tid, CommandId cid,
				  TM_FailureData *tmfd)
{
#if PG_VERSION_NUM >= 190000
	return heap_delete(rel, tid, cid, 0, InvalidSnapshot, true, tmfd);
#else
	return heap_delete(rel, tid, cid, InvalidSnapshot, true, tmfd, false);
#endif
}

/* 18 added instrumentation, 19 added flags */
static inline IndexScanDesc
dlock_index_beginscan(Relation heap, Relation index, Snapshot snapshot,
					  int nkeys)
{
#if PG_VERSION_NUM >= 190000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0, 0);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/* from 19 on, pruning also maintains the visibility map */
static inline void
dlock_heap_prune_opt(Relation rel, Buffer buffer)
{
#if PG_VERSION_NUM >= 190000
	Buffer		vmbuffer = InvalidBuffer;

	heap_page_prune_opt(rel, buffer, &vmbuffer, false);
	if (BufferIsValid(vmbuffer))
		ReleaseBuffer(vmbuffer);
#else
	heap_page_prune_opt(rel, buffer);
#endif
}

/* the index of our PGPROC, which is a global variable from 17 on */
#if PG_VERSION_NUM >= 170000
#define DLOCK_MY_PROCNO MyProcNumber
#else
#define DLOCK_MY_PROCNO (MyProc->pgprocno)
#endif

/* 16 renamed it */
static inline LocalPgBackendStatus *
dlock_backend_status(int i)
{
#if PG_VERSION_NUM >= 160000
	return pgstat_get_local_beentry_by_index(i);
#else
	return pgstat_fetch_stat_local_beentry(i);
#endif
}

/*
 * Do commits wait for synchronous standbys?  Until the checkpointer has read
 * its configuration for the first time, they wait if the setting says so.  Minor
 * releases before 2025 do not have that state, and do not wait until then.
 */
static inline bool
dlock_commits_wait(void)
{
#ifdef SYNC_STANDBY_INIT
	return (WalSndCtl->sync_standbys_status &
			(SYNC_STANDBY_INIT | SYNC_STANDBY_DEFINED)) != SYNC_STANDBY_INIT;
#else
	return WalSndCtl->sync_standbys_defined;
#endif
}

/* from 17 on, an extension can name its wait events */
static inline uint32
dlock_wait_event(void)
{
#if PG_VERSION_NUM >= 170000
	static uint32 wait_event = 0;

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("DlockAcquire");
	return wait_event;
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* 18 dropped execute_once */
#if PG_VERSION_NUM >= 180000
#define DLOCK_EXECUTOR_RUN_ARGS \
	QueryDesc *query, ScanDirection direction, uint64 count
#define DLOCK_CALL_EXECUTOR_RUN(prev) \
	((prev) != NULL ? (prev) (query, direction, count) : \
	 standard_ExecutorRun(query, direction, count))
#else
#define DLOCK_EXECUTOR_RUN_ARGS \
	QueryDesc *query, ScanDirection direction, uint64 count, bool execute_once
#define DLOCK_CALL_EXECUTOR_RUN(prev) \
	((prev) != NULL ? (prev) (query, direction, count, execute_once) : \
	 standard_ExecutorRun(query, direction, count, execute_once))
#endif

/* 19 added flags */
#if PG_VERSION_NUM >= 190000
#define dlock_table_beginscan(rel, snapshot) \
	table_beginscan(rel, snapshot, 0, NULL, SO_NONE)
#else
#define dlock_table_beginscan(rel, snapshot) \
	table_beginscan(rel, snapshot, 0, NULL)
#endif

/* 19 has handlers of another type, and with it a name for this one */
#ifndef PG_SIG_IGN
#define PG_SIG_IGN SIG_IGN
#endif

/* 18 added generated columns that are not stored */
#ifdef ATTRIBUTE_GENERATED_VIRTUAL
#define DLOCK_IS_VIRTUAL(att) ((att)->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL)
#else
#define DLOCK_IS_VIRTUAL(att) false
#endif

/* 17 added infinite intervals */
#ifdef INTERVAL_NOT_FINITE
#define DLOCK_INTERVAL_IS_FINITE(i) (!INTERVAL_NOT_FINITE(i))
#else
#define DLOCK_INTERVAL_IS_FINITE(i) true
#endif

#endif							/* DLOCK_COMPAT_H */
