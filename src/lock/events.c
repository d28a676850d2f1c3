/*-------------------------------------------------------------------------
 *
 * events.c
 *	  Notifications on channel "dlock".
 *
 * NOTIFY serializes the commits of the transactions that use it, so an
 * ordinary acquire or release sends nothing.  Events are a convenience: a
 * client that must know asks with dlock_check, and the fence protects the data.
 * A grant that was made for a ticket is announced, in the transaction that makes
 * it, because its requester has no call that returns.
 *
 * Any role can listen, so an event names roles but not owners.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/json.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "lock/events.h"

/* safely below the limit of Async_Notify() */
#define MAX_PAYLOAD 7900

static void
begin_key_event(StringInfo event, const char *name, const char *key)
{
	initStringInfo(event);
	appendStringInfo(event, "{\"event\": \"%s\", \"key\": ", name);
	escape_json(event, key);
}

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

static void
send_event(StringInfo event)
{
	appendStringInfoChar(event, '}');
	Async_Notify("dlock", event->data);
	pfree(event->data);
}

void
dlock_event_expired(const char *key, int64 version)
{
	StringInfoData event;

	begin_event(&event, "expired", key, version);
	send_event(&event);
}

void
dlock_event_forced(const char *key, int64 version, Oid by, const char *reason)
{
	StringInfoData event;

	begin_event(&event, "forced", key, version);
	append_role(&event, by);
	append_reason(&event, reason);
	send_event(&event);
}

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
