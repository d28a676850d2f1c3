/*-------------------------------------------------------------------------
 *
 * contended_keys.c
 *	  The keys that are most waited for, or lost most often.
 *
 * There can be any number of keys, and shared memory has a fixed size, so this
 * is an estimate by the space-saving algorithm: a key that is not among the
 * counted ones takes the place of the one with the least weight, and inherits
 * that weight, because it may have been counted before and been displaced.  So
 * the weight may be too high, by no more than the weight that was inherited, but
 * a key that is contended more than others does not stay outside.  What a user
 * sees are the counts since the key came in, which are never too high.
 *
 * All databases share the entries.  They are divided into sets by the hash of
 * the key, and a key competes only with the keys of its set, so that each
 * operation looks at a few entries.  As hashes spread evenly, the estimate is as
 * good as that of one set of all entries.
 *
 * An entry that is there is incremented without a lock, so that those that poll
 * a key do not wait for each other.  A key takes a place under the lock of its
 * set.  If an entry changes its key at the same moment, an increment may go to
 * the new key.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"

#include "shmem.h"
#include "stats/stats.h"

#define WAYS	16				/* entries in a set */

typedef struct Entry
{
	pg_atomic_uint64 weight;
	pg_atomic_uint64 busy;
	pg_atomic_uint64 waits;
	pg_atomic_uint64 wait_time;
	pg_atomic_uint64 lost;

	/* protected by the lock of the set */
	Oid			dboid;
	int			keylen;
	char		key[DLOCK_MAX_KEY];
} Entry;

typedef struct Set
{
	/*
	 * The hash of the key of each entry, or 0 for a free entry.  Written
	 * under the lock of the set, and read without it.
	 */
	pg_atomic_uint64 hashes[WAYS];
	Entry		entries[WAYS];
} Set;

static Set *sets = NULL;

Size
dlock_contended_keys_shmem_size(void)
{
	return mul_size(DLOCK_CONTENDED_SETS, sizeof(Set));
}

void
dlock_contended_keys_shmem_init(void)
{
	bool		found;

	sets = ShmemInitStruct("dlock contended keys", dlock_contended_keys_shmem_size(), &found);
	if (found)
		return;
	memset(sets, 0, dlock_contended_keys_shmem_size());
	for (int i = 0; i < DLOCK_CONTENDED_SETS; i++)
		for (int j = 0; j < WAYS; j++)
		{
			Entry	   *entry = &sets[i].entries[j];

			pg_atomic_init_u64(&sets[i].hashes[j], 0);
			pg_atomic_init_u64(&entry->weight, 0);
			pg_atomic_init_u64(&entry->busy, 0);
			pg_atomic_init_u64(&entry->waits, 0);
			pg_atomic_init_u64(&entry->wait_time, 0);
			pg_atomic_init_u64(&entry->lost, 0);
		}
}

static int
set_number(uint64 hash)
{
	return (hash >> 40) % DLOCK_CONTENDED_SETS;
}

/* Zero means that there is none. */
static uint64
nonzero(uint64 hash)
{
	return hash == 0 ? 1 : hash;
}

static Entry *
find(Set *set, uint64 hash)
{
	for (int i = 0; i < WAYS; i++)
		if (pg_atomic_read_u64(&set->hashes[i]) == hash)
			return &set->entries[i];
	return NULL;
}

/* The entry of a key that was not there, or is since a moment ago. */
static pg_noinline Entry *
enter(const DlockKey *key, uint64 hash)
{
	int			number = set_number(hash);
	Set		   *set = &sets[number];
	Entry	   *entry;

	LWLockAcquire(dlock_lwlock_contended(number), LW_EXCLUSIVE);
	entry = find(set, hash);
	if (entry == NULL)
	{
		int			least = 0;

		for (int i = 0; i < WAYS; i++)
		{
			if (pg_atomic_read_u64(&set->hashes[i]) == 0)
			{
				least = i;
				break;
			}
			if (pg_atomic_read_u64(&set->entries[i].weight) <
				pg_atomic_read_u64(&set->entries[least].weight))
				least = i;
		}
		entry = &set->entries[least];
		if (pg_atomic_read_u64(&set->hashes[least]) == 0)
			pg_atomic_write_u64(&entry->weight, 0);
		pg_atomic_write_u64(&entry->busy, 0);
		pg_atomic_write_u64(&entry->waits, 0);
		pg_atomic_write_u64(&entry->wait_time, 0);
		pg_atomic_write_u64(&entry->lost, 0);
		entry->dboid = MyDatabaseId;
		entry->keylen = key->len;
		memcpy(entry->key, key->data, key->len);
		pg_atomic_write_u64(&set->hashes[least], hash);
	}
	LWLockRelease(dlock_lwlock_contended(number));
	return entry;
}

static Entry *
entry_of(const DlockKey *key)
{
	uint64		hash = nonzero(key->hash);
	Entry	   *entry = find(&sets[set_number(hash)], hash);

	return entry != NULL ? entry : enter(key, hash);
}

void
dlock_contended_keys_busy(const DlockKey *key)
{
	Entry	   *entry = entry_of(key);

	pg_atomic_fetch_add_u64(&entry->busy, 1);
	pg_atomic_fetch_add_u64(&entry->weight, 1);
}

void
dlock_contended_keys_waited(const DlockKey *key, int64 us)
{
	Entry	   *entry = entry_of(key);

	pg_atomic_fetch_add_u64(&entry->waits, 1);
	pg_atomic_fetch_add_u64(&entry->wait_time, us);
	pg_atomic_fetch_add_u64(&entry->weight, 1);
}

/* Its holder has lost a grant.  Must not fail. */
void
dlock_contended_keys_lost(const DlockKey *key)
{
	Entry	   *entry = entry_of(key);

	pg_atomic_fetch_add_u64(&entry->lost, 1);
	pg_atomic_fetch_add_u64(&entry->weight, 1);
}

static int
compare(const void *a, const void *b)
{
	const DlockContended *x = a;
	const DlockContended *y = b;
	int			order;

	if (x->weight != y->weight)
		return x->weight > y->weight ? -1 : 1;
	order = memcmp(x->key, y->key, Min(x->keylen, y->keylen));
	return order != 0 ? order : x->keylen - y->keylen;
}

/* Those of this database, the most contended first. */
DlockContended *
dlock_contended_keys_list(int *n)
{
	DlockContended *list = palloc(DLOCK_CONTENDED_SETS * WAYS * sizeof(DlockContended));

	*n = 0;
	for (int i = 0; i < DLOCK_CONTENDED_SETS; i++)
	{
		LWLockAcquire(dlock_lwlock_contended(i), LW_SHARED);
		for (int j = 0; j < WAYS; j++)
		{
			Entry	   *entry = &sets[i].entries[j];
			DlockContended *copy;

			if (pg_atomic_read_u64(&sets[i].hashes[j]) == 0 || entry->dboid != MyDatabaseId)
				continue;
			copy = &list[(*n)++];
			copy->weight = pg_atomic_read_u64(&entry->weight);
			copy->busy = pg_atomic_read_u64(&entry->busy);
			copy->waits = pg_atomic_read_u64(&entry->waits);
			copy->wait_time = pg_atomic_read_u64(&entry->wait_time);
			copy->lost = pg_atomic_read_u64(&entry->lost);
			copy->keylen = entry->keylen;
			memcpy(copy->key, entry->key, entry->keylen);
		}
		LWLockRelease(dlock_lwlock_contended(i));
	}
	qsort(list, *n, sizeof(DlockContended), compare);
	*n = Min(*n, DLOCK_MAX_CONTENDED);
	return list;
}

/* Forget those of this database. */
void
dlock_contended_keys_reset(void)
{
	for (int i = 0; i < DLOCK_CONTENDED_SETS; i++)
	{
		LWLockAcquire(dlock_lwlock_contended(i), LW_EXCLUSIVE);
		for (int j = 0; j < WAYS; j++)
			if (sets[i].entries[j].dboid == MyDatabaseId)
				pg_atomic_write_u64(&sets[i].hashes[j], 0);
		LWLockRelease(dlock_lwlock_contended(i));
	}
}
