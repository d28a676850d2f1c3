/*
 * printable.c
 *	  Text of other users, made safe for a terminal.
 *
 * Keys, owners, values and role names come from other users.  A character that
 * moves the cursor, is invisible, or changes the order of its neighbours is shown
 * as an escape: \xHH is a byte, \uHHHH or \UHHHHHHHH a character, and \\ a
 * backslash.  So texts that look the same are the same, except that letters of
 * different scripts may look alike.
 *
 * Some of these characters are useful, such as the joiners in Persian and in
 * emoji.  They are escaped too, because it matters more here which key it is
 * than how it looks.
 */
#include "text.h"

#include <langinfo.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/* Accents and other marks on one letter; more than that is an attack. */
#define MAX_MARKS 4

/*
 * Characters that are escaped everywhere, also in JSON: controls, formats (Cf),
 * separators and spaces other than the common one (Zl, Zp, Zs), private use and
 * surrogates (Co, Cs), and everything else that Unicode allows to be invisible
 * (Default_Ignorable_Code_Point).
 */
static const struct
{
	uint32_t	first;
	uint32_t	last;
}			hidden[] = {
	{0x0000, 0x001f}, {0x007f, 0x00a0}, {0x00ad, 0x00ad}, {0x034f, 0x034f},
	{0x0600, 0x0605}, {0x061c, 0x061c}, {0x06dd, 0x06dd}, {0x070f, 0x070f},
	{0x0890, 0x0891}, {0x08e2, 0x08e2}, {0x115f, 0x1160}, {0x1680, 0x1680},
	{0x17b4, 0x17b5}, {0x180b, 0x180f}, {0x2000, 0x200f}, {0x2028, 0x202f},
	{0x205f, 0x206f}, {0x2800, 0x2800}, {0x3000, 0x3000}, {0x3164, 0x3164},
	{0xd800, 0xf8ff}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xffa0, 0xffa0},
	{0xfff0, 0xfffc}, {0xfffe, 0xffff}, {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
	{0x13430, 0x1343f}, {0x16fe4, 0x16fe4}, {0x1bca0, 0x1bca3},
	{0x1d159, 0x1d159}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
	{0xf0000, 0x10ffff}
};

bool
is_hidden(uint32_t character)
{
	size_t		low = 0;
	size_t		high = sizeof(hidden) / sizeof(hidden[0]);

	while (low < high)
	{
		size_t		middle = (low + high) / 2;

		if (character > hidden[middle].last)
			low = middle + 1;
		else if (character < hidden[middle].first)
			high = middle;
		else
			return true;
	}
	return false;
}

bool
locale_is_utf8(void)
{
	return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

/* The next character, in any locale.  Returns its bytes; 0: invalid. */
int
utf8_character(const char *string, uint32_t *character)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	const unsigned char *s = (const unsigned char *) string;
	int			bytes = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 :
		s[0] < 0xf0 ? 3 : s[0] < 0xf8 ? 4 : 0;
	uint32_t	c = bytes <= 1 ? s[0] : s[0] & (0x7fu >> bytes);
	int			i;

	for (i = 1; i < bytes; i++)
	{
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3fu);
	}
	if (bytes == 0 || c < least[bytes] || c > 0x10ffff ||
		(c >= 0xd800 && c <= 0xdfff))
		return 0;
	*character = c;
	return bytes;
}

/* The next character of the locale; *columns < 0: it must not be shown. */
static int
next_character(const char *string, wchar_t * wide, int *columns)
{
	mbstate_t	state;
	size_t		bytes;

	memset(&state, 0, sizeof(state));
	bytes = mbrtowc(wide, string, strnlen(string, MB_LEN_MAX), &state);
	/* (size_t) -1 or -2: not a character */
	if (bytes == 0 || bytes > MB_LEN_MAX)
	{
		*wide = 0;
		*columns = -1;
		return 1;
	}
	*columns = is_hidden((uint32_t) *wide) ? -1 : wcwidth(*wide);
	return (int) bytes;
}

/* A unit that is never cut: a letter with its marks, or an escape. */
typedef struct
{
	int			bytes;
	int			columns;
	char		escape[MB_LEN_MAX * 4 + 1]; /* empty: it is shown as it is */
} Piece;

static void
make_escape(Piece *piece, const char *p, wchar_t wide)
{
	uint32_t	c = (uint32_t) wide;
	int			i;

	if (c >= 0x80 && locale_is_utf8())
		snprintf(piece->escape, sizeof(piece->escape),
				 c <= 0xffff ? "\\u%04x" : "\\U%08x", (unsigned int) c);
	else
		for (i = 0; i < piece->bytes; i++)
			snprintf(piece->escape + 4 * i, 5, "\\x%02x", (unsigned char) p[i]);
	piece->columns = (int) strlen(piece->escape);
}

/*
 * In data, a space at either end or after another space is escaped too, so two
 * spaces in a row always separate columns.  In messages, spaces and backslashes
 * stay as they are.
 */
static void
next_piece(const char *start, const char *p, bool data, Piece *piece)
{
	wchar_t		wide;
	int			marks;

	piece->escape[0] = '\0';
	piece->bytes = next_character(p, &wide, &piece->columns);
	if (data && *p == '\\')
	{
		strcpy(piece->escape, "\\\\");
		piece->columns = 2;
	}
	else if (piece->columns <= 0 ||
			 (data && *p == ' ' &&
			  (p == start || p[-1] == ' ' || p[1] == '\0')))
		make_escape(piece, p, wide);
	else if (*p != ' ')
	{
		/* marks without a letter, or too many of them, are escaped */
		for (marks = 0; marks < MAX_MARKS && p[piece->bytes] != '\0'; marks++)
		{
			int			columns;
			int			bytes = next_character(p + piece->bytes, &wide,
											   &columns);

			if (columns != 0)
				break;
			piece->bytes += bytes;
		}
	}
}

static void
add_piece(Text *to, const char *p, const Piece *piece)
{
	if (piece->escape[0] != '\0')
		text_add(to, piece->escape);
	else
		text_add_bytes(to, p, (size_t) piece->bytes);
}

static void
add_pieces(Text *to, const char *string, bool data)
{
	const char *p;
	Piece		piece;

	text_add(to, "");
	for (p = string; *p != '\0'; p += piece.bytes)
	{
		next_piece(string, p, data, &piece);
		add_piece(to, p, &piece);
	}
}

/* Data, all of it. */
void
text_printable(Text *to, const char *string)
{
	add_pieces(to, string, true);
}

/* A sentence, which may contain data. */
void
text_message(Text *to, const char *string)
{
	add_pieces(to, string, false);
}

/* The number of columns that text_printable() needs. */
int
printable_width(const char *string)
{
	const char *p;
	Piece		piece;
	int			width = 0;

	for (p = string; *p != '\0'; p += piece.bytes)
	{
		next_piece(string, p, true, &piece);
		width += piece.columns;
	}
	return width;
}

/*
 * Data in a limited number of columns.  Text that is too long is cut in the middle, because
 * both ends of a key matter.  Returns the number of columns that were used.
 */
int
printable_cut(Text *to, const char *string, int width)
{
	const char *mark = locale_is_utf8() ? "\xe2\x80\xa6" : "...";
	int			mark_width = locale_is_utf8() ? 1 : 3;
	int			left = printable_width(string);
	int			used = 0;
	int			head = width;
	const char *p;
	Piece		piece;
	bool		cut = left > width;

	text_add(to, "");
	if (cut && width >= mark_width + 2)
		head = (width - mark_width + 1) / 2;
	for (p = string; *p != '\0'; p += piece.bytes)
	{
		next_piece(string, p, true, &piece);
		if (used + piece.columns > head)
			break;
		add_piece(to, p, &piece);
		used += piece.columns;
		left -= piece.columns;
	}
	if (!cut || head == width)
		return used;

	text_add(to, mark);
	used += mark_width;
	for (; *p != '\0'; p += piece.bytes)
	{
		next_piece(string, p, true, &piece);
		if (used + left <= width)
		{
			add_piece(to, p, &piece);
			used += piece.columns;
		}
		left -= piece.columns;
	}
	return used;
}

/* The number of columns of text that is printable already. */
int
shown_width(const char *shown)
{
	int			width = 0;

	while (*shown != '\0')
	{
		wchar_t		wide;
		int			columns;

		shown += next_character(shown, &wide, &columns);
		width += columns > 0 ? columns : 0;
	}
	return width;
}

/*
 * Break text that is printable already into lines of that width.  The first line
 * starts in the given column, the others are indented.  It is broken between two
 * fields if possible, otherwise at a space that is near.  width 0: one line.
 */
void
text_wrapped(Text *to, const char *shown, int column, int indent, int width)
{
	if (column >= width || indent >= width)
	{
		text_add(to, shown);
		return;
	}
	for (;; column = indent)
	{
		const char *p = shown;
		const char *gap = NULL;
		const char *space = NULL;
		const char *end;
		int			room = width - column;
		int			used = 0;

		while (*p != '\0')
		{
			wchar_t		wide;
			int			columns;
			int			bytes = next_character(p, &wide, &columns);

			if (used + columns > room && p > shown)
				break;
			used += columns > 0 ? columns : 0;
			p += bytes;
			if (p - shown > 1 && p[-1] == ' ' && p[-2] == ' ')
				gap = p;
			else if (p[-1] == ' ' && used > room / 2)
				space = p;
		}
		if (*p == '\0')
		{
			text_add(to, shown);
			return;
		}
		p = gap != NULL ? gap : space != NULL ? space : p;
		for (end = p; end > shown && end[-1] == ' '; end--)
			;
		text_add_bytes(to, shown, (size_t) (end - shown));
		text_format(to, "\n%*s", indent, "");
		shown = p;
	}
}
