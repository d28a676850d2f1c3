/*-------------------------------------------------------------------------
 *
 * quota.c
 *	  How many locks a role may still take under a policy.
 *
 * To know how many rows a role has, they must be counted, and that is too much
 * work for each grant.  So the room that a count has found is kept in shared
 * memory, and each new grant takes one of it.  Rows that end add nothing to it.
 * When nothing is left, they are counted again.
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

#include "storage/shmem.h"

#include "lwlocks.h"
#include "quota.h"

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
dlock_quota_shmem_size(void)
{
	return mul_size(ACCOUNTS, sizeof(Account));
}

void
dlock_quota_shmem_init(void)
{
	bool		found;

	accounts = ShmemInitStruct("dlock quotas", dlock_quota_shmem_size(), &found);
	if (!found)
		memset(accounts, 0, dlock_quota_shmem_size());
}

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
bool
dlock_quota_take(uint64 account)
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

void
dlock_quota_begin_count(DlockCount *count, uint64 account)
{
	LWLockAcquire(dlock_lwlock_quota(), LW_EXCLUSIVE);
	count->account = account;
	count->began = ++place_of(account)->events;
	LWLockRelease(dlock_lwlock_quota());
}

/* So much room was left, the row of this grant already subtracted. */
void
dlock_quota_end_count(const DlockCount *count, int64 room)
{
	Account    *place;

	LWLockAcquire(dlock_lwlock_quota(), LW_EXCLUSIVE);
	place = &accounts[count->account % ACCOUNTS];
	if (place->account == count->account)
		place->room = Max(room - (int64) (place->events - count->began), 0);
	LWLockRelease(dlock_lwlock_quota());
}
