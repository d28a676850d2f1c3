/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  What a role may do with keys of a prefix.
 *
 * Policies are rows of the table dlock.policies.  What they allow and limit is checked
 * in dlock_policy_check_request(), max_locks by dlock_policy_check_grant(), and max_hold
 * by lock_rules.c and grant.c (dlock_policy_max_hold()).  Each backend keeps them in an
 * array, which it reads when it needs them for the first time, and again when
 * the table has changed.  A trigger of the table sends a relation-cache
 * invalidation, and makes the commit of the change increment a counter in shared
 * memory: a transaction that has the table of locks open already would not see the
 * invalidation.  If there is no policy, a request costs two tests.
 *
 * Of the policies that fit the key and the role, the one with the longest prefix
 * counts.  Among policies of the same prefix, that of the role itself comes
 * first, then those of the roles that it is a member of, then that of everybody.
 * If a role is a member of several, what one of them allows is allowed, as with
 * privileges.  Superusers are not exempt, but a superuser is not a member of all
 * roles here.
 *
 * A policy may limit how many keys a role keeps busy.  To know that, its rows must
 * be counted, which is too much work for each grant.  So the room that a count has
 * found is kept in shared memory.
 *
 * The grants of a role are numbered, whatever policy judges them.  A grant writes
 * its row first, and then draws its number.  So a count sees the rows of all lower
 * numbers.  It may miss those of higher numbers, so all of these are subtracted: the
 * room is kept as the highest number that needs no other count.  So the limit is
 * not exceeded, however many grants are made at the same time, and however many
 * rows with the prefix are judged by a longer one.  Rows that end add no room.
 * Beyond that number, the rows are counted again.
 *
 * Where there is no policy, no grant draws a number.  So all room is forgotten when
 * a change of the policies commits, and a grant is judged again if that happened
 * before its row was written.
 *
 * An account is the hash of what is counted: database, prefix, role and limit.
 * It has one place, and if another account takes that, its room is forgotten.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "compat.h"
#include "fence/statement_role.h"
#include "journal.h"
#include "policy/policy.h"
#include "rows/row.h"
#include "rows/scan.h"
#include "rules/key.h"
#include "shmem.h"

#define NO_LIMIT	(-1)

enum
{
	Anum_prefix = 1,
	Anum_role,
	Anum_allow,
	Anum_max_ttl,
	Anum_max_priority,
	Anum_max_locks,
	Anum_max_hold,
	Natts_policies = Anum_max_hold
};

static const Oid types[Natts_policies] = {
	TEXTOID, REGROLEOID, BOOLOID, INTERVALOID, INT4OID, INT4OID, INTERVALOID
};

typedef struct Policy
{
	char	   *prefix;
	int			prefixlen;
	Oid			role;			/* InvalidOid: everybody */
	bool		allow;
	int64		max_ttl;		/* us, or NO_LIMIT, as are the next three */
	int64		max_priority;
	int64		max_locks;
	int64		max_hold;		/* us */
} Policy;

/* The policies of this database, by prefix in the order of bytes. */
typedef struct Policies
{
	int			n;
	int			max;
	Policy	   *array;
	bool		has_length[DLOCK_MAX_KEY + 1];	/* is there such a prefix? */
} Policies;

static bool none = false;		/* in this database, when they were read */

#define ACCOUNTS	1024
#define ROLES		1024

/* What a count has found.  Protected by the lock. */
typedef struct Account
{
	uint64		account;
	uint64		until;			/* the last grant that it covers */
} Account;

typedef struct Quotas
{
	pg_atomic_uint64 changes;	/* of policies; changed under the lock */
	pg_atomic_uint64 grants[ROLES]; /* by database and role; two may share one */
	Account		accounts[ACCOUNTS];
} Quotas;

static Quotas *quotas = NULL;

/*
 * NULL if they are not known.  If they have changed, they stay in memory until
 * they are read again, because somebody may be looking at them.
 */
static Policies *policies = NULL;
static bool changed = false;
static uint64 known_changes = 0;	/* Quotas.changes before they were read */
static Oid	table = InvalidOid;
static MemoryContext context = NULL;

/*
 * The cache
 */

static void
forget(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || relid == table)
	{
		changed = true;
		none = false;
	}
}

/*
 * Everything that has been counted was counted under other policies.  The change is
 * visible by now, and the invalidation messages come after this.
 */
static void
end_change(const void *what, bool committed)
{
	if (!committed)
		return;
	LWLockAcquire(dlock_lwlock_quota(), LW_EXCLUSIVE);
	(void) pg_atomic_fetch_add_u64(&quotas->changes, 1);
	memset(quotas->accounts, 0, sizeof(quotas->accounts));
	LWLockRelease(dlock_lwlock_quota());
}

void
dlock_policy_init(void)
{
	CacheRegisterRelcacheCallback(forget, (Datum) 0);
	dlock_journal_register(DLOCK_NOTE_POLICY, end_change);
}

/* Called by the trigger: this transaction changes the table of policies. */
void
dlock_policy_changes(Relation rel)
{
	CacheInvalidateRelcache(rel);
	if (quotas != NULL && !dlock_journal_has(DLOCK_NOTE_POLICY))
		(void) dlock_journal_add(DLOCK_NOTE_POLICY, &rel->rd_id, sizeof(rel->rd_id));
}

/* The table, or InvalidOid: the script of an older version does not have it. */
static Oid
locate(void)
{
	Oid			nsp = get_namespace_oid("dlock", true);
	Oid			ext = get_extension_oid("dlock", true);
	Oid			relid;

	if (!OidIsValid(nsp) || !OidIsValid(ext))
		return InvalidOid;
	relid = get_relname_relid("policies", nsp);
	if (!OidIsValid(relid) || getExtensionOfObject(RelationRelationId, relid) != ext)
		return InvalidOid;
	return relid;
}

static void
check_table(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		same = desc->natts == Natts_policies;

	for (int i = 0; same && i < Natts_policies; i++)
		same = !TupleDescAttr(desc, i)->attisdropped &&
			TupleDescAttr(desc, i)->atttypid == types[i];
	if (!same)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"dlock.policies\" is not as this version of dlock created it"),
				 errhint("Undo the change, or drop and create the extension again.")));
}

static int64
span_us(Datum interval)
{
	const Interval *span = DatumGetIntervalP(interval);

	return span->time + (span->day + span->month * INT64CONST(30)) * USECS_PER_DAY;
}

static bool
add_policy(const DlockTable *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Policies   *all = arg;
	MemoryContext caller;
	Datum		values[Natts_policies];
	bool		isnull[Natts_policies];
	Policy	   *policy;

	if (seen != DLOCK_SEEN_COMMITTED)
		return true;
	heap_deform_tuple(tuple, RelationGetDescr(store->heap), values, isnull);
	if (isnull[Anum_prefix - 1] || isnull[Anum_role - 1] || isnull[Anum_allow - 1])
		return true;

	caller = MemoryContextSwitchTo(context);
	if (all->n == all->max)
	{
		all->max = Max(16, all->max * 2);
		all->array = all->array == NULL ? palloc(all->max * sizeof(Policy)) :
			repalloc(all->array, all->max * sizeof(Policy));
	}
	policy = &all->array[all->n++];
	policy->prefix = TextDatumGetCString(values[Anum_prefix - 1]);
	policy->prefixlen = strlen(policy->prefix);
	policy->role = DatumGetObjectId(values[Anum_role - 1]);
	policy->allow = DatumGetBool(values[Anum_allow - 1]);
	policy->max_ttl = policy->max_priority = NO_LIMIT;
	policy->max_locks = policy->max_hold = NO_LIMIT;
	if (!isnull[Anum_max_ttl - 1])
		policy->max_ttl = span_us(values[Anum_max_ttl - 1]);
	if (!isnull[Anum_max_priority - 1])
		policy->max_priority = DatumGetInt32(values[Anum_max_priority - 1]);
	if (!isnull[Anum_max_locks - 1])
		policy->max_locks = DatumGetInt32(values[Anum_max_locks - 1]);
	if (!isnull[Anum_max_hold - 1])
		policy->max_hold = span_us(values[Anum_max_hold - 1]);
	if (policy->prefixlen <= DLOCK_MAX_KEY)
		all->has_length[policy->prefixlen] = true;
	MemoryContextSwitchTo(caller);
	return true;
}

static int
compare(const void *a, const void *b)
{
	const Policy *x = a;
	const Policy *y = b;

	return dlock_key_compare(x->prefix, x->prefixlen, y->prefix, y->prefixlen);
}

/* The table of policies, for functions that change it: it must be there. */
Oid
dlock_policy_table(void)
{
	Oid			relid = locate();

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"dlock.policies\" of extension \"dlock\" is missing"),
				 errhint("If it was renamed, rename it back. Otherwise drop and create the extension again.")));
	return relid;
}

/* Read the table: what is committed by now, and our own changes. */
static void
load(Oid relid)
{
	DlockTable	store = {0};
	Snapshot	snapshot;
	Policies   *all;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "dlock policies",
										ALLOCSET_DEFAULT_SIZES);
	policies = NULL;
	MemoryContextReset(context);
	all = MemoryContextAllocZero(context, sizeof(Policies));

	/* what changes from here on is read next time */
	changed = false;
	known_changes = pg_atomic_read_u64(&quotas->changes);
	table = relid;
	store.heap = table_open(relid, AccessShareLock);
	check_table(store.heap);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	(void) dlock_scan_blocks(&store, snapshot, 0, InvalidBlockNumber, add_policy, all);
	UnregisterSnapshot(snapshot);
	table_close(store.heap, AccessShareLock);
	qsort(all->array, all->n, sizeof(Policy), compare);
	policies = all;
}

/* Has no change committed since they were read? */
static bool
is_newest(void)
{
	return known_changes == pg_atomic_read_u64(&quotas->changes);
}

/* No policy, and no change: this is all that a request pays for policies. */
static bool
is_surely_none(void)
{
	return likely(none && is_newest());
}

/* Make sure that the policies are known.  False if there are none. */
static bool
have_policies(void)
{
	if (policies == NULL || changed || !is_newest())
	{
		Oid			relid = locate();

		if (!OidIsValid(relid))
			return false;
		load(relid);
	}
	none = !changed && policies->n == 0;
	return policies->n > 0;
}

/*
 * Judging
 */

/* The first policy of exactly this prefix, or NULL. */
static const Policy *
find_prefix(const char *prefix, int len)
{
	int			low = 0;
	int			high = policies->n;

	while (low < high)
	{
		int			middle = (low + high) / 2;
		const Policy *policy = &policies->array[middle];

		if (dlock_key_compare(policy->prefix, policy->prefixlen, prefix, len) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < policies->n &&
		dlock_key_compare(policies->array[low].prefix,
						  policies->array[low].prefixlen, prefix, len) == 0)
		return &policies->array[low];
	return NULL;
}

static int64
higher_limit(int64 a, int64 b)
{
	return a == NO_LIMIT || b == NO_LIMIT ? NO_LIMIT : Max(a, b);
}

/* Several policies fit: what one of them allows is allowed. */
static void
join(Policy *sum, const Policy *policy)
{
	if (!policy->allow)
		return;
	if (!sum->allow)
		*sum = *policy;
	else
	{
		sum->max_ttl = higher_limit(sum->max_ttl, policy->max_ttl);
		sum->max_priority = higher_limit(sum->max_priority, policy->max_priority);
		sum->max_locks = higher_limit(sum->max_locks, policy->max_locks);
		sum->max_hold = higher_limit(sum->max_hold, policy->max_hold);
	}
}

/* Out of the policies of one prefix, what counts for the role. */
static bool
choose(const Policy *first, Oid role, Policy *chosen)
{
	const Policy *end = policies->array + policies->n;
	const Policy *everybody = NULL;
	bool		found = false;

	for (const Policy *policy = first; policy < end; policy++)
	{
		if (dlock_key_compare(policy->prefix, policy->prefixlen,
							  first->prefix, first->prefixlen) != 0)
			break;
		if (policy->role == role)
		{
			*chosen = *policy;
			return true;
		}
		if (!OidIsValid(policy->role))
			everybody = policy;
		else if (is_member_of_role_nosuper(role, policy->role))
		{
			if (found)
				join(chosen, policy);
			else
				*chosen = *policy;
			found = true;
		}
	}
	if (!found && everybody != NULL)
	{
		*chosen = *everybody;
		found = true;
	}
	return found;
}

/* The policy that counts for this key and role; false if none fits. */
static bool
find_policy(const DlockKey *key, Oid role, Policy *chosen)
{
	if (!have_policies())
		return false;
	for (int len = Min(key->len, DLOCK_MAX_KEY); len >= 0; len--)
	{
		const Policy *first;

		if (!policies->has_length[len])
			continue;
		first = find_prefix(key->data, len);
		if (first != NULL && choose(first, role, chosen))
			return true;
	}
	return false;
}

static char *
interval_text(int64 us)
{
	Interval	span = {0};

	span.time = us;
	return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(&span)));
}

static void
check_span(const Policy *policy, const DlockTerms *terms, int64 limit, int64 span,
		   const char *name)
{
	if (limit != NO_LIMIT && span > limit)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("%s exceeds the policy for prefix \"%s\"", name, policy->prefix),
				 errdetail("The limit of role \"%s\" is %s.",
						   dlock_statement_role_name(terms->role),
						   interval_text(limit)),
				 span == terms->ttl && !terms->spent ?
				 errhint("Use a shorter TTL and renew it with dlock_refresh.") : 0));
}

/*
 * Raise an error unless the role of these terms may have this key on them.  Every
 * entrance to a grant or to longer terms calls this.  Each of the three spans keeps
 * the key busy for as long as it lasts, whatever becomes of the grant.
 */
void
dlock_policy_check_request(const DlockKey *key, const DlockTerms *terms)
{
	Policy		policy;

	if (is_surely_none() || !find_policy(key, terms->role, &policy))
		return;
	if (!policy.allow)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lock \"%s\"", pnstrdup(key->data, key->len)),
				 errdetail("The policy for prefix \"%s\" does not allow role \"%s\" to acquire it.",
						   policy.prefix, dlock_statement_role_name(terms->role))));
	check_span(&policy, terms, policy.max_ttl, terms->ttl, terms->spent ? "per" : "ttl");
	check_span(&policy, terms, policy.max_ttl, terms->at_least, "at_least");
	check_span(&policy, terms, policy.max_ttl, terms->delay, "delay");
	if (!terms->spent)
		check_span(&policy, terms, policy.max_hold, terms->ttl, "ttl");
	if (policy.max_priority != NO_LIMIT && terms->priority > policy.max_priority)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("priority exceeds the policy for prefix \"%s\"", policy.prefix),
				 errdetail("The limit of role \"%s\" is %lld.",
						   dlock_statement_role_name(terms->role),
						   (long long) policy.max_priority)));
}

/*
 * How long this role may hold this key altogether, however often it renews the grant;
 * 0: without limit.  No TTL is longer, so the first one is never cut short.
 */
int64
dlock_policy_max_hold(const DlockKey *key, Oid role)
{
	Policy		policy;

	if (is_surely_none() || !find_policy(key, role, &policy) || policy.max_hold == NO_LIMIT)
		return 0;
	return policy.max_hold;
}

/*
 * The highest priority that a role may use for a key if no policy names either; -1:
 * without limit.
 */
int
dlock_policy_max_priority(void)
{
	const Policy *first = have_policies() ? find_prefix("", 0) : NULL;
	Policy		policy;

	if (first == NULL || !choose(first, InvalidOid, &policy) || policy.max_priority == NO_LIMIT)
		return -1;
	return policy.max_priority;
}

/*
 * The room under policies
 */

Size
dlock_policy_shmem_size(void)
{
	return sizeof(Quotas);
}

void
dlock_policy_shmem_init(void)
{
	bool		found;

	quotas = ShmemInitStruct("dlock quotas", sizeof(Quotas), &found);
	if (found)
		return;
	memset(quotas, 0, sizeof(Quotas));
	pg_atomic_init_u64(&quotas->changes, 0);
	for (int i = 0; i < ROLES; i++)
		pg_atomic_init_u64(&quotas->grants[i], 0);
}

/* Draw the number of a grant whose row is written. */
static uint64
draw_number(Oid role)
{
	uint64		hash = hash_combine64(MyDatabaseId, role);

	return pg_atomic_add_fetch_u64(&quotas->grants[hash % ROLES], 1);
}

static bool
has_room(uint64 account, uint64 number)
{
	const Account *place = &quotas->accounts[account % ACCOUNTS];
	bool		result;

	LWLockAcquire(dlock_lwlock_quota(), LW_SHARED);
	result = place->account == account && number <= place->until;
	LWLockRelease(dlock_lwlock_quota());
	return result;
}

/*
 * The grant of this number has counted, and found room for this many more.  That is
 * worth nothing if the policies have changed since it read them.
 */
static void
keep_room(uint64 account, uint64 number, int64 room)
{
	Account    *place = &quotas->accounts[account % ACCOUNTS];

	LWLockAcquire(dlock_lwlock_quota(), LW_EXCLUSIVE);
	if (is_newest())
	{
		place->account = account;
		place->until = number + room;
	}
	LWLockRelease(dlock_lwlock_quota());
}

/*
 * Counting
 */

typedef struct Tally
{
	Oid			role;
	int64		now;
	int64		limit;
	int64		n;
	char		last[DLOCK_MAX_KEY];	/* the place that was counted last */
	int			lastlen;
	int64		last_slot;
	MemoryContext per_row;
} Tally;

/*
 * Does this row keep its key busy?  A grant does, also when it has expired, and what
 * it leaves behind to cool.  So does a row that an open transaction has released.
 */
static bool
is_busy(HeapTuple tuple, const DlockState *state, int64 now)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	return state->held || dlock_rules_phase(state, now) == DLOCK_PHASE_COOLING ||
		TransactionIdIsCurrentTransactionId(xmin) || TransactionIdIsInProgress(xmin);
}

/* A row that a transaction is changing comes twice, one after the other. */
static bool
tally_row(const DlockTable *store, HeapTuple tuple, DlockSeen seen, void *arg)
{
	Tally	   *tally = arg;
	MemoryContext caller = MemoryContextSwitchTo(tally->per_row);
	DlockState	state = {0};
	DlockKey	key;

	MemoryContextReset(tally->per_row);
	dlock_row_key(tuple, &key);
	dlock_row_state(tuple, &state, false, NULL);
	if (state.terms.role == tally->role && is_busy(tuple, &state, tally->now) &&
		(tally->n == 0 || state.slot != tally->last_slot ||
		 dlock_key_compare(key.data, key.len, tally->last, tally->lastlen) != 0))
	{
		tally->n++;
		memcpy(tally->last, key.data, key.len);
		tally->lastlen = key.len;
		tally->last_slot = state.slot;
	}
	MemoryContextSwitchTo(caller);
	return tally->n <= tally->limit;
}

/* How many rows of the role keep keys busy; if more than the limit, one more. */
static int64
count_rows(const Policy *policy, Oid role)
{
	DlockRange	range = {.prefix = policy->prefix,.prefixlen = policy->prefixlen};
	Tally	   *tally = palloc0(sizeof(Tally));
	DlockTable	store;
	int64		n;

	tally->role = role;
	tally->now = dlock_clock_now();
	tally->limit = policy->max_locks;
	tally->per_row = AllocSetContextCreate(CurrentMemoryContext, "dlock row",
										   ALLOCSET_SMALL_SIZES);
	dlock_table_open(&store, false, false);
	dlock_scan_range(&store, &range, NULL, tally_row, tally);
	dlock_table_close(&store, false);
	n = tally->n;
	MemoryContextDelete(tally->per_row);
	pfree(tally);
	return n;
}

static uint64
account_of(const Policy *policy, Oid role)
{
	uint64		hash = dlock_key_hash_text(policy->prefix, policy->prefixlen, MyDatabaseId);

	hash = hash_combine64(hash, hash_bytes_uint32_extended(role, 0));
	return hash_combine64(hash, (uint64) policy->max_locks);
}

/*
 * Raise an error if this role has too many locks now.  Called when a new grant is
 * written, so its row counts.
 */
void
dlock_policy_check_grant(const DlockKey *key, Oid role)
{
	Policy		policy;
	uint64		number;
	int64		n;

	if (is_surely_none() || !have_policies())
		return;
	number = draw_number(role);
	if (!find_policy(key, role, &policy) || policy.max_locks == NO_LIMIT ||
		has_room(account_of(&policy, role), number))
		return;
	n = count_rows(&policy, role);
	if (n > policy.max_locks)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("too many locks with prefix \"%s\"", policy.prefix),
				 errdetail("The limit of role \"%s\" is %lld; locks that have expired count until their rows are removed, and those that cool until they have.",
						   dlock_statement_role_name(role), (long long) policy.max_locks)));

	/* what we have deleted does not show, and comes back if we roll back */
	if (!dlock_journal_has(DLOCK_NOTE_REMOVED))
		keep_room(account_of(&policy, role), number, policy.max_locks - n);
}
