/*-------------------------------------------------------------------------
 *
 * grant_end.c
 *	  How a grant ends: what its end counts as, the log (dlock.log_ends), and how
 *	  long holders take to yield.
 *
 * An end is noted in the journal when the row is changed, and counted and logged
 * when that commits.  At that point nothing may fail and no catalog can be read, so
 * the names of roles are looked up before.  The reaper must not read catalogs
 * before its commit either, because others wait for it meanwhile.  It logs in
 * its next transaction.
 *
 * A log line may contain the owner of another role's grant, so it goes to the
 * server's log only, never to a client, whatever client_min_messages says.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "pgtime.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "fence/statement_role.h"
#include "guc.h"
#include "journal.h"
#include "lock/grant_end.h"
#include "lock/xact.h"
#include "queue/queue.h"
#include "rows/row.h"
#include "stats/stats.h"

typedef enum How
{
	/* by its holder */
	RELEASED,
	DISCONNECTED,				/* released by the end of its session */
	UPGRADED,					/* its owner has the key for itself now */
	HANDED_OVER,				/* another owner has it now */

	/* against its will */
	EXPIRED,
	SESSION_GONE,				/* the session could not release it */
	LAPSED,						/* lazy, and wanted by another request */
	PREEMPTED,
	FORCED
} How;

/* An end that is to be logged. */
typedef struct Ended
{
	slist_node	node;			/* of one that is deferred */
	char	   *key;
	int64		version;
	char	   *owner;			/* NULL: none */
	const char *origin;			/* of one without an owner */
	Oid			role;
	char	   *role_name;		/* NULL: not looked up yet */
	How			how;
	Oid			by;				/* the role that ended it */
	char	   *by_name;
	char	   *next_owner;		/* that it was handed over to */
	bool		cut_short;		/* a policy has ended it */
	int64		began;
	int64		ended;
} Ended;

/* of a process that defers the log: the ends that have been committed */
static MemoryContext deferred_context = NULL;
static slist_head deferred = SLIST_STATIC_INIT(deferred);

/* Did its holder lose it? */
static bool
is_loss(How how)
{
	return how > HANDED_OVER;
}

/* Does dlock.log_ends ask for an end like this? */
static bool
is_logged(How how)
{
	if (!is_loss(how))
		return dlock_log_ends == DLOCK_LOG_ALL_ENDS;
	return dlock_log_ends != DLOCK_LOG_NO_ENDS;
}

/*
 * Note the end for the log.  The transaction's memory lasts until the callbacks of
 * its end have run.
 */
static void
note_for_log(const DlockEnding *ending, How how)
{
	const DlockKey *key = &ending->request->key;
	MemoryContext caller = MemoryContextSwitchTo(deferred_context != NULL ?
												 deferred_context : TopTransactionContext);
	Ended	   *end = palloc0(sizeof(Ended));
	DlockGrant	grant;

	dlock_row_grant(ending->store->heap, ending->row->tuple, &grant);
	end->key = pnstrdup(key->data, key->len);
	end->version = grant.version;
	end->owner = grant.terms.owner != NULL ? pstrdup(grant.terms.owner) : NULL;
	end->origin = grant.origin;
	end->role = grant.terms.role;
	end->how = how;
	end->by = ending->request->terms.role;
	if (how == HANDED_OVER)
		end->next_owner = pstrdup(ending->request->terms.owner);
	end->began = dlock_row_acquired_at(ending->row->tuple);
	end->cut_short = dlock_row_is_cut_short(ending->row->tuple);
	end->ended = how == EXPIRED ? ending->state->expires : ending->now;
	if (deferred_context == NULL)
	{
		end->role_name = dlock_statement_role_name(end->role);
		end->by_name = dlock_statement_role_name(end->by);
	}
	MemoryContextSwitchTo(caller);
	(void) dlock_journal_add(DLOCK_NOTE_LOG, &end, sizeof(end));
}

/* Note that a grant of this key is lost. */
static void
note_lost(const DlockKey *key)
{
	DlockKey   *lost = MemoryContextAlloc(TopTransactionContext, sizeof(DlockKey) + key->len);

	*lost = *key;
	lost->data = memcpy(lost + 1, key->data, key->len);
	(void) dlock_journal_add(DLOCK_NOTE_LOST, &lost, sizeof(lost));
}

/*
 * The grant ends, if the transaction commits.  Its holder was asked to yield at
 * "asked_at", or not (0).
 */
static void
note_end(const DlockEnding *ending, DlockStat stat, How how, int64 asked_at)
{
	dlock_xact_count(stat);
	if (asked_at != 0)
		(void) dlock_journal_add(DLOCK_NOTE_YIELD, &asked_at, sizeof(asked_at));
	if (is_loss(how))
		note_lost(&ending->request->key);
	if (is_logged(how))
		note_for_log(ending, how);
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

/* The end of the message. */
static char *
how_ended(const Ended *end)
{
	switch (end->how)
	{
		case RELEASED:
			return _("released");
		case DISCONNECTED:
			return _("released at the end of its session");
		case UPGRADED:
			return _("replaced by an exclusive grant of its owner");
		case HANDED_OVER:
			return psprintf(_("handed over to owner \"%s\""), end->next_owner);
		case EXPIRED:
			return end->cut_short ?
				_("expired, held for as long as its policy allows") : _("expired");
		case SESSION_GONE:
			return _("its session is gone");
		case LAPSED:
			return psprintf(_("lapsed and taken by role \"%s\""), end->by_name);
		case PREEMPTED:
			return psprintf(_("preempted by role \"%s\""), end->by_name);
		case FORCED:
			return psprintf(_("forcibly released by role \"%s\""), end->by_name);
	}
	return "?";
}

/* Write the line.  If that was deferred, the names of the roles are looked up now. */
static void
log_end(Ended *end)
{
	double		seconds = (double) Max(end->ended - end->began, 0) / USECS_PER_SEC;

	if (end->role_name == NULL)
	{
		end->role_name = dlock_statement_role_name(end->role);
		end->by_name = dlock_statement_role_name(end->by);
	}
	ereport(LOG_SERVER_ONLY,
			(errmsg("lock \"%s\" with version %lld of role \"%s\" ended: %s",
					end->key, (long long) end->version, end->role_name, how_ended(end)),
			 end->owner != NULL ?
			 errdetail("Owner \"%s\" held it for %.3f s, from %s to %s.", end->owner,
					   seconds, log_time(end->began), log_time(end->ended)) :
			 end->origin != NULL ?
			 errdetail("It was acquired by %s, and held for %.3f s, from %s to %s.", end->origin,
					   seconds, log_time(end->began), log_time(end->ended)) :
			 errdetail("It was held for %.3f s, from %s to %s.",
					   seconds, log_time(end->began), log_time(end->ended)),
			 errhidestmt(true)));
}

/*
 * At the end of the transaction.  What can fail is the memory for a log line, or a
 * hook that another module has put into the log.
 */
static void
end_log(const void *what, bool committed)
{
	Ended	   *end = *(Ended *const *) what;
	MemoryContext caller = CurrentMemoryContext;

	if (!committed)
		return;
	if (deferred_context != NULL)
	{
		slist_push_head(&deferred, &end->node);
		return;
	}
	PG_TRY();
	{
		MemoryContextSwitchTo(TopTransactionContext);
		log_end(end);
	}
	PG_CATCH();
	{
		FlushErrorState();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
}

/* At the end of the transaction: a key whose holder lost it counts as contended. */
static void
end_lost(const void *what, bool committed)
{
	if (committed)
		dlock_contended_keys_lost(*(DlockKey *const *) what);
}

/* At the end of the transaction: a holder that was asked has yielded. */
static void
end_yield(const void *what, bool committed)
{
	if (committed)
		dlock_stats_yielded(dlock_clock_now() - *(const int64 *) what);
}

/* At load time. */
void
dlock_grant_end_init(void)
{
	dlock_journal_register(DLOCK_NOTE_LOST, end_lost);
	dlock_journal_register(DLOCK_NOTE_LOG, end_log);
	dlock_journal_register(DLOCK_NOTE_YIELD, end_yield);
}

/*
 * For a process that must not read catalogs while it changes rows: from here on, it
 * logs ends by dlock_grant_end_log_deferred(), in a transaction.
 */
void
dlock_grant_end_defer(void)
{
	deferred_context = AllocSetContextCreate(TopMemoryContext, "dlock ends",
											 ALLOCSET_DEFAULT_SIZES);
}

/* Log what has ended since the last call. */
void
dlock_grant_end_log_deferred(void)
{
	slist_head	oldest_first = SLIST_STATIC_INIT(oldest_first);

	while (!slist_is_empty(&deferred))
		slist_push_head(&oldest_first, slist_pop_head_node(&deferred));
	while (!slist_is_empty(&oldest_first))
		log_end(slist_container(Ended, node, slist_pop_head_node(&oldest_first)));
	MemoryContextReset(deferred_context);
}

/*
 * What an end counts as
 */

/* When the holder of this grant was asked to yield, or 0. */
static int64
when_asked(const DlockEnding *ending)
{
	DlockNamedEntry *asking;
	int64		asked_at = 0;

	if (!dlock_queue_asked(&ending->request->key, ending->state, NULL))
		return 0;
	asking = palloc(sizeof(DlockNamedEntry));
	if (dlock_queue_asked(&ending->request->key, ending->state, asking))
		asked_at = dlock_rules_asked_since(ending->state, &asking->entry.report.asking, ending->now);
	pfree(asking);
	return asked_at;
}

/* Does the requester end its own place, in favour of an exclusive grant? */
static bool
is_upgrade(const DlockEnding *ending)
{
	const DlockState *state = ending->state;
	const DlockRequest *request = ending->request;

	return state->slot != DLOCK_HEAD && request->terms.capacity == DLOCK_EXCLUSIVE &&
		dlock_terms_same_owner(&state->terms, &request->terms) &&
		dlock_rules_is_held(state, ending->now);
}

/*
 * Another grant takes its place, or ends it.  Called by grant.c, with the row
 * locked.
 */
void
dlock_grant_end_taken(const DlockEnding *ending)
{
	const DlockState *state = ending->state;

	if (!state->held)
		return;
	if (is_upgrade(ending))
	{
		note_end(ending, DLOCK_STAT_RELEASES, UPGRADED, 0);
		return;
	}
	if (ending->request->op == DLOCK_HANDOVER && dlock_rules_is_held(state, ending->now))
	{
		note_end(ending, DLOCK_STAT_RELEASES, HANDED_OVER, 0);
		return;
	}
	switch (dlock_rules_phase(state, ending->now))
	{
		case DLOCK_PHASE_LIVE:
			note_end(ending, DLOCK_STAT_PREEMPTED, PREEMPTED, 0);
			break;
		case DLOCK_PHASE_LAPSED:
			note_end(ending, DLOCK_STAT_LAPSED_TAKEN, LAPSED, 0);
			break;
		default:
			note_end(ending, DLOCK_STAT_EXPIRED,
					 state->gone ? SESSION_GONE : EXPIRED, 0);
			break;
	}
}

/*
 * It is released, forcibly released or reaped.  Called by lock.c, with the row
 * locked.
 */
void
dlock_grant_end_ended(const DlockEnding *ending, DlockAnswer answer)
{
	const DlockState *state = ending->state;

	if (!state->held)
		return;					/* a free row, or the end of cooling */
	if (answer == DLOCK_IS_EXPIRED)
		note_end(ending, DLOCK_STAT_EXPIRED,
				 state->gone ? SESSION_GONE : EXPIRED, 0);
	else if (ending->request->op == DLOCK_FORCE)
		note_end(ending, DLOCK_STAT_FORCED, FORCED, 0);
	else if (ending->request->pid != 0)
		note_end(ending, DLOCK_STAT_RELEASES, DISCONNECTED, 0);
	else
		note_end(ending, DLOCK_STAT_RELEASES, RELEASED, when_asked(ending));
}
