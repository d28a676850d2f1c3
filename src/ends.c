/*-------------------------------------------------------------------------
 *
 * ends.c
 *	  Grants that end: the log (dlock.log_ends), and how long holders take to
 *	  yield.
 *
 * An end is noted when the row is changed, and counted and logged when that
 * commits.  At that point nothing may fail and no catalog can be read, so the
 * names of roles are looked up before.  The reaper must not read catalogs
 * before its commit either, because others wait for it meanwhile.  It logs in
 * its next transaction.
 *
 * A log line may contain the owner of another role's grant, so it goes to the
 * server's log only, never to a client, whatever client_min_messages says.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "nodes/pg_list.h"
#include "pgtime.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "ends.h"
#include "guc.h"
#include "role.h"
#include "row.h"
#include "stats.h"

typedef struct Ended
{
	SubTransactionId subid;
	int64		asked_at;		/* 0: the holder was not asked to yield */
	bool		logged;
	char	   *key;
	int64		version;
	char	   *owner;			/* NULL: none */
	Oid			role;
	char	   *role_name;		/* NULL: not looked up yet */
	DlockEnd	how;
	Oid			by;				/* the role that ended it */
	char	   *by_name;
	int64		began;
	int64		ended;
} Ended;

static MemoryContext context = NULL;
static List *noted = NIL;		/* of Ended, in order */
static bool deferred = false;

static bool
is_wanted(DlockEnd how)
{
	if (how <= DLOCK_END_UPGRADED)
		return dlock_log_ends == DLOCK_LOG_ALL_ENDS;
	return dlock_log_ends != DLOCK_LOG_NO_ENDS;
}

/*
 * The grant in this row ends, if the current transaction commits.  "by" is the
 * role that ends it.  The holder was asked to yield at "asked_at", or not (0).
 */
void
dlock_ends_note(const DlockStore *store, const DlockKey *key, HeapTuple tuple,
				const DlockState *state, DlockEnd how, Oid by, int64 asked_at,
				int64 now)
{
	bool		logged = is_wanted(how);
	MemoryContext caller;
	Ended	   *end;

	if (!logged && asked_at == 0)
		return;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "dlock ends",
										ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(context);
	end = palloc0(sizeof(Ended));
	end->subid = GetCurrentSubTransactionId();
	end->asked_at = asked_at;
	end->logged = logged;
	end->how = how;
	if (logged)
	{
		DlockGrant	grant;

		dlock_row_grant(store->heap, tuple, &grant);
		end->key = pnstrdup(key->data, key->len);
		end->version = grant.version;
		end->owner = grant.owner != NULL ? pstrdup(grant.owner) : NULL;
		end->role = grant.role;
		end->by = by;
		end->began = dlock_row_acquired_at(tuple);
		end->ended = how == DLOCK_END_EXPIRED ? state->expires : now;
		if (!deferred)
		{
			end->role_name = dlock_role_name(end->role);
			end->by_name = dlock_role_name(end->by);
		}
	}
	noted = lappend(noted, end);
	MemoryContextSwitchTo(caller);
}

/* In the manner of log lines: with milliseconds, in log_timezone. */
static char *
log_time(int64 lease_time)
{
	TimestampTz at = dlock_clock_to_wall(lease_time);
	pg_time_t	seconds = timestamptz_to_time_t(at);
	struct pg_tm *local = pg_localtime(&seconds, log_timezone);
	char		date[64];
	char		zone[64];

	pg_strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", local);
	pg_strftime(zone, sizeof(zone), "%Z", local);
	return psprintf("%s.%03d %s", date,
					(int) (at - time_t_to_timestamptz(seconds)) / 1000, zone);
}

static char *
how_ended(const Ended *end)
{
	switch (end->how)
	{
		case DLOCK_END_RELEASED:
			return _("released");
		case DLOCK_END_DISCONNECTED:
			return _("released at the end of its session");
		case DLOCK_END_UPGRADED:
			return _("replaced by an exclusive grant of its owner");
		case DLOCK_END_EXPIRED:
			return _("expired");
		case DLOCK_END_SESSION_GONE:
			return _("its session is gone");
		case DLOCK_END_LAPSED:
			return psprintf(_("lapsed and taken by role \"%s\""), end->by_name);
		case DLOCK_END_PREEMPTED:
			return psprintf(_("preempted by role \"%s\""), end->by_name);
		case DLOCK_END_FORCED:
			return psprintf(_("forcibly released by role \"%s\""), end->by_name);
	}
	return "?";
}

static void
log_end(Ended *end)
{
	double		seconds = (double) Max(end->ended - end->began, 0) / USECS_PER_SEC;

	if (end->role_name == NULL)
	{
		end->role_name = dlock_role_name(end->role);
		end->by_name = dlock_role_name(end->by);
	}
	ereport(LOG_SERVER_ONLY,
			(errmsg("lock \"%s\" with version %lld of role \"%s\" ended: %s",
					end->key, (long long) end->version, end->role_name, how_ended(end)),
			 end->owner != NULL ?
			 errdetail("Owner \"%s\" held it for %.3f s, from %s to %s.", end->owner,
					   seconds, log_time(end->began), log_time(end->ended)) :
			 errdetail("It was held for %.3f s, from %s to %s.",
					   seconds, log_time(end->began), log_time(end->ended)),
			 errhidestmt(true)));
}

static void
forget_all(void)
{
	noted = NIL;
	MemoryContextReset(context);
}

static void
log_all(void)
{
	ListCell   *cell;

	foreach(cell, noted)
	{
		Ended	   *end = lfirst(cell);

		if (end->logged)
			log_end(end);
	}
}

/* The transaction has committed, and nobody was woken yet. */
void
dlock_ends_count(void)
{
	ListCell   *cell;

	foreach(cell, noted)
	{
		Ended	   *end = lfirst(cell);

		if (end->asked_at != 0)
			dlock_stats_yielded(dlock_clock_now() - end->asked_at);
	}
}

/*
 * The transaction has ended; this must not fail.  What can fail is the memory
 * for a log line, or a hook that another module has put into the log.
 */
void
dlock_ends_at_end(bool committed)
{
	MemoryContext caller = CurrentMemoryContext;

	if (noted == NIL)
		return;
	if (!committed)
	{
		forget_all();
		return;
	}

	if (deferred)
		return;

	PG_TRY();
	{
		MemoryContextSwitchTo(context);
		log_all();
	}
	PG_CATCH();
	{
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	forget_all();
}

/* The ends of this subtransaction and its children come last. */
void
dlock_ends_at_abort_sub(SubTransactionId subid)
{
	while (noted != NIL && ((Ended *) llast(noted))->subid >= subid)
		noted = list_delete_last(noted);
}

/* From here on, ends are logged by dlock_ends_log_deferred(), in a transaction. */
void
dlock_ends_defer(void)
{
	deferred = true;
}

void
dlock_ends_log_deferred(void)
{
	if (noted == NIL)
		return;
	log_all();
	forget_all();
}
