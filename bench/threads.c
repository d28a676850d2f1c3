/*-------------------------------------------------------------------------
 *
 * threads.c
 *	  Load through libdlock: threads that share a handle, and requests that wait
 *	  by ticket.
 *
 *	  threads --target CONNINFO --clients N --seconds S [--work cycles|calls|tickets|queue]
 *			  [--handles|--redis] [--keys N] [--seed N]
 *
 *	  cycles	each of N threads acquires and releases one key after another; with
 *				--handles each has a handle, and so connections, of its own; with
 *				--redis each has a connection to Redis, and waits for each answer
 *	  calls		one thread has N such calls under way
 *	  tickets	N requests wait for N keys, which are all released at once; how long it
 *				takes from there until each has its lock
 *	  queue		N requests wait for one key; each that gets it releases it.  How long it
 *				takes from the release to the next grant
 *
 * The last line of the output is as that of load.c.  Each kind of load has a file of
 * its own; this one has the options, the counting and the output.
 *
 *-------------------------------------------------------------------------
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "threads.h"

#define WARMUP 0.5				/* seconds */

Options		threads = {
	.target = "",
	.work = "cycles",
	.clients = 1,
	.seconds = 1,
	.keys = 100000,
	.seed = 1
};
Tally		threads_tally;
volatile bool threads_measuring;

double
threads_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

static double
cpu(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		(double) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void
threads_die(const char *why)
{
	fprintf(stderr, "threads: %s\n", why);
	exit(1);
}

/* An error, of any thread: counted, and the first few are shown. */
void
threads_complain(const char *why)
{
	if (__atomic_fetch_add(&threads_tally.errors, 1, __ATOMIC_RELAXED) < 3)
		fprintf(stderr, "threads: %s\n", why);
}

dlock_handle *
threads_open(void)
{
	dlock_handle *handle;
	dlock_error err;

	if (dlock_open(threads.target, NULL, &handle, &err) != DLOCK_OK ||
		dlock_ping(handle, -1, &err) != DLOCK_OK)
		threads_die(err.message);
	return handle;
}

/* Where the random numbers of a client start. */
unsigned int
threads_seed(int client)
{
	return threads.seed * 1000 + (unsigned int) client;
}

void
threads_choose_key(char *key, size_t size, unsigned int *seed)
{
	snprintf(key, size, "lock:%u", (unsigned int) rand_r(seed) % (unsigned int) threads.keys);
}

static void
make_room(Samples *samples, size_t more)
{
	if (samples->room - samples->n >= more)
		return;
	samples->room = samples->room > 0 ? 2 * samples->room : 65536;
	if (samples->room < samples->n + more)
		samples->room = samples->n + more;
	samples->us = realloc(samples->us, samples->room * sizeof(*samples->us));
	if (samples->us == NULL)
		threads_die("out of memory");
}

void
threads_sample(Samples *samples, double from)
{
	make_room(samples, 1);
	samples->us[samples->n++] = (uint32_t) ((threads_now() - from) * 1e6);
}

/* The clients run already; they take samples while the clock runs. */
void
threads_measure(void (*pass_time) (double until))
{
	double		before;

	pass_time(threads_now() + WARMUP);
	before = cpu();
	threads_measuring = true;
	pass_time(threads_now() + threads.seconds);
	threads_measuring = false;
	threads_tally.cpu = (cpu() - before) / threads.seconds;
	threads_tally.least = UINT64_MAX;
}

/* Add the samples of a client that has ended. */
void
threads_gather(Samples *samples)
{
	Samples    *all = &threads_tally.samples;

	make_room(all, samples->n);
	if (samples->n > 0)
		memcpy(all->us + all->n, samples->us, samples->n * sizeof(*all->us));
	all->n += samples->n;
	if (samples->n < threads_tally.least)
		threads_tally.least = samples->n;
	free(samples->us);
}

static int
compare(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return (x > y) - (x < y);
}

static uint32_t
quantile(double q)
{
	const Samples *all = &threads_tally.samples;

	return all->n == 0 ? 0 : all->us[(size_t) (q * (double) (all->n - 1))];
}

static void
report(void)
{
	Samples    *all = &threads_tally.samples;
	double		sum = 0;

	if (all->n > 0)
		qsort(all->us, all->n, sizeof(*all->us), compare);
	for (size_t i = 0; i < all->n; i++)
		sum += all->us[i];
	printf("cycles=%llu rate=%.1f mean_us=%.1f p50_us=%u p99_us=%u max_us=%u "
		   "acquire_us=0 grants=%llu busy=0 errors=%llu left=0 least=%llu cpu=%.3f\n",
		   (unsigned long long) all->n, (double) all->n / threads.seconds,
		   all->n > 0 ? sum / (double) all->n : 0, quantile(0.5), quantile(0.99), quantile(1),
		   (unsigned long long) all->n, (unsigned long long) threads_tally.errors,
		   (unsigned long long) threads_tally.least, threads_tally.cpu);
	free(all->us);
}

static bool
read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{"target", required_argument, NULL, 't'}, {"clients", required_argument, NULL, 'c'},
		{"seconds", required_argument, NULL, 's'}, {"work", required_argument, NULL, 'w'},
		{"keys", required_argument, NULL, 'k'}, {"seed", required_argument, NULL, 'r'},
		{"handles", no_argument, NULL, 'h'}, {"redis", no_argument, NULL, 'd'}, {NULL, 0, NULL, 0}
	};
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (c)
		{
			case 't':
				threads.target = optarg;
				break;
			case 'c':
				threads.clients = atoi(optarg);
				break;
			case 's':
				threads.seconds = atof(optarg);
				break;
			case 'w':
				threads.work = optarg;
				break;
			case 'k':
				threads.keys = atoi(optarg);
				break;
			case 'r':
				threads.seed = (unsigned int) atoi(optarg);
				break;
			case 'h':
				threads.own_handles = true;
				break;
			case 'd':
				threads.is_redis = true;
				break;
			default:
				return false;
		}
	return true;
}

int
main(int argc, char **argv)
{
	if (!read_options(argc, argv))
		return 2;
	if (threads.clients < 1 || threads.keys < 1)
		threads_die("--clients and --keys take positive numbers");
	if (strcmp(threads.work, "cycles") == 0)
		threads_cycles();
	else if (strcmp(threads.work, "calls") == 0)
		threads_calls();
	else
		threads_tickets(strcmp(threads.work, "queue") == 0);
	report();
	return threads_tally.errors > 0;
}
