/*-------------------------------------------------------------------------
 *
 * util.c
 *	  The clock, randomness, errors and strings.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/random.h>
#endif

#include "base/constants.h"
#include "base/util.h"

#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 30)
#define HAVE_SEM_CLOCKWAIT
#endif
#endif

/*
 * The clock
 *
 * A lease goes on while our machine is suspended, so the clock must go on too.
 * CLOCK_BOOTTIME does; CLOCK_MONOTONIC stands still.  They are the same until
 * the first suspend, so a program that mixed them would work until then.  All
 * times therefore come from dlock_now().
 *
 * A process cannot sleep by that clock: poll() and semaphores count by
 * CLOCK_MONOTONIC.  So a sleep is given as a duration, is never longer than
 * DLOCK_MAX_SLEEP_MS, and the caller reads the clock when it returns.
 */

int64_t
dlock_now(void)
{
	struct timespec ts;

#ifdef CLOCK_BOOTTIME
	if (clock_gettime(CLOCK_BOOTTIME, &ts) != 0)
#endif
		clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* The timeout for poll(). */
int
dlock_poll_timeout(int64_t until, int64_t now)
{
	if (until <= now)
		return 0;
	if (until - now > DLOCK_MAX_SLEEP_MS)
		return DLOCK_MAX_SLEEP_MS;
	return (int) (until - now);
}

/*
 * Wait for a semaphore, or for a part of the time until then.  True: it was posted.
 *
 * sem_timedwait() counts by a clock that may be set, so a sleep by it may last too long
 * or end at once; the caller looks at the clock, and sleeps again.
 */
bool
dlock_semaphore_wait(sem_t * semaphore, int64_t until)
{
	struct timespec ts;
	int64_t		left = dlock_poll_timeout(until, dlock_now());
	clockid_t	clock = CLOCK_MONOTONIC;

	if (sem_trywait(semaphore) == 0)
		return true;
	if (left == 0)
		return false;
#ifndef HAVE_SEM_CLOCKWAIT
	clock = CLOCK_REALTIME;
#endif
	clock_gettime(clock, &ts);
	ts.tv_sec += left / 1000;
	ts.tv_nsec += left % 1000 * 1000000;
	if (ts.tv_nsec >= 1000000000)
	{
		ts.tv_sec++;
		ts.tv_nsec -= 1000000000;
	}
#ifdef HAVE_SEM_CLOCKWAIT
	return sem_clockwait(semaphore, clock, &ts) == 0;
#else
	return sem_timedwait(semaphore, &ts) == 0;
#endif
}

int64_t
dlock_later(int64_t a, int64_t b)
{
	return a > DLOCK_NEVER - b ? DLOCK_NEVER : a + b;
}

int64_t
dlock_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t
dlock_max(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/*
 * Randomness
 */

bool
dlock_random_bytes(void *to, size_t size)
{
	char	   *at = to;
	int			fd;

#ifdef __linux__
	while (size > 0)
	{
		ssize_t		n = getrandom(at, size, 0);

		if (n < 0)
		{
			if (errno == EINTR)
				continue;
			break;
		}
		at += n;
		size -= (size_t) n;
	}
	if (size == 0)
		return true;
#endif

	fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while (size > 0)
	{
		ssize_t		n = read(fd, at, size);

		if (n <= 0)
		{
			if (n < 0 && errno == EINTR)
				continue;
			break;
		}
		at += n;
		size -= (size_t) n;
	}
	close(fd);
	return size == 0;
}

/* For jitter, which may be of poor quality. */
uint32_t
dlock_random(void)
{
	uint32_t	bits;

	if (!dlock_random_bytes(&bits, sizeof(bits)))
		bits = (uint32_t) dlock_now() * 2654435761u;
	return bits;
}

/* A random number within a tenth of that one. */
int64_t
dlock_jitter(int64_t about)
{
	int64_t		range = about / 5;

	return about - range / 2 + (range > 0 ? dlock_random() % range : 0);
}

bool
dlock_random_owner(char *to)
{
	static const char digits[] = "0123456789abcdef";
	unsigned char bytes[(DLOCK_OWNER_SIZE - 1) / 2];

	if (!dlock_random_bytes(bytes, sizeof(bytes)))
		return false;
	for (size_t i = 0; i < sizeof(bytes); i++)
	{
		*to++ = digits[bytes[i] >> 4];
		*to++ = digits[bytes[i] & 15];
	}
	*to = '\0';
	return true;
}

/*
 * Errors
 */

/* This is done several times in each call, so what is not read is not cleared. */
void
dlock_error_clear(dlock_error *err)
{
	if (err == NULL)
		return;
	err->status = DLOCK_OK;
	err->sqlstate[0] = err->message[0] = err->hint[0] = '\0';
}

dlock_status
dlock_fail(dlock_error *err, dlock_status status, const char *fmt,...)
{
	va_list		args;

	if (err == NULL)
		return status;
	dlock_error_clear(err);
	err->status = status;
	va_start(args, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, args);
	va_end(args);
	return status;
}

dlock_status
dlock_error_copy(dlock_error *to, const dlock_error *from)
{
	if (from->status == DLOCK_OK)
		dlock_error_clear(to);
	else if (to != NULL)
		*to = *from;
	return from->status;
}

/* Copy what fits, as one line, without cutting a UTF-8 character in two. */
void
dlock_clip(char *to, size_t size, const char *from, size_t len)
{
	size_t		n = 0;

	for (size_t i = 0; i < len && from[i] != '\0' && n + 1 < size; i++)
	{
		char		c = from[i];

		if (c == '\n' || c == '\t' || c == '\r')
			c = ' ';
		if (c == ' ' && (n == 0 || to[n - 1] == ' '))
			continue;
		to[n++] = c;
	}
	if (n + 1 == size)
		while (n > 0 && ((unsigned char) to[n - 1] & 0x80) != 0)
			n--;
	while (n > 0 && to[n - 1] == ' ')
		n--;
	to[n] = '\0';
}

const char *
dlock_status_name(dlock_status status)
{
	switch (status)
	{
		case DLOCK_OK:
			return "ok";
		case DLOCK_BUSY:
			return "busy";
		case DLOCK_NOT_HELD:
			return "not_held";
		case DLOCK_HELD_BY_OTHER:
			return "held_by_other";
		case DLOCK_PREEMPTING:
			return "preempting";
		case DLOCK_LOST:
			return "lost";
		case DLOCK_REFUSED:
			return "refused";
		case DLOCK_UNCHANGED:
			return "unchanged";
		case DLOCK_TIMEOUT:
			return "timeout";
		case DLOCK_UNREACHABLE:
			return "unreachable";
		case DLOCK_DENIED:
			return "denied";
		case DLOCK_NOT_READY:
			return "not_ready";
		case DLOCK_INVALID:
			return "invalid";
		case DLOCK_SERVER_ERROR:
			return "server_error";
		case DLOCK_NO_MEMORY:
			return "no_memory";
		case DLOCK_CANCELLED:
			return "cancelled";
	}
	return "unknown";
}

const char *
dlock_event_name(dlock_event_type type)
{
	switch (type)
	{
		case DLOCK_EVENT_PREEMPTED:
			return "preempted";
		case DLOCK_EVENT_DANGER:
			return "danger";
		case DLOCK_EVENT_LOST:
			return "lost";
	}
	return "unknown";
}

const char *
dlock_reason_name(dlock_reason reason)
{
	switch (reason)
	{
		case DLOCK_REASON_NONE:
			return "none";
		case DLOCK_REASON_DEADLINE:
			return "deadline";
		case DLOCK_REASON_EXPIRED:
			return "expired";
		case DLOCK_REASON_PREEMPTED:
			return "preempted";
		case DLOCK_REASON_FORCED:
			return "forced";
	}
	return "unknown";
}

int
dlock_lib_version(void)
{
	return DLOCK_LIB_VERSION;
}

/*
 * Strings
 */

char *
dlock_strdup(const char *text)
{
	size_t		size = strlen(text) + 1;
	char	   *copy = malloc(size);

	if (copy != NULL)
		memcpy(copy, text, size);
	return copy;
}
