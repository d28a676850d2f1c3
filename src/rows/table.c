/*-------------------------------------------------------------------------
 *
 * table.c
 *	  The table dlock.locks: where it is, and opening it.
 *
 * dlock reaches the table through its heap and its index, not through SPI and
 * the executor: that way a lock costs hardly more than its commit.  row.c knows
 * the columns, find.c finds and locks rows, write.c changes them, scan.c reads
 * them all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "clock.h"
#include "compat.h"
#include "rows/row.h"
#include "rows/table.h"

/* Where things are in this database; forgotten when the table changes. */
static struct
{
	bool		valid;
	bool		checked;		/* the table is as we expect it */
	Oid			heap;
	Oid			index;
	Oid			versions;
	Oid			incarnation;
}			cache;

static void
forget(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || relid == cache.heap || relid == cache.index ||
		relid == cache.versions || relid == cache.incarnation)
		cache.valid = false;
}

void
dlock_table_init(void)
{
	CacheRegisterRelcacheCallback(forget, (Datum) 0);
}

/* Fill the cache.  A table of that name that is not ours does not count. */
static bool
locate(void)
{
	Oid			nsp = get_namespace_oid("dlock", true);
	Oid			ext = get_extension_oid("dlock", true);

	if (!OidIsValid(nsp) || !OidIsValid(ext))
		return false;

	/* an invalidation that arrives while we look makes it invalid again */
	cache.valid = true;
	cache.checked = false;
	cache.heap = get_relname_relid("locks", nsp);
	cache.index = get_relname_relid("locks_pkey", nsp);
	cache.versions = get_relname_relid("versions", nsp);
	cache.incarnation = get_relname_relid("incarnation", nsp);
	if (!OidIsValid(cache.heap) || !OidIsValid(cache.index) ||
		!OidIsValid(cache.versions) || !OidIsValid(cache.incarnation) ||
		getExtensionOfObject(RelationRelationId, cache.heap) != ext)
	{
		cache.valid = false;
		return false;
	}
	return true;
}

/* A sequence that is not the extension's would repeat versions. */
static void
check_sequence(Oid sequence, const char *name)
{
	if (get_rel_relkind(sequence) != RELKIND_SEQUENCE ||
		get_rel_persistence(sequence) != RELPERSISTENCE_PERMANENT ||
		getExtensionOfObject(RelationRelationId, sequence) != get_extension_oid("dlock", true))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"dlock.%s\" is not as dlock created it", name),
				 errhint("Undo the change, or drop and create the extension again.")));
}

/* Open the table, to be closed by dlock_table_close(). */
bool
dlock_table_open(DlockTable *store, bool write, bool missing_ok)
{
	LOCKMODE	lockmode = write ? RowExclusiveLock : AccessShareLock;

	/* if the launcher could not be started, the first use starts the clock */
	(void) dlock_clock_started();

	for (;;)
	{
		Oid			heap;

		if (!cache.valid && !locate())
		{
			if (missing_ok)
				return false;
			if (OidIsValid(get_extension_oid("dlock", true)))
				ereport(ERROR,
						(errcode(ERRCODE_UNDEFINED_OBJECT),
						 errmsg("a table, index or sequence of extension \"dlock\" is missing in database \"%s\"",
								get_database_name(MyDatabaseId)),
						 errhint("If one was renamed, rename it back. Otherwise drop and create the extension again.")));
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("extension \"dlock\" is not installed in database \"%s\"",
							get_database_name(MyDatabaseId)),
					 errhint("Connect to this database as a superuser and run CREATE EXTENSION dlock.")));
		}

		/*
		 * This waits for a transaction that drops or rewrites the table, and
		 * takes note of what it did.  If the cache is still valid, so is the
		 * table.  Otherwise look again; what is found now cannot change.
		 */
		heap = cache.heap;
		LockRelationOid(heap, lockmode);
		if (cache.valid || (locate() && cache.heap == heap))
		{
			store->heap = table_open(heap, NoLock);
			break;
		}
		UnlockRelationOid(heap, lockmode);
	}

	if (!cache.checked)
	{
		dlock_row_check_table(store->heap, cache.index);
		check_sequence(cache.versions, "versions");
		check_sequence(cache.incarnation, "incarnation");
		cache.checked = true;
	}

	store->lockmode = lockmode;
	store->index = cache.index;
	store->versions = cache.versions;
	store->incarnation = cache.incarnation;
	return true;
}

/*
 * Lock the table and its indexes for writing until the end of the transaction,
 * if that needs no waiting.  Operations that follow then wait for none of them.
 */
bool
dlock_table_lock_if_free(void)
{
	Relation	heap;
	List	   *indexes;
	ListCell   *cell;
	bool		locked = true;

	if ((!cache.valid && !locate()) ||
		!ConditionalLockRelationOid(cache.heap, RowExclusiveLock) ||
		!cache.valid)
		return false;

	heap = table_open(cache.heap, NoLock);
	indexes = RelationGetIndexList(heap);
	foreach(cell, indexes)
		locked = locked &&
		ConditionalLockRelationOid(lfirst_oid(cell), RowExclusiveLock);
	table_close(heap, NoLock);
	return locked && cache.valid;
}

/*
 * If something was changed, the locks on the relations stay until the end of
 * the transaction, as for any statement.  Otherwise they are released.  A
 * waiter may wait for hours; if it kept them, a command that wants to alter or
 * drop the table would wait for it, and the holder's release behind that.
 */
void
dlock_table_close(DlockTable *store, bool changed)
{
	table_close(store->heap, changed ? NoLock : store->lockmode);
}

/*
 * The names of invalid indexes, which cost time and are not used.  Each is being
 * built concurrently, or was left behind when that was cancelled.  health.c shows them.
 */
List *
dlock_table_invalid_indexes(const DlockTable *store)
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
