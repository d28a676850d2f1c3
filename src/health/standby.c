/*-------------------------------------------------------------------------
 *
 * standby.c
 *	  The standbys of this server, and which of them confirm commits.
 *
 * Everything is read from the shared memory of the WAL senders, as
 * pg_stat_replication does.  It may be out of date a moment later.  If a standby
 * goes away between our look and the commit, that commit waits.
 *
 * A standby that has flushed more than we have written does not follow us.  It
 * is an old primary that was connected without pg_rewind, or we are a restored
 * copy.  PostgreSQL believes what such a standby confirms; dlock does not count
 * it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/slot.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/backend_status.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "guc.h"
#include "health/standby.h"

#define LOOK_AGAIN_MS	10

/* Was a standby connected when dlock_standby_expected() was called before? */
static pg_atomic_uint32 *seen = NULL;

Size
dlock_standby_shmem_size(void)
{
	return sizeof(*seen);
}

void
dlock_standby_shmem_init(void)
{
	bool		found;

	seen = ShmemInitStruct("dlock standby seen", dlock_standby_shmem_size(), &found);
	if (!found)
		pg_atomic_init_u32(seen, 0);
}

/* Programs that only receive WAL, as pg_basebackup does, do not apply it. */
static bool
is_connected(void)
{
	bool		found = false;

	for (int i = 0; i < max_wal_senders && !found; i++)
	{
		WalSnd	   *walsnd = &WalSndCtl->walsnds[i];

		SpinLockAcquire(&walsnd->mutex);
		found = walsnd->pid != 0 && walsnd->apply != InvalidXLogRecPtr;
		SpinLockRelease(&walsnd->mutex);
	}
	return found;
}

/* A slot of pg_basebackup is temporary. */
static bool
has_slot(void)
{
	bool		found = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !found; i++)
	{
		const ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		found = slot->in_use && SlotIsPhysical(slot) &&
			slot->data.persistency == RS_PERSISTENT;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return found;
}

/*
 * Is there a standby, or a sign that there should be one?  A slot is made for
 * one, and a server with primary_conninfo has been one itself.  A standby that
 * uses no slot leaves no trace when it goes away, so it is remembered, until a
 * restart, if somebody asked while it was here.
 */
bool
dlock_standby_expected(void)
{
	if (is_connected())
		pg_atomic_write_u32(seen, 1);
	return pg_atomic_read_u32(seen) != 0 || has_slot() ||
		(PrimaryConnInfo != NULL && PrimaryConnInfo[0] != '\0');
}

bool
dlock_standby_defined(void)
{
	return SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0' &&
		SyncRepConfig != NULL;
}

void
dlock_standby_look(DlockSync *sync)
{
	SyncRepStandbyData *standbys;
	XLogRecPtr	flushed;
	int			n;

	memset(sync, 0, sizeof(*sync));
	sync->defined = dlock_standby_defined();
	if (!sync->defined)
		return;

	/*
	 * We know the setting from our own configuration, but the checkpointer is
	 * what makes commits wait.  During a checkpoint it may read a change much
	 * later than we do.
	 */
	sync->in_effect = max_wal_senders > 0 && dlock_commits_wait();
	sync->quorum = SyncRepConfig->syncrep_method == SYNC_REP_QUORUM;
	sync->required = SyncRepConfig->num_sync;
	n = SyncRepGetCandidateStandbys(&standbys);

	/* read this after the positions of the standbys, or they could be ahead */
	flushed = GetFlushRecPtr(NULL);
	for (int i = 0; i < n; i++)
	{
		if (standbys[i].flush > flushed)
			sync->strangers++;
		else
			sync->confirming++;
	}
	pfree(standbys);
}

/*
 * dlock.require_sync: refuse a grant that a failover would lose.  A standby
 * may still go away between this check and the commit.  Then that commit waits
 * for it and is not acknowledged.
 */
void
dlock_standby_require(void)
{
	DlockSync	sync;

	if (!dlock_require_sync)
		return;

	dlock_standby_look(&sync);
	if (!sync.defined)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot grant a lock without a synchronous standby"),
				 errdetail("\"dlock.require_sync\" is on and \"synchronous_standby_names\" is empty."),
				 errhint("Set synchronous_standby_names on this server, or turn dlock.require_sync off.")));
	if (max_wal_senders == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot grant a lock without a synchronous standby"),
				 errdetail("\"dlock.require_sync\" is on and \"max_wal_senders\" is 0, so no standby can connect."),
				 errhint("Set max_wal_senders and restart this server, or turn dlock.require_sync off.")));
	if (!sync.in_effect)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not grant a lock: commits do not wait for a synchronous standby yet"),
				 errdetail("\"dlock.require_sync\" is on; the server has not applied the new \"synchronous_standby_names\" yet."),
				 errhint("Try again in a moment.")));
	if (sync.strangers > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot grant a lock: a synchronous standby has a different history"),
				 errdetail("\"dlock.require_sync\" is on; %d of the synchronous standbys have WAL that this server has not written.",
						   sync.strangers),
				 errhint("Stop that standby and rebuild it with pg_rewind or pg_basebackup.")));
	if (sync.confirming < sync.required)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not grant a lock: no synchronous standby confirms commits"),
				 errdetail("\"dlock.require_sync\" is on; %d of %d synchronous standbys are streaming.",
						   sync.confirming, sync.required),
				 errhint("Bring the standby back (see pg_stat_replication), or turn dlock.require_sync off.")));
}

static int
later_first(const void *a, const void *b)
{
	XLogRecPtr	left = ((const SyncRepStandbyData *) a)->flush;
	XLogRecPtr	right = ((const SyncRepStandbyData *) b)->flush;

	return left > right ? -1 : left < right ? 1 : 0;
}

/*
 * The position up to which enough standbys have flushed, or invalid.  The WAL
 * senders keep such a position, too, but only while the setting is in effect,
 * so for some seconds after it was changed they do not know it.
 */
static XLogRecPtr
confirmed_lsn(void)
{
	SyncRepStandbyData *standbys;
	int			n = SyncRepGetCandidateStandbys(&standbys);
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	if (SyncRepConfig != NULL && n >= SyncRepConfig->num_sync)
	{
		qsort(standbys, n, sizeof(SyncRepStandbyData), later_first);
		lsn = standbys[SyncRepConfig->num_sync - 1].flush;
	}
	pfree(standbys);
	return lsn;
}

/*
 * Is the WAL up to this position confirmed, or will it be within this time?
 * No clock of another machine is involved.
 */
bool
dlock_standby_confirms(XLogRecPtr lsn, int timeout_ms)
{
	for (int waited = 0; confirmed_lsn() < lsn; waited += LOOK_AGAIN_MS)
	{
		if (waited >= timeout_ms)
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOOK_AGAIN_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

static const char *
name_of(int pid)
{
	for (int i = 1; i <= pgstat_fetch_stat_numbackends(); i++)
	{
		LocalPgBackendStatus *entry = dlock_backend_status(i);

		if (entry != NULL && entry->backendStatus.st_procpid == pid)
			return pstrdup(entry->backendStatus.st_appname);
	}
	return NULL;
}

static const char *
state_of(WalSndState state)
{
	switch (state)
	{
		case WALSNDSTATE_STARTUP:
			return "starting";
		case WALSNDSTATE_BACKUP:
			return "taking a base backup";
		case WALSNDSTATE_CATCHUP:
			return "catching up";
		case WALSNDSTATE_STREAMING:
			return "streaming";
		case WALSNDSTATE_STOPPING:
			return "stopping";
	}
	return "in an unknown state";
}

/* The list includes clients that take base backups or logical changes. */
DlockStandby *
dlock_standby_list(int *count)
{
	DlockStandby *list = palloc0(Max(max_wal_senders, 1) * sizeof(DlockStandby));
	SyncRepStandbyData *chosen;
	int			nchosen = SyncRepGetCandidateStandbys(&chosen);
	XLogRecPtr	flushed;

	*count = 0;
	for (int i = 0; i < max_wal_senders; i++)
	{
		WalSnd	   *walsnd = &WalSndCtl->walsnds[i];
		DlockStandby *standby = &list[*count];
		WalSndState state;
		int			pid;
		int			priority;

		SpinLockAcquire(&walsnd->mutex);
		pid = walsnd->pid;
		state = walsnd->state;
		priority = walsnd->sync_standby_priority;
		standby->flushed = walsnd->flush;
		SpinLockRelease(&walsnd->mutex);
		if (pid == 0)
			continue;

		standby->name = name_of(pid);
		standby->state = state_of(state);
		standby->streaming = state == WALSNDSTATE_STREAMING;
		standby->role = priority == 0 || standby->flushed == InvalidXLogRecPtr ?
			"async" : "potential";
		for (int j = 0; j < nchosen; j++)
			if (chosen[j].walsnd_index == i && chosen[j].pid == pid)
				standby->role = SyncRepConfig->syncrep_method == SYNC_REP_QUORUM ?
					"quorum" : "sync";
		(*count)++;
	}
	pfree(chosen);

	flushed = GetFlushRecPtr(NULL);
	for (int i = 0; i < *count; i++)
		list[i].stranger = list[i].flushed > flushed;
	return list;
}
