/*-------------------------------------------------------------------------
 *
 * util.c
 *	  The clock, randomness, errors and strings.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

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
 * A lease runs while our machine is suspended, so the clock must run, too.
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

/* At most 256 bytes.  False: the kernel has none, which is that of an old one or a sandbox. */
bool
dlock_random_bytes(void *to, size_t size)
{
	return getentropy(to, size) == 0;
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

static const char *const status_names[] = {
	[DLOCK_OK] = "ok",
	[DLOCK_BUSY] = "busy",
	[DLOCK_NOT_HELD] = "not_held",
	[DLOCK_HELD_BY_OTHER] = "held_by_other",
	[DLOCK_PREEMPTING] = "preempting",
	[DLOCK_LOST] = "lost",
	[DLOCK_REFUSED] = "refused",
	[DLOCK_UNCHANGED] = "unchanged",
	[DLOCK_TIMEOUT] = "timeout",
	[DLOCK_UNREACHABLE] = "unreachable",
	[DLOCK_DENIED] = "denied",
	[DLOCK_NOT_READY] = "not_ready",
	[DLOCK_INVALID] = "invalid",
	[DLOCK_SERVER_ERROR] = "server_error",
	[DLOCK_NO_MEMORY] = "no_memory",
	[DLOCK_CANCELLED] = "cancelled"
};

static const char *const event_names[] = {
	[DLOCK_EVENT_PREEMPTED] = "preempted",
	[DLOCK_EVENT_DANGER] = "danger",
	[DLOCK_EVENT_LOST] = "lost"
};

static const char *const reason_names[] = {
	[DLOCK_REASON_NONE] = "none",
	[DLOCK_REASON_DEADLINE] = "deadline",
	[DLOCK_REASON_EXPIRED] = "expired",
	[DLOCK_REASON_PREEMPTED] = "preempted",
	[DLOCK_REASON_FORCED] = "forced",
	[DLOCK_REASON_MAX_HOLD] = "max_hold"
};

/* A program may ask for the name of any number. */
#define NAME_OF(names, i) \
	((size_t) (i) < sizeof(names) / sizeof(names[0]) && names[i] != NULL ? names[i] : "unknown")

const char *
dlock_status_name(dlock_status status)
{
	return NAME_OF(status_names, status);
}

const char *
dlock_event_name(dlock_event_type type)
{
	return NAME_OF(event_names, type);
}

const char *
dlock_reason_name(dlock_reason reason)
{
	return NAME_OF(reason_names, reason);
}

int
dlock_lib_version(void)
{
	return DLOCK_LIB_VERSION;
}
