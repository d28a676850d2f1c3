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
#include "guc.h"
#include "launcher.h"
#include "policy.h"
#include "role.h"
#include "session_end.h"
#include "shard.h"
#include "shmem.h"
#include "store.h"
#include "subscriber.h"
#include "xact.h"

DLOCK_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	dlock_guc_init();
	dlock_store_init();
	dlock_xact_init();
	dlock_shard_init();
	dlock_policy_init();

	/* without shared memory, the functions report what to do */
	if (!process_shared_preload_libraries_in_progress)
		return;

	dlock_shmem_init();
	dlock_role_init();
	dlock_session_end_init();
	dlock_subscriber_init();

	/*
	 * A server that pg_upgrade has started must not change: pg_upgrade has
	 * already noted its next transaction id.
	 */
	if (!IsBinaryUpgrade)
		dlock_launcher_init();
}
