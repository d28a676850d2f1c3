/*
 * numbers.h
 *	  What the server counts: for stats and top.
 */
#ifndef DLOCK_CLI_NUMBERS_H
#define DLOCK_CLI_NUMBERS_H

#include "cli.h"
#include "net/reply.h"

typedef struct
{
	DlockReply *counters;		/* name, value, is it milliseconds? */
	DlockReply *times;			/* upper or null, count */
	DlockReply *contended;		/* key, busy, waits, wait time, lost */
} Numbers;

/* The server shows at most this many contended keys. */
#define MAX_CONTENDED 100

/* Where a part of the waits ends: the bound of a bucket of the histogram. */
typedef struct
{
	bool		beyond;			/* more than that: the last bucket has no
								 * bound */
	int64_t		bound;
} Percentile;

extern dlock_status numbers_get(dlock_handle *handle, int64_t timeout,
								Numbers *numbers, dlock_error *err);
extern void numbers_free(Numbers *numbers);
extern int64_t numbers_counter(const Numbers *numbers, const char *name);
extern int64_t numbers_waits(const Numbers *now, const Numbers *before);
extern bool numbers_percentile(const Numbers *now, const Numbers *before,
							   int percent, Percentile *result);
extern void text_percentile(Text *to, const Percentile *percentile);
extern void json_numbers(Text *json, const Numbers *numbers, int64_t max_keys);

#endif							/* DLOCK_CLI_NUMBERS_H */
