/*-------------------------------------------------------------------------
 *
 * driver.c
 *	  libdlock on a leash: commands come in by lines, answers go out.
 *
 * For the TAP tests.  A line is words with tabs between: a command and its
 * arguments, "name=value" for options.  The answer is one line "= status ...";
 * events are lines "! event key ..." at any time.  A lock goes by its key.
 *
 *-------------------------------------------------------------------------
 */
#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dlock.h"

#define MAX_LOCKS 5000
#define MAX_WORDS 20

static dlock_handle *handle;
static dlock_lock *locks[MAX_LOCKS];
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;
static bool release_in_callback;
static bool close_in_callback;

static int64_t
now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void
say(const char *line)
{
	pthread_mutex_lock(&output);
	puts(line);
	fflush(stdout);
	pthread_mutex_unlock(&output);
}

static void
on_event(const dlock_event *event, void *arg)
{
	char		line[2000];
	dlock_status status = DLOCK_OK;

	(void) arg;
	if (release_in_callback)
		status = dlock_release(event->lock, 0, NULL);
	if (close_in_callback)
		dlock_close(handle);
	snprintf(line, sizeof(line), "! %s %s version=%lld reason=%s left=%lld owner=%d nested=%s",
			 dlock_event_name(event->type), event->key, (long long) event->version,
			 dlock_reason_name(event->reason), (long long) event->left_ms,
			 dlock_is_owner(event->lock), dlock_status_name(status));
	say(line);
}

static void
answer(dlock_status status, const dlock_error *err, const char *more, int64_t start)
{
	char		line[5000];

	snprintf(line, sizeof(line), "= %s ms=%lld %s sqlstate=%s message=%s hint=%s",
			 dlock_status_name(status), (long long) (now_ms() - start), more,
			 err->sqlstate, err->message, err->hint);
	say(line);
}

/* The value of an option, or NULL. */
static const char *
option(char **words, int n, const char *name)
{
	size_t		len = strlen(name);

	for (int i = 1; i < n; i++)
		if (strncmp(words[i], name, len) == 0 && words[i][len] == '=')
			return words[i] + len + 1;
	return NULL;
}

static int64_t
number(char **words, int n, const char *name, int64_t otherwise)
{
	const char *text = option(words, n, name);

	return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

static void
lock_options(dlock_options *options, char **words, int n)
{
	dlock_options_init(options);
	options->ttl_ms = number(words, n, "ttl", options->ttl_ms);
	options->renew = (int) number(words, n, "renew", options->renew);
	options->wait_ms = number(words, n, "wait", options->wait_ms);
	options->timeout_ms = number(words, n, "timeout", options->timeout_ms);
	options->value = option(words, n, "value");
	options->owner = option(words, n, "owner");
	options->priority = (int32_t) number(words, n, "priority", 0);
	options->cleanup_ms = number(words, n, "cleanup", 0);
	options->force = (int) number(words, n, "force", 0);
	options->session = (int) number(words, n, "session", 0);
}

static int
slot_of(const char *key)
{
	for (int i = 0; i < MAX_LOCKS; i++)
		if (locks[i] != NULL && strcmp(dlock_key(locks[i]), key) == 0)
			return i;
	return -1;
}

static void
keep(dlock_lock *lock)
{
	for (int i = 0; i < MAX_LOCKS && lock != NULL; i++)
		if (locks[i] == NULL)
		{
			locks[i] = lock;
			return;
		}
}

/* Many locks at a time: key0, key1, ... */
static dlock_status
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

static int64_t
owned(void)
{
	int64_t		n = 0;

	for (int i = 0; i < MAX_LOCKS; i++)
		n += locks[i] != NULL && dlock_is_owner(locks[i]);
	return n;
}

/* Release while a renewal is under way: nothing may be left behind. */
static dlock_status
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
static dlock_status
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
							dlock_status_name(dlock_get_info(handle, dlock_key(lock), 0, &info, &err)),
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

static void
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
			dlock_get_info(handle, "workers", -1, &info, &err) != DLOCK_OK ||
			info->version != dlock_version(lock))
			worker->bad++;
		dlock_info_free(info);
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

static int64_t
work(int64_t threads, int64_t rounds)
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
	return bad;
}

static void
show_info(const dlock_info *info, char *more, size_t size)
{
	snprintf(more, size,
			 "key=%s version=%lld info_owner=%s role=%s value=%s state=%s priority=%d"
			 " ttl=%lld remaining=%lld expires_in=%lld pid=%d requestor=%d/%s/%d/%d",
			 info->key, (long long) info->version, info->owner ? info->owner : "-",
			 info->role, info->value ? info->value : "-", info->state, (int) info->priority,
			 (long long) info->ttl_ms, (long long) info->remaining_ms,
			 (long long) (info->expires_at_ms - info->refreshed_at_ms), info->pid != 0,
			 info->has_requestor, info->requestor_owner ? info->requestor_owner : "-",
			 (int) info->requestor_priority, info->requestor_left_ms > 0);
}

/* Commands that name a key and need no lock of ours. */
static bool
key_command(char **words, int n, char *more, size_t size, dlock_status *status, dlock_error *err)
{
	const char *command = words[0];
	const char *key = n > 1 ? words[1] : NULL;
	int64_t		version = number(words, n, "version", 0);
	int64_t		timeout = number(words, n, "timeout", -1);
	const char *owner = option(words, n, "owner");
	dlock_info *info = NULL;
	dlock_info *infos = NULL;
	dlock_waiter *waiters = NULL;
	size_t		count = 0;
	int64_t		expires = 0;

	if (strcmp(command, "info") == 0)
	{
		*status = dlock_get_info(handle, key, timeout, &info, err);
		if (*status == DLOCK_OK)
			show_info(info, more, size);
		dlock_info_free(info);
	}
	else if (strcmp(command, "observe") == 0)
	{
		*status = dlock_observe(handle, key, version, number(words, n, "wait", -1), &info, err);
		if (*status == DLOCK_OK)
			show_info(info, more, size);
		dlock_info_free(info);
	}
	else if (strcmp(command, "list") == 0)
	{
		*status = dlock_list(handle, key, number(words, n, "limit", 0), timeout, &infos, &count, err);
		snprintf(more, size, "count=%d first=%s", (int) count, count > 0 ? infos[0].key : "-");
		dlock_list_free(infos, count);
	}
	else if (strcmp(command, "waiters") == 0)
	{
		*status = dlock_list_waiters(handle, key, 0, timeout, &waiters, &count, err);
		snprintf(more, size, "count=%d", (int) count);
		if (count > 0)
			snprintf(more, size, "count=%d first=%s pid=%d priority=%d position=%d watches=%d since=%d until=%d",
					 (int) count, waiters[0].key, waiters[0].pid != 0, (int) waiters[0].priority,
					 (int) waiters[0].position, waiters[0].watches, waiters[0].since_ms > 0, waiters[0].until_ms > 0);
		dlock_waiters_free(waiters, count);
	}
	else if (strcmp(command, "watch") == 0)
	{
		*status = dlock_watch(handle, key, &version, number(words, n, "wait", -1), err);
		snprintf(more, size, "version=%lld", (long long) version);
	}
	else if (strcmp(command, "check_key") == 0)
		*status = dlock_check_key(handle, key, version, owner, timeout, err);
	else if (strcmp(command, "refresh_key") == 0)
	{
		*status = dlock_refresh_key(handle, key, version, owner, number(words, n, "ttl", 0),
									timeout, &expires, err);
		snprintf(more, size, "expires=%d", expires > 0);
	}
	else if (strcmp(command, "release_key") == 0)
		*status = dlock_release_key(handle, key, version, owner, timeout, err);
	else if (strcmp(command, "force_release") == 0)
	{
		*status = dlock_force_release(handle, key, option(words, n, "reason"), timeout, &version, err);
		snprintf(more, size, "version=%lld", (long long) version);
	}
	else
		return false;
	return true;
}

static void
obey(char **words, int n)
{
	const char *command = words[0];
	const char *key = n > 1 ? words[1] : "";
	int			slot = slot_of(key);
	dlock_lock *lock = slot >= 0 ? locks[slot] : NULL;
	int64_t		timeout = number(words, n, "timeout", -1);
	int64_t		start = now_ms();
	int64_t		count = 0;
	int64_t		expired = 0;
	char		more[3000] = "";
	dlock_status status = DLOCK_OK;
	dlock_error err;
	dlock_options options;
	dlock_open_options open_options;

	memset(&err, 0, sizeof(err));
	lock_options(&options, words, n);
	if (strcmp(command, "open") == 0)
	{
		dlock_open_options_init(&open_options);
		open_options.timeout_ms = number(words, n, "timeout", open_options.timeout_ms);
		open_options.ttl_ms = number(words, n, "ttl", open_options.ttl_ms);
		open_options.callback = on_event;
		release_in_callback = number(words, n, "nested", 0) != 0;
		close_in_callback = number(words, n, "close", 0) != 0;
		status = dlock_open(key, &open_options, &handle, &err);
	}
	else if (strcmp(command, "close") == 0)
	{
		memset(locks, 0, sizeof(locks));
		dlock_close(handle);
		handle = NULL;
	}
	else if (strcmp(command, "cycle") == 0)
		status = cycle(key, option(words, n, "key"), number(words, n, "count", 0),
					   number(words, n, "hold", 0), &options, &err);
	else if (strcmp(command, "ping") == 0)
		status = dlock_ping(handle, timeout, &err);
	else if (strcmp(command, "acquire") == 0 || strcmp(command, "campaign") == 0)
	{
		status = (command[0] == 'a' ? dlock_acquire : dlock_campaign)
			(handle, key, &options, &lock, &err);
		keep(lock);
		if (lock != NULL)
			snprintf(more, sizeof(more), "version=%lld ttl=%lld left=%lld owner=%s",
					 (long long) dlock_version(lock), (long long) dlock_ttl_ms(lock),
					 (long long) dlock_left_ms(lock), dlock_owner(lock));
	}
	else if (strcmp(command, "many") == 0)
		status = many(key, number(words, n, "count", 0), &options, &err);
	else if (strcmp(command, "owned") == 0)
		snprintf(more, sizeof(more), "count=%lld", (long long) owned());
	else if (strcmp(command, "race") == 0)
	{
		status = race(key, number(words, n, "count", 0), &options, &count, &expired, &err);
		snprintf(more, sizeof(more), "bad=%lld expired=%lld", (long long) count,
				 (long long) expired);
	}
	else if (strcmp(command, "work") == 0)
	{
		count = work(number(words, n, "threads", 4), number(words, n, "count", 0));
		snprintf(more, sizeof(more), "bad=%lld counter=%lld", (long long) count,
				 (long long) shared_counter);
	}
	else if (key_command(words, n, more, sizeof(more), &status, &err))
		;
	else if (lock == NULL)
		snprintf(more, sizeof(more), "what=%s", command);
	else if (strcmp(command, "release") == 0)
		status = dlock_release(lock, timeout, &err);
	else if (strcmp(command, "resign") == 0)
		status = dlock_resign(lock, timeout, &err);
	else if (strcmp(command, "refresh") == 0)
		status = dlock_refresh(lock, options.ttl_ms, timeout, &err);
	else if (strcmp(command, "check") == 0)
		status = dlock_check(lock, timeout, &err);
	else if (strcmp(command, "state") == 0)
		snprintf(more, sizeof(more), "owner=%d left=%lld reason=%s version=%lld",
				 dlock_is_owner(lock), (long long) dlock_left_ms(lock),
				 dlock_reason_name(dlock_lost_reason(lock)), (long long) dlock_version(lock));
	else if (strcmp(command, "fork") == 0)
		forked(lock, more, sizeof(more));
	else if (strcmp(command, "free") == 0)
	{
		locks[slot] = NULL;
		dlock_free(lock);
	}
	answer(status, &err, more, start);
}

int
main(void)
{
	static char line[10000];

	while (fgets(line, sizeof(line), stdin) != NULL)
	{
		char	   *words[MAX_WORDS];
		char	   *at = line;
		int			n = 0;

		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "quit") == 0)
			break;
		while (n < MAX_WORDS)
		{
			words[n++] = at;
			at = strchr(at, '\t');
			if (at == NULL)
				break;
			*at++ = '\0';
		}
		/* a callback has closed it */
		if (strcmp(line, "forget") == 0)
		{
			/* which it did before it told us */
			pthread_mutex_lock(&output);
			memset(locks, 0, sizeof(locks));
			handle = NULL;
			pthread_mutex_unlock(&output);
		}
		obey(words, n);
	}
	dlock_close(handle);
	return 0;
}
