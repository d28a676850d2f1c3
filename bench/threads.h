/*-------------------------------------------------------------------------
 *
 * threads.h
 *	  What the kinds of load through libdlock have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BENCH_THREADS_H
#define DLOCK_BENCH_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dlock.h"

typedef struct Options
{
	const char *target;
	const char *work;
	int			clients;
	double		seconds;
	int			keys;
	unsigned int seed;
	bool		own_handles;
	bool		is_redis;
} Options;

typedef struct Samples
{
	uint32_t   *us;
	size_t		n;
	size_t		room;
} Samples;

/* What was counted; there is a sample for each cycle or grant. */
typedef struct Tally
{
	Samples		samples;
	uint64_t	least;			/* cycles of a client */
	uint64_t	errors;
	double		cpu;
} Tally;

/* threads.c */
extern Options threads;
extern Tally threads_tally;
extern volatile bool threads_measuring;

extern double threads_now(void);
extern void threads_die(const char *why)
			__attribute__((noreturn));
extern void threads_complain(const char *why);
extern dlock_handle *threads_open(void);
extern unsigned int threads_seed(int client);
extern void threads_choose_key(char *key, size_t size, unsigned int *seed);
extern void threads_sample(Samples *samples, double from);
extern void threads_measure(void (*pass_time) (double until));
extern void threads_gather(Samples *samples);

/* threads_cycles.c, threads_calls.c, threads_tickets.c */
extern void threads_cycles(void);
extern void threads_calls(void);
extern void threads_tickets(bool one_key);

#endif							/* DLOCK_BENCH_THREADS_H */
