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
extern dlock_lock *kept(const char *key);

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

/* several.c */
extern void show_info(const dlock_info *info, char *more, size_t size);
extern dlock_status all(const char *keys, const char *slots,
						const dlock_options *options, char *more, size_t size,
						dlock_error *err);
extern dlock_status release_all(const char *keys, int64_t timeout,
								dlock_error *err);
extern dlock_status all_infos(const char *key, char *more, size_t size,
							  dlock_error *err);
extern int64_t nest_threads(int64_t threads, int64_t rounds);

/* crowd.c */
extern int64_t crowd(const char *what, const char *key, int64_t threads,
					 int64_t count, const dlock_options *options,
					 int64_t *counter);

#endif							/* DLOCK_DRIVER_H */
