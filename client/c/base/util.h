/*-------------------------------------------------------------------------
 *
 * util.h
 *	  The clock, randomness, errors, strings and libpq's PQExpBuffer.
 *
 * A point in time is a number of milliseconds as dlock_now() returns it.
 *
 * PQExpBuffer is a string that grows.  No call of it fails or aborts: when memory
 * runs out the buffer is "broken", stays empty and ignores what is added, so it is
 * enough to ask PQExpBufferDataBroken() once, before the text is used.  libpq
 * exports these functions and installs the header, but among its internal headers,
 * where it expects PostgreSQL's c.h.  All that it needs of that is one macro and
 * <stdarg.h>.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_UTIL_H
#define DLOCK_UTIL_H

#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef pg_attribute_printf
#if defined(__GNUC__)
#define pg_attribute_printf(f, a) __attribute__((format(printf, f, a)))
#else
#define pg_attribute_printf(f, a)
#endif
#endif

#include <pqexpbuffer.h>

#include "dlock.h"

/*
 * The clock
 */

#define DLOCK_NEVER INT64_MAX

extern int64_t dlock_now(void);
extern int	dlock_poll_timeout(int64_t until, int64_t now);
extern bool dlock_semaphore_wait(sem_t * semaphore, int64_t until);

/* a + b, where either may be DLOCK_NEVER; b is not negative */
extern int64_t dlock_later(int64_t a, int64_t b);
extern int64_t dlock_min(int64_t a, int64_t b);
extern int64_t dlock_max(int64_t a, int64_t b);

/*
 * Randomness
 */

extern bool dlock_random_bytes(void *to, size_t size);
extern uint32_t dlock_random(void);
extern int64_t dlock_jitter(int64_t about);
extern bool dlock_random_owner(char *to);

/*
 * Errors and strings
 */

extern dlock_status dlock_fail(dlock_error *err, dlock_status status,
							   const char *fmt,...) pg_attribute_printf(3, 4);
extern void dlock_error_clear(dlock_error *err);
extern dlock_status dlock_error_copy(dlock_error *to, const dlock_error *from);
extern void dlock_clip(char *to, size_t size, const char *from, size_t len);

#endif							/* DLOCK_UTIL_H */
