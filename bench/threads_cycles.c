/*-------------------------------------------------------------------------
 *
 * threads_cycles.c
 *	  Cycles: threads that acquire and release, through libdlock or in Redis.
 *
 *-------------------------------------------------------------------------
 */
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "threads.h"

typedef struct Worker
{
	pthread_t	thread;
	dlock_handle *handle;
	redisContext *redis;		/* instead of the handle */
	unsigned int seed;
	Samples		samples;		/* threads that shared a list would wait for
								 * each other there */
} Worker;

static volatile bool stopping;
static char redis_script[41];	/* the name that Redis gives it */

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
		threads_complain(err.message);
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
		threads_complain(worker->redis->err ? worker->redis->errstr : "Redis did not release the key");
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

	if (sscanf(threads.target, "%63[^:]:%d", host, &port) != 2)
		threads_die("--target is not host:port");
	redis = redisConnect(host, port);
	if (redis == NULL || redis->err)
		threads_die("could not connect to Redis");
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
		threads_die("Redis did not accept a script");
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
		double		start = threads_now();

		threads_choose_key(key, sizeof(key), &worker->seed);
		if ((threads.is_redis ? cycle_of_redis(worker, key) : cycle_of_dlock(worker, key)) &&
			threads_measuring)
			threads_sample(&worker->samples, start);
	}
	return NULL;
}

static void
rest(double until)
{
	while (threads_now() < until)
		poll(NULL, 0, (int) ((until - threads_now()) * 1000) + 1);
}

void
threads_cycles(void)
{
	Worker	   *workers = calloc((size_t) threads.clients, sizeof(Worker));
	dlock_handle *shared = threads.own_handles || threads.is_redis ? NULL : threads_open();

	if (workers == NULL)
		threads_die("out of memory");
	if (threads.is_redis)
		load_script();
	for (int i = 0; i < threads.clients; i++)
	{
		workers[i].handle = threads.own_handles ? threads_open() : shared;
		workers[i].redis = threads.is_redis ? open_redis() : NULL;
		workers[i].seed = threads_seed(i);
		if (pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0)
			threads_die("could not start a thread");
	}
	threads_measure(rest);
	stopping = true;
	for (int i = 0; i < threads.clients; i++)
	{
		pthread_join(workers[i].thread, NULL);
		threads_gather(&workers[i].samples);
		if (threads.own_handles)
			dlock_close(workers[i].handle);
		if (threads.is_redis)
			redisFree(workers[i].redis);
	}
	dlock_close(shared);
	free(workers);
}
