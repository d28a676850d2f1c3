/*-------------------------------------------------------------------------
 *
 * events.c
 *	  Events on channel "dlock".
 *
 * Every role may send on that channel, so an event proves nothing.  It is a
 * reason to ask the server soon about the lock that it names, and the program
 * is told what the server answers.  Those of tickets are passed to wait.c.
 *
 * The question is a dlock_check(), which writes nothing.  In the long run a
 * handle asks at most once in DLOCK_HEAR_PAUSE_MS, about all locks that it has
 * heard of since the last question; DLOCK_HEAR_BURST questions may follow each
 * other at once.  So the cost of events is bounded, no matter who sends them.
 * A true event is acted upon at once, or within that time if there are many.
 *
 *-------------------------------------------------------------------------
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "events.h"
#include "roster.h"
#include "util.h"
#include "wait.h"

/*
 * JSON exactly as in RFC 8259.  Each function consumes what it is named after,
 * or returns false.
 */

static bool skip_value(const char **at, int depth);

static void
skip_space(const char **at)
{
	*at += strspn(*at, " \t\n\r");
}

static bool
take(const char **at, char c)
{
	skip_space(at);
	if (**at != c)
		return false;
	(*at)++;
	return true;
}

static bool
hex4(const char **at, unsigned int *code)
{
	*code = 0;
	for (int i = 0; i < 4; i++)
	{
		char		c = (*at)[i];

		if (!isxdigit((unsigned char) c))
			return false;
		*code = *code * 16 + (unsigned int) (isdigit((unsigned char) c) ? c - '0' :
											 tolower((unsigned char) c) - 'a' + 10);
	}
	*at += 4;
	return true;
}

static void
put_utf8(PQExpBuffer to, unsigned int code)
{
	char		bytes[4];
	size_t		n = 0;

	if (code < 0x80)
		bytes[n++] = (char) code;
	else
	{
		if (code < 0x800)
			bytes[n++] = (char) (0xc0 | code >> 6);
		else
		{
			if (code < 0x10000)
				bytes[n++] = (char) (0xe0 | code >> 12);
			else
			{
				bytes[n++] = (char) (0xf0 | code >> 18);
				bytes[n++] = (char) (0x80 | (code >> 12 & 0x3f));
			}
			bytes[n++] = (char) (0x80 | (code >> 6 & 0x3f));
		}
		bytes[n++] = (char) (0x80 | (code & 0x3f));
	}
	appendBinaryPQExpBuffer(to, bytes, n);
}

/* What follows a backslash. */
static bool
take_escape(const char **at, PQExpBuffer to)
{
	static const char names[] = "\"\\/bfnrt";
	static const char means[] = "\"\\/\b\f\n\r\t";
	const char *name;
	unsigned int code;
	unsigned int low;

	if (**at == 'u')
	{
		(*at)++;
		if (!hex4(at, &code) || code == 0 || (code >= 0xdc00 && code < 0xe000))
			return false;
		if (code >= 0xd800 && code < 0xdc00)
		{
			if ((*at)[0] != '\\' || (*at)[1] != 'u')
				return false;
			*at += 2;
			if (!hex4(at, &low) || low < 0xdc00 || low >= 0xe000)
				return false;
			code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
		}
		put_utf8(to, code);
		return true;
	}
	name = **at != '\0' ? strchr(names, **at) : NULL;
	if (name == NULL)
		return false;
	(*at)++;
	appendPQExpBufferChar(to, means[name - names]);
	return true;
}

static bool
take_string(const char **at, PQExpBuffer to)
{
	if (!take(at, '"'))
		return false;
	for (;;)
	{
		unsigned char c = (unsigned char) **at;

		if (c < 0x20)
			return false;
		(*at)++;
		if (c == '"')
			return !PQExpBufferBroken(to);
		if (c != '\\')
			appendPQExpBufferChar(to, (char) c);
		else if (!take_escape(at, to))
			return false;
	}
}

static bool
skip_digits(const char **at)
{
	size_t		n = strspn(*at, "0123456789");

	*at += n;
	return n > 0;
}

static bool
skip_number(const char **at, bool *whole)
{
	*whole = true;
	if (**at == '-')
		(*at)++;
	if (**at == '0')
		(*at)++;
	else if (!skip_digits(at))
		return false;
	if (**at == '.')
	{
		(*at)++;
		*whole = false;
		if (!skip_digits(at))
			return false;
	}
	if (**at == 'e' || **at == 'E')
	{
		(*at)++;
		*whole = false;
		if (**at == '+' || **at == '-')
			(*at)++;
		if (!skip_digits(at))
			return false;
	}
	return true;
}

static bool
take_integer(const char **at, int64_t *number)
{
	const char *start;
	bool		whole;

	skip_space(at);
	start = *at;
	if (!skip_number(at, &whole) || !whole)
		return false;
	errno = 0;
	*number = strtoll(start, NULL, 10);
	return errno == 0;
}

static bool
skip_string(const char **at)
{
	PQExpBufferData string;
	bool		good;

	initPQExpBuffer(&string);
	good = take_string(at, &string);
	termPQExpBuffer(&string);
	return good;
}

/* The members of an object, or the elements of an array, after the bracket. */
static bool
skip_members(const char **at, char end, int depth)
{
	if (take(at, end))
		return true;
	do
	{
		if (end == '}' && (!skip_string(at) || !take(at, ':')))
			return false;
		if (!skip_value(at, depth))
			return false;
	} while (take(at, ','));
	return take(at, end);
}

static bool
skip_value(const char **at, int depth)
{
	static const char *const words[] = {"true", "false", "null"};
	bool		whole;

	skip_space(at);
	if (**at == '"')
		return skip_string(at);
	if (**at == '{' || **at == '[')
	{
		char		end = **at == '{' ? '}' : ']';

		(*at)++;
		return depth < DLOCK_MAX_EVENT_DEPTH && skip_members(at, end, depth + 1);
	}
	for (int i = 0; i < 3; i++)
		if (strncmp(*at, words[i], strlen(words[i])) == 0)
		{
			*at += strlen(words[i]);
			return true;
		}
	return skip_number(at, &whole);
}

/* The members of an event. */
typedef struct Parsed
{
	PQExpBufferData event;
	PQExpBufferData key;
	PQExpBufferData code;
	PQExpBufferData reason;
	int64_t		version;		/* 0: not seen yet */
	int64_t		ticket;			/* likewise */
	bool		has_event;
	bool		has_key;
	bool		has_code;
	bool		has_reason;
} Parsed;

/*
 * One member of an event.  A name that occurs twice makes the text ambiguous,
 * so it is not an event.
 */
static bool
take_member(const char **at, Parsed *parsed)
{
	PQExpBufferData name;
	bool		good;

	initPQExpBuffer(&name);
	good = take_string(at, &name) && take(at, ':');
	if (good)
	{
		if (strcmp(name.data, "event") == 0)
		{
			good = !parsed->has_event && take_string(at, &parsed->event);
			parsed->has_event = true;
		}
		else if (strcmp(name.data, "key") == 0)
		{
			good = !parsed->has_key && take_string(at, &parsed->key);
			parsed->has_key = true;
		}
		else if (strcmp(name.data, "version") == 0)
			good = parsed->version == 0 && take_integer(at, &parsed->version) &&
				parsed->version > 0;
		else if (strcmp(name.data, "ticket") == 0)
			good = parsed->ticket == 0 && take_integer(at, &parsed->ticket) &&
				parsed->ticket > 0;
		else if (strcmp(name.data, "code") == 0)
		{
			good = !parsed->has_code && take_string(at, &parsed->code);
			parsed->has_code = true;
		}
		else if (strcmp(name.data, "reason") == 0)
		{
			good = !parsed->has_reason && take_string(at, &parsed->reason);
			parsed->has_reason = true;
		}
		else
			good = skip_value(at, 0);
	}
	termPQExpBuffer(&name);
	return good;
}

static bool
take_event(const char *at, Parsed *parsed)
{
	if (!take(&at, '{'))
		return false;
	do
		if (!take_member(&at, parsed))
			return false;
	while (take(&at, ','));
	if (!take(&at, '}'))
		return false;
	skip_space(&at);
	return *at == '\0' && parsed->has_event && parsed->has_key;
}

/*
 * Is it an event of a grant or of a ticket?  Then heard->key is to be freed.
 */
bool
dlock_event_parse(const char *payload, DlockHeard *heard)
{
	Parsed		parsed = {0};
	const char *event;
	bool		good;

	memset(heard, 0, sizeof(*heard));
	initPQExpBuffer(&parsed.event);
	initPQExpBuffer(&parsed.key);
	initPQExpBuffer(&parsed.code);
	initPQExpBuffer(&parsed.reason);
	good = take_event(payload, &parsed);
	event = parsed.event.data;
	if (good && (strcmp(event, "granted") == 0 || strcmp(event, "missed") == 0))
	{
		heard->missed = strcmp(event, "missed") == 0;
		heard->ticket = parsed.ticket;
		good = parsed.ticket > 0 && (heard->missed || parsed.version > 0);
		dlock_clip(heard->code, sizeof(heard->code), parsed.code.data, parsed.code.len);
		dlock_clip(heard->reason, sizeof(heard->reason), parsed.reason.data, parsed.reason.len);
	}
	else
	{
		heard->forced = good && strcmp(event, "forced") == 0;
		good = good && parsed.version > 0 &&
			(heard->forced || strcmp(event, "preempt") == 0 || strcmp(event, "expired") == 0);
	}
	heard->version = parsed.version;
	heard->key = good ? dlock_strdup(parsed.key.data) : NULL;
	termPQExpBuffer(&parsed.event);
	termPQExpBuffer(&parsed.key);
	termPQExpBuffer(&parsed.code);
	termPQExpBuffer(&parsed.reason);
	return heard->key != NULL;
}

/*
 * Hearing
 */

static void
hear_of_grant(dlock_handle *handle, const DlockHeard *heard)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->version == heard->version && lock->hold == DLOCK_HOLD_OURS &&
			strcmp(lock->key, heard->key) == 0)
		{
			if (!lock->heard)
				dlock_roster_wake(handle);
			lock->heard = true;
			lock->forced = lock->forced || heard->forced;
		}
}

/* A notification: have the server asked about the lock or ticket that it names. */
void
dlock_events_hear(void *arg, const char *payload)
{
	dlock_handle *handle = arg;
	DlockHeard	heard;

	if (!dlock_event_parse(payload, &heard))
		return;
	pthread_mutex_lock(&handle->mutex);
	if (heard.ticket > 0)
		dlock_wait_hear(handle, &heard);
	else
		hear_of_grant(handle, &heard);
	pthread_mutex_unlock(&handle->mutex);
	free(heard.key);
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
	return handle->heard_until - (DLOCK_HEAR_BURST - 1) * DLOCK_HEAR_PAUSE_MS;
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
		handle->heard_until = dlock_max(handle->heard_until, now) + DLOCK_HEAR_PAUSE_MS;
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
		lock->forced = false;
}

/* The server did not answer, and has to be asked again. */
void
dlock_events_unanswered(dlock_lock *lock)
{
	lock->heard = lock->heard || lock->asking;
	lock->asking = false;
}
