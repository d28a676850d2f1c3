/*-------------------------------------------------------------------------
 *
 * history.c
 *	  Writing a history.
 *
 * A line is one write(2) to a file opened with O_APPEND, so threads need no
 * lock, and a killed process leaves only whole lines.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "history.h"

static int	file = -1;

int64_t
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int
history_open(const char *path)
{
	file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	return file >= 0 ? 0 : -1;
}

void
history(int64_t at, const char *fmt,...)
{
	char		line[1000];
	va_list		args;
	int			n = snprintf(line, sizeof(line), "%lld ", (long long) at);

	va_start(args, fmt);
	n += vsnprintf(line + n, sizeof(line) - (size_t) n, fmt, args);
	va_end(args);
	/* a missing line would make the checker wrong */
	if (n + 1 >= (int) sizeof(line))
		abort();
	line[n++] = '\n';
	if (write(file, line, (size_t) n) != n)
		abort();
}
