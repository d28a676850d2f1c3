/*-------------------------------------------------------------------------
 *
 * routed.c
 *	  A client of test/t/shard/804_cluster.pl: uses locks at random through a router, and
 *	  records its requests, the answers, and what it believes.
 *
 *	  routed NUMBER SEED HISTORY CONNINFO KEY...
 *
 * On SIGTERM it releases what it holds, and exits.  It is a small sister of
 * client.c, without what a router does not have: fences and session locks.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "dlock.h"
#include "history.h"

#define WATCH_MS 100

static int	client;
static long op;
static dlock_handle *handle;
static volatile sig_atomic_t stopping;
static unsigned int seed;

/* The lock that we hold, for the thread that watches it; protected by mutex */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static dlock_lock *held;
static const char *held_key;
static int64_t held_base;

static int
below(int n)
{
	return rand_r(&seed) % n;
}

static void
on_term(int signo)
{
	(void) signo;
	stopping = 1;
}

/* In the thread of the library. */
static void
on_event(const dlock_event *event, void *arg)
{
	(void) arg;
	if (event->type == DLOCK_EVENT_LOST)
		record_lost(client, event);
}

/* Renewals by the library are not calls of ours; record them, too. */
static void *
watch(void *arg)
{
	(void) arg;
	for (;;)
	{
		int64_t		base;

		poll(NULL, 0, WATCH_MS);
		pthread_mutex_lock(&mutex);
		base = held != NULL ? base_of(held) : 0;
		if (base > held_base + 5000)
		{
			held_base = base;
			history(now_us(), "renewed %d key=%s version=%lld base=%lld ttl=%lld", client, held_key,
					(long long) dlock_version(held), (long long) base, (long long) dlock_ttl_ms(held));
		}
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static dlock_lock *
do_acquire(const char *key)
{
	dlock_options options;
	dlock_error err;
	dlock_lock *lock = NULL;
	dlock_status status;
	char		owner[32];
	int64_t		base;

	op++;
	dlock_options_init(&options);
	options.ttl_ms = 1000 + 500 * below(4);
	options.renew = below(100) < 60;
	options.wait_ms = below(100) < 40 ? 0 : 50 + below(800);
	snprintf(owner, sizeof(owner), "c%d-%ld", client, op);
	options.owner = owner;
	options.callback = on_event;

	history(now_us(), "call %d %ld acquire key=%s owner=%s ttl=%lld wait=%lld", client, op, key, owner,
			(long long) options.ttl_ms, (long long) options.wait_ms);
	status = dlock_acquire(handle, key, &options, &lock, &err);
	if (status == DLOCK_BUSY)
		history(now_us(), "done %d %ld acquire busy", client, op);
	else if (status != DLOCK_OK)
		record_otherwise(client, op, "acquire", status, &err);
	if (status != DLOCK_OK)
		return NULL;

	base = base_of(lock);
	if (base > 0)
		history(now_us(), "done %d %ld acquire granted version=%lld base=%lld", client, op,
				(long long) dlock_version(lock), (long long) base);
	else
		history(now_us(), "done %d %ld acquire granted version=%lld", client, op,
				(long long) dlock_version(lock));
	pthread_mutex_lock(&mutex);
	held = lock;
	held_key = key;
	held_base = base;
	pthread_mutex_unlock(&mutex);
	return lock;
}

static void
do_refresh(dlock_lock *lock, const char *key)
{
	dlock_error err;
	dlock_status status;

	op++;
	history(now_us(), "call %d %ld refresh key=%s version=%lld ttl=%lld", client, op, key,
			(long long) dlock_version(lock), (long long) dlock_ttl_ms(lock));
	status = dlock_refresh(lock, dlock_ttl_ms(lock), -1, &err);
	if (status == DLOCK_OK)
		history(now_us(), "done %d %ld refresh ok", client, op);
	else if (status == DLOCK_LOST)
		history(now_us(), "done %d %ld refresh lost", client, op);
	else
		record_otherwise(client, op, "refresh", status, &err);
}

static void
do_release(dlock_lock *lock, const char *key)
{
	dlock_error err;
	dlock_status status;

	op++;
	history(now_us(), "call %d %ld release key=%s version=%lld", client, op, key,
			(long long) dlock_version(lock));
	status = dlock_release(lock, -1, &err);
	if (status == DLOCK_OK)
		history(now_us(), "done %d %ld release released", client, op);
	else if (status == DLOCK_NOT_HELD)
		history(now_us(), "done %d %ld release not_held", client, op);
	else if (status == DLOCK_HELD_BY_OTHER)
		history(now_us(), "done %d %ld release held_by_other", client, op);
	else
		record_otherwise(client, op, "release", status, &err);
}

static void
use(const char *key)
{
	dlock_lock *lock = do_acquire(key);

	if (lock == NULL)
		return;
	for (int i = below(4); i > 0 && !stopping; i--)
	{
		int64_t		now = now_us();

		if (dlock_is_owner(lock))
			history(now, "owns %d key=%s version=%lld", client, key, (long long) dlock_version(lock));
		if (below(100) < 30)
			do_refresh(lock, key);
		poll(NULL, 0, below(80));
	}
	/* sometimes it is left to expire */
	if (below(100) < 90)
		do_release(lock, key);
	pthread_mutex_lock(&mutex);
	held = NULL;
	held_base = 0;
	pthread_mutex_unlock(&mutex);
	dlock_free(lock);
}

int
main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_term};
	dlock_open_options options;
	dlock_error err;
	pthread_t	thread;

	if (argc < 6)
		return 2;
	client = atoi(argv[1]);
	seed = (unsigned int) atoi(argv[2]);
	if (history_open(argv[3]) < 0)
		return 2;
	sigaction(SIGTERM, &action, NULL);
	dlock_open_options_init(&options);
	options.timeout_ms = 3000;
	if (dlock_open(argv[4], &options, &handle, &err) != DLOCK_OK)
	{
		fprintf(stderr, "%s\n", err.message);
		return 1;
	}
	if (pthread_create(&thread, NULL, watch, NULL) != 0)
		return 1;

	history(now_us(), "begin %d", client);
	while (!stopping)
	{
		use(argv[5 + below(argc - 5)]);
		poll(NULL, 0, below(20));
	}
	dlock_close(handle);
	history(now_us(), "end %d", client);
	return 0;
}
