/*-------------------------------------------------------------------------
 *
 * calls.h
 *	  What a history tells of calls of libdlock.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_CALLS_H
#define TORTURE_CALLS_H

#include <stdint.h>

#include "dlock.h"

extern int64_t base_of(const dlock_lock *lock);
extern void record_lost(int client, const dlock_event *event);
extern void record_otherwise(int client, long op, const char *what, dlock_status status,
							 const dlock_error *err);

#endif							/* TORTURE_CALLS_H */
