/*-------------------------------------------------------------------------
 *
 * indexes.c
 *	  The indexes of dlock.locks that get an entry for a new row version: the
 *	  primary key, an index that REINDEX CONCURRENTLY is building or left behind
 *	  when it was cancelled, and any index that a user has added.
 *
 * Entries are inserted without a unique check that would wait for other
 * transactions; write.c makes sure that a slot has one row.
 *
 * They are inserted under a partition lock.  This is an LWLock, under which
 * nothing may wait for a heavyweight lock or read a catalog.  So everything that
 * could do so is done before: dlock_indexes_open() fetches values from the toast
 * table, and dlock_indexes_load() calls each comparison function once, which
 * loads the function and its collation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "fmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "indexes.h"

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
read_values(DlockIndex *index, TupleDesc desc, HeapTuple tuple)
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
void
dlock_indexes_open(DlockIndexes *indexes, const DlockStore *store, HeapTuple tuple)
{
	List	   *oids = RelationGetIndexList(store->heap);
	ListCell   *cell;

	indexes->n = 0;
	indexes->primary = -1;
	indexes->indexes = palloc(list_length(oids) * sizeof(DlockIndex));
	foreach(cell, oids)
	{
		DlockIndex *index = &indexes->indexes[indexes->n];

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

Relation
dlock_indexes_primary(const DlockIndexes *indexes)
{
	return indexes->indexes[indexes->primary].rel;
}

/* Load what the insertion needs. */
void
dlock_indexes_load(const DlockIndexes *indexes)
{
	for (int i = 0; i < indexes->n; i++)
	{
		const DlockIndex *index = &indexes->indexes[i];

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
 * The partition lock must be held exclusively.  Columns of fixed width, such as
 * the version, may have changed since the indexes were opened.
 *
 * "check": find out whether the key and slot have another row, committed or not.
 * The insertion knows the place in the index anyway, so that is much cheaper than
 * a lookup.  It waits for nobody.  False: there is another one.
 */
bool
dlock_indexes_insert(DlockIndexes *indexes, const DlockStore *store,
					 HeapTuple tuple, bool unchanged, bool check)
{
	TupleDesc	desc = RelationGetDescr(store->heap);
	bool		is_only = true;

	for (int i = 0; i < indexes->n; i++)
	{
		DlockIndex *index = &indexes->indexes[i];
		bool		checks = check && i == indexes->primary;

		for (int col = 0; col < index->info->ii_NumIndexAttrs; col++)
		{
			AttrNumber	attnum = index->info->ii_IndexAttrNumbers[col];

			if (TupleDescAttr(desc, attnum - 1)->attbyval)
				index->values[col] = heap_getattr(tuple, attnum, desc,
												  &index->isnull[col]);
		}
		if (!index_insert(index->rel, index->values, index->isnull, &tuple->t_self,
						  store->heap,
						  checks ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_NO,
						  unchanged, index->info) && checks)
			is_only = false;
	}
	return is_only;
}

/* The locks stay until the end of the transaction. */
void
dlock_indexes_close(DlockIndexes *indexes)
{
	for (int i = 0; i < indexes->n; i++)
		index_close(indexes->indexes[i].rel, NoLock);
	indexes->n = 0;
}

/*
 * The names of invalid indexes, which cost time and are not used.  Each is being
 * built concurrently, or was left behind when that was cancelled.
 */
List *
dlock_indexes_invalid(const DlockStore *store)
{
	List	   *names = NIL;
	List	   *oids = RelationGetIndexList(store->heap);
	ListCell   *cell;

	foreach(cell, oids)
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(cell)));

		if (!HeapTupleIsValid(tuple))
			continue;
		if (!((Form_pg_index) GETSTRUCT(tuple))->indisvalid)
			names = lappend(names, get_rel_name(lfirst_oid(cell)));
		ReleaseSysCache(tuple);
	}
	list_free(oids);
	return names;
}
