/*-------------------------------------------------------------------------
 *
 * announce.c
 *	  Requests to yield that have not been announced yet.
 *
 * A waiter publishes whom it asks to yield (waiter.c).  The reaper sends the
 * notifications.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "announce.h"

typedef struct Announcement
{
	Oid			dboid;
	DlockNamedWaiter *copy;
	bool		found;
} Announcement;

static bool
take_if_announced(DlockWaiter *waiter, void *arg)
{
	Announcement *announcement = arg;

	if (waiter->dboid != announcement->dboid || !waiter->announce)
		return true;
	waiter->announce = false;
	dlock_waiter_copy(announcement->copy, waiter);
	announcement->found = true;
	return false;
}

/* One request to yield that has not been announced yet; false if none. */
bool
dlock_announce_take(Oid dboid, DlockNamedWaiter *waiter)
{
	Announcement announcement = {.dboid = dboid,.copy = waiter};

	dlock_queue_visit(LW_EXCLUSIVE, take_if_announced, &announcement);
	return announcement.found;
}
