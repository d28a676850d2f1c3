/*-------------------------------------------------------------------------
 *
 * waiter.c
 *	  An entry of the queue.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "clock.h"
#include "waiter.h"

/* A role and owner, as others name what they wait for; 0 without an owner. */
DlockBlocker
dlock_waiter_owner(Oid role, const char *owner)
{
	if (owner == NULL)
		return 0;
	return DLOCK_OWNER_BIT |
		hash_bytes_extended((const unsigned char *) owner, strlen(owner), role);
}

/* Do they wait for the same key? */
bool
dlock_waiter_is_same(const DlockWaiter *a, const DlockWaiter *b)
{
	return a->dboid == b->dboid && a->hash == b->hash &&
		a->keylen == b->keylen && memcmp(a->key, b->key, a->keylen) == 0;
}

/*
 * A new entry, which is not in the queue yet.  Its texts are set by the caller,
 * who knows where they are.
 */
void
dlock_waiter_fill(DlockWaiter *waiter, const DlockKey *key, const DlockEntrant *entrant)
{
	pg_atomic_write_u32(&waiter->woken, 0);
	pg_atomic_write_u32(&waiter->stale, 0);
	waiter->announce = false;
	waiter->kind = entrant->kind;
	waiter->dboid = MyDatabaseId;
	waiter->arrival = 0;
	waiter->hash = key->hash;
	waiter->keylen = key->len;
	waiter->role = entrant->role;
	waiter->owner_name = dlock_waiter_owner(entrant->role, entrant->owner);
	waiter->priority = entrant->priority;
	waiter->slots = entrant->slots;
	waiter->upgrades = entrant->upgrades;
	waiter->since = entrant->since;
	waiter->until = entrant->until;
	waiter->wake_at = DLOCK_NEVER;
	waiter->looked_at = 0;
	waiter->must_end = 0;
	waiter->nblockers_all = 0;
	waiter->nblockers = 0;
	memset(&waiter->asking, 0, sizeof(waiter->asking));
}

/* Does "now" ask anybody that "before" did not ask? */
static bool
asks_others(const DlockAsking *before, const DlockAsking *now)
{
	if (now->all)
		return !before->all || before->since != now->since;
	for (int i = 0; i < now->n; i++)
	{
		bool		is_known = false;

		for (int j = 0; j < before->n; j++)
			if (before->one[j].version == now->one[i].version)
				is_known = true;
		if (!is_known)
			return true;
	}
	return false;
}

/*
 * Tell the others what was seen, and when it will be looked at again.  True:
 * somebody is to be notified.
 */
bool
dlock_waiter_publish(DlockWaiter *waiter, const DlockOutlook *outlook)
{
	bool		announce = asks_others(&waiter->asking, &outlook->asking);

	Assert(outlook->nblockers <= DLOCK_MAX_BLOCKERS);
	waiter->looked_at = dlock_clock_now();
	waiter->wake_at = outlook->wake_at;
	waiter->must_end = outlook->must_end;
	waiter->nblockers_all = outlook->nblockers_all;
	waiter->nblockers = outlook->nblockers;
	memcpy(waiter->blockers, outlook->blockers,
		   outlook->nblockers * sizeof(DlockBlocker));
	if (announce)
		waiter->announce = true;
	waiter->asking = outlook->asking;
	return announce;
}

/*
 * What it has published does not count any more.  To forget the blockers would not
 * be enough: a waiter that has none waits for the first in line.
 */
void
dlock_waiter_withdraw(DlockWaiter *waiter)
{
	waiter->nblockers = 0;
	waiter->looked_at = 0;
}

/* Has this waiter asked the holder of this grant to yield? */
bool
dlock_waiter_asks(const DlockWaiter *waiter, const DlockState *grant)
{
	if (waiter->asking.all)
		return grant->priority < waiter->priority &&
			!(waiter->owner != NULL && grant->owner != NULL &&
			  waiter->role == grant->role && strcmp(waiter->owner, grant->owner) == 0);
	for (int i = 0; i < waiter->asking.n; i++)
		if (waiter->asking.one[i].version == grant->version)
			return true;
	return false;
}

/* A copy with its own texts. */
void
dlock_waiter_copy(DlockNamedWaiter *copy, const DlockWaiter *waiter)
{
	memcpy(&copy->waiter, waiter, sizeof(DlockWaiter));
	memcpy(copy->key, waiter->key, waiter->keylen + 1);
	copy->waiter.key = copy->key;
	if (waiter->owner != NULL)
	{
		strlcpy(copy->owner, waiter->owner, sizeof(copy->owner));
		copy->waiter.owner = copy->owner;
	}
}
