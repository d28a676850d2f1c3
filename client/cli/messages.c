/*
 * messages.c
 *	  Messages on stderr, in the style of PostgreSQL's own clients, and memory
 *	  allocation that ends the program when it fails.
 */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool		is_quiet = false;

/* One that cannot go back in a line. */
bool
is_dumb_terminal(void)
{
	const char *term = getenv("TERM");

	return term == NULL || strcmp(term, "dumb") == 0;
}

bool
colours_on(FILE *file)
{
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	if (no_color != NULL && no_color[0] != '\0')
		return false;
	if (term != NULL && strcmp(term, "dumb") == 0)
		return false;
	return isatty(fileno(file));
}

/*
 * Show a line on the terminal that is stderr, instead of the one before, until the next
 * message comes.  NULL: none any more.
 */
void
progress(const char *line)
{
	static bool is_shown = false;

	if (line != NULL)
		fprintf(stderr, "\r%s\033[K", line);
	else if (is_shown)
		fputs("\r\033[K", stderr);
	is_shown = line != NULL;
}

const char *
colour_code(Colour colour)
{
	switch (colour)
	{
		case BOLD:
			return "\033[1m";
		case DIM:
			return "\033[2m";
		case RED:
			return "\033[31m";
		case GREEN:
			return "\033[32m";
		case YELLOW:
			return "\033[33m";
		case CYAN:
			return "\033[36m";
		case REVERSE:
			return "\033[7m";
		case PLAIN:
			break;
	}
	return "\033[0m";
}

static void
report(const char *level, Colour colour, const char *format, va_list args)
{
	bool		coloured = level[0] != '\0' && colours_on(stderr);
	Text		line = {0};
	Text		message = {0};

	progress(NULL);
	text_add(&line, "dlock: ");
	if (coloured)
		text_add(&line, colour_code(colour));
	text_add(&line, level);
	if (coloured)
		text_add(&line, colour_code(PLAIN));
	text_vformat(&message, format, args);
	text_message(&line, message.data);
	text_add(&line, "\n");
	fputs(line.data, stderr);
	text_free(&message);
	text_free(&line);
}

#define REPORT(level, colour) \
	do { \
		va_list		args_; \
		va_start(args_, format); \
		report(level, colour, format, args_); \
		va_end(args_); \
	} while (0)

void
error(const char *format,...)
{
	REPORT("error: ", RED);
}

void
warning(const char *format,...)
{
	REPORT("warning: ", YELLOW);
}

/* Information; not with --quiet. */
void
notice(const char *format,...)
{
	if (!is_quiet)
		REPORT("", PLAIN);
}

void
detail(const char *format,...)
{
	REPORT("detail: ", DIM);
}

void
hint(const char *format,...)
{
	REPORT("hint: ", DIM);
}

void
usage_error(const char *format,...)
{
	REPORT("error: ", RED);
	if (current_command != NULL)
		hint("Try \"dlock %s --help\" for more information.", current_command);
	else
		hint("Try \"dlock --help\" for more information.");
	exit(EXIT_USAGE);
}

void
out_of_memory(void)
{
	/* error() needs memory */
	fputs("dlock: error: out of memory\n", stderr);
	exit(EXIT_INTERNAL);
}

void *
allocate(size_t size)
{
	return memset(reallocate(NULL, size), 0, size);
}

void *
reallocate(void *old, size_t size)
{
	void	   *new = realloc(old, size > 0 ? size : 1);

	if (new == NULL)
		out_of_memory();
	return new;
}

char *
copy_string(const char *string)
{
	size_t		size = strlen(string) + 1;

	return memcpy(reallocate(NULL, size), string, size);
}
