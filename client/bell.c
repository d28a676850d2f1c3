/*-------------------------------------------------------------------------
 *
 * bell.c
 *	  Waking a thread that sleeps in poll().
 *
 * A bell is a pipe.  It rings while there is a byte in it, so a thread that polls
 * it later wakes up as well.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <unistd.h>

#include "bell.h"

/* It can be freed from here on. */
void
dlock_bell_init(DlockBell *bell)
{
	bell->fds[0] = bell->fds[1] = -1;
}

/* Unless it is made already.  False: there are too many files. */
bool
dlock_bell_make(DlockBell *bell)
{
	if (bell->fds[0] < 0 && pipe2(bell->fds, O_CLOEXEC | O_NONBLOCK) != 0)
		dlock_bell_init(bell);
	return bell->fds[0] >= 0;
}

/* What to poll for reading, or -1. */
int
dlock_bell_fd(const DlockBell *bell)
{
	return bell->fds[0];
}

void
dlock_bell_ring(const DlockBell *bell)
{
	/* if the pipe is full, it rings anyway */
	if (bell->fds[1] >= 0 && write(bell->fds[1], "", 1) < 0)
		return;
}

void
dlock_bell_quiet(const DlockBell *bell)
{
	char		bytes[64];

	while (bell->fds[0] >= 0 && read(bell->fds[0], bytes, sizeof(bytes)) == sizeof(bytes))
		;
}

void
dlock_bell_free(DlockBell *bell)
{
	if (bell->fds[0] >= 0)
	{
		close(bell->fds[0]);
		close(bell->fds[1]);
	}
	dlock_bell_init(bell);
}
