/*
 * screen.c
 *	  The terminal as a screen: taking it over and restoring it, painting, and
 *	  reading keys.
 */
#include "top/top.h"

#include <ctype.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static struct termios old_terminal;
static bool terminal_changed = false;

/* Bytes that were read, and the state of a key of several bytes. */
static char keys[64];
static size_t keys_length = 0;
static size_t keys_at = 0;
static enum
{
	CHARACTER,
	ESCAPE,						/* after ESC */
	NUMBER,						/* after ESC [ or ESC O */
	MODIFIER					/* after a semicolon */
}			state = CHARACTER;
static int	number = 0;

void
screen_restore(void)
{
	if (!terminal_changed)
		return;
	terminal_changed = false;
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &old_terminal);
	fputs("\033[?7h\033[?25h\033[?1049l", stdout);
	fflush(stdout);
}

/* Also after we were stopped and continued: the shell has changed it. */
void
screen_take(void)
{
	struct termios raw;

	if (tcgetattr(STDIN_FILENO, &raw) != 0)
		return;
	if (!terminal_changed)
		old_terminal = raw;
	raw.c_lflag &= ~(tcflag_t) (ICANON | ECHO);
	raw.c_cc[VSUSP] = _POSIX_VDISABLE;	/* see screen_suspend() */
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
	terminal_changed = true;

	/*
	 * Alternate screen, no cursor, no line wrapping: a terminal may display a
	 * character wider than we expect.
	 */
	fputs("\033[?1049h\033[?25l\033[?7l\033[2J", stdout);
}

/*
 * Ctrl-Z: as the terminal would do it, but after the screen was restored.  In
 * an orphaned process group, where nobody could continue us, the signal does
 * nothing.
 */
void
screen_suspend(void)
{
	screen_restore();
	kill(0, SIGTSTP);
	screen_take();
}

/* After a change of its size the terminal may have moved the contents. */
void
screen_clear(void)
{
	fputs("\033[2J", stdout);
}

void
screen_size(int *width, int *height)
{
	struct winsize size;

	*width = 80;
	*height = 24;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 &&
		size.ws_row > 0)
	{
		*width = size.ws_col;
		*height = size.ws_row;
	}
}

/* Overwrite the old frame line by line; clearing it first would flicker. */
bool
screen_paint(const Text *frame, int height)
{
	const char *line = frame->data;
	Text		out = {0};
	int			row;

	text_add(&out, "\033[H");
	for (row = 0; row < height && *line != '\0'; row++)
	{
		size_t		length = strcspn(line, "\n");

		if (row > 0)
			text_add(&out, "\r\n");
		/* before the text: after its last column, it would erase that */
		text_add(&out, "\033[K");
		text_add_bytes(&out, line, length);
		line += length + (line[length] == '\n' ? 1 : 0);
	}
	if (row < height)
		text_add(&out, "\r\n\033[J");
	return finish_output(&out);
}

/* Read what was typed.  False: the terminal is gone. */
bool
screen_read(void)
{
	ssize_t		got = read(STDIN_FILENO, keys, sizeof(keys));

	keys_at = 0;
	keys_length = got > 0 ? (size_t) got : 0;
	return got > 0;
}

static int
sequence_key(char last)
{
	switch (last)
	{
		case 'A':
			return KEY_UP;
		case 'B':
			return KEY_DOWN;
		case 'H':
			return KEY_HOME;
		case 'F':
			return KEY_END;
		case '~':
			return number == 1 || number == 7 ? KEY_HOME :
				number == 4 || number == 8 ? KEY_END :
				number == 5 ? KEY_PAGE_UP :
				number == 6 ? KEY_PAGE_DOWN : 0;
	}
	return 0;
}

/* Has ESC come, and nothing after it yet? */
bool
screen_in_escape(void)
{
	return state == ESCAPE;
}

/* It was a key of its own. */
void
screen_end_escape(void)
{
	state = CHARACTER;
}

/*
 * The next key.  A key of several bytes may arrive in parts.  ESC alone waits for
 * the next byte and is then ignored, unless screen_end_escape() comes first.
 */
int
screen_key(void)
{
	while (keys_at < keys_length)
	{
		char		c = keys[keys_at++];
		int			key = 0;

		if (c == '\033')
			state = ESCAPE;
		else if (state == CHARACTER)
			key = (unsigned char) c;
		else if (state == ESCAPE && (c == '[' || c == 'O'))
		{
			state = NUMBER;
			number = 0;
		}
		else if (state == ESCAPE)
		{
			state = CHARACTER;
			key = (unsigned char) c;
		}
		else if (isdigit((unsigned char) c))
		{
			if (state == NUMBER && number < 100)
				number = number * 10 + (c - '0');
		}
		else if (c == ';')
			state = MODIFIER;
		else
		{
			state = CHARACTER;
			key = sequence_key(c);
		}
		if (key != 0)
			return key;
	}
	return 0;
}
