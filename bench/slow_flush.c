/*-------------------------------------------------------------------------
 *
 * slow_flush.c
 *	  A disk whose flush takes longer, for a server that is started with this
 *	  library in LD_PRELOAD and with BENCH_FLUSH_US.
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef int (*Flush) (int fd);

static int
flush_slowly(const char *name, int fd)
{
	const char *us = getenv("BENCH_FLUSH_US");
	struct timespec left = {.tv_nsec = us != NULL ? atol(us) * 1000 : 0};
	Flush		flush;
	int			result;

	/* POSIX allows this, and ISO C does not */
	*(void **) &flush = dlsym(RTLD_NEXT, name);
	result = flush(fd);
	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
	return result;
}

int
fdatasync(int fd)
{
	return flush_slowly("fdatasync", fd);
}

int
fsync(int fd)
{
	return flush_slowly("fsync", fd);
}
