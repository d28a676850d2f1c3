/*
 * text.c
 *	  Strings that grow, and how things are written: durations, and text from
 *	  the server on a terminal.
 */
#include "text.h"

#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

void
text_add_bytes(Text *to, const char *bytes, size_t length)
{
	if (to->length + length + 1 > to->size)
	{
		to->size = (to->length + length + 1) * 2;
		to->data = reallocate(to->data, to->size);
	}
	memcpy(to->data + to->length, bytes, length);
	to->length += length;
	to->data[to->length] = '\0';
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
	char		small[256];
	int			needed;

	va_start(args, format);
	needed = vsnprintf(small, sizeof(small), format, args);
	va_end(args);
	if (needed < 0)
		return;
	if ((size_t) needed < sizeof(small))
		text_add_bytes(to, small, (size_t) needed);
	else
	{
		char	   *large = reallocate(NULL, (size_t) needed + 1);

		va_start(args, format);
		vsnprintf(large, (size_t) needed + 1, format, args);
		va_end(args);
		text_add_bytes(to, large, (size_t) needed);
		free(large);
	}
}

void
text_clear(Text *to)
{
	text_add_bytes(to, "", 0);
	to->length = 0;
	to->data[0] = '\0';
}

void
text_free(Text *to)
{
	free(to->data);
	memset(to, 0, sizeof(*to));
}

/*
 * "1.5s", "500ms", "2min 30s", or a plain number, which is seconds as in
 * sleep and timeout.
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

		/* strtod would take hexadecimal numbers, signs and infinity as well */
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
	/* a hundred years, which is more than the server takes */
	if (sum > 36525.0 * 86400000)
		return false;
	*ms = (int64_t) (sum + 0.5);
	return true;
}

/* The two highest units are enough for a person. */
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

/* The next character: its bytes, its columns, and whether it is shown as it is. */
static int
next_character_as(const char *string, int *columns, bool *as_is)
{
	wchar_t		wide;
	mbstate_t	state;
	size_t		bytes;

	memset(&state, 0, sizeof(state));
	bytes = mbrtowc(&wide, string, strlen(string), &state);
	*as_is = false;
	/* what is not one is (size_t) -1 or -2 */
	if (bytes == 0 || bytes > MB_LEN_MAX)
		bytes = 1;
	else
	{
		*columns = wcwidth(wide);
		*as_is = *columns >= 0;
	}
	if (!*as_is)
		*columns = 4 * (int) bytes;
	return (int) bytes;
}

static int
next_character(const char *string, int *columns)
{
	bool		as_is;

	return next_character_as(string, columns, &as_is);
}

/* How many columns of a terminal it takes. */
int
text_width(const char *string)
{
	int			width = 0;

	while (*string != '\0')
	{
		int			columns;

		string += next_character(string, &columns);
		width += columns;
	}
	return width;
}

/*
 * Keys and values are anybody's: what would move the cursor, or worse, is
 * shown as \xHH.  Cut to width, if that is not 0.
 */
void
text_printable(Text *to, const char *string, int width)
{
	int			used = 0;
	int			room = width > 0 ? width : 0;
	const char *p;

	if (room > 0 && text_width(string) > room)
		room = room > 3 ? room - 2 : room;
	else
		room = 0;

	for (p = string; *p != '\0';)
	{
		int			columns;
		bool		as_is;
		int			bytes = next_character_as(p, &columns, &as_is);

		if (room > 0 && used + columns > room)
		{
			text_add(to, width > 3 ? ".." : "");
			return;
		}
		if (!as_is)
		{
			int			i;

			for (i = 0; i < bytes; i++)
				text_format(to, "\\x%02x", (unsigned char) p[i]);
		}
		else
			text_add_bytes(to, p, (size_t) bytes);
		used += columns;
		p += bytes;
	}
}
