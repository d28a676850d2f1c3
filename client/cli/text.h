/*
 * text.h
 *	  Text for people and for programs: strings that grow, durations, text of
 *	  other users on a terminal, tables, JSON, and messages on stderr.
 */
#ifndef DLOCK_CLI_TEXT_H
#define DLOCK_CLI_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/util.h"

#if defined(__GNUC__)
#define pg_like_printf(f, a) __attribute__((format(printf, f, a)))
#define never_returns __attribute__((noreturn))
#else
#define pg_like_printf(f, a)
#define never_returns
#endif

/* messages.c */
extern void error(const char *format,...) pg_like_printf(1, 2);
extern void warning(const char *format,...) pg_like_printf(1, 2);
extern void notice(const char *format,...) pg_like_printf(1, 2);
extern void detail(const char *format,...) pg_like_printf(1, 2);
extern void hint(const char *format,...) pg_like_printf(1, 2);
extern void usage_error(const char *format,...) pg_like_printf(1, 2) never_returns;
extern void out_of_memory(void) never_returns;
extern void *allocate(size_t size);
extern void *reallocate(void *old, size_t size);
extern char *copy_string(const char *string);
extern bool is_quiet;

/* Colours, if the terminal and NO_COLOR allow them. */
typedef enum
{
	PLAIN,
	BOLD,
	DIM,
	RED,
	GREEN,
	YELLOW,
	CYAN,
	REVERSE
} Colour;

extern bool colours_on(FILE *file);
extern bool is_dumb_terminal(void);
extern void progress(const char *line);
extern const char *colour_code(Colour colour);

/*
 * text.c: libpq's string that grows.  Filled with zeros it is an empty one whose
 * data is still NULL.  Where memory runs out, the functions end the program.
 */
typedef PQExpBufferData Text;

extern void text_add(Text *to, const char *string);
extern void text_add_bytes(Text *to, const char *bytes, size_t length);
extern void text_format(Text *to, const char *format,...) pg_like_printf(2, 3);
extern void text_vformat(Text *to, const char *format, va_list args);
extern void text_clear(Text *to);
extern void text_free(Text *to);
extern char *text_take(Text *from);

extern bool parse_duration(const char *string, int64_t *ms);
extern void text_duration(Text *to, int64_t ms);
extern void text_count(Text *to, uint64_t number);

/* printable.c: text of other users, made safe for a terminal */
extern bool locale_is_utf8(void);
extern bool is_hidden(uint32_t character);
extern int	utf8_character(const char *string, uint32_t *character);
extern int	shown_width(const char *shown);
extern int	printable_width(const char *string);
extern int	printable_cut(Text *to, const char *string, int width);
extern void text_printable(Text *to, const char *string);
extern void text_message(Text *to, const char *string);
extern void text_wrapped(Text *to, const char *shown, int column, int indent,
						 int width);

/*
 * json.c: values are written in the order of the calls.  name is NULL within an
 * array; a NULL string is written as null.
 */
extern void json_open(Text *json, const char *name, char bracket);
extern void json_close(Text *json, char bracket);
extern void json_string(Text *json, const char *name, const char *value);
extern void json_number(Text *json, const char *name, int64_t value);
extern void json_seconds(Text *json, const char *name, int64_t ms);
extern void json_bool(Text *json, const char *name, bool value);
extern void json_null(Text *json, const char *name);

/* table.c */
typedef struct
{
	const char *title;
	bool		right;			/* numbers and durations */
	int			least;			/* may be cut down to this width, 0: never */
	int			rank;			/* without room, the highest is left out */
} Column;

typedef struct Table Table;

extern Table *table_new(const Column *columns, int count);
extern void table_cell(Table *table, Colour colour, const char *string);
extern void table_number(Table *table, Colour colour, int64_t number);
extern void table_duration(Table *table, Colour colour, int64_t ms);
extern void table_continue(Table *table);
extern void table_text(const Table *table, Text *out, int width, int *seen,
					   bool coloured);
extern void table_free(Table *table);

#endif							/* DLOCK_CLI_TEXT_H */
