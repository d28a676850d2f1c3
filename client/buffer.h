/*-------------------------------------------------------------------------
 *
 * buffer.h
 *	  PQExpBuffer, libpq's string that grows.
 *
 * It is used throughout the client.  No call of it fails or aborts: when memory
 * runs out the buffer is "broken", stays empty and ignores what is added, so it
 * is enough to ask PQExpBufferDataBroken() once, before the text is used.
 *
 * libpq exports these functions and installs the header, but among its internal
 * headers, where it expects PostgreSQL's c.h.  All that it needs of that is one
 * macro and <stdarg.h>.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BUFFER_H
#define DLOCK_BUFFER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#ifndef pg_attribute_printf
#if defined(__GNUC__)
#define pg_attribute_printf(f, a) __attribute__((format(printf, f, a)))
#else
#define pg_attribute_printf(f, a)
#endif
#endif

#include <pqexpbuffer.h>

#endif							/* DLOCK_BUFFER_H */
