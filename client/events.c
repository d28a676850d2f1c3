/*-------------------------------------------------------------------------
 *
 * events.c
 *	  What is heard on channel "dlock".
 *
 * Every role may send on that channel, so an event proves nothing.  It is a
 * reason to ask the server about the lock that it names, soon, and what is
 * told to the program is the server's answer to that.
 *
 * The question is a dlock_check(), which writes nothing.  In the long run there
 * is one in DLOCK_HEAR_PAUSE_MS for a handle at most, for all locks that were
 * heard of since the last one; DLOCK_HEAR_BURST may follow each other at once.
 * So the cost of events is bounded, whoever sends them, and one that is true is
 * acted upon at once, or within that time if there are many.
 *
 *-------------------------------------------------------------------------
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Events are flat; what is deeper is somebody else's. */
#define MAX_DEPTH 8

/*
 * JSON, as RFC 8259 has it and not a bit more lenient.  Each function eats
 * what it is named after, or returns false.
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
put_utf8(DlockString *to, unsigned int code)
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
	dlock_string_add(to, bytes, n);
}

/* What follows a backslash. */
static bool
take_escape(const char **at, DlockString *to)
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
	dlock_string_add(to, means + (name - names), 1);
	return true;
}

static bool
take_string(const char **at, DlockString *to)
{
	if (!take(at, '"'))
		return false;
	dlock_string_add(to, "", 0);
	for (;;)
	{
		unsigned char c = (unsigned char) **at;

		if (c < 0x20)
			return false;
		(*at)++;
		if (c == '"')
			return !to->broken;
		if (c != '\\')
			dlock_string_add(to, *at - 1, 1);
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
	DlockString string = {0};
	bool		good = take_string(at, &string);

	dlock_string_free(&string);
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
		return depth < MAX_DEPTH && skip_members(at, end, depth + 1);
	}
	for (int i = 0; i < 3; i++)
		if (strncmp(*at, words[i], strlen(words[i])) == 0)
		{
			*at += strlen(words[i]);
			return true;
		}
	return skip_number(at, &whole);
}

/*
 * One member of an event.  A name that comes twice makes it ambiguous, and so
 * no event.
 */
static bool
take_member(const char **at, DlockString *event, DlockString *key, int64_t *version)
{
	DlockString name = {0};
	bool		good = take_string(at, &name) && take(at, ':');

	if (good)
	{
		if (strcmp(name.data, "event") == 0)
			good = event->data == NULL && take_string(at, event);
		else if (strcmp(name.data, "key") == 0)
			good = key->data == NULL && take_string(at, key);
		else if (strcmp(name.data, "version") == 0)
			good = *version == 0 && take_integer(at, version) && *version > 0;
		else
			good = skip_value(at, 0);
	}
	dlock_string_free(&name);
	return good;
}

/*
 * Is it an event of a grant?  Then *key is to be freed.
 */
bool
dlock_event_parse(const char *payload, char **key, int64_t *version, bool *forced)
{
	const char *at = payload;
	DlockString event = {0};
	DlockString name = {0};
	bool		good;

	*version = 0;
	good = take(&at, '{');
	if (good)
		do
			good = take_member(&at, &event, &name, version);
		while (good && take(&at, ','));
	good = good && take(&at, '}');
	skip_space(&at);
	good = good && *at == '\0' && event.data != NULL && name.data != NULL && *version > 0;
	*forced = good && strcmp(event.data, "forced") == 0;
	good = good && (*forced || strcmp(event.data, "preempt") == 0 ||
					strcmp(event.data, "expired") == 0);
	dlock_string_free(&event);
	if (good)
		*key = name.data;
	else
		dlock_string_free(&name);
	return good;
}

/*
 * Hearing
 */

/* A notification: the server is to be asked about the lock that it names. */
void
dlock_events_hear(void *arg, const char *payload)
{
	dlock_handle *handle = arg;
	char	   *key;
	int64_t		version;
	bool		forced;

	if (!dlock_event_parse(payload, &key, &version, &forced))
		return;
	pthread_mutex_lock(&handle->mutex);
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		if (lock->version == version && lock->hold == DLOCK_HOLD_OURS &&
			strcmp(lock->key, key) == 0)
		{
			if (!lock->heard)
				dlock_keepalive_wake(handle);
			lock->heard = true;
			lock->forced = lock->forced || forced;
		}
	pthread_mutex_unlock(&handle->mutex);
	free(key);
}

/* We did not listen, and may have missed anything.  Mutex. */
void
dlock_events_missed(dlock_handle *handle)
{
	for (dlock_lock *lock = handle->locks; lock != NULL; lock = lock->next)
		lock->heard = true;
}

/* When the server may be asked about what was heard.  Mutex. */
int64_t
dlock_events_ripe_at(const dlock_handle *handle)
{
	return handle->heard_until - (DLOCK_HEAR_BURST - 1) * DLOCK_HEAR_PAUSE_MS;
}

/* Is the server to be asked about it now?  Mutex. */
bool
dlock_events_ripe(const dlock_lock *lock, int64_t now)
{
	return lock->heard && dlock_events_ripe_at(lock->handle) <= now;
}

/* A statement is on its way, and asks about these.  Mutex. */
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
 * It was answered: it is still ours, so nothing that was heard before the
 * question was true.  Mutex.
 */
void
dlock_events_refuted(dlock_lock *lock)
{
	lock->asking = false;
	if (!lock->heard)
		lock->forced = false;
}

/* It was not answered, and has to be asked again.  Mutex. */
void
dlock_events_unanswered(dlock_lock *lock)
{
	lock->heard = lock->heard || lock->asking;
	lock->asking = false;
}
