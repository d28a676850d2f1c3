/*-------------------------------------------------------------------------
 *
 * history.h
 *	  Writing a history, for test/torture/check.c to judge.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_HISTORY_H
#define TORTURE_HISTORY_H

#include <stdint.h>

/* CLOCK_MONOTONIC in microseconds: one clock for all processes */
extern int64_t now_us(void);

extern int	history_open(const char *path);
extern void history(int64_t at, const char *fmt,...) __attribute__((format(printf, 2, 3)));

#endif							/* TORTURE_HISTORY_H */
