/*-------------------------------------------------------------------------
 *
 * asking.c
 *	  Whom a waiter has asked to yield.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "asking.h"

/* Does "now" ask anybody that "before" did not ask? */
bool
dlock_asking_grows(const DlockAsking *before, const DlockAsking *now)
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

/* Has this waiter asked the holder of this grant to yield? */
bool
dlock_asking_is_asked(const DlockWaiter *waiter, const DlockState *grant)
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
