/*-------------------------------------------------------------------------
 *
 * indexes.c
 *	  The indexes of dlock.locks that a new row version goes to: the primary
 *	  key, the one that REINDEX CONCURRENTLY is building beside it, and what
 *	  a user has added.
 *
 * Entries are inserted without a unique check, which would wait for other
 * transactions; that a key has one row is store.c's business.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "utils/rel.h"

#include "indexes.h"

/* Before the partition lock is taken, because it reads catalogs. */
void
dlock_indexes_open(DlockIndexes *indexes, const DlockStore *store)
{
	List	   *oids = RelationGetIndexList(store->heap);
	ListCell   *cell;

	indexes->n = 0;
	foreach(cell, oids)
	{
		Relation	rel = index_open(lfirst_oid(cell), store->lockmode);
		IndexInfo  *info = BuildIndexInfo(rel);

		if (!info->ii_ReadyForInserts)
		{
			index_close(rel, NoLock);
			continue;
		}
		if (rel->rd_rel->relam != BTREE_AM_OID ||
			info->ii_Expressions != NIL || info->ii_Predicate != NIL ||
			indexes->n == DLOCK_MAX_INDEXES)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot maintain index \"%s\" of table \"dlock.locks\"",
							RelationGetRelationName(rel)),
					 errdetail("Only up to %d btree indexes without expressions and predicates are maintained.",
							   DLOCK_MAX_INDEXES),
					 errhint("Drop the index.")));
		indexes->rels[indexes->n] = rel;
		indexes->infos[indexes->n] = info;
		indexes->n++;
	}
	list_free(oids);
}

/* The partition lock must be held exclusively. */
void
dlock_indexes_insert(const DlockIndexes *indexes, const DlockStore *store,
					 HeapTuple tuple, bool unchanged)
{
	for (int i = 0; i < indexes->n; i++)
	{
		IndexInfo  *info = indexes->infos[i];
		Datum		values[INDEX_MAX_KEYS];
		bool		isnull[INDEX_MAX_KEYS];

		for (int col = 0; col < info->ii_NumIndexAttrs; col++)
			values[col] = heap_getattr(tuple, info->ii_IndexAttrNumbers[col],
									   RelationGetDescr(store->heap), &isnull[col]);
		index_insert(indexes->rels[i], values, isnull, &tuple->t_self, store->heap,
					 UNIQUE_CHECK_NO, unchanged, info);
	}
}

/* The locks stay until the end of the transaction. */
void
dlock_indexes_close(DlockIndexes *indexes)
{
	for (int i = 0; i < indexes->n; i++)
		index_close(indexes->rels[i], NoLock);
	indexes->n = 0;
}
