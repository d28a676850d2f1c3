/*
 * json.c
 *	  JSON for programs.  Nesting is not tracked, because the last character
 *	  that was written tells whether a comma is needed.
 */
#include "text.h"

#include <string.h>

/* A character beyond 16 bits is two escapes, as in UTF-16. */
static void
add_escape(Text *json, uint32_t c)
{
	if (c > 0xffff)
	{
		text_format(json, "\\u%04x", (unsigned int) (0xd7c0 + (c >> 10)));
		c = 0xdc00 + (c & 0x3ff);
	}
	text_format(json, "\\u%04x", (unsigned int) c);
}

/*
 * JSON is often read on a terminal, so characters that deceive there are escaped
 * too.  Bytes that are not UTF-8, which come only from another client_encoding,
 * are replaced, because no reader would accept them.
 */
static void
escaped(Text *json, const char *string)
{
	text_add(json, "\"");
	while (*string != '\0')
	{
		uint32_t	c = 0xfffd;
		int			bytes = utf8_character(string, &c);

		switch (c)
		{
			case '"':
				text_add(json, "\\\"");
				break;
			case '\\':
				text_add(json, "\\\\");
				break;
			case '\n':
				text_add(json, "\\n");
				break;
			case '\t':
				text_add(json, "\\t");
				break;
			case '\r':
				text_add(json, "\\r");
				break;
			default:
				if (bytes == 0 || is_hidden(c))
					add_escape(json, c);
				else
					text_add_bytes(json, string, (size_t) bytes);
		}
		string += bytes > 0 ? bytes : 1;
	}
	text_add(json, "\"");
}

static void
before(Text *json, const char *name)
{
	if (json->len > 0 && strchr("[{\n", json->data[json->len - 1]) == NULL)
		text_add(json, ",");
	if (name != NULL)
	{
		escaped(json, name);
		text_add(json, ":");
	}
}

void
json_open(Text *json, const char *name, char bracket)
{
	before(json, name);
	text_add_bytes(json, &bracket, 1);
}

void
json_close(Text *json, char bracket)
{
	text_add_bytes(json, &bracket, 1);
}

void
json_string(Text *json, const char *name, const char *value)
{
	if (value == NULL)
	{
		json_null(json, name);
		return;
	}
	before(json, name);
	escaped(json, value);
}

void
json_number(Text *json, const char *name, int64_t value)
{
	before(json, name);
	text_format(json, "%lld", (long long) value);
}

/* Durations are seconds with three decimals. */
void
json_seconds(Text *json, const char *name, int64_t ms)
{
	before(json, name);
	if (ms < 0)
	{
		text_add(json, "-");
		ms = -ms;
	}
	text_format(json, "%lld.%03lld", (long long) ms / 1000,
				(long long) ms % 1000);
}

static void
add_word(Text *json, const char *name, const char *value)
{
	before(json, name);
	text_add(json, value);
}

void
json_bool(Text *json, const char *name, bool value)
{
	add_word(json, name, value ? "true" : "false");
}

void
json_null(Text *json, const char *name)
{
	add_word(json, name, "null");
}
