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
 * The last line of the output is as that of load.c.
 *
 *-------------------------------------------------------------------------
 */
#include <getopt.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "dlock.h"
#include "dlock_async.h"

#define WARMUP 0.5				/* seconds */
#define MAX_SAMPLES 4000000

typedef struct Worker
{
	pthread_t	thread;
	dlock_handle *handle;
	redisContext *redis;		/* instead of the handle */
	unsigned int seed;
	uint64_t	cycles;
	uint64_t	errors;
	uint32_t   *samples;		/* microseconds */
	size_t		nsamples;
	size_t		maxsamples;
} Worker;

static const char *target = "";
static const char *work = "cycles";
static int	clients = 1;
static double seconds = 1;
static int	keys = 100000;
static unsigned int seed = 1;
static bool own_handles = false;
static bool is_redis = false;

static char redis_script[41];	/* the name that Redis gives it */

static volatile bool measuring = false;
static volatile bool stopping = false;
static uint32_t *samples;		/* microseconds */
static size_t nsamples;

static double
now(void)
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

static void
die(const char *why)
{
	fprintf(stderr, "threads: %s\n", why);
	exit(1);
}

static void
sample(double from)
{
	if (nsamples < MAX_SAMPLES)
		samples[nsamples++] = (uint32_t) ((now() - from) * 1e6);
}

static dlock_handle *
open_handle(void)
{
	dlock_handle *handle;
	dlock_error err;

	if (dlock_open(target, NULL, &handle, &err) != DLOCK_OK || dlock_ping(handle, -1, &err) != DLOCK_OK)
		die(err.message);
	return handle;
}

/*
 * Cycles
 */

/* Threads that shared a list of samples would wait for each other there. */
static void
sample_cycle(Worker *worker, double from)
{
	if (worker->nsamples == worker->maxsamples)
	{
		worker->maxsamples = worker->maxsamples > 0 ? 2 * worker->maxsamples : 65536;
		worker->samples = realloc(worker->samples, worker->maxsamples * sizeof(uint32_t));
		if (worker->samples == NULL)
			die("out of memory");
	}
	worker->samples[worker->nsamples++] = (uint32_t) ((now() - from) * 1e6);
}

/* Returns its cycles. */
static uint64_t
gather(Worker *worker, uint64_t *least)
{
	for (size_t i = 0; i < worker->nsamples && nsamples < MAX_SAMPLES; i++)
		samples[nsamples++] = worker->samples[i];
	free(worker->samples);
	if (worker->cycles < *least)
		*least = worker->cycles;
	return worker->cycles;
}

static void
worker_failed(Worker *worker, const char *why)
{
	if (worker->errors++ < 3)
		fprintf(stderr, "threads: %s\n", why);
}

/* False: the key was busy, or something went wrong. */
static bool
cycle_of_dlock(Worker *worker, const char *key)
{
	dlock_options options;
	dlock_lock *lock;
	dlock_error err;
	dlock_status status;

	dlock_options_init(&options);
	options.ttl_ms = 60000;
	status = dlock_acquire(worker->handle, key, &options, &lock, &err);
	if (status == DLOCK_OK)
	{
		status = dlock_release(lock, -1, &err);
		dlock_free(lock);
	}
	if (status != DLOCK_OK && status != DLOCK_BUSY)
		worker_failed(worker, err.message);
	return status == DLOCK_OK;
}

/* As load_redis.c does it, by a thread that waits for each answer. */
static bool
cycle_of_redis(Worker *worker, const char *key)
{
	redisReply *taken;
	redisReply *released = NULL;
	char		owner[40];
	bool		done = false;

	snprintf(owner, sizeof(owner), "%016llx%08x", (unsigned long long) (uintptr_t) worker,
			 (unsigned int) rand_r(&worker->seed));
	taken = redisCommand(worker->redis, "SET %s %s NX PX 60000", key, owner);
	if (taken != NULL && taken->type == REDIS_REPLY_STATUS)
		released = redisCommand(worker->redis, "EVALSHA %s 1 %s %s", redis_script, key, owner);
	if (released != NULL && released->type == REDIS_REPLY_INTEGER && released->integer == 1)
		done = true;
	else if (taken == NULL || taken->type != REDIS_REPLY_NIL)
		worker_failed(worker, worker->redis->err ? worker->redis->errstr : "Redis did not release the key");
	freeReplyObject(taken);
	freeReplyObject(released);
	return done;
}

static redisContext *
open_redis(void)
{
	char		host[64];
	int			port;
	redisContext *redis;

	if (sscanf(target, "%63[^:]:%d", host, &port) != 2)
		die("--target is not host:port");
	redis = redisConnect(host, port);
	if (redis == NULL || redis->err)
		die("could not connect to Redis");
	return redis;
}

/* Before there are threads, which use its name. */
static void
load_script(void)
{
	redisContext *redis = open_redis();
	redisReply *reply;

	reply = redisCommand(redis, "SCRIPT LOAD %s", "if redis.call('get', KEYS[1]) == ARGV[1] then"
						 " return redis.call('del', KEYS[1]) else return 0 end");
	if (reply == NULL || reply->type != REDIS_REPLY_STRING)
		die("Redis did not accept a script");
	snprintf(redis_script, sizeof(redis_script), "%s", reply->str);
	freeReplyObject(reply);
	redisFree(redis);
}

static void *
worker_main(void *arg)
{
	Worker	   *worker = arg;

	while (!stopping)
	{
		char		key[32];
		double		start = now();

		snprintf(key, sizeof(key), "lock:%u", (unsigned int) rand_r(&worker->seed) % (unsigned int) keys);
		if (!(is_redis ? cycle_of_redis(worker, key) : cycle_of_dlock(worker, key)))
			continue;
		if (measuring)
		{
			worker->cycles++;
			sample_cycle(worker, start);
		}
	}
	return NULL;
}

static void
rest(double until)
{
	while (now() < until)
		poll(NULL, 0, (int) ((until - now()) * 1000) + 1);
}

static double
cycles(uint64_t *done, uint64_t *least, uint64_t *errors)
{
	Worker	   *workers = calloc((size_t) clients, sizeof(Worker));
	dlock_handle *shared = own_handles || is_redis ? NULL : open_handle();
	double		before;

	if (workers == NULL)
		die("out of memory");
	if (is_redis)
		load_script();
	for (int i = 0; i < clients; i++)
	{
		workers[i].handle = own_handles ? open_handle() : shared;
		workers[i].redis = is_redis ? open_redis() : NULL;
		workers[i].seed = seed * 1000 + (unsigned int) i;
		if (pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0)
			die("could not start a thread");
	}
	rest(now() + WARMUP);
	before = cpu();
	measuring = true;
	rest(now() + seconds);
	measuring = false;
	before = cpu() - before;
	stopping = true;
	*least = UINT64_MAX;
	for (int i = 0; i < clients; i++)
	{
		pthread_join(workers[i].thread, NULL);
		*done += gather(&workers[i], least);
		*errors += workers[i].errors;
		if (own_handles)
			dlock_close(workers[i].handle);
		if (is_redis)
			redisFree(workers[i].redis);
	}
	dlock_close(shared);
	free(workers);
	return before / seconds;
}

/*
 * Calls: the same in one thread, by an event loop
 */

static int	under_way;
static uint64_t failures;

static void
failed(const dlock_error *err)
{
	if (failures++ < 3)
		fprintf(stderr, "threads: %s\n", err->message);
}

/* One of N that acquire and release, one key after another. */
typedef struct Loop
{
	dlock_handle *handle;
	Worker		worker;
	double		start;
} Loop;

static void next_cycle(Loop *loop);

static void
on_given_back(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
			  void *arg)
{
	Loop	   *loop = arg;

	(void) op;
	under_way--;
	if (status != DLOCK_OK)
		failed(err);
	dlock_free(lock);
	if (measuring)
	{
		loop->worker.cycles++;
		sample_cycle(&loop->worker, loop->start);
	}
	next_cycle(loop);
}

static void
on_taken(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
		 void *arg)
{
	dlock_error release_err;

	(void) op;
	under_way--;
	if (status == DLOCK_OK &&
		dlock_release_start(lock, -1, on_given_back, arg, NULL, &release_err) == DLOCK_OK)
	{
		under_way++;
		return;
	}
	if (status != DLOCK_BUSY)
		failed(status == DLOCK_OK ? &release_err : err);
	next_cycle(arg);
}

static void
next_cycle(Loop *loop)
{
	dlock_options options;
	dlock_error err;
	char		key[32];

	if (stopping)
		return;
	dlock_options_init(&options);
	options.ttl_ms = 60000;
	snprintf(key, sizeof(key), "lock:%u",
			 (unsigned int) rand_r(&loop->worker.seed) % (unsigned int) keys);
	loop->start = now();
	if (dlock_acquire_start(loop->handle, key, &options, on_taken, loop, NULL, &err) == DLOCK_OK)
		under_way++;
	else
		failed(&err);
}

/* Call back until then, or until nothing is under way. */
static void
loop_until(dlock_handle *handle, double until)
{
	struct pollfd fd = {.fd = dlock_handle_fd(handle),.events = POLLIN};

	while (under_way > 0 && now() < until)
	{
		poll(&fd, 1, 100);
		dlock_handle_process(handle);
	}
}

static double
calls(uint64_t *done, uint64_t *least)
{
	Loop	   *loops = calloc((size_t) clients, sizeof(Loop));
	dlock_handle *handle = open_handle();
	double		used;

	if (loops == NULL)
		die("out of memory");
	for (int i = 0; i < clients; i++)
	{
		loops[i].handle = handle;
		loops[i].worker.seed = seed * 1000 + (unsigned int) i;
		next_cycle(&loops[i]);
	}
	loop_until(handle, now() + WARMUP);
	used = cpu();
	measuring = true;
	loop_until(handle, now() + seconds);
	measuring = false;
	used = cpu() - used;
	stopping = true;
	loop_until(handle, now() + 60);
	*least = UINT64_MAX;
	for (int i = 0; i < clients; i++)
		*done += gather(&loops[i].worker, least);
	dlock_close(handle);
	free(loops);
	return used / seconds;
}

/*
 * Tickets
 */

static bool one_key;
static double released_at;

static void
on_released(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
			void *arg)
{
	(void) op;
	(void) arg;
	under_way--;
	if (status != DLOCK_OK)
		failed(err);
	dlock_free(lock);
}

static void
release(dlock_lock *lock)
{
	dlock_error err;

	if (dlock_release_start(lock, -1, on_released, NULL, NULL, &err) != DLOCK_OK)
		failed(&err);
	else
		under_way++;
}

static void
on_acquired(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
			void *arg)
{
	(void) op;
	(void) arg;
	under_way--;
	if (status != DLOCK_OK)
	{
		failed(err);
		return;
	}
	sample(released_at);
	/* the next grant follows this release */
	if (one_key)
		released_at = now();
	release(lock);
}

static void
until_done(dlock_handle *handle)
{
	struct pollfd fd = {.fd = dlock_handle_fd(handle),.events = POLLIN};

	while (under_way > 0)
	{
		if (poll(&fd, 1, 60000) == 0)
			die("calls do not come to an end");
		dlock_handle_process(handle);
	}
}

/* Take the keys with one handle, wait for them with another, and let them go. */
static double
tickets(uint64_t *done)
{
	dlock_handle *holder = open_handle();
	dlock_handle *handle = open_handle();
	int			held = one_key ? 1 : clients;
	dlock_lock **locks = calloc((size_t) held, sizeof(dlock_lock *));
	dlock_waiter *waiters = NULL;
	size_t		waiting = 0;
	dlock_options options;
	dlock_error err;
	double		start;

	dlock_options_init(&options);
	options.ttl_ms = 600000;
	for (int i = 0; i < held; i++)
	{
		char		key[32];

		snprintf(key, sizeof(key), "ticket:%d", i);
		if (dlock_acquire(holder, key, &options, &locks[i], &err) != DLOCK_OK)
			die(err.message);
	}
	options.ttl_ms = 60000;
	options.wait_ms = 600000;
	for (int i = 0; i < clients; i++)
	{
		char		key[32];

		snprintf(key, sizeof(key), "ticket:%d", one_key ? 0 : i);
		if (dlock_acquire_start(handle, key, &options, on_acquired, NULL, NULL, &err) != DLOCK_OK)
			die(err.message);
		under_way++;
	}
	while (waiting < (size_t) clients)
	{
		dlock_waiters_free(waiters, waiting);
		poll(NULL, 0, 100);
		if (dlock_list_waiters(holder, "ticket:%", 0, -1, &waiters, &waiting, &err) != DLOCK_OK)
			die(err.message);
	}
	dlock_waiters_free(waiters, waiting);

	/* releases of one flight commit together */
	start = released_at = now();
	for (int i = 0; i < held; i += 1000)
	{
		int			n = held - i < 1000 ? held - i : 1000;

		if (dlock_release_all(locks + i, (size_t) n, -1, &err) != DLOCK_OK)
			die(err.message);
	}
	until_done(handle);
	*done = nsamples;
	start = now() - start;
	dlock_close(handle);
	dlock_close(holder);
	free(locks);
	return start;
}

static int
compare(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return (x > y) - (x < y);
}

static uint32_t
quantile(size_t n, double q)
{
	return n == 0 ? 0 : samples[(size_t) (q * (double) (n - 1))];
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {
		{"target", required_argument, NULL, 't'}, {"clients", required_argument, NULL, 'c'},
		{"seconds", required_argument, NULL, 's'}, {"work", required_argument, NULL, 'w'},
		{"keys", required_argument, NULL, 'k'}, {"seed", required_argument, NULL, 'r'},
		{"handles", no_argument, NULL, 'h'}, {"redis", no_argument, NULL, 'd'}, {NULL, 0, NULL, 0}
	};
	uint64_t	done = 0;
	uint64_t	least = 0;
	uint64_t	errors = 0;
	double		used = 0;
	double		sum = 0;
	size_t		n;
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (c)
		{
			case 't':
				target = optarg;
				break;
			case 'c':
				clients = atoi(optarg);
				break;
			case 's':
				seconds = atof(optarg);
				break;
			case 'w':
				work = optarg;
				break;
			case 'k':
				keys = atoi(optarg);
				break;
			case 'r':
				seed = (unsigned int) atoi(optarg);
				break;
			case 'h':
				own_handles = true;
				break;
			case 'd':
				is_redis = true;
				break;
			default:
				return 2;
		}
	samples = calloc(MAX_SAMPLES, sizeof(uint32_t));
	if (samples == NULL || clients < 1 || keys < 1)
		die("invalid arguments, or out of memory");
	if (strcmp(work, "cycles") == 0)
		used = cycles(&done, &least, &errors);
	else if (strcmp(work, "calls") == 0)
		used = calls(&done, &least);
	else
	{
		one_key = strcmp(work, "queue") == 0;
		seconds = tickets(&done);
	}
	errors += failures;
	n = nsamples;
	qsort(samples, n, sizeof(uint32_t), compare);
	for (size_t i = 0; i < n; i++)
		sum += samples[i];
	printf("cycles=%llu rate=%.1f mean_us=%.1f p50_us=%u p99_us=%u max_us=%u "
		   "acquire_us=0 grants=%llu busy=0 errors=%llu left=0 least=%llu cpu=%.3f\n",
		   (unsigned long long) done, (double) done / seconds, n > 0 ? sum / (double) n : 0,
		   quantile(n, 0.5), quantile(n, 0.99), quantile(n, 1), (unsigned long long) done,
		   (unsigned long long) errors, (unsigned long long) least, used);
	free(samples);
	return errors > 0;
}
