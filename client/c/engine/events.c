/*-------------------------------------------------------------------------
 *
 * events.c
 *	  Events on channel "dlock".
 *
 * Every role may send on that channel, so an event proves nothing.  It is a
 * reason to ask the server soon about the lock that it names, and the program
 * is told what the server answers.  Those of tickets are passed to tickets.c.
 *
 * The question is a dlock_check(), which writes nothing.  In the long run a
 * handle asks at most once in DLOCK_EVENT_PAUSE_MS, about all locks that it has
 * heard of since the last question; DLOCK_EVENT_BURST questions may follow each
 * other at once.  So the cost of events is bounded, no matter who sends them.
 * A true event is acted upon at once, or within that time if there are many.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/*
 * Scanning
 *
 * The server's events are flat JSON objects.  They are scanned for what is needed; a
 * payload that is something else names nothing of ours, or leads to a question.
 */

/* A string from the quote at *at on; what is between the quotes, or NULL. */
static const char *
take_string(const char **at, size_t *len)
{
	const char *start = *at + 1;
	const char *end = start;

	if (**at != '"')
		return NULL;
	while (*end != '"' && *end != '\0')
		end += *end == '\\' && end[1] != '\0' ? 2 : 1;
	if (*end == '\0')
		return NULL;
	*len = (size_t) (end - start);
	*at = end + 1;
	return start;
}

static bool
is(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && strncmp(text, word, len) == 0;
}

/* Copy a string, without its backslashes, for a person to read. */
static void
copy(char *to, size_t size, const char *from, size_t len)
{
	char		plain[256];
	size_t		n = 0;

	for (size_t i = 0; i < len && n < sizeof(plain); i++)
	{
		if (from[i] == '\\' && i + 1 < len)
			i++;
		plain[n++] = from[i];
	}
	dlock_clip(to, size, plain, n);
}

static void
note_text(DlockEvent *event, const char *name, size_t len, const char *text, size_t text_len,
		  bool *is_event)
{
	if (is(name, len, "event"))
	{
		event->forced = is(text, text_len, "forced");
		event->missed = is(text, text_len, "missed");
		*is_event = event->forced || event->missed || is(text, text_len, "granted") ||
			is(text, text_len, "preempt") || is(text, text_len, "expired");
	}
	else if (is(name, len, "key"))
	{
		event->key = text;
		event->key_len = text_len;
	}
	else if (is(name, len, "code"))
		copy(event->code, sizeof(event->code), text, text_len);
	else if (is(name, len, "by"))
		copy(event->by, sizeof(event->by), text, text_len);
	else if (is(name, len, "reason"))
		copy(event->reason, sizeof(event->reason), text, text_len);
}

/* Is it an event of a grant or of a ticket? */
bool
dlock_events_scan(const char *at, DlockEvent *event)
{
	bool		is_event = false;

	memset(event, 0, sizeof(*event));
	for (at += strspn(at, " {"); *at == '"'; at += strspn(at, " ,"))
	{
		size_t		len = 0;
		size_t		text_len = 0;
		const char *name = take_string(&at, &len);
		const char *text;

		at += strspn(at, " :");
		if (name == NULL || *at == '{' || *at == '[')
			return false;
		text = take_string(&at, &text_len);
		if (text != NULL)
			note_text(event, name, len, text, text_len, &is_event);
		else
		{
			int64_t    *number = NULL;

			if (is(name, len, "version"))
				number = &event->version;
			else if (is(name, len, "ticket"))
				number = &event->ticket;
			/* two of them are ambiguous */
			if (number != NULL && *number != 0)
				return false;
			if (number != NULL)
				*number = strtoll(at, NULL, 10);
			at += strcspn(at, ",}");
		}
	}
	return is_event && event->key != NULL && (event->version > 0 || event->ticket > 0);
}

/* Is that our key, as the server writes it in an event? */
static bool
is_key(const DlockEvent *event, const char *key)
{
	static const char named[] = "\b\f\n\r\t\"\\";
	static const char names[] = "bfnrt\"\\";
	size_t		at = 0;

	for (; *key != '\0'; key++)
	{
		const char *is_named = strchr(named, *key);
		char		escape[8];
		size_t		len = 1;

		escape[0] = *key;
		if (is_named != NULL)
			len = (size_t) snprintf(escape, sizeof(escape), "\\%c", names[is_named - named]);
		else if ((unsigned char) *key < ' ')
			len = (size_t) snprintf(escape, sizeof(escape), "\\u%04x", *key);
		if (at + len > event->key_len || memcmp(event->key + at, escape, len) != 0)
			return false;
		at += len;
	}
	return at == event->key_len;
}

/*
 * Hearing
 */

static void
note_forced(dlock_lock *lock, const DlockEvent *event)
{
	lock->forced = true;
	snprintf(lock->forced_by, sizeof(lock->forced_by), "by role \"%s\"%s%s", event->by,
			 event->reason[0] != '\0' ? ": " : "", event->reason);
}

static void
hear_of_grant(dlock_handle *handle, const DlockEvent *event)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->version == event->version && lock->hold == DLOCK_HOLD_OURS &&
			is_key(event, lock->key))
		{
			lock->heard = true;
			if (event->forced)
				note_forced(lock, event);
			dlock_loop_due(handle, &handle->background_at, dlock_events_ripe_at(handle));
		}
}

/*
 * A notification: have the server asked about the lock or ticket that it names.  Called
 * by the connection that listens, with the mutex.
 */
void
dlock_events_hear(void *arg, const char *payload)
{
	dlock_handle *handle = arg;
	DlockEvent	event;

	if (!dlock_events_scan(payload, &event))
		return;
	if (event.ticket > 0)
		dlock_tickets_hear(handle, &event);
	else
		hear_of_grant(handle, &event);
}

/* We did not listen for a while and may have missed events. */
void
dlock_events_missed(dlock_handle *handle)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		lock->heard = true;
}

/* When the server may be asked about what was heard. */
int64_t
dlock_events_ripe_at(const dlock_handle *handle)
{
	return handle->heard_until - (DLOCK_EVENT_BURST - 1) * DLOCK_EVENT_PAUSE_MS;
}

/* Should the server be asked about it now? */
bool
dlock_events_ripe(const dlock_lock *lock, int64_t now)
{
	return lock->heard && dlock_events_ripe_at(lock->handle) <= now;
}

/* A statement that asks about these locks is being sent. */
void
dlock_events_asked(dlock_handle *handle, dlock_lock *const *locks, int n, int64_t now)
{
	bool		any = false;

	for (int i = 0; i < n; i++)
	{
		any = any || locks[i]->heard;
		locks[i]->asking = locks[i]->heard;
		locks[i]->heard = false;
	}
	if (any)
		handle->heard_until = dlock_max(handle->heard_until, now) + DLOCK_EVENT_PAUSE_MS;
}

/*
 * The server answered that the lock is still ours, so nothing that was heard
 * before the question was true.
 */
void
dlock_events_refuted(dlock_lock *lock)
{
	lock->asking = false;
	if (!lock->heard)
	{
		lock->forced = false;
		lock->forced_by[0] = '\0';
	}
}

/* The server did not answer, and has to be asked again. */
void
dlock_events_unanswered(dlock_lock *lock)
{
	lock->heard = lock->heard || lock->asking;
	lock->asking = false;
}
