/*
 * text.c
 *	  Strings that grow, and the format of durations and counts.
 */
#include "text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void
begin(Text *to)
{
	if (to->data == NULL)
		initPQExpBuffer(to);
}

static void
check(const Text *to)
{
	if (PQExpBufferBroken(to))
		out_of_memory();
}

void
text_add_bytes(Text *to, const char *bytes, size_t length)
{
	begin(to);
	appendBinaryPQExpBuffer(to, bytes, length);
	check(to);
}

void
text_add(Text *to, const char *string)
{
	text_add_bytes(to, string, strlen(string));
}

void
text_format(Text *to, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	text_vformat(to, format, args);
	va_end(args);
}

/* libpq does not export a function that takes a va_list. */
void
text_vformat(Text *to, const char *format, va_list args)
{
	va_list		again;
	int			needed;

	begin(to);
	check(to);
	va_copy(again, args);
	needed = vsnprintf(to->data + to->len, to->maxlen - to->len, format, args);
	if (needed >= 0 && (size_t) needed >= to->maxlen - to->len)
	{
		enlargePQExpBuffer(to, (size_t) needed);
		check(to);
		needed = vsnprintf(to->data + to->len, to->maxlen - to->len, format, again);
	}
	if (needed > 0)
		to->len += (size_t) needed;
	to->data[to->len] = '\0';
	va_end(again);
}

void
text_clear(Text *to)
{
	begin(to);
	resetPQExpBuffer(to);
	check(to);
}

void
text_free(Text *to)
{
	termPQExpBuffer(to);
	memset(to, 0, sizeof(*to));
}

/* Its contents, to be freed with free(). */
char *
text_take(Text *from)
{
	char	   *string = copy_string(from->data != NULL ? from->data : "");

	text_free(from);
	return string;
}

/*
 * "1.5s", "500ms", "2min 30s", or a plain number of seconds, as for sleep and
 * timeout.
 */
bool
parse_duration(const char *string, int64_t *ms)
{
	static const struct
	{
		const char *name;
		double		ms;
	}			units[] = {
		{"ms", 1}, {"s", 1000}, {"sec", 1000}, {"m", 60000}, {"min", 60000},
		{"h", 3600000}, {"d", 86400000}
	};
	size_t		count = sizeof(units) / sizeof(units[0]);
	double		sum = 0;
	int			parts = 0;

	while (isspace((unsigned char) *string))
		string++;
	while (*string != '\0')
	{
		char	   *end;
		double		number;
		size_t		length = 0;
		size_t		i;

		/* strtod would also accept hexadecimal numbers, signs and infinity */
		if (!isdigit((unsigned char) *string) && *string != '.')
			return false;
		if (string[0] == '0' && tolower((unsigned char) string[1]) == 'x')
			return false;
		number = strtod(string, &end);
		if (end == string)
			return false;
		for (string = end; isspace((unsigned char) *string); string++)
			;
		while (isalpha((unsigned char) string[length]))
			length++;
		if (length == 0)
		{
			if (parts > 0 || *string != '\0')
				return false;
			sum = number * 1000;
			break;
		}
		for (i = 0; i < count; i++)
			if (strlen(units[i].name) == length &&
				strncmp(units[i].name, string, length) == 0)
				break;
		if (i == count)
			return false;
		sum += number * units[i].ms;
		for (string += length; isspace((unsigned char) *string); string++)
			;
		parts++;
		if (*string == '\0')
			break;
	}
	if (parts == 0 && sum == 0 && *string == '\0' && string[-1] != '0')
		return false;
	/* a hundred years, which is more than the server allows */
	if (sum > 36525.0 * 86400000)
		return false;
	*ms = (int64_t) (sum + 0.5);
	return true;
}

/* In the two largest units, which is enough for a person. */
void
text_duration(Text *to, int64_t ms)
{
	long long	t = ms;

	if (t < 0)
	{
		text_add(to, "-");
		t = -t;
	}
	if (t < 1000)
		text_format(to, "%lldms", t);
	else if (t < 100 * 1000)
		text_format(to, "%lld.%llds", t / 1000, t % 1000 / 100);
	else if (t < 3600 * 1000)
		text_format(to, "%lldm %02llds", t / 60000, t / 1000 % 60);
	else if (t < 86400 * 1000)
		text_format(to, "%lldh %02lldm", t / 3600000, t / 60000 % 60);
	else
		text_format(to, "%lldd %02lldh", t / 86400000, t / 3600000 % 24);
}

/* "5,000": as a person reads it. */
void
text_count(Text *to, uint64_t number)
{
	if (number >= 1000)
	{
		text_count(to, number / 1000);
		text_format(to, ",%03d", (int) (number % 1000));
	}
	else
		text_format(to, "%d", (int) number);
}
