/*-------------------------------------------------------------------------
 *
 * util.h
 *	  Randomness, errors and strings.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_UTIL_H
#define DLOCK_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"
#include "dlock.h"

#if defined(__GNUC__)
#define dlock_printf(f, a) __attribute__((format(printf, f, a)))
#else
#define dlock_printf(f, a)
#endif

extern bool dlock_random_bytes(void *to, size_t size);
extern uint32_t dlock_random(void);
extern int64_t dlock_jitter(int64_t about);
extern bool dlock_random_owner(char *to);

extern dlock_status dlock_fail(dlock_error *err, dlock_status status,
							   const char *fmt,...) dlock_printf(3, 4);
extern void dlock_error_clear(dlock_error *err);
extern dlock_status dlock_error_copy(dlock_error *to, const dlock_error *from);

extern void dlock_clip(char *to, size_t size, const char *from, size_t len);
extern void dlock_append_quoted(PQExpBuffer buffer, const char *text);
extern char *dlock_strdup(const char *text);

#endif							/* DLOCK_UTIL_H */
