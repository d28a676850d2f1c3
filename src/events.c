/*-------------------------------------------------------------------------
 *
 * events.c
 *	  Notifications on channel "dlock".
 *
 * NOTIFY serializes the commits of the transactions that use it, so an
 * ordinary acquire or release sends nothing.  Events are a convenience: a
 * client that must know asks with dlock_check, and the fence protects the data.
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
#include "events.h"

/* safely below the limit of Async_Notify() */
#define MAX_PAYLOAD 7900

static void
begin_event(StringInfo event, const char *name, const char *key, int64 version)
{
	initStringInfo(event);
	appendStringInfo(event, "{\"event\": \"%s\", \"key\": ", name);
	escape_json(event, key);
	appendStringInfo(event, ", \"version\": " INT64_FORMAT, version);
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

	/* an escaped byte takes up to six; a reason that may not fit is omitted */
	if (reason != NULL && event.len + 6 * strlen(reason) < MAX_PAYLOAD)
	{
		appendStringInfoString(&event, ", \"reason\": ");
		escape_json(&event, reason);
	}
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
