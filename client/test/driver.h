/*-------------------------------------------------------------------------
 *
 * driver.h
 *	  What driver.c and scenarios.c share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DRIVER_H
#define DLOCK_DRIVER_H

#include "dlock.h"

/* driver.c */
extern dlock_handle *handle;
extern void keep(dlock_lock *lock);

/* scenarios.c */
extern dlock_status many(const char *key, int64_t count,
						 const dlock_options *options, dlock_error *err);
extern dlock_status race(const char *key, int64_t rounds,
						 const dlock_options *options, int64_t *bad,
						 int64_t *expired, dlock_error *err);
extern dlock_status cycle(const char *conninfo, const char *key, int64_t rounds,
						  int64_t hold, const dlock_options *options,
						  dlock_error *err);
extern int64_t work(int64_t threads, int64_t rounds, int64_t *counter);
extern void forked(dlock_lock *lock, char *more, size_t size);

#endif							/* DLOCK_DRIVER_H */
