/*
 * output.c
 *	  The standard files, and what goes to standard output.
 *
 * A caller may have closed descriptor 0, 1 or 2.  The next file that is opened,
 * perhaps a connection, would get that number, and results would be written into
 * it.  So the gap is filled before anything else is opened, with a descriptor for
 * the wrong direction: a write to a closed standard output fails with EBADF, as
 * it should.  The command of "exec" does not inherit these, so it finds its
 * descriptors as our caller left them.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int	write_error = 0;	/* errno of the first write that failed */

void
fill_standard_files(void)
{
	static const int useless[] = {O_WRONLY, O_RDONLY, O_RDONLY};
	int			fd;

	for (fd = 0; fd <= 2; fd++)
	{
		if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
			continue;
		if (open("/dev/null", useless[fd] | O_CLOEXEC) != fd)
		{
			error("could not open \"/dev/null\": %s", strerror(errno));
			exit(EXIT_INTERNAL);
		}
	}
}

static void
write_failed(int code)
{
	write_error = code;
	/* the reader has gone, as head does */
	if (code != EPIPE)
		error("could not write to standard output: %s", strerror(code));
}

/*
 * Write it at once, so that the reader of a pipe gets it, and free it.  Returns
 * false if this or an earlier write failed, which has been reported unless the
 * reader has gone.
 */
bool
finish_output(Text *out)
{
	if (write_error == 0 && out->len > 0 &&
		(fwrite(out->data, 1, out->len, stdout) != out->len ||
		 fflush(stdout) != 0))
		write_failed(errno);
	text_free(out);
	return write_error == 0;
}

/* The same for one line, which has no end yet. */
bool
finish_line(Text *line)
{
	text_add(line, "\n");
	return finish_output(line);
}

/* Has the reader gone? */
bool
output_unread(void)
{
	return write_error == EPIPE;
}

/*
 * The end of all output.  Returns the exit code.  Some file systems report only
 * now that there was no space.
 */
int
close_output(int code)
{
	if (fclose(stdout) != 0 && write_error == 0)
		write_failed(errno);
	if (write_error != 0 && write_error != EPIPE && code == 0)
		return EXIT_INTERNAL;
	return code;
}

/* 0: not a terminal, so nothing is cut. */
int
terminal_width(void)
{
	struct winsize size;

	if (!isatty(STDOUT_FILENO))
		return 0;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		return size.ws_col;
	return 80;
}
