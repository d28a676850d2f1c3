/*-------------------------------------------------------------------------
 *
 * write.c
 *	  Adding and changing rows of dlock.locks.
 *
 * A row is added under the partition lock, which is held from the lookup that
 * finds nothing to the insertion of the index entry.  That is what makes a key
 * unique here; nobody ever waits in a unique check for another transaction.
 *
 * A row is changed only after dlock_find_lock() has made us its locker, so a
 * change cannot fail.  Entries go to every index of the table, so that REINDEX
 * CONCURRENTLY can replace the primary key under load.
 *
 * Every write ends with CommandCounterIncrement(), so that the next call in the
 * same statement sees it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/nbtree.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/sinval.h"
#include "utils/rel.h"

#include "compat.h"
#include "rows/expiry.h"
#include "rows/place_count.h"
#include "rows/places.h"
#include "rows/row_hint.h"
#include "rows/write.h"
#include "shmem.h"

/*
 * The indexes that get an entry for a new row version: the primary key, an index
 * that REINDEX CONCURRENTLY is building or left behind when it was cancelled, and
 * any index that a user has added.
 *
 * Entries are inserted without a unique check that would wait for other
 * transactions, and under a partition lock.  So everything that could wait or read
 * a catalog is done before: open_indexes() fetches values from the toast table, and
 * load_indexes() calls each comparison function once, which loads the function and
 * its collation.
 */

/* An index, and what the new entry has in its columns. */
struct DlockIndex
{
	Relation	rel;
	IndexInfo  *info;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
};

static void
check_index(Relation rel, const IndexInfo *info)
{
	if (rel->rd_rel->relam == BTREE_AM_OID &&
		info->ii_Expressions == NIL && info->ii_Predicate == NIL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot maintain index \"%s\" of table \"dlock.locks\"",
					RelationGetRelationName(rel)),
			 errdetail("Only btree indexes without expressions and predicates are maintained."),
			 errhint("Drop the index.")));
}

static void
read_values(struct DlockIndex *index, TupleDesc desc, HeapTuple tuple)
{
	for (int col = 0; col < index->info->ii_NumIndexAttrs; col++)
	{
		AttrNumber	attnum = index->info->ii_IndexAttrNumbers[col];
		Datum		value = heap_getattr(tuple, attnum, desc, &index->isnull[col]);

		if (!index->isnull[col] && TupleDescAttr(desc, attnum - 1)->attlen == -1)
			value = PointerGetDatum(PG_DETOAST_DATUM_PACKED(value));
		index->values[col] = value;
	}
}

/* Open all indexes in order to insert entries for this tuple. */
static void
open_indexes(DlockIndexes *indexes, const DlockTable *store, HeapTuple tuple)
{
	List	   *oids = RelationGetIndexList(store->heap);
	ListCell   *cell;

	indexes->n = 0;
	indexes->primary = -1;
	indexes->indexes = palloc(list_length(oids) * sizeof(struct DlockIndex));
	foreach(cell, oids)
	{
		struct DlockIndex *index = &indexes->indexes[indexes->n];

		index->rel = index_open(lfirst_oid(cell), store->lockmode);
		index->info = BuildIndexInfo(index->rel);
		if (!index->info->ii_ReadyForInserts)
		{
			index_close(index->rel, NoLock);
			continue;
		}
		check_index(index->rel, index->info);
		read_values(index, RelationGetDescr(store->heap), tuple);
		if (lfirst_oid(cell) == store->index)
			indexes->primary = indexes->n;
		indexes->n++;
	}
	list_free(oids);
	if (indexes->primary < 0)
		elog(ERROR, "the primary key of \"dlock.locks\" is not among its indexes");
}

static Relation
primary_index(const DlockIndexes *indexes)
{
	return indexes->indexes[indexes->primary].rel;
}

/* Load what the insertion needs. */
static void
load_indexes(const DlockIndexes *indexes)
{
	for (int i = 0; i < indexes->n; i++)
	{
		const struct DlockIndex *index = &indexes->indexes[i];

		for (int col = 0; col < index->info->ii_NumIndexKeyAttrs; col++)
		{
			FmgrInfo   *compare = index_getprocinfo(index->rel, col + 1, BTORDER_PROC);

			if (!index->isnull[col])
				(void) FunctionCall2Coll(compare, index->rel->rd_indcollation[col],
										 index->values[col], index->values[col]);
		}
	}
}

/*
 * Insert the entries.  The partition lock must be held exclusively.  Columns of
 * fixed width, such as the version, may have changed since the indexes were opened.
 */
static void
insert_entries(DlockIndexes *indexes, const DlockTable *store, HeapTuple tuple,
			   bool unchanged)
{
	TupleDesc	desc = RelationGetDescr(store->heap);

	for (int i = 0; i < indexes->n; i++)
	{
		struct DlockIndex *index = &indexes->indexes[i];

		for (int col = 0; col < index->info->ii_NumIndexAttrs; col++)
		{
			AttrNumber	attnum = index->info->ii_IndexAttrNumbers[col];

			if (TupleDescAttr(desc, attnum - 1)->attbyval)
				index->values[col] = heap_getattr(tuple, attnum, desc,
												  &index->isnull[col]);
		}
		(void) index_insert(index->rel, index->values, index->isnull, &tuple->t_self,
							store->heap, UNIQUE_CHECK_NO, unchanged, index->info);
	}
}

/* The locks stay until the end of the transaction. */
static void
close_indexes(DlockIndexes *indexes)
{
	for (int i = 0; i < indexes->n; i++)
		index_close(indexes->indexes[i].rel, NoLock);
	indexes->n = 0;
}

/*
 * Adding a row
 *
 * This takes several steps, because of the partition lock.  It is an LWLock: a
 * process that waits for one cannot be cancelled, so under it nothing may wait
 * for a heavyweight lock, or read a catalog, which may do the same.
 *
 * 1. dlock_write_prepare_insert() opens the indexes and forms the row.
 * 2. dlock_write_load_insert() loads what the next steps need into the caches
 *	  of this backend.  It stays there until an invalidation message is
 *	  processed, which happens only when a heavyweight lock is taken.
 * 3. dlock_write_begin_insert() takes the partition lock.  Under it the caller
 *	  finds out whether it may add the row.
 * 4. dlock_write_end_insert() adds the row and releases the lock, or
 *	  dlock_write_cancel_insert() does without.
 *
 * A row so long that parts of it go to the toast table is not added as such,
 * because writing there takes a lock on the toast table and on its index.  A
 * shorter row is added, which the caller then updates; nobody else can have it
 * meanwhile.  For a head that is a free row, and the caller starts over.  For a
 * place it is the grant without its texts, because the place has to
 * be taken under the partition lock.
 *
 * What remains is the lock for extending a relation, which PostgreSQL holds no
 * longer than it takes to write a block, and the lock on a transaction id that
 * is new.
 */
void
dlock_write_prepare_insert(DlockInsertion *insertion, const DlockTable *store,
						   const DlockKey *key, int64 slot,
						   const DlockGrant *grant)
{
	insertion->store = store;
	insertion->key = key;
	insertion->slot = slot;
	insertion->tuple = dlock_row_form(store->heap, key, slot, grant);
	insertion->is_whole = insertion->tuple->t_len <= TOAST_TUPLE_THRESHOLD;
	if (!insertion->is_whole && slot == DLOCK_HEAD)
		insertion->tuple = dlock_row_form_free(store->heap, key, slot, grant,
											   grant->acquired_at, 0);
	else if (!insertion->is_whole)
	{
		DlockGrant	shorter = *grant;

		shorter.terms.owner = NULL;
		shorter.terms.value = NULL;
		shorter.origin = NULL;
		insertion->tuple = dlock_row_form(store->heap, key, slot, &shorter);
	}
	open_indexes(&insertion->indexes, store, insertion->tuple);
}

void
dlock_write_load_insert(const DlockInsertion *insertion)
{
	load_indexes(&insertion->indexes);
}

/* Is there any version of this row?  Under the partition lock. */
bool
dlock_write_is_there(const DlockInsertion *insertion)
{
	return dlock_find_any(insertion->store,
						  primary_index(&insertion->indexes),
						  insertion->key, insertion->slot);
}

void
dlock_write_begin_insert(const DlockInsertion *insertion)
{
	LWLockAcquire(dlock_lwlock_partition(insertion->key->hash), LW_EXCLUSIVE);
}

static void
leave_insert(DlockInsertion *insertion)
{
	LWLockRelease(dlock_lwlock_partition(insertion->key->hash));
	close_indexes(&insertion->indexes);
}

void
dlock_write_cancel_insert(DlockInsertion *insertion)
{
	leave_insert(insertion);
}

/* Where the newest version of a row is; a place is also sought by its version. */
static void
set_hints(const DlockKey *key, HeapTuple tuple)
{
	int64		slot = dlock_row_slot(tuple);

	dlock_row_hint_set(dlock_key_slot_hash(key, slot), &tuple->t_self);
	if (slot >= DLOCK_OWNED_SLOTS)
		dlock_row_hint_set(dlock_key_slot_hash(key, dlock_row_version(tuple)), &tuple->t_self);
}

/* The row is in its block: the reaper has to know when it falls due. */
static void
note_due(HeapTuple tuple)
{
	dlock_expiry_note(dlock_database(MyDatabaseId), ItemPointerGetBlockNumber(&tuple->t_self),
					  dlock_row_due(tuple));
}

/*
 * Add the row, and release the partition lock.  The version and the times are those
 * of the grant.  "row" is what was added, for a caller that has to update it.
 */
void
dlock_write_end_insert(DlockInsertion *insertion, const DlockGrant *grant,
					   DlockRow *row)
{
	const DlockTable *store = insertion->store;
	const DlockKey *key = insertion->key;
	HeapTuple	tuple = insertion->tuple;

	dlock_row_stamp(tuple, insertion->slot, grant);
	heap_insert(store->heap, tuple, GetCurrentCommandId(true), 0, NULL);
	insert_entries(&insertion->indexes, store, tuple, false);
	if (insertion->slot == DLOCK_HEAD)
		dlock_places_claim_head(key);
	else
		dlock_places_claim_place(key, insertion->slot);
	leave_insert(insertion);

	note_due(tuple);
	set_hints(key, tuple);
	CommandCounterIncrement();

	memset(row, 0, sizeof(*row));
	row->writer = HeapTupleHeaderGetXmin(tuple->t_data);
	row->tid = tuple->t_self;
	row->tuple = tuple;
}

/*
 * Changing a row
 */

static bool
is_known_which_have_places(void)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);

	return db != NULL && dlock_places_known(db);
}

/* Replace a row that we have locked by a new version. */
static void
replace(const DlockTable *store, const DlockKey *key, DlockRow *row,
		HeapTuple tuple)
{
	TM_FailureData tmfd;
	TM_Result	result;

	result = dlock_heap_update(store->heap, &row->tid, tuple,
							   GetCurrentCommandId(true), &tmfd);
	if (result != TM_Ok)
		elog(ERROR, "unexpected result %d from updating a locked row of \"dlock.locks\"",
			 (int) result);

	if (!HeapTupleIsHeapOnly(tuple))
	{
		LWLock	   *partition = dlock_lwlock_partition(key->hash);
		DlockIndexes indexes;
		uint64		seen;

		open_indexes(&indexes, store, tuple);
		do
		{
			seen = SharedInvalidMessageCounter;
			load_indexes(&indexes);
		} while (seen != SharedInvalidMessageCounter);
		LWLockAcquire(partition, LW_EXCLUSIVE);
		insert_entries(&indexes, store, tuple, true);

		/* a lookup that is under way may miss the row */
		dlock_places_claim_head(key);
		dlock_places_claim_place(key, dlock_row_slot(tuple));
		LWLockRelease(partition);
		close_indexes(&indexes);
	}

	/* the reaper, which is marking keys, may have passed the block already */
	if (dlock_row_slot(tuple) != DLOCK_HEAD &&
		!is_known_which_have_places())
		dlock_places_mark(key);
	note_due(tuple);
	set_hints(key, tuple);
	CommandCounterIncrement();
}

/* A new grant instead of a free row or of another grant. */
void
dlock_write_grant(const DlockTable *store, const DlockKey *key, int64 slot,
				  DlockRow *row, const DlockGrant *grant)
{
	replace(store, key, row, dlock_row_form(store->heap, key, slot, grant));
}

/* The same grant for another TTL, and with another value if one is given. */
void
dlock_write_renewal(const DlockTable *store, const DlockKey *key, DlockRow *row,
					const DlockRenewal *renewal)
{
	replace(store, key, row,
			dlock_row_form_renewed(store->heap, key, row->tuple, renewal));
}

/* The row stays, so that the next grant of this key adds no index entry. */
void
dlock_write_free(const DlockTable *store, const DlockKey *key, DlockRow *row,
				 int64 now, int64 cools_until)
{
	replace(store, key, row,
			dlock_row_form_freed(store->heap, key, row->tuple, now, cools_until));
}

/* Delete a row that we have locked.  A place is deleted when it is released. */
void
dlock_write_remove(const DlockTable *store, const DlockKey *key, DlockRow *row)
{
	TM_FailureData tmfd;
	TM_Result	result;

	dlock_place_count_removed(key, dlock_row_slot(row->tuple), dlock_table_file(store));
	result = dlock_heap_delete(store->heap, &row->tid,
							   GetCurrentCommandId(true), &tmfd);
	if (result != TM_Ok)
		elog(ERROR, "unexpected result %d from deleting a locked row of \"dlock.locks\"",
			 (int) result);
	CommandCounterIncrement();
}
