/*-------------------------------------------------------------------------
 *
 * row.c
 *	  The format of a row of dlock.locks: the only file that knows the columns.
 *
 * Columns of fixed width come first and are never null, so that they can be
 * reached as a struct, as PostgreSQL does with its catalogs.  The key follows at
 * a fixed offset.  Its storage is PLAIN, so that it has an ordinary header and
 * is never compressed.
 *
 * The columns that change from one grant of a key to the next stand together
 * in the middle, because WAL contains only what lies between the first and the
 * last byte that changes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "clock.h"
#include "compat.h"
#include "guc.h"
#include "rows/row.h"

typedef struct FormDlock
{
	int64		run;			/* the run of the server that wrote the times */
	int64		slot;			/* DLOCK_HEAD: the exclusive grant */
	int64		ttl;			/* of a row that is not held: it cools so long */
	int64		cleanup;
	int64		at_least;		/* since acquired_at */
	int32		delay;			/* ms */
	Oid			role;
	int32		priority;
	int32		slots;			/* how many may hold the key; 0: any number */
	bool		lazy;
	bool		held;
	int64		version;
	int64		acquired_at;
	int64		refreshed_at;	/* of a row that is not held: freed at */
	int64		expires_at;		/* ... cools until */
	int32		pid;			/* the session that the grant ends with, or 0 */
	struct varlena key;
} FormDlock;

enum
{
	Anum_run = 1,
	Anum_slot,
	Anum_ttl,
	Anum_cleanup,
	Anum_at_least,
	Anum_delay,
	Anum_role,
	Anum_priority,
	Anum_slots,
	Anum_lazy,
	Anum_held,
	Anum_version,
	Anum_acquired_at,
	Anum_refreshed_at,
	Anum_expires_at,
	Anum_pid,
	Anum_key,
	Anum_owner,
	Anum_value,
	Anum_origin,
	Natts_dlock = Anum_origin
};

static const Oid types[Natts_dlock] = {
	INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT4OID, REGROLEOID, INT4OID,
	INT4OID, BOOLOID, BOOLOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID
};

#define FORM(tuple) ((FormDlock *) GETSTRUCT(tuple))

/*
 * The table
 */

/* The version of the extension's script, or NULL. */
static char *
script_version(void)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("dlock"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		Datum		datum = heap_getattr(tuple, Anum_pg_extension_extversion,
										 RelationGetDescr(rel), &isnull);

		version = isnull ? NULL : TextDatumGetCString(datum);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

static void
table_changed(const char *detail)
{
	char	   *script = script_version();

	if (script != NULL && strcmp(script, DLOCK_VERSION) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the library of dlock is version %s, but the extension in this database is version %s",
						DLOCK_VERSION, script),
				 errdetail_internal("%s", detail),
				 errhint("Run ALTER EXTENSION dlock UPDATE in this database, or install the library of version %s and restart the server.",
						 script)));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"dlock.locks\" is not as this version of dlock created it"),
			 errdetail_internal("%s", detail),
			 errhint("Undo the change, or drop and create the extension again.")));
}

static bool
is_our_index(Form_pg_index form, Relation heap)
{
	return form->indrelid == RelationGetRelid(heap) &&
		form->indisprimary && form->indisvalid && form->indnkeyatts == 2 &&
		form->indkey.values[0] == Anum_key && form->indkey.values[1] == Anum_slot;
}

/*
 * We read and write rows as bytes, so a table that its owner has changed is
 * refused before that does harm.
 */
void
dlock_row_check_table(Relation heap, Oid index)
{
	TupleDesc	desc = RelationGetDescr(heap);
	HeapTuple	tuple;

	if (heap->rd_rel->relam != HEAP_TABLE_AM_OID)
		table_changed(_("Its access method is not heap."));
	if (heap->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		table_changed(_("It is unlogged, so a crash would empty it."));
	if (desc->natts != Natts_dlock)
		table_changed(_("It has a different number of columns."));
	for (int i = 0; i < Natts_dlock; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || att->atttypid != types[i] ||
			att->attnotnull != (i < Anum_owner - 1) ||
			(i == Anum_key - 1 && (att->attstorage != TYPSTORAGE_PLAIN ||
								   att->attcollation != C_COLLATION_OID)))
			table_changed(psprintf(_("Column %d has a different definition."), i + 1));
	}

	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	if (!HeapTupleIsValid(tuple) || !is_our_index((Form_pg_index) GETSTRUCT(tuple), heap))
		table_changed(_("Index \"locks_pkey\" is not its primary key."));
	ReleaseSysCache(tuple);
}

/*
 * Reading
 */

/*
 * We write a key with a long header, as its column has it.  INSERT forms a row by
 * the types of its query, and writes a short one, as when the output of pg_dump
 * --inserts is restored.  It is at the same offset, because what comes before it needs
 * no padding.  No text has a zero byte, so what follows a short header is never taken
 * for a part of a long one.
 */
bool
dlock_row_has_key(HeapTuple tuple, const DlockKey *key)
{
	FormDlock  *form = FORM(tuple);

	if (likely(VARSIZE(&form->key) - VARHDRSZ == (Size) key->len))
		return memcmp(VARDATA(&form->key), key->data, key->len) == 0;
	return VARATT_IS_SHORT(&form->key) &&
		VARSIZE_SHORT(&form->key) - VARHDRSZ_SHORT == key->len &&
		memcmp(VARDATA_SHORT(&form->key), key->data, key->len) == 0;
}

/* Is this a row of the given key and slot? */
bool
dlock_row_is(HeapTuple tuple, const DlockKey *key, int64 slot)
{
	return FORM(tuple)->slot == slot && dlock_row_has_key(tuple, key);
}

/* Is any of them another transaction, and still open? */
static bool
is_multi_open(MultiXactId multi, uint16 infomask)
{
	MultiXactMember *members;
	int			n = GetMultiXactIdMembers(multi, &members, false,
										  HEAP_XMAX_IS_LOCKED_ONLY(infomask));
	bool		result = false;

	for (int i = 0; i < n && !result; i++)
		result = !TransactionIdIsCurrentTransactionId(members[i].xid) &&
			TransactionIdIsInProgress(members[i].xid);
	if (n > 0)
		pfree(members);
	return result;
}

/*
 * Has another open transaction locked this row version?  If it is a single one,
 * *by is its id.
 */
bool
dlock_row_is_used(HeapTupleHeader header, TransactionId *by)
{
	uint16		infomask = header->t_infomask;
	TransactionId xmax = HeapTupleHeaderGetRawXmax(header);

	*by = InvalidTransactionId;
	if ((infomask & HEAP_XMAX_INVALID) || !TransactionIdIsValid(xmax))
		return false;
	if (infomask & HEAP_XMAX_IS_MULTI)
		return is_multi_open(xmax, infomask);
	if (TransactionIdIsCurrentTransactionId(xmax) || !TransactionIdIsInProgress(xmax))
		return false;
	*by = xmax;
	return true;
}

int64
dlock_row_slot(HeapTuple tuple)
{
	return FORM(tuple)->slot;
}

/* The key points into the tuple. */
void
dlock_row_key(HeapTuple tuple, DlockKey *key)
{
	FormDlock  *form = FORM(tuple);

	dlock_key_set(key, VARDATA_ANY(&form->key), VARSIZE_ANY_EXHDR(&form->key));
}

/*
 * The owner as it is stored, or NULL: the column after the key.  heap_getattr()
 * would walk all that are before.  Every row has all columns, so the bitmap says
 * whether it is null.
 */
static char *
stored_owner(HeapTuple tuple)
{
	FormDlock  *form = FORM(tuple);
	Size		at = offsetof(FormDlock, key) + VARSIZE_ANY(&form->key);

	if (HeapTupleHasNulls(tuple) && att_isnull(Anum_owner - 1, tuple->t_data->t_bits))
		return NULL;
	at = att_align_pointer(at, TYPALIGN_INT, -1, (char *) form + at);
	return (char *) form + at;
}

/* Is the owner in the toast table, so that reading it takes heavyweight locks? */
bool
dlock_row_owner_in_toast(HeapTuple tuple)
{
	char	   *owner = stored_owner(tuple);

	return owner != NULL && VARATT_IS_EXTERNAL(owner);
}

/* The owner, allocated, or NULL. */
char *
dlock_row_owner(HeapTuple tuple)
{
	char	   *owner = stored_owner(tuple);

	return owner == NULL ? NULL : TextDatumGetCString(PointerGetDatum(owner));
}

/*
 * The same, but not allocated if it is short and there is a buffer for it.  Then it
 * must not be in the toast table: a pointer to it has a short header, too.
 */
static char *
read_owner(HeapTuple tuple, DlockShortText *buffer)
{
	char	   *owner = stored_owner(tuple);
	int			len;

	if (owner == NULL || buffer == NULL || !VARATT_IS_SHORT(owner))
		return dlock_row_owner(tuple);
	Assert(!VARATT_IS_EXTERNAL(owner));
	len = VARSIZE_SHORT(owner) - VARHDRSZ_SHORT;
	memcpy(buffer->data, VARDATA_SHORT(owner), len);
	buffer->data[len] = '\0';
	return buffer->data;
}

/*
 * How long the key is busy at the least, since the grant was acquired.  A grant of
 * another run is as old as this run (dlock_row_acquired_at()).  What was over of
 * that time when the row was written does not begin again.
 */
static int64
read_at_least(const FormDlock *form)
{
	if (form->run == dlock_clock_run())
		return form->at_least;
	return Max(form->acquired_at + form->at_least - form->refreshed_at, 0);
}

/* The terms of the grant, but for its texts. */
static inline void
read_terms(const FormDlock *form, DlockTerms *terms)
{
	terms->role = form->role;
	terms->capacity = form->slots;
	terms->ttl = form->ttl;
	terms->cleanup = form->cleanup;
	terms->at_least = read_at_least(form);
	terms->delay = form->delay * INT64CONST(1000);
	terms->priority = form->priority;
	terms->lazy = form->lazy;
	terms->spent = false;
}

/*
 * What the rules need to know.  The owner is allocated, unless it is short and
 * there is a buffer for it (see read_owner()).  A session of another run means nothing to this one; one
 * that is gone has ended its grants, even if it could not say so.
 */
void
dlock_row_state(HeapTuple tuple, DlockState *state, bool with_owner,
				DlockShortText *buffer)
{
	FormDlock  *form = FORM(tuple);
	bool		is_this_run = form->run == dlock_clock_run();

	state->exists = true;
	state->held = form->held;
	state->slot = form->slot;
	state->version = form->version;
	read_terms(form, &state->terms);
	state->terms.owner = form->held && with_owner ? read_owner(tuple, buffer) : NULL;
	state->pid = is_this_run ? form->pid : 0;
	state->gone = state->pid != 0 && BackendPidGetProc(state->pid) == NULL;
	state->acquired = form->acquired_at;
	state->expires = form->expires_at;
	state->idle_since = form->refreshed_at;
	if (!is_this_run)
	{
		state->acquired = dlock_clock_effective(form->run, form->acquired_at, 0);
		state->expires = dlock_clock_effective(form->run, form->expires_at, form->ttl);
		state->idle_since = dlock_clock_effective(form->run, form->refreshed_at, 0);
	}
}

/* When the reaper has to look at a row, if nobody changes it until then. */
int64
dlock_row_due(HeapTuple tuple)
{
	FormDlock  *form = FORM(tuple);
	int64		expires = dlock_clock_effective(form->run, form->expires_at, form->ttl);

	if (form->held)
		return form->lazy ? expires + DLOCK_LAPSE_US : expires;
	if (form->slot == DLOCK_HEAD)
		return Max(expires, DLOCK_LINGER_US +
				   dlock_clock_effective(form->run, form->refreshed_at, 0));
	return expires;
}

/* A column of text, allocated, or NULL. */
static char *
read_text(Relation heap, HeapTuple tuple, AttrNumber attnum)
{
	bool		isnull;
	Datum		datum = heap_getattr(tuple, attnum, RelationGetDescr(heap), &isnull);

	return isnull ? NULL : TextDatumGetCString(datum);
}

/* Everything, for showing it.  Its texts are allocated. */
void
dlock_row_grant(Relation heap, HeapTuple tuple, DlockGrant *grant)
{
	FormDlock  *form = FORM(tuple);

	read_terms(form, &grant->terms);
	grant->terms.owner = dlock_row_owner(tuple);
	grant->terms.value = read_text(heap, tuple, Anum_value);
	grant->origin = read_text(heap, tuple, Anum_origin);
	grant->version = form->version;
	grant->pid = form->run == dlock_clock_run() ? form->pid : 0;
	grant->acquired_at = form->acquired_at;
	grant->refreshed_at = form->refreshed_at;
	grant->expires_at = dlock_clock_effective(form->run, form->expires_at, form->ttl);
}

/* Tells whether the value is the same as before; 0 if there is none. */
uint64
dlock_row_value_hash(Relation heap, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_value, RelationGetDescr(heap), &isnull);
	text	   *unpacked;

	if (isnull)
		return 0;
	unpacked = DatumGetTextPP(value);
	return dlock_key_hash_text(VARDATA_ANY(unpacked), VARSIZE_ANY_EXHDR(unpacked), 0);
}

int64
dlock_row_version(HeapTuple tuple)
{
	return FORM(tuple)->version;
}

int64
dlock_row_ttl(HeapTuple tuple)
{
	return FORM(tuple)->ttl;
}

/* In the time of this run: a grant of another run is as old as this one. */
int64
dlock_row_acquired_at(HeapTuple tuple)
{
	return dlock_clock_effective(FORM(tuple)->run, FORM(tuple)->acquired_at, 0);
}

/* Has the last renewal got less than its TTL, because of a policy? */
bool
dlock_row_is_cut_short(HeapTuple tuple)
{
	FormDlock  *form = FORM(tuple);

	return form->held && form->run == dlock_clock_run() &&
		form->expires_at < form->refreshed_at + form->ttl;
}

/*
 * Forming
 *
 * Every acquire and every release forms a row, so this does what
 * heap_form_tuple() would do for our columns, without a walk over all of them.
 */

/*
 * Put a text at the given offset, with a short header if it fits.  Returns the
 * offset behind it.  If there is no data, only that is computed.
 */
static Size
put_text(char *data, Size at, const char *text)
{
	Size		len = text == NULL ? 0 : strlen(text);

	if (text == NULL)
		return at;
	if (len + VARHDRSZ_SHORT <= VARATT_SHORT_MAX)
	{
		if (data != NULL)
		{
			SET_VARSIZE_SHORT(data + at, len + VARHDRSZ_SHORT);
			memcpy(data + at + VARHDRSZ_SHORT, text, len);
		}
		return at + VARHDRSZ_SHORT + len;
	}
	at = INTALIGN(at);
	if (data != NULL)
	{
		SET_VARSIZE(data + at, len + VARHDRSZ);
		memcpy(data + at + VARHDRSZ, text, len);
	}
	return at + VARHDRSZ + len;
}

StaticAssertDecl(Anum_owner > Natts_dlock / BITS_PER_BYTE * BITS_PER_BYTE,
				 "the columns that can be null must share the last byte of the bitmap");

/* A row with these columns of fixed width. */
static HeapTuple
form_tuple(Relation heap, const FormDlock *form, const DlockKey *key,
		   const DlockGrant *grant)
{
	TupleDesc	desc = RelationGetDescr(heap);
	const char *texts[] = {grant->terms.owner, grant->terms.value, grant->origin};
	bool		has_nulls = false;
	Size		behind_key = offsetof(FormDlock, key) + VARHDRSZ + key->len;
	Size		end = behind_key;
	Size		hoff;
	Size		len;
	HeapTuple	tuple;
	HeapTupleHeader header;
	char	   *data;

	for (int i = 0; i < lengthof(texts); i++)
	{
		has_nulls |= texts[i] == NULL;
		end = put_text(NULL, end, texts[i]);
	}
	hoff = MAXALIGN(SizeofHeapTupleHeader + (has_nulls ? BITMAPLEN(Natts_dlock) : 0));
	len = hoff + end;
	tuple = palloc0(HEAPTUPLESIZE + len);
	header = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	data = (char *) header + hoff;

	tuple->t_len = len;
	ItemPointerSetInvalid(&tuple->t_self);
	tuple->t_tableOid = InvalidOid;
	tuple->t_data = header;

	HeapTupleHeaderSetDatumLength(header, len);
	HeapTupleHeaderSetTypeId(header, desc->tdtypeid);
	HeapTupleHeaderSetTypMod(header, desc->tdtypmod);
	ItemPointerSetInvalid(&header->t_ctid);
	HeapTupleHeaderSetNatts(header, Natts_dlock);
	header->t_hoff = hoff;
	header->t_infomask = HEAP_HASVARWIDTH;
	if (has_nulls)
	{
		/* a set bit means not null; the texts are the last columns */
		header->t_infomask |= HEAP_HASNULL;
		memset(header->t_bits, 0xFF, Natts_dlock / BITS_PER_BYTE);
		for (int i = Natts_dlock / BITS_PER_BYTE * BITS_PER_BYTE; i < Natts_dlock; i++)
			if (i < Anum_owner - 1 || texts[i - (Anum_owner - 1)] != NULL)
				header->t_bits[i / BITS_PER_BYTE] |= 1 << (i % BITS_PER_BYTE);
	}

	memcpy(data, form, offsetof(FormDlock, key));
	SET_VARSIZE(data + offsetof(FormDlock, key), VARHDRSZ + key->len);
	memcpy(data + offsetof(FormDlock, key) + VARHDRSZ, key->data, key->len);
	end = behind_key;
	for (int i = 0; i < lengthof(texts); i++)
		end = put_text(data, end, texts[i]);
	return tuple;
}

/* It fits: a delay is limited by dlock.max_ttl. */
static int32
to_ms(int64 us)
{
	return (int32) ((us + 999) / 1000);
}

HeapTuple
dlock_row_form(Relation heap, const DlockKey *key, int64 slot,
			   const DlockGrant *grant)
{
	FormDlock	form = {0};

	form.run = dlock_clock_run();
	form.slot = slot;
	form.ttl = grant->terms.ttl;
	form.cleanup = grant->terms.cleanup;
	form.at_least = grant->terms.at_least;
	form.delay = to_ms(grant->terms.delay);
	form.role = grant->terms.role;
	form.priority = grant->terms.priority;
	form.slots = grant->terms.capacity;
	form.lazy = grant->terms.lazy;
	form.held = !grant->terms.spent;
	form.version = grant->version;
	form.acquired_at = grant->acquired_at;
	form.refreshed_at = grant->refreshed_at;
	form.expires_at = grant->expires_at;
	form.pid = grant->pid;
	return form_tuple(heap, &form, key, grant);
}

/*
 * A row that is not held; the next grant of its slot updates it.  If it has to
 * cool, others stay out until then, or in another run for as long from its
 * start.
 */
HeapTuple
dlock_row_form_free(Relation heap, const DlockKey *key, int64 slot,
					const DlockGrant *was, int64 now, int64 cools_until)
{
	DlockGrant	grant = {0};
	HeapTuple	tuple;

	grant.version = was->version;
	grant.terms.role = was->terms.role;
	grant.terms.capacity = was->terms.capacity;
	grant.terms.ttl = Max(cools_until - now, 0);
	grant.acquired_at = was->acquired_at;
	grant.refreshed_at = now;
	grant.expires_at = Max(cools_until, now);
	tuple = dlock_row_form(heap, key, slot, &grant);
	FORM(tuple)->held = false;
	return tuple;
}

/* What a grant leaves behind. */
HeapTuple
dlock_row_form_freed(Relation heap, const DlockKey *key, HeapTuple tuple,
					 int64 now, int64 cools_until)
{
	FormDlock  *form = FORM(tuple);
	DlockGrant	was = {0};

	was.version = form->version;
	was.terms.role = form->role;
	was.terms.capacity = form->slots;
	was.acquired_at = form->acquired_at;
	return dlock_row_form_free(heap, key, form->slot, &was, now, cools_until);
}

/* The same grant for another TTL, and with another value if one is given. */
HeapTuple
dlock_row_form_renewed(Relation heap, const DlockKey *key, HeapTuple tuple,
					   const DlockRenewal *renewal)
{
	HeapTuple	renewed;
	FormDlock  *form;

	if (renewal->value == NULL)
		renewed = heap_copytuple(tuple);
	else
	{
		DlockGrant	grant;

		dlock_row_grant(heap, tuple, &grant);
		grant.terms.value = renewal->value;
		renewed = dlock_row_form(heap, key, FORM(tuple)->slot, &grant);
		FORM(renewed)->run = FORM(tuple)->run;
	}
	form = FORM(renewed);

	/*
	 * This run does not know the sessions of another, and does not compare
	 * its times with those of another.
	 */
	if (form->run != dlock_clock_run())
	{
		form->pid = 0;
		form->at_least = read_at_least(FORM(tuple));
		form->acquired_at = dlock_row_acquired_at(tuple);
	}
	if (renewal->begins)
		form->acquired_at = renewal->from;
	if (renewal->busy_until != 0)
		form->at_least = renewal->busy_until - form->acquired_at;
	form->ttl = renewal->ttl;
	form->refreshed_at = renewal->from;
	form->expires_at = renewal->expires_at;
	form->run = dlock_clock_run();
	return renewed;
}

/* What is known of a row only when its slot is ours. */
void
dlock_row_stamp(HeapTuple tuple, int64 slot, const DlockGrant *grant)
{
	FormDlock  *form = FORM(tuple);

	form->slot = slot;
	form->at_least = grant->terms.at_least;
	form->version = grant->version;
	form->acquired_at = grant->acquired_at;
	form->refreshed_at = grant->refreshed_at;
	form->expires_at = form->held || grant->terms.spent ?
		grant->expires_at : grant->refreshed_at;
}
