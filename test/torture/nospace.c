/*-------------------------------------------------------------------------
 *
 * nospace.c
 *	  A disk that is full while a file exists, for LD_PRELOAD.
 *
 * NOSPACE_DIR is the folder that is full, NOSPACE_FLAG the file.  A call that
 * makes a file there larger fails with ENOSPC; one that overwrites does not, as
 * on most file systems.
 *
 *-------------------------------------------------------------------------
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* The next one of that name: the C library's. */
#define NEXT(name) \
	static __typeof__(name) *real = NULL; \
	if (real == NULL) \
		*(void **) &real = dlsym(RTLD_NEXT, #name)

/* Would it make a file in that folder larger?  Offset -1: the current one. */
static bool
full(int fd, off_t offset, size_t size)
{
	const char *flag = getenv("NOSPACE_FLAG");
	const char *dir = getenv("NOSPACE_DIR");
	int			saved = errno;
	bool		answer = false;
	char		name[40];
	char		path[1000];
	ssize_t		n;
	struct stat st;

	if (flag == NULL || dir == NULL || access(flag, F_OK) != 0)
	{
		errno = saved;
		return false;
	}
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	n = readlink(name, path, sizeof(path) - 1);
	if (n > 0)
	{
		path[n] = '\0';
		if (strncmp(path, dir, strlen(dir)) == 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		{
			if (offset < 0)
				offset = lseek(fd, 0, SEEK_CUR);
			answer = offset + (off_t) size > st.st_size;
		}
	}
	errno = answer ? ENOSPC : saved;
	return answer;
}

static size_t
total(const struct iovec *iov, int n)
{
	size_t		size = 0;

	for (int i = 0; i < n; i++)
		size += iov[i].iov_len;
	return size;
}

ssize_t
write(int fd, const void *data, size_t size)
{
	NEXT(write);
	return full(fd, -1, size) ? -1 : real(fd, data, size);
}

ssize_t
writev(int fd, const struct iovec *iov, int n)
{
	NEXT(writev);
	return full(fd, -1, total(iov, n)) ? -1 : real(fd, iov, n);
}

ssize_t
pwrite(int fd, const void *data, size_t size, off_t offset)
{
	NEXT(pwrite);
	return full(fd, offset, size) ? -1 : real(fd, data, size, offset);
}

ssize_t
pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
	NEXT(pwrite64);
	return full(fd, offset, size) ? -1 : real(fd, data, size, offset);
}

ssize_t
pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	NEXT(pwritev);
	return full(fd, offset, total(iov, n)) ? -1 : real(fd, iov, n, offset);
}

ssize_t
pwritev64(int fd, const struct iovec *iov, int n, off64_t offset)
{
	NEXT(pwritev64);
	return full(fd, offset, total(iov, n)) ? -1 : real(fd, iov, n, offset);
}

/* These return the error. */
int
posix_fallocate(int fd, off_t offset, off_t size)
{
	NEXT(posix_fallocate);
	return full(fd, offset, (size_t) size) ? ENOSPC : real(fd, offset, size);
}

int
posix_fallocate64(int fd, off64_t offset, off64_t size)
{
	NEXT(posix_fallocate64);
	return full(fd, offset, (size_t) size) ? ENOSPC : real(fd, offset, size);
}
