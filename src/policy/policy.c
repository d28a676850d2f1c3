/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  What a role may do with keys of a prefix.
 *
 * Policies are rows of the table dlock.policies.  Each backend keeps them in an
 * array, which it reads when it needs them for the first time, and again when
 * the table has changed: a trigger of the table sends a relation-cache
 * invalidation, which takes effect in each backend as changes of catalogs do.  If
 * there is no policy, a request costs one test of a variable.
 *
 * Of the policies that fit the key and the role, the one with the longest prefix
 * counts.  Among policies of the same prefix, that of the role itself comes
 * first, then those of the roles that it is a member of, then that of everybody.
 * If a role is a member of several, what one of them allows is allowed, as with
 * privileges.  Superusers are not exempt, but a superuser is not a member of all
 * roles here.
 *
 * A policy may limit how many locks a role has.  To know that, its rows must be
 * counted, which is too much work for each grant.  So the room that a count has
 * found is kept in shared memory, and each new grant takes one of it.  Rows that
 * end add nothing to it.  When nothing is left, the rows are counted again.
 *
 * A grant writes its row first, and then takes one or counts.  So a count sees
 * the rows of all grants that came before it.  It may miss those that came while
 * it was under way; these have taken something or have begun to count
 * themselves, and are subtracted.  So the limit is not exceeded, however many
 * grants are made at the same time.
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
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "fence/statement_role.h"
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

bool		dlock_policy_none = false;

/*
 * NULL if they are not known.  If they have changed, they stay in memory until
 * they are read again, because somebody may be looking at them.
 */
static Policies *policies = NULL;
static bool changed = false;
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
		dlock_policy_none = false;
	}
}

void
dlock_policy_init(void)
{
	CacheRegisterRelcacheCallback(forget, (Datum) 0);
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

/* Make sure that the policies are known.  False if there are none. */
static bool
have_policies(void)
{
	if (policies == NULL || changed)
	{
		Oid			relid = locate();

		if (!OidIsValid(relid))
			return false;
		load(relid);
	}
	dlock_policy_none = !changed && policies->n == 0;
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
find_policy(const char *key, int keylen, Oid role, Policy *chosen)
{
	if (!have_policies())
		return false;
	for (int len = Min(keylen, DLOCK_MAX_KEY); len >= 0; len--)
	{
		const Policy *first;

		if (!policies->has_length[len])
			continue;
		first = find_prefix(key, len);
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

void
dlock_policy_judge_request(const DlockRequest *request)
{
	const char *key = request->key.data;
	int			keylen = request->key.len;
	Oid			role = request->terms.role;
	int64		max_ttl;
	Policy		policy;

	if (!find_policy(key, keylen, role, &policy))
		return;
	max_ttl = policy.max_ttl;
	if (policy.max_hold != NO_LIMIT && !request->terms.spent &&
		(max_ttl == NO_LIMIT || policy.max_hold < max_ttl))
		max_ttl = policy.max_hold;
	if (!policy.allow)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lock \"%s\"", pnstrdup(key, keylen)),
				 errdetail("The policy for prefix \"%s\" does not allow role \"%s\" to acquire it.",
						   policy.prefix, dlock_statement_role_name(role))));
	if (max_ttl != NO_LIMIT && request->terms.ttl > max_ttl)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("%s exceeds the policy for prefix \"%s\"",
						request->terms.spent ? "per" : "ttl", policy.prefix),
				 errdetail("The limit of role \"%s\" is %s.",
						   dlock_statement_role_name(role), interval_text(max_ttl)),
				 request->terms.spent ? errhint("Use a shorter time, and a smaller number.") :
				 errhint("Use a shorter TTL and renew it with dlock_refresh.")));
	if (policy.max_priority != NO_LIMIT && request->terms.priority > policy.max_priority)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("priority exceeds the policy for prefix \"%s\"", policy.prefix),
				 errdetail("The limit of role \"%s\" is %lld.",
						   dlock_statement_role_name(role), (long long) policy.max_priority)));
}

/*
 * How long this role may hold this key altogether, however often it renews the grant;
 * 0: without limit.  No TTL is longer, so the first one is never cut short.
 */
int64
dlock_policy_find_max_hold(const DlockKey *key, Oid role)
{
	Policy		policy;

	if (!find_policy(key->data, key->len, role, &policy) || policy.max_hold == NO_LIMIT)
		return 0;
	return policy.max_hold;
}

/*
 * The room under policies
 */

#define ACCOUNTS	1024

/* protected by the lock */
typedef struct Account
{
	uint64		account;
	int64		room;
	uint64		events;			/* takes and begun counts */
} Account;

static Account *accounts = NULL;

Size
dlock_policy_shmem_size(void)
{
	return mul_size(ACCOUNTS, sizeof(Account));
}

void
dlock_policy_shmem_init(void)
{
	bool		found;

	accounts = ShmemInitStruct("dlock quotas", dlock_policy_shmem_size(), &found);
	if (!found)
		memset(accounts, 0, dlock_policy_shmem_size());
}

/* One count of rows, from its beginning to its end. */
typedef struct Count
{
	uint64		account;
	uint64		began;
} Count;

/* Its place, emptied if another account had it. */
static Account *
place_of(uint64 account)
{
	Account    *place = &accounts[account % ACCOUNTS];

	if (place->account != account)
	{
		place->account = account;
		place->room = 0;
		place->events++;
	}
	return place;
}

/* Take one; false if nothing is left, and the caller has to count. */
static bool
take_one(uint64 account)
{
	Account    *place;
	bool		taken;

	LWLockAcquire(dlock_lwlock_quota(), LW_EXCLUSIVE);
	place = place_of(account);
	taken = place->room > 0;
	if (taken)
	{
		place->room--;
		place->events++;
	}
	LWLockRelease(dlock_lwlock_quota());
	return taken;
}

static void
begin_count(Count *count, uint64 account)
{
	LWLockAcquire(dlock_lwlock_quota(), LW_EXCLUSIVE);
	count->account = account;
	count->began = ++place_of(account)->events;
	LWLockRelease(dlock_lwlock_quota());
}

/* This much room was left, the row of this grant already subtracted. */
static void
end_count(const Count *count, int64 room)
{
	Account    *place;

	LWLockAcquire(dlock_lwlock_quota(), LW_EXCLUSIVE);
	place = &accounts[count->account % ACCOUNTS];
	if (place->account == count->account)
		place->room = Max(room - (int64) (place->events - count->began), 0);
	LWLockRelease(dlock_lwlock_quota());
}

/*
 * Counting
 */

typedef struct Tally
{
	Oid			role;
	int64		limit;
	int64		n;
	char		last[DLOCK_MAX_KEY];	/* the place that was counted last */
	int			lastlen;
	int64		last_slot;
	MemoryContext per_row;
} Tally;

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
	dlock_row_state(tuple, &state, true, NULL);
	if (state.held && state.terms.role == tally->role &&
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

/* How many grants the role has, expired ones included. */
static int64
count_rows(const Policy *policy, Oid role)
{
	DlockRange	range = {.prefix = policy->prefix,.prefixlen = policy->prefixlen};
	Tally	   *tally = palloc0(sizeof(Tally));
	DlockTable	store;
	int64		n;

	tally->role = role;
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
	uint64		hash = hash_bytes_extended((const unsigned char *) policy->prefix,
										   policy->prefixlen, MyDatabaseId);

	hash = hash_combine64(hash, hash_bytes_uint32_extended(role, 0));
	return hash_combine64(hash, (uint64) policy->max_locks);
}

/* The grant is written, so the row counts. */
void
dlock_policy_judge_grant(const char *key, int keylen, Oid role)
{
	Count		count;
	Policy		policy;
	int64		n;

	if (!find_policy(key, keylen, role, &policy) || policy.max_locks == NO_LIMIT)
		return;
	if (take_one(account_of(&policy, role)))
		return;
	begin_count(&count, account_of(&policy, role));
	n = count_rows(&policy, role);
	if (n > policy.max_locks)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("too many locks with prefix \"%s\"", policy.prefix),
				 errdetail("The limit of role \"%s\" is %lld; locks that have expired count until their rows are removed.",
						   dlock_statement_role_name(role), (long long) policy.max_locks)));
	end_count(&count, policy.max_locks - n);
}
