/*-------------------------------------------------------------------------
 *
 * scenarios.c
 *	  What the driver does with many calls: races, threads, a fork.
 *
 * Each is one command of driver.c.
 *
 *-------------------------------------------------------------------------
 */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

/* Many locks at a time: key0, key1, ... */
dlock_status
many(const char *key, int64_t count, const dlock_options *options, dlock_error *err)
{
	for (int64_t i = 0; i < count; i++)
	{
		char		name[200];
		dlock_lock *lock;
		dlock_status status;

		snprintf(name, sizeof(name), "%s%lld", key, (long long) i);
		status = dlock_acquire(handle, name, options, &lock, err);
		if (status != DLOCK_OK)
			return status;
		keep(lock);
	}
	return DLOCK_OK;
}

/* Release while a renewal is under way: nothing may be left behind. */
dlock_status
race(const char *key, int64_t rounds, const dlock_options *options,
	 int64_t *bad, int64_t *expired, dlock_error *err)
{
	*bad = 0;
	*expired = 0;
	for (int64_t i = 0; i < rounds; i++)
	{
		dlock_lock *lock;
		int64_t		last;
		dlock_status status = dlock_acquire(handle, key, options, &lock, err);

		if (status != DLOCK_OK)
			return status;
		last = dlock_version(lock);
		/* at any moment of the period, which is a third of the TTL */
		if (i % 4 != 0)
		{
			struct timespec ts = {0, (long) (i * 7919 % (options->ttl_ms * 2 / 3)) * 1000000};

			nanosleep(&ts, NULL);
		}
		/* on a slow machine it may be gone */
		status = dlock_release(lock, -1, err);
		if (status == DLOCK_NOT_HELD)
			(*expired)++;
		else if (status != DLOCK_OK)
			return status;
		if (dlock_is_owner(lock))
			(*bad)++;
		if (dlock_check(lock, -1, err) != DLOCK_NOT_HELD)
			(*bad)++;
		if (dlock_check_key(handle, key, last, NULL, -1, err) != DLOCK_NOT_HELD)
			(*bad)++;
		dlock_free(lock);
	}
	return DLOCK_OK;
}

/* A handle each time: what a program does that runs for a moment. */
dlock_status
cycle(const char *conninfo, const char *key, int64_t rounds, int64_t hold,
	  const dlock_options *options, dlock_error *err)
{
	dlock_status status = DLOCK_OK;

	for (int64_t i = 0; i < rounds && status == DLOCK_OK; i++)
	{
		dlock_handle *own;
		dlock_lock *lock = NULL;

		status = dlock_open(conninfo, NULL, &own, err);
		if (status == DLOCK_OK)
			status = dlock_acquire(own, key, options, &lock, err);
		/* at any moment of what the renewal thread does */
		if (hold > 0)
		{
			struct timespec ts = {0, (long) (i * 7919 % hold) * 1000000};

			nanosleep(&ts, NULL);
		}
		if (status == DLOCK_OK)
			status = dlock_release(lock, -1, err);
		if (i % 2 == 0)
			dlock_free(lock);
		dlock_close(own);
	}
	return status;
}

/* Sockets that this process has open. */
static int
sockets(void)
{
	DIR		   *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int			n = 0;

	while (dir != NULL && (entry = readdir(dir)) != NULL)
	{
		struct stat st;

		if (fstat(atoi(entry->d_name), &st) == 0 && S_ISSOCK(st.st_mode))
			n++;
	}
	if (dir != NULL)
		closedir(dir);
	return n;
}

/* What a child may do with the handle and a lock of its parent. */
static void
child_main(dlock_lock *lock, int to)
{
	char		said[1000];
	dlock_error err;
	dlock_lock *another = NULL;
	dlock_info *info = NULL;
	size_t		n = 0;
	dlock_options options;
	int64_t		version = 0;
	size_t		len;
	int			before = sockets();

	dlock_options_init(&options);
	len = (size_t) snprintf(said, sizeof(said),
							"acquire=%s campaign=%s ping=%s info=%s watch=%s release_key=%s release=%s refresh=%s check=%s"
							" owner=%d left=%lld reason=%s ttl=%lld version=%d",
							dlock_status_name(dlock_acquire(handle, "child", &options, &another, &err)),
							dlock_status_name(dlock_campaign(handle, "child", &options, &another, &err)),
							dlock_status_name(dlock_ping(handle, 0, &err)),
							dlock_status_name(dlock_get_info(handle, dlock_key(lock), 0, &info, &n, &err)),
							dlock_status_name(dlock_watch(handle, dlock_key(lock), &version, 0, &err)),
							dlock_status_name(dlock_release_key(handle, dlock_key(lock), dlock_version(lock), NULL, 0, &err)),
							dlock_status_name(dlock_release(lock, 0, &err)),
							dlock_status_name(dlock_refresh(lock, 0, 0, &err)),
							dlock_status_name(dlock_check(lock, 0, &err)),
							dlock_is_owner(lock), (long long) dlock_left_ms(lock),
							dlock_reason_name(dlock_lost_reason(lock)),
							(long long) dlock_ttl_ms(lock), dlock_version(lock) > 0);
	dlock_free(lock);
	dlock_close(handle);
	len += (size_t) snprintf(said + len, sizeof(said) - len, " sockets=%d-%d said=%s",
							 before > 0, sockets(), strstr(err.message, "fork") != NULL ? "fork" : "nothing");
	if (write(to, said, len) < 0)
		_exit(1);
}

void
forked(dlock_lock *lock, char *more, size_t size)
{
	int			ends[2];
	ssize_t		n;
	pid_t		pid;

	if (pipe(ends) != 0 || (pid = fork()) < 0)
		abort();
	if (pid == 0)
	{
		child_main(lock, ends[1]);
		_exit(0);
	}
	close(ends[1]);
	n = read(ends[0], more, size - 1);
	more[n > 0 ? n : 0] = '\0';
	close(ends[0]);
	waitpid(pid, NULL, 0);
}

typedef struct Worker
{
	pthread_t	thread;
	int			number;
	int			rounds;
	int			bad;
} Worker;

/* A counter that only the lock protects; the sanitizer sees to it. */
static int64_t shared_counter;

static void *
worker_main(void *arg)
{
	Worker	   *worker = arg;

	for (int i = 0; i < worker->rounds; i++)
	{
		dlock_options options;
		dlock_lock *lock = NULL;
		dlock_info *info = NULL;
		size_t		n = 0;
		dlock_error err;
		char		key[50];

		dlock_options_init(&options);
		options.wait_ms = 60000;
		options.value = "worker";
		if (dlock_acquire(handle, "workers", &options, &lock, &err) != DLOCK_OK)
		{
			worker->bad++;
			continue;
		}
		__atomic_fetch_add(&shared_counter, 1, __ATOMIC_RELAXED);
		if (dlock_refresh(lock, 0, -1, &err) != DLOCK_OK ||
			dlock_check(lock, -1, &err) != DLOCK_OK ||
			dlock_get_info(handle, "workers", -1, &info, &n, &err) != DLOCK_OK ||
			info->version != dlock_version(lock))
			worker->bad++;
		dlock_list_free(info, n);
		if (dlock_release(lock, -1, &err) != DLOCK_OK)
			worker->bad++;
		dlock_free(lock);

		/* one that nobody else wants, renewed quickly */
		snprintf(key, sizeof(key), "own %d", worker->number);
		options.wait_ms = 0;
		options.ttl_ms = 3000;
		options.renew = 1;
		if (dlock_acquire(handle, key, &options, &lock, &err) != DLOCK_OK)
		{
			worker->bad++;
			continue;
		}
		if (i % 3 != 0 && dlock_release(lock, -1, &err) != DLOCK_OK)
			worker->bad++;
		if (i % 3 == 0 && dlock_release_key(handle, key, dlock_version(lock), NULL, -1, &err) != DLOCK_OK)
			worker->bad++;
		dlock_free(lock);
	}
	return NULL;
}

int64_t
work(int64_t threads, int64_t rounds, int64_t *counter)
{
	Worker	   *workers = calloc((size_t) threads, sizeof(Worker));
	int64_t		bad = 0;

	for (int64_t i = 0; i < threads; i++)
	{
		workers[i].number = (int) i;
		workers[i].rounds = (int) rounds;
		if (pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0)
			abort();
	}
	for (int64_t i = 0; i < threads; i++)
	{
		pthread_join(workers[i].thread, NULL);
		bad += workers[i].bad;
	}
	free(workers);
	*counter = shared_counter;
	return bad;
}
