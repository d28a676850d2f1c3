/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  The clock of the library and of the command line.
 *
 * A point in time is a number of milliseconds as dlock_now() returns it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CLOCK_H
#define DLOCK_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define DLOCK_NEVER INT64_MAX

extern int64_t dlock_now(void);
extern void dlock_sleep_until(int64_t until);
extern int	dlock_poll_timeout(int64_t until, int64_t now);

extern void dlock_cond_init(pthread_cond_t *cond);
extern bool dlock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex,
							int64_t until);

/* a + b, where either may be DLOCK_NEVER; b is not negative */
extern int64_t dlock_later(int64_t a, int64_t b);
extern int64_t dlock_min(int64_t a, int64_t b);
extern int64_t dlock_max(int64_t a, int64_t b);

#endif							/* DLOCK_CLOCK_H */
