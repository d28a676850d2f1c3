/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  TTL locks in plain SQL: what happens when the library is loaded.
 *
 * See README in this folder for the map.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "compat.h"
#include "guc.h"
#include "reaper.h"
#include "role.h"
#include "session_end.h"
#include "shmem.h"
#include "store.h"
#include "xact.h"

DLOCK_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	dlock_guc_init();
	dlock_store_init();
	dlock_xact_init();

	/* without shared memory the functions say what to do about it */
	if (!process_shared_preload_libraries_in_progress)
		return;

	dlock_shmem_init();
	dlock_role_init();
	dlock_session_end_init();

	/*
	 * A server that pg_upgrade has started must stay as it is: a transaction
	 * of ours would come after the ones that pg_upgrade knows of.
	 */
	if (!IsBinaryUpgrade)
		dlock_launcher_init();
}
