/*-------------------------------------------------------------------------
 *
 * store.h
 *	  The table dlock.locks, reached through its heap and its index.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_STORE_H
#define DLOCK_STORE_H

#include "access/htup.h"
#include "nodes/lockoptions.h"
#include "storage/block.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "fsm.h"

/* The table, opened. */
typedef struct DlockStore
{
	Relation	heap;
	LOCKMODE	lockmode;		/* what the relations are locked with */
	Oid			index;			/* the primary key's, opened when needed */
	Oid			versions;		/* the sequences, locked by who draws */
	Oid			incarnation;
} DlockStore;

/* A key, with the hash that the hints and the partitions go by. */
typedef struct DlockKey
{
	const char *data;
	int			len;
	uint64		hash;
} DlockKey;

/* Everything that a grant is made of, but its key. */
typedef struct DlockGrant
{
	int64		version;
	Oid			role;
	const char *owner;			/* NULL: none */
	const char *value;			/* NULL: none */
	int64		ttl;			/* us */
	int64		cleanup;		/* us */
	int32		priority;
	int32		pid;			/* the session that it ends with, or 0 */
	int64		acquired_at;	/* lease time, as are the next two */
	int64		refreshed_at;
	int64		expires_at;
} DlockGrant;

/* A row as it was found: what the rules need of it, and where it is. */
typedef struct DlockRow
{
	DlockState	state;
	int64		ttl;
	int64		acquired_at;
	bool		is_ours;		/* written by the current transaction */
	TransactionId pending;		/* who is changing it or has it locked */
	ItemPointerData tid;
	HeapTuple	tuple;			/* a copy */
} DlockRow;

typedef enum DlockFind
{
	DLOCK_FIND_HINT,			/* that somebody is changing it is enough, and
								 * a miss is not believed */
	DLOCK_FIND_COMMITTED		/* the last committed row */
} DlockFind;

typedef enum DlockLocked
{
	DLOCK_LOCKED,
	DLOCK_LOCK_BUSY,			/* would have to wait */
	DLOCK_LOCK_CHANGED			/* look again */
} DlockLocked;

/* A row that is being added. */
typedef struct DlockInsertion DlockInsertion;

/* Called for each row of a scan; false ends the scan after this block. */
typedef bool (*DlockVisitor) (const DlockStore *store, HeapTuple tuple, void *arg);

extern void dlock_store_init(void);
extern bool dlock_store_open(DlockStore *store, bool write, bool missing_ok);
extern void dlock_store_close(DlockStore *store, bool changed);

extern void dlock_store_key(DlockKey *key, const char *data, int len);
extern void dlock_store_find(const DlockStore *store, const DlockKey *key,
							 DlockFind how, DlockRow *row);
extern DlockLocked dlock_store_lock(const DlockStore *store, DlockRow *row,
									LockTupleMode mode, LockWaitPolicy policy);

extern DlockInsertion *dlock_store_prepare_insert(const DlockStore *store,
												  const DlockKey *key,
												  const DlockGrant *grant);
extern void dlock_store_load_insert(const DlockInsertion *insertion);
extern bool dlock_store_begin_insert(DlockInsertion *insertion);
extern bool dlock_store_inserts_grant(const DlockInsertion *insertion);
extern void dlock_store_end_insert(DlockInsertion *insertion, int64 version,
								   int64 now);

extern void dlock_store_grant(const DlockStore *store, const DlockKey *key,
							  DlockRow *row, const DlockGrant *grant);
extern void dlock_store_renew(const DlockStore *store, const DlockKey *key,
							  DlockRow *row, int64 ttl, int64 now);
extern void dlock_store_clear(const DlockStore *store, const DlockKey *key,
							  DlockRow *row, int64 now);
extern void dlock_store_remove(const DlockStore *store, DlockRow *row);

extern BlockNumber dlock_store_scan(const DlockStore *store, Snapshot snapshot,
									BlockNumber start, BlockNumber limit,
									DlockVisitor visit, void *arg);
extern void dlock_store_decode(const DlockStore *store, HeapTuple tuple,
							   DlockKey *key, DlockGrant *grant, DlockState *state);

#endif							/* DLOCK_STORE_H */
