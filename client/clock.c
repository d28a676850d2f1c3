/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  The clock of the library and of the command line.
 *
 * A lease goes on while our machine is suspended, so the clock must go on too.
 * CLOCK_BOOTTIME does; CLOCK_MONOTONIC stands still.  They are the same until
 * the first suspend, so a program that mixed them would work until then.  All
 * times therefore come from dlock_now().
 *
 * A process cannot sleep by that clock: poll() and condition variables count by
 * CLOCK_MONOTONIC.  So a sleep is given as a duration, is never longer than
 * DLOCK_MAX_SLEEP_MS, and the caller reads the clock when it returns.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stddef.h>
#include <time.h>

#include "clock.h"
#include "constants.h"

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

void
dlock_sleep_until(int64_t until)
{
	int64_t		now;

	while ((now = dlock_now()) < until)
		poll(NULL, 0, dlock_poll_timeout(until, now));
}

/* A condition variable for dlock_cond_wait(). */
void
dlock_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

/*
 * Wait for a signal, or for a part of the time until then.  Returns false if
 * that time has come.
 *
 * pthread_condattr_setclock() rejects CLOCK_BOOTTIME, so what is left is
 * converted to CLOCK_MONOTONIC here, and nowhere else.
 */
bool
dlock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until)
{
	struct timespec ts;
	int64_t		left = dlock_poll_timeout(until, dlock_now());

	if (left == 0)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_sec += left / 1000;
	ts.tv_nsec += left % 1000 * 1000000;
	if (ts.tv_nsec >= 1000000000)
	{
		ts.tv_sec++;
		ts.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(cond, mutex, &ts);
	return true;
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
