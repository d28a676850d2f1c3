/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Loading the library.
 *
 * See README in this directory for an overview of the modules.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "compat.h"
#include "fence/connection_fence.h"
#include "fence/statement_role.h"
#include "guc.h"
#include "health/direct_writes.h"
#include "lock/grant_end.h"
#include "lock/session.h"
#include "lock/xact.h"
#include "policy/policy.h"
#include "rows/place_count.h"
#include "rows/places.h"
#include "rows/table.h"
#include "shard/shard.h"
#include "shmem.h"
#include "tickets/ticket.h"
#include "workers/workers.h"

DLOCK_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	dlock_guc_init();

	/* before all that registers a callback, which then runs earlier */
	dlock_connection_fence_init();
	dlock_table_init();
	dlock_places_init();
	dlock_place_count_init();
	dlock_xact_init();
	dlock_shard_init();
	dlock_policy_init();

	/* without shared memory, the functions report what to do */
	if (!process_shared_preload_libraries_in_progress)
		return;

	dlock_shmem_init();
	dlock_statement_role_init();
	dlock_grant_end_init();
	dlock_session_init();
	dlock_ticket_init();
	dlock_direct_writes_init();

	/*
	 * A server that pg_upgrade has started must not change: pg_upgrade has
	 * already noted its next transaction id.
	 */
	if (!IsBinaryUpgrade)
		dlock_launcher_init();
}
