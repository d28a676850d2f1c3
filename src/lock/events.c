/*-------------------------------------------------------------------------
 *
 * events.c
 *	  Notifications on channel "dlock".
 *
 * NOTIFY serializes the commits of the transactions that use it, so an
 * ordinary acquire or release sends nothing.  Events are hints: a client that must
 * know asks with dlock_check, and the fence protects the data.  So an event may be
 * lost, and must not make anything fail.  The workers send theirs in transactions
 * that do nothing else.  The event "forced" is part of the transaction that takes the
 * lock, because a rollback must not announce it.
 *
 * Any role can listen, so an event names roles but not owners.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "lock/events.h"

/* safely below the limit of Async_Notify() */
#define MAX_PAYLOAD 7900

/* PostgreSQL's queue counts as full from here on; the rest is for what comes until commit */
#define FULL		0.9
#define ASK_AGAIN_US	INT64CONST(100000)

/* The beginning of every event; send_event() closes and frees it. */
static void
begin_key_event(StringInfo event, const char *name, const char *key)
{
	initStringInfo(event);
	appendStringInfo(event, "{\"event\": \"%s\", \"key\": ", name);
	escape_json(event, key);
}

/* The beginning of an event about a grant. */
static void
begin_event(StringInfo event, const char *name, const char *key, int64 version)
{
	begin_key_event(event, name, key);
	appendStringInfo(event, ", \"version\": " INT64_FORMAT, version);
}

/* An escaped byte takes up to six; a reason that may not fit is omitted. */
static void
append_reason(StringInfo event, const char *reason)
{
	if (reason == NULL || event->len + 6 * strlen(reason) >= MAX_PAYLOAD)
		return;
	appendStringInfoString(event, ", \"reason\": ");
	escape_json(event, reason);
}

/* The role may have been dropped meanwhile. */
static void
append_role(StringInfo event, Oid by)
{
	char	   *name = GetUserNameFromId(by, true);

	appendStringInfoString(event, ", \"by\": ");
	if (name != NULL)
		escape_json(event, name);
	else
		appendStringInfoString(event, "null");
}

/*
 * Is PostgreSQL's queue of notifications full, or nearly?  A transaction that notifies
 * fails at its commit then.  To ask takes locks that all sessions share, so a process
 * that sends many events asks now and then.
 */
static bool
is_queue_full(void)
{
	static int64 asked_at = 0;
	static bool is_full = false;
	int64		now = dlock_clock_now();

	if (asked_at == 0 || now >= asked_at + ASK_AGAIN_US)
	{
		is_full = DatumGetFloat8(OidFunctionCall0(F_PG_NOTIFICATION_QUEUE_USAGE)) >= FULL;
		asked_at = now;
	}
	return is_full;
}

/* Send the event with the commit of this transaction, unless the queue is full. */
static void
send_event(StringInfo event)
{
	appendStringInfoChar(event, '}');
	if (!is_queue_full())
		Async_Notify("dlock", event->data);
	pfree(event->data);
}

/*
 * A worker sends events, in a transaction of its own.  If that fails, which is logged,
 * the events are lost, and nothing else: what they tell of is committed.
 */
void
dlock_event_send(void (*send) (void *), void *arg)
{
	MemoryContext caller = CurrentMemoryContext;

	/* a commit whose wait for the standby was cut short is not announced */
	CHECK_FOR_INTERRUPTS();
	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		send(arg);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
}

/* The reaper has ended a grant that had expired. */
void
dlock_event_expired(const char *key, int64 version)
{
	StringInfoData event;

	begin_event(&event, "expired", key, version);
	send_event(&event);
}

/* A grant was taken away: by dlock_force_release(), or by a request (grant.c). */
void
dlock_event_forced(const char *key, int64 version, Oid by, const char *reason)
{
	StringInfoData event;

	begin_event(&event, "forced", key, version);
	append_role(&event, by);
	append_reason(&event, reason);
	send_event(&event);
}

/* A request asks a holder to yield.  The reaper sends it for the waiter. */
void
dlock_event_preempt(const char *key, int64 version, Oid by, int32 priority,
					int64 deadline)
{
	StringInfoData event;

	begin_event(&event, "preempt", key, version);
	append_role(&event, by);
	appendStringInfo(&event, ", \"priority\": %d, \"deadline\": \"%s\"", priority,
					 timestamptz_to_str(dlock_clock_to_wall(deadline)));
	send_event(&event);
}

/* The granter, after the commit that makes the grant. */
void
dlock_event_granted(const char *key, int64 version, int64 ticket)
{
	StringInfoData event;

	begin_event(&event, "granted", key, version);
	appendStringInfo(&event, ", \"ticket\": " INT64_FORMAT, ticket);
	send_event(&event);
}

/* The code is the SQLSTATE of the error that an acquire would raise, if any. */
void
dlock_event_missed(const char *key, int64 ticket, const char *code,
				   const char *reason)
{
	StringInfoData event;

	begin_key_event(&event, "missed", key);
	appendStringInfo(&event, ", \"ticket\": " INT64_FORMAT, ticket);
	if (code != NULL)
		appendStringInfo(&event, ", \"code\": \"%s\"", code);
	append_reason(&event, reason);
	send_event(&event);
}
