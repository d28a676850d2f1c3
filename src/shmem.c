/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Asks for the shared memory and the LWLocks of all modules.
 *
 * Each module keeps its own piece of shared memory to itself.  Nothing in it has
 * to outlive a crash: after one all of it is empty, and the table decides.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "census.h"
#include "clock.h"
#include "contended.h"
#include "database.h"
#include "desk.h"
#include "hint.h"
#include "lwlocks.h"
#include "owners.h"
#include "places.h"
#include "queue.h"
#include "quota.h"
#include "shmem.h"
#include "standby.h"
#include "stats.h"
#include "ticket_room.h"
#include "wait.h"

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;
static bool attached = false;

static void
request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();

	RequestAddinShmemSpace(MAXALIGN(dlock_clock_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_hint_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_database_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_places_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_owners_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_census_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_queue_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_wait_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_desk_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_ticket_room_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_stats_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_contended_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_quota_shmem_size()));
	RequestAddinShmemSpace(MAXALIGN(dlock_standby_shmem_size()));
	dlock_lwlocks_request();
}

static void
startup(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	dlock_lwlocks_init();
	dlock_clock_shmem_init();
	dlock_hint_shmem_init();
	dlock_database_shmem_init();
	dlock_places_shmem_init();
	dlock_owners_shmem_init();
	dlock_census_shmem_init();
	dlock_queue_shmem_init();
	dlock_wait_shmem_init();
	dlock_desk_shmem_init();
	dlock_ticket_room_shmem_init();
	dlock_stats_shmem_init();
	dlock_contended_shmem_init();
	dlock_quota_shmem_init();
	dlock_standby_shmem_init();
	LWLockRelease(AddinShmemInitLock);
	attached = true;
}

void
dlock_shmem_init(void)
{
	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = startup;
}

bool
dlock_shmem_is_attached(void)
{
	return attached;
}

/* Every SQL function calls this first. */
void
dlock_shmem_require(void)
{
	if (!attached)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("dlock must be loaded via \"shared_preload_libraries\""),
				 errhint("Add the line shared_preload_libraries = 'dlock' to postgresql.conf "
						 "(or add dlock to the list that is there) and restart the server.")));
}
