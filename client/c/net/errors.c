/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  What an error of the server means.
 *
 * Texts are translated, so nothing here depends on them.  An error is
 * recognized by its SQLSTATE, and where that is not enough, by the function of
 * the server that raised it or by the time that the statement took.
 *
 *-------------------------------------------------------------------------
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "net/errors.h"

static bool
starts(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

static bool
is(const dlock_error *error, const char *code)
{
	return strcmp(error->sqlstate, code) == 0;
}

/* Set the status.  True: it may succeed later, on a new connection. */
bool
dlock_error_classify(dlock_error *error)
{
	const char *code = error->sqlstate;

	/* 25P04: transaction_timeout, which also ends the connection */
	if (code[0] == '\0' || starts(code, "08") || starts(code, "57P0") ||
		is(error, "25006") || is(error, "25P04") || is(error, "53300"))
	{
		error->status = DLOCK_UNREACHABLE;
		return true;
	}
	if (starts(code, "28") || is(error, "3D000") || is(error, "42501"))
		error->status = DLOCK_DENIED;
	else if (is(error, "55000") || is(error, "42883") || is(error, "3F000") ||
			 is(error, "42P01") || is(error, "42704") || is(error, "42725") || is(error, "0A000"))
		error->status = DLOCK_NOT_READY;
	else if (is(error, "55P03"))
		error->status = DLOCK_REFUSED;
	else if (starts(code, "22"))
		error->status = DLOCK_INVALID;
	else
		error->status = DLOCK_SERVER_ERROR;
	return false;
}

/*
 * Could a router not reach the cluster of the key?  PL/Proxy reports that as an
 * internal error of its own.  Errors of the cluster have another function.
 */
bool
dlock_error_no_cluster(dlock_error *error, const char *function)
{
	if (function == NULL || strcmp(function, "plproxy_error_with_state") != 0 ||
		!is(error, "XX000"))
		return false;
	error->status = DLOCK_UNREACHABLE;
	return true;
}

/*
 * The server is there but accepts nobody at the moment: it is full, starting
 * or shutting down.
 */
bool
dlock_error_turned_away(const dlock_error *error)
{
	return dlock_error_full(error) || starts(error->sqlstate, "57P0");
}

/*
 * It has no connection left.  PgBouncer has no SQLSTATE for that; its messages
 * are not translated.  On a Unix-domain socket, too many that knock at the same
 * time are turned away by the kernel, whose message is in our own language.
 */
bool
dlock_error_full(const dlock_error *error)
{
	/*
	 * strerror_r() has two interfaces.  For numbers that the C library knows,
	 * strerror() returns a constant, and so is safe in threads.
	 */
	const char *again = strerror(EAGAIN);

	return is(error, "53300") ||
		(is(error, "08P01") && strstr(error->message, "no more connections allowed") != NULL) ||
		(error->sqlstate[0] == '\0' && strstr(error->message, again) != NULL);
}

/*
 * Did a timeout that is set on the server end the statement?  Then our own time
 * is not up, and the statement can be sent again.
 *
 * lock_timeout and a holder that does not yield have the same SQLSTATE, but only
 * the former is raised by the server's own ProcessInterrupts().  That function
 * also reports a cancel by an administrator, with the SQLSTATE of
 * statement_timeout.  A cancel is intended and ends the call.  Before
 * statement_timeout has passed, it can only be a cancel.
 */
bool
dlock_error_timed_out(dlock_error *error, const char *function,
					  int64_t took_ms, int64_t statement_timeout_ms)
{
	bool		timed_out;

	if (function == NULL || strcmp(function, "ProcessInterrupts") != 0)
		return false;
	timed_out = is(error, "55P03") ||
		(is(error, "57014") && statement_timeout_ms > 0 && took_ms >= statement_timeout_ms);
	if (timed_out)
		error->status = DLOCK_TIMEOUT;
	return timed_out;
}

/* From the fields of an error.  All but the text may be NULL. */
void
dlock_error_make(dlock_error *error, const char *code, const char *text,
				 const char *detail, const char *hint)
{
	PQExpBufferData string;

	dlock_error_clear(error);
	initPQExpBuffer(&string);
	if (code != NULL)
		dlock_clip(error->sqlstate, sizeof(error->sqlstate), code, 5);
	appendPQExpBufferStr(&string, text);
	if (detail != NULL)
		appendPQExpBuffer(&string, " (%s)", detail);
	if (!PQExpBufferDataBroken(string))
		dlock_clip(error->message, sizeof(error->message), string.data, string.len);
	termPQExpBuffer(&string);
	if (hint != NULL)
		dlock_clip(error->hint, sizeof(error->hint), hint, strlen(hint));
}

/*
 * From the message of a failure to connect.  libpq returns its SQLSTATE only in
 * the text of a verbose message: "...FATAL:  28P01: ...", followed by a line that
 * names a place in the server's source.
 */
void
dlock_error_parse(dlock_error *error, const char *text)
{
	const char *end = text + strlen(text);
	const char *at = text;

	dlock_error_clear(error);
	while (end > text && end[-1] == '\n')
		end--;

	/* what follows that line is a second try, for example without encryption */
	for (const char *p = strchr(text, '\n'); p != NULL && p < end; p = strchr(p + 1, '\n'))
	{
		const char *place = strstr(p, ".c:");
		const char *next = strchr(p + 1, '\n');

		if (place != NULL && (next == NULL || place < next))
			end = p;
	}

	while ((at = strstr(at, ":  ")) != NULL && at + 10 < end)
	{
		int			i = 0;

		while (i < 5 && (isdigit((unsigned char) at[3 + i]) ||
						 isupper((unsigned char) at[3 + i])))
			i++;
		if (i == 5 && at[8] == ':' && at[9] == ' ')
			break;
		at += 3;
	}
	if (at != NULL && at + 10 < end)
	{
		PQExpBufferData string;

		memcpy(error->sqlstate, at + 3, 5);
		initPQExpBuffer(&string);
		appendBinaryPQExpBuffer(&string, text, (size_t) (at + 3 - text));
		appendBinaryPQExpBuffer(&string, at + 10, (size_t) (end - at - 10));
		if (!PQExpBufferDataBroken(string))
			dlock_clip(error->message, sizeof(error->message), string.data, string.len);
		termPQExpBuffer(&string);
	}
	else
		dlock_clip(error->message, sizeof(error->message), text, (size_t) (end - text));
}
