/*-------------------------------------------------------------------------
 *
 * health.c
 *	  dlock_health(): reports whether the grants of this server would survive
 *	  a failover, and if not, what to change.
 *
 * The first row is the verdict.  It is followed by one row for each thing that
 * was checked.  The checks use what the rest of dlock uses: standby.c also
 * answers for dlock.require_sync, and the settings are those of this session.
 *
 * Any role can call the function.  Only members of pg_read_all_stats see the
 * names of standbys and hosts, as in PostgreSQL's own views.  The function
 * writes nothing, so it works on a standby and in a read-only transaction.
 *
 * The status is "problem" if a grant can be lost or no grant can be made, and
 * "warning" if something else needs attention.
 *
 * A server that is alone on purpose is not a problem.  The verdict says that
 * everything is lost with it, but a check that always failed would be ignored.
 * A server that has lost its standbys must not look like that.  So it is alone
 * only if, in addition, nothing suggests that there should be a standby.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walreceiver.h"
#include "replication/walsender.h"
#include "storage/spin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "clock.h"
#include "database.h"
#include "guc.h"
#include "health/standby.h"
#include "policy/policy.h"
#include "rows/places.h"
#include "rows/table.h"
#include "rows/version.h"
#include "shmem.h"
#include "tickets/ticket_memory.h"

PG_FUNCTION_INFO_V1(dlock_health);

#define COLUMNS			4
#define CONFIRM_MS		1000	/* a healthy standby needs a few milliseconds */

typedef enum Status
{
	GOOD,
	WORTH_A_LOOK,				/* warning */
	BLOCKS,						/* problem: no grant can be made */
	LOSES						/* problem: a grant can be lost */
} Status;

typedef struct Row
{
	const char *name;
	Status		status;
	const char *detail;
	const char *hint;			/* NULL: there is nothing to do */
} Row;

typedef struct Report
{
	bool		sees_all;
	bool		alone;			/* there is no standby, nor should be one */
	List	   *rows;			/* of Row */
} Report;

static void
add(Report *report, const char *name, Status status, const char *detail,
	const char *hint)
{
	Row		   *row = palloc(sizeof(Row));

	row->name = name;
	row->status = status;
	row->detail = detail;
	row->hint = hint;
	report->rows = lappend(report->rows, row);
}

/* The names of the rows with this status, or NULL if there are none. */
static const char *
names_of(const Report *report, Status status)
{
	StringInfoData names;
	ListCell   *cell;

	initStringInfo(&names);
	foreach(cell, report->rows)
	{
		const Row  *row = lfirst(cell);

		if (row->status == status)
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", row->name);
	}
	return names.len > 0 ? names.data : NULL;
}

static void
put(ReturnSetInfo *rsinfo, const Row *row)
{
	static const char *const words[] = {"ok", "warning", "problem", "problem"};
	Datum		values[COLUMNS];
	bool		isnull[COLUMNS] = {false};

	values[0] = CStringGetTextDatum(row->name);
	values[1] = CStringGetTextDatum(words[row->status]);
	values[2] = CStringGetTextDatum(row->detail);
	isnull[3] = row->hint == NULL;
	values[3] = isnull[3] ? (Datum) 0 : CStringGetTextDatum(row->hint);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

static const char *
since(int64 lease_time)
{
	return pstrdup(timestamptz_to_str(dlock_clock_to_wall(lease_time)));
}

/*
 * A primary
 */

static void
check_names(Report *report, const DlockSync *sync)
{
	if (report->alone)
		add(report, "synchronous_standby_names", GOOD,
			"empty: commits wait for no standby", NULL);
	else if (!sync->defined)
		add(report, "synchronous_standby_names", LOSES,
			"empty: commits wait for no standby, so the latest grants are lost if this server is lost",
			"Set synchronous_standby_names to the application_name of the standby that will be promoted, and reload.");
	else if (max_wal_senders == 0)
		add(report, "synchronous_standby_names", LOSES,
			psprintf("%s, but commits do not wait for it, because max_wal_senders is 0", SyncRepStandbyNames),
			"Set max_wal_senders to 10, and restart.");
	else if (!sync->in_effect)
		add(report, "synchronous_standby_names", LOSES,
			psprintf("%s, but commits do not wait for it yet", SyncRepStandbyNames),
			"Reload the configuration, and wait for the checkpointer to read it.");
	else
		add(report, "synchronous_standby_names", GOOD,
			psprintf("%s: a commit with a grant waits for %d of these", SyncRepStandbyNames, sync->required),
			NULL);
}

static void
check_standbys(Report *report, const DlockSync *sync)
{
	XLogRecPtr	flushed = GetFlushRecPtr(NULL);
	bool		enough = sync->confirming >= sync->required;
	int			count;
	int			streaming = 0;
	int			strangers = 0;
	DlockStandby *standbys;
	const char *summary;

	/* before the list is made, so that the list shows the outcome */
	if (sync->in_effect && enough)
		enough = dlock_standby_confirms(flushed, CONFIRM_MS);

	standbys = dlock_standby_list(&count);
	for (int i = 0; i < count; i++)
	{
		streaming += standbys[i].streaming;
		strangers += standbys[i].stranger;
	}
	summary = psprintf("%d streaming, %d of %d required are synchronous",
					   streaming, Min(sync->confirming, sync->required), sync->required);

	if (strangers > 0)
		add(report, "standbys", LOSES,
			psprintf("%d of %d have WAL that this server has not written: what they confirm may not be the WAL of this server",
					 strangers, count),
			"Stop such a standby and rebuild it with pg_rewind or pg_basebackup.");
	else if (report->alone)
		add(report, "standbys", GOOD,
			"none, and nothing is set up for one: if this server is lost, everything is lost",
			"Set up a standby (pg_basebackup -R) with dlock in its shared_preload_libraries, if grants have to survive that.");
	else if (!sync->defined)
		add(report, "standbys", streaming == 0 ? LOSES : GOOD,
			streaming == 0 ? "none: if this server is lost, everything is lost" :
			psprintf("%d streaming, none is synchronous", streaming),
			streaming == 0 ? "Set up a standby (pg_basebackup -R) with dlock in its shared_preload_libraries." : NULL);
	else if (sync->confirming < sync->required)
		add(report, "standbys", BLOCKS,
			psprintf("%s: %s", summary,
					 dlock_require_sync ? "grants are refused (55000), refreshes wait" :
					 "grants and refreshes wait, and are not confirmed"),
			"Bring the standby back (its log says why it is not connected), or name another one in synchronous_standby_names.");
	else if (sync->in_effect && !enough)
		add(report, "standbys", BLOCKS,
			psprintf("%s, but WAL written %d ms ago is not confirmed", summary, CONFIRM_MS),
			"Check whether the standby hangs, or whether its disk or the network is slow; wal_sender_timeout ends a dead connection.");
	else
		add(report, "standbys", GOOD, summary, NULL);

	for (int i = 0; i < count && report->sees_all; i++)
	{
		const DlockStandby *standby = &standbys[i];
		uint64		behind = standby->flushed < flushed ? flushed - standby->flushed : 0;

		add(report,
			standby->name != NULL && standby->name[0] != '\0' ?
			psprintf("standby \"%s\"", standby->name) : "standby",
			standby->stranger ? LOSES : GOOD,
			standby->stranger ? psprintf("%s, %s, with WAL that this server has not written", standby->role, standby->state) :
			standby->flushed == InvalidXLogRecPtr ?
			psprintf("%s, %s", standby->role, standby->state) :
			psprintf("%s, %s, " UINT64_FORMAT " bytes behind", standby->role, standby->state, behind),
			standby->stranger ? "Stop it and rebuild it with pg_rewind or pg_basebackup." : NULL);
	}
}

static void
check_reaper(Report *report)
{
	DlockDatabase *db = dlock_database(MyDatabaseId);
	const char *raise_workers =
		psprintf("Raise max_worker_processes (now %d) and restart.", max_worker_processes);
	uint64		visited = db != NULL ? pg_atomic_read_u64(&db->last_good_visit) : 0;
	DlockVisit	visit = db != NULL ? pg_atomic_read_u32(&db->last_visit) : DLOCK_VISIT_GOOD;

	if (!dlock_database_has_launcher())
		add(report, "reaper", WORTH_A_LOOK,
			"the process \"dlock launcher\" is not running: expired rows stay and no events are sent; locks work",
			psprintf("%s If a slot was free, see the server log for the reason.", raise_workers));
	else if (dlock_reap_interval == 0)
		add(report, "reaper", WORTH_A_LOOK,
			"dlock.reap_interval is 0: expired rows stay until their key is locked again; locks work",
			"Set dlock.reap_interval to 1s, and reload.");
	else if (db == NULL)
		add(report, "reaper", WORTH_A_LOOK,
			psprintf("does not visit this database, because it already serves %d others; locks work", DLOCK_MAX_DATABASES),
			"Keep locks in fewer databases.");
	else if (visit == DLOCK_VISIT_NO_WORKER)
		add(report, "reaper", WORTH_A_LOOK,
			"could not be started because no worker slot is free: expired rows stay and no events are sent; locks work",
			raise_workers);
	else if (visit == DLOCK_VISIT_FAILED)
		add(report, "reaper", WORTH_A_LOOK,
			"its last visit to this database ended with an error: expired rows stay; locks work",
			"See the server log for an error from \"dlock reaper\".");
	else
		add(report, "reaper", GOOD,
			visited == 0 ? "running; has not visited this database yet" :
			psprintf("running; last visited this database at %s", since((int64) visited)),
			NULL);
}

/* Tickets of all databases share their memory.  Say so before it is full. */
static void
check_tickets(Report *report)
{
	int			waiting;
	bool		full;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	waiting = dlock_ticket_memory_waiting();
	LWLockRelease(dlock_lwlock_tickets());

	full = dlock_max_tickets > 0 && waiting >= dlock_max_tickets - dlock_max_tickets / 10;
	add(report, "tickets", full ? WORTH_A_LOOK : GOOD,
		psprintf("%d of %d wait%s", waiting, dlock_max_tickets,
				 full ? "; requests beyond are refused (53400), and their clients ask again and again" : ""),
		full ? "See dlock_waiters for who has them; increase dlock.max_tickets and restart." : NULL);
}

/*
 * Who may take a lock away from whom?  It is no problem either way, but people expect a
 * priority to need a privilege.
 */
static void
check_priorities(Report *report)
{
	int			max = dlock_policy_max_priority();

	add(report, "priorities", GOOD,
		max < 0 ? "every role may take the locks of others by a higher priority, and those without cleanup at once" :
		psprintf("no role may use one above %d, unless another policy allows it", max),
		max < 0 ? "To allow none: SELECT dlock_policy('', NULL, max_priority => 0);" : NULL);
}

/*
 * A standby
 */

static void
check_receiver(Report *report)
{
	char		host[NI_MAXHOST] = "";
	int			port;
	WalRcvState state;

	SpinLockAcquire(&WalRcv->mutex);
	state = WalRcv->walRcvState;
	port = WalRcv->sender_port;
	if (WalRcv->ready_to_display)
		strlcpy(host, WalRcv->sender_host, sizeof(host));
	SpinLockRelease(&WalRcv->mutex);

	if (state != WALRCV_STREAMING)
		add(report, "receiver", LOSES,
			"not streaming from the primary: locks that are granted there now are missing here",
			"Check primary_conninfo and the log of this server.");
	else if (report->sees_all && host[0] != '\0')
		add(report, "receiver", GOOD, psprintf("streaming from %s, port %d", host, port), NULL);
	else
		add(report, "receiver", GOOD, "streaming", NULL);
}

static void
check_replay(Report *report)
{
	XLogRecPtr	received = GetWalRcvFlushRecPtr(NULL, NULL);
	XLogRecPtr	replayed = GetXLogReplayRecPtr(NULL);
	uint64		behind = received > replayed ? received - replayed : 0;

	if (GetRecoveryPauseState() != RECOVERY_NOT_PAUSED)
		add(report, "replay", WORTH_A_LOOK,
			psprintf("paused; " UINT64_FORMAT " bytes are received but not replayed; a promotion replays them first", behind),
			"SELECT pg_catalog.pg_wal_replay_resume();");
	else
		add(report, "replay", GOOD,
			psprintf(UINT64_FORMAT " bytes are received but not replayed", behind), NULL);
}

static void
check_names_on_standby(Report *report)
{
	if (dlock_standby_defined())
		add(report, "synchronous_standby_names", GOOD,
			psprintf("%s: once promoted, grants wait for %d of these",
					 SyncRepStandbyNames, SyncRepConfig->num_sync), NULL);
	else
		add(report, "synchronous_standby_names", WORTH_A_LOOK,
			"empty: once promoted, this server waits for no standby",
			"Set synchronous_standby_names here too, unless the failover tool sets it at promotion.");
}

/*
 * Both
 */

static void
check_versions(Report *report, bool in_recovery)
{
	DlockTable	store;
	DlockVersions versions;

	dlock_table_open(&store, false, false);
	dlock_version_look(&store, in_recovery, &versions);
	dlock_table_close(&store, false);

	if (!versions.drawn)
		add(report, "versions", GOOD, "none has been drawn yet", NULL);
	else
		add(report, "versions", GOOD,
			psprintf("the last one is " INT64_FORMAT "%s", versions.last,
					 !versions.leaps ? ", of this incarnation" :
					 in_recovery ? "; the first one after a promotion leaps by 4294967296 or more" :
					 ", of an earlier incarnation; the next one leaps by 4294967296 or more"),
			NULL);
}

static void
check_settings(Report *report, bool in_recovery)
{
	const char *commit = GetConfigOption("synchronous_commit", false, false);
	bool		session_waits = synchronous_commit >= SYNCHRONOUS_COMMIT_REMOTE_FLUSH;

	if (dlock_durable_grants)
	{
		add(report, "dlock.durable_grants", GOOD,
			"on: a commit with a grant waits for the disk and for the synchronous standbys", NULL);
		add(report, "synchronous_commit", GOOD,
			psprintf("%s in this session%s", commit, session_waits ? "" :
					 "; commits with a grant use \"on\", other commits, including fenced ones, do not"),
			NULL);
	}
	else
	{
		const char *hint = "Turn dlock.durable_grants on. It may have been turned off for the role or the database.";

		add(report, "dlock.durable_grants", session_waits ? WORTH_A_LOOK : LOSES,
			"off: how durable a grant is depends on the synchronous_commit of its session", hint);
		add(report, "synchronous_commit", session_waits ? GOOD : LOSES,
			psprintf("%s in this session", commit),
			session_waits ? NULL : "Turn dlock.durable_grants or synchronous_commit on.");
	}

	if (dlock_require_sync && !in_recovery && !dlock_standby_defined())
		add(report, "dlock.require_sync", BLOCKS,
			"on, and synchronous_standby_names is empty: every grant is refused (55000)",
			"Set synchronous_standby_names, or turn dlock.require_sync off.");
	else if (dlock_require_sync)
		add(report, "dlock.require_sync", GOOD,
			"on: no grant is made while too few standbys confirm commits", NULL);
	else
		add(report, "dlock.require_sync", GOOD,
			"off: grants wait while too few standbys confirm commits, and wait for no standby while synchronous_standby_names is empty",
			"Turn dlock.require_sync on if no lock is better than an uncertain one.");

	if (enableFsync)
		add(report, "fsync", GOOD, "on", NULL);
	else
		add(report, "fsync", LOSES,
			"off: a crash of this machine can lose grants and corrupt all data",
			"Turn fsync on, and reload.");

	if (fullPageWrites)
		add(report, "full_page_writes", GOOD, "on", NULL);
	else
		add(report, "full_page_writes", WORTH_A_LOOK,
			"off: a crash in the middle of a write can corrupt a page, unless the file system prevents it",
			"Turn full_page_writes on, and reload.");

	if (max_wal_senders == 0 || wal_level < WAL_LEVEL_REPLICA)
		add(report, "wal_level", report->alone ? GOOD : LOSES,
			psprintf("%s, with max_wal_senders = %d: no standby can connect",
					 GetConfigOption("wal_level", false, false), max_wal_senders),
			"Set wal_level to replica and max_wal_senders to 10, and restart.");
	else
		add(report, "wal_level", GOOD,
			psprintf("%s, with max_wal_senders = %d",
					 GetConfigOption("wal_level", false, false), max_wal_senders),
			NULL);
}

/* Adds a row only if there is an invalid index. */
static void
check_indexes(Report *report)
{
	DlockTable	store;
	List	   *names;
	StringInfoData list;
	ListCell   *cell;

	if (!dlock_table_open(&store, false, true))
		return;
	names = dlock_table_invalid_indexes(&store);
	dlock_table_close(&store, false);
	if (names == NIL)
		return;

	initStringInfo(&list);
	foreach(cell, names)
		appendStringInfo(&list, "%sdlock.%s", list.len > 0 ? ", " : "",
						 quote_identifier(lfirst(cell)));
	add(report, "indexes", WORTH_A_LOOK,
		psprintf("invalid: %s; being built, or left behind by a REINDEX or CREATE INDEX CONCURRENTLY that was cancelled",
				 list.data),
		psprintf("If none is running: DROP INDEX %s;", list.data));
}

/* Adds a row only if the trigger of the table is not as it was created. */
static void
check_trigger(Report *report)
{
	DlockTable	store;
	bool		guarded;

	if (!dlock_table_open(&store, false, true))
		return;
	guarded = dlock_places_guarded(store.heap);
	dlock_table_close(&store, false);
	if (!guarded)
		add(report, "trigger", WORTH_A_LOOK,
			"of dlock.locks is not enabled always, as after pg_restore --disable-triggers: every exclusive acquire is slower, and a subscription could write to the table",
			"ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_row, ENABLE ALWAYS TRIGGER count_restored_row, ENABLE ALWAYS TRIGGER refuse_replicated_truncate;");
}

/* Put the verdict before everything else. */
static void
conclude(Report *report, bool in_recovery)
{
	const char *loses = names_of(report, LOSES);
	const char *blocks = names_of(report, BLOCKS);
	const char *look = names_of(report, WORTH_A_LOOK);
	Row		   *row = palloc0(sizeof(Row));

	row->name = "failover";
	row->status = loses != NULL ? LOSES : blocks != NULL ? BLOCKS :
		look != NULL ? WORTH_A_LOOK : GOOD;
	if (loses != NULL)
		row->detail = in_recovery ?
			psprintf("if this standby is promoted, grants can be lost; see: %s", loses) :
			psprintf("grants can be lost in a %s; see: %s%s%s",
					 report->alone ? "crash" : "failover", loses,
					 blocks != NULL ? ". None is confirmed now; see: " : "",
					 blocks != NULL ? blocks : "");
	else if (blocks != NULL)
		row->detail = psprintf("grants that were confirmed survive a failover, but no new one is confirmed now; see: %s", blocks);
	else
		row->detail = psprintf("%s%s%s", in_recovery ?
							   "this standby is streaming: if it is promoted now, it has every grant that it has confirmed" :
							   report->alone ?
							   "grants survive a crash of this server, but not its loss, because it has no standby" :
							   "grants survive the loss of this server, if a synchronous standby is promoted",
							   look != NULL ? "; worth a look: " : "",
							   look != NULL ? look : "");

	for (Status status = LOSES; row->hint == NULL && status > GOOD; status--)
	{
		ListCell   *cell;

		foreach(cell, report->rows)
		{
			const Row  *other = lfirst(cell);

			if (row->hint == NULL && other->status == status)
				row->hint = other->hint;
		}
	}
	report->rows = lcons(row, report->rows);
}

Datum
dlock_health(PG_FUNCTION_ARGS)
{
	Report		report = {0};
	bool		in_recovery;
	TimeLineID	timeline;
	ListCell   *cell;

	dlock_shmem_require();
	PreventCommandIfParallelMode("dlock_health()");
	InitMaterializedSRF(fcinfo, 0);
	report.sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);

	/* ask once, because the server may be promoted meanwhile */
	in_recovery = RecoveryInProgress();
	if (in_recovery)
	{
		GetXLogReplayRecPtr(&timeline);
		add(&report, "server", GOOD, psprintf("standby, timeline %u", timeline), NULL);
		check_receiver(&report);
		check_replay(&report);
		check_names_on_standby(&report);
	}
	else
	{
		DlockSync	sync;

		add(&report, "server", GOOD,
			psprintf("primary, timeline %u, accepting writes since %s",
					 GetWALInsertionTimeLine(), since(dlock_clock_started())),
			NULL);
		dlock_standby_look(&sync);
		report.alone = !sync.defined && !dlock_require_sync && !dlock_standby_expected();
		check_names(&report, &sync);
		check_standbys(&report, &sync);
	}
	check_settings(&report, in_recovery);
	check_versions(&report, in_recovery);
	if (in_recovery)
		add(&report, "reaper", GOOD, "starts when this server is promoted", NULL);
	else
	{
		check_reaper(&report);
		check_tickets(&report);
	}
	check_priorities(&report);
	check_indexes(&report);
	check_trigger(&report);
	conclude(&report, in_recovery);

	foreach(cell, report.rows)
		put((ReturnSetInfo *) fcinfo->resultinfo, lfirst(cell));
	return (Datum) 0;
}
