/*-------------------------------------------------------------------------
 *
 * driver.c
 *	  libdlock by commands: one line in, one line out.
 *
 * For the TAP tests.  A line is words with tabs between: a command and its
 * arguments, "name=value" for options.  The answer is one line "= status ...";
 * events are lines "! event key ..." at any time.  A lock is named by its key.
 * The commands are in a table at the end; those that make many calls are in
 * scenarios.c.
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#include "driver.h"

#define MAX_LOCKS 5000
#define MAX_WORDS 20

dlock_handle *handle;
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
	/* a test that names a TTL wants the lock to end, unless it says otherwise */
	options->renew = (int) number(words, n, "renew", options->ttl_ms == 0);
	options->wait_ms = number(words, n, "wait", options->wait_ms);
	options->timeout_ms = number(words, n, "timeout", options->timeout_ms);
	options->value = option(words, n, "value");
	options->owner = option(words, n, "owner");
	options->priority = (int32_t) number(words, n, "priority", 0);
	options->cleanup_ms = number(words, n, "cleanup", 0);
	options->force = (int) number(words, n, "force", 0);
	options->session = (int) number(words, n, "session", 0);
	/* in the tests, 0 is exclusive and -1 is shared */
	options->slots = (int32_t) number(words, n, "slots", 0);
	options->shared = options->slots == -1;
	if (options->slots == -1 || options->slots == 0)
		options->slots = 1;
	options->adopt = (int) number(words, n, "adopt", 0);
	options->at_least_ms = number(words, n, "at_least", 0);
	options->delay_ms = number(words, n, "delay", 0);
	options->lazy = (int) number(words, n, "lazy", 0);
	options->reentrant = (int) number(words, n, "reentrant", 0);
	options->max_hold_ms = number(words, n, "max_hold", 0);
}

static int
slot_of(const char *key)
{
	for (int i = 0; i < MAX_LOCKS; i++)
		if (locks[i] != NULL && strcmp(dlock_key(locks[i]), key) == 0)
			return i;
	return -1;
}

void
keep(dlock_lock *lock)
{
	for (int i = 0; i < MAX_LOCKS && lock != NULL; i++)
		if (locks[i] == NULL)
		{
			locks[i] = lock;
			return;
		}
}

dlock_lock *
kept(const char *key)
{
	int			slot = slot_of(key);

	return slot >= 0 ? locks[slot] : NULL;
}

/* A command and everything that it may use. */
typedef struct
{
	char	  **words;
	int			n;
	const char *key;			/* the first argument, or "" */
	int			slot;			/* of its lock, if the command needs one */
	dlock_lock *lock;
	int64_t		timeout;
	int64_t		version;
	const char *owner;
	dlock_options options;
	char		more[3000];		/* the answer behind its status */
	dlock_error err;
} Line;

static const char *
text_of(const Line *line, const char *name)
{
	return option(line->words, line->n, name);
}

static int64_t
number_of(const Line *line, const char *name, int64_t otherwise)
{
	return number(line->words, line->n, name, otherwise);
}

#define MORE(line, ...) snprintf((line)->more, sizeof((line)->more), __VA_ARGS__)

/*
 * Handles
 */

static dlock_status
do_open(Line *line)
{
	dlock_open_options options;

	dlock_open_options_init(&options);
	options.timeout_ms = number_of(line, "timeout", options.timeout_ms);
	options.ttl_ms = number_of(line, "ttl", options.ttl_ms);
	options.max_connections = (int) number_of(line, "connections", options.max_connections);
	options.schema = text_of(line, "schema");
	options.callback = on_event;
	release_in_callback = number_of(line, "nested", 0) != 0;
	close_in_callback = number_of(line, "close", 0) != 0;
	return dlock_open(line->key, &options, &handle, &line->err);
}

static dlock_status
do_close(Line *line)
{
	(void) line;
	memset(locks, 0, sizeof(locks));
	dlock_close(handle);
	handle = NULL;
	return DLOCK_OK;
}

/* A callback has closed the handle, before it told us. */
static dlock_status
do_forget(Line *line)
{
	(void) line;
	pthread_mutex_lock(&output);
	memset(locks, 0, sizeof(locks));
	handle = NULL;
	pthread_mutex_unlock(&output);
	return DLOCK_OK;
}

static dlock_status
do_ping(Line *line)
{
	return dlock_ping(handle, line->timeout, &line->err);
}

/*
 * Locks
 */

static dlock_status
granted(Line *line, dlock_status status)
{
	keep(line->lock);
	if (line->lock != NULL)
		MORE(line, "version=%lld ttl=%lld left=%lld owner=%s",
			 (long long) dlock_version(line->lock), (long long) dlock_ttl_ms(line->lock),
			 (long long) dlock_left_ms(line->lock),
			 dlock_owner(line->lock) != NULL ? dlock_owner(line->lock) : "-");
	return status;
}

static dlock_status
do_acquire(Line *line)
{
	return granted(line, dlock_acquire(handle, line->key, &line->options, &line->lock,
									   &line->err));
}

static dlock_status
do_adopt(Line *line)
{
	return granted(line, dlock_adopt(handle, line->key, line->version, line->owner,
									 &line->options, &line->lock, &line->err));
}

static dlock_status
do_campaign(Line *line)
{
	return granted(line, dlock_campaign(handle, line->key, &line->options, &line->lock,
										&line->err));
}

static dlock_status
do_release(Line *line)
{
	return dlock_release(line->lock, line->timeout, &line->err);
}

static dlock_status
do_resign(Line *line)
{
	return dlock_resign(line->lock, line->timeout, &line->err);
}

static dlock_status
do_release_free(Line *line)
{
	locks[line->slot] = NULL;
	return dlock_release_free(line->lock, line->timeout, &line->err);
}

/* With the options as they are, but for a TTL: whether that is renewed. */
static dlock_status
do_default(Line *line)
{
	dlock_options_init(&line->options);
	line->options.ttl_ms = number_of(line, "ttl", 0);
	return do_acquire(line);
}

/*
 * A fence on a connection of our own: within a transaction unless it is to be alone=1, in
 * the database that is named as the owner.
 */
static dlock_status
do_fence(Line *line)
{
	PGconn	   *conn = PQconnectdb(line->owner);
	bool		alone = number_of(line, "alone", 0) != 0;
	dlock_status status;

	if (!alone)
		PQclear(PQexec(conn, "BEGIN"));
	status = dlock_fence(conn, line->lock, &line->err);
	MORE(line, "transaction=%d", (int) PQtransactionStatus(conn));
	PQfinish(conn);
	return status;
}

/*
 * The fence of a connection of our own, which then writes; with off=1, after it was taken
 * off again.
 */
static dlock_status
do_fence_connection(Line *line)
{
	PGconn	   *conn = PQconnectdb(line->owner);
	dlock_status status = dlock_fence_connection(conn, line->lock, &line->err);
	PGresult   *result;

	if (number_of(line, "off", 0) != 0 && status == DLOCK_OK)
		status = dlock_fence_connection(conn, NULL, &line->err);
	result = PQexec(conn, "INSERT INTO journal VALUES ('written')");
	MORE(line, "written=%s", PQresultStatus(result) == PGRES_COMMAND_OK ? "yes" : PQresultErrorField(result, PG_DIAG_SQLSTATE));
	PQclear(result);
	PQfinish(conn);
	return status;
}

static dlock_status
do_handover(Line *line)
{
	int64_t		version = 0;
	dlock_status status = dlock_handover(line->lock, line->owner, line->options.ttl_ms, line->timeout,
										 &version, &line->err);

	MORE(line, "version=%lld", (long long) version);
	return status;
}

static dlock_status
do_handover_key(Line *line)
{
	int64_t		version = 0;
	dlock_status status = dlock_handover_key(handle, line->key, line->version, line->owner,
											 line->options.ttl_ms, line->timeout, &version, &line->err);

	MORE(line, "version=%lld", (long long) version);
	return status;
}

static dlock_status
do_limit(Line *line)
{
	int64_t		again = -1;
	dlock_status status = dlock_limit(handle, line->key, (int32_t) number_of(line, "n", 1),
									  number_of(line, "per", 60000), number_of(line, "wait", 0), 0, line->timeout,
									  &again, &line->err);

	MORE(line, "again=%lld", (long long) again);
	return status;
}

static dlock_status
do_refresh(Line *line)
{
	return dlock_refresh(line->lock, line->options.ttl_ms, line->timeout, &line->err);
}

static dlock_status
do_check(Line *line)
{
	return dlock_check(line->lock, line->timeout, &line->err);
}

static dlock_status
do_state(Line *line)
{
	MORE(line, "owner=%d left=%lld reason=%s version=%lld",
		 dlock_is_owner(line->lock), (long long) dlock_left_ms(line->lock),
		 dlock_reason_name(dlock_lost_reason(line->lock)),
		 (long long) dlock_version(line->lock));
	return DLOCK_OK;
}

static dlock_status
do_free(Line *line)
{
	locks[line->slot] = NULL;
	dlock_free(line->lock);
	return DLOCK_OK;
}

static dlock_status
do_fork(Line *line)
{
	forked(line->lock, line->more, sizeof(line->more));
	return DLOCK_OK;
}

/*
 * Keys
 */

static dlock_status
do_info(Line *line)
{
	dlock_info *infos = NULL;
	size_t		n = 0;
	dlock_status status = dlock_get_info(handle, line->key, line->timeout, &infos, &n, &line->err);

	size_t		newest = n;

	while (newest > 0 && infos[newest - 1].version == 0)
		newest--;
	if (status == DLOCK_OK && newest == 0)
		status = DLOCK_NOT_HELD;
	if (status == DLOCK_OK)
		show_info(&infos[newest - 1], line->more, sizeof(line->more));
	dlock_list_free(infos, n);
	return status;
}

static dlock_status
do_observe(Line *line)
{
	dlock_info *info = NULL;
	dlock_status status = dlock_observe(handle, line->key, line->version,
										number_of(line, "wait", -1), &info, &line->err);

	if (status == DLOCK_OK)
		show_info(info, line->more, sizeof(line->more));
	dlock_info_free(info);
	return status;
}

static dlock_status
do_list(Line *line)
{
	dlock_info *infos = NULL;
	size_t		count = 0;
	dlock_status status = dlock_list(handle, line->n > 1 ? line->key : NULL, NULL,
									 number_of(line, "limit", 0), line->timeout,
									 &infos, &count, &line->err);

	MORE(line, "count=%d first=%s", (int) count, count > 0 ? infos[0].key : "-");
	dlock_list_free(infos, count);
	return status;
}

static dlock_status
do_waiters(Line *line)
{
	dlock_waiter *waiters = NULL;
	size_t		count = 0;
	dlock_status status = dlock_list_waiters(handle, line->n > 1 ? line->key : NULL, 0,
											 line->timeout, &waiters, &count, &line->err);

	MORE(line, "count=%d", (int) count);
	if (count > 0)
		MORE(line, "count=%d first=%s pid=%d ticket=%d priority=%d position=%d watches=%d since=%d until=%d slots=%d",
			 (int) count, waiters[0].key, waiters[0].pid != 0, waiters[0].ticket != 0, (int) waiters[0].priority,
			 (int) waiters[0].position, waiters[0].watches, waiters[0].since_ms > 0,
			 waiters[0].until_ms > 0, waiters[0].shared ? -1 : waiters[0].slots == 1 ? 0 : (int) waiters[0].slots);
	dlock_waiters_free(waiters, count);
	return status;
}

static dlock_status
do_watch(Line *line)
{
	dlock_status status = dlock_watch(handle, line->key, &line->version,
									  number_of(line, "wait", -1), &line->err);

	MORE(line, "version=%lld", (long long) line->version);
	return status;
}

static dlock_status
do_check_key(Line *line)
{
	return dlock_check_key(handle, line->key, line->version, line->owner, line->timeout,
						   &line->err);
}

static dlock_status
do_refresh_key(Line *line)
{
	int64_t		expires = 0;
	dlock_status status = dlock_refresh_key(handle, line->key, line->version, line->owner,
											number_of(line, "ttl", 0), line->timeout,
											&expires, &line->err);

	MORE(line, "expires=%d", expires > 0);
	return status;
}

static dlock_status
do_release_key(Line *line)
{
	return dlock_release_key(handle, line->key, line->version, line->owner, line->timeout,
							 &line->err);
}

static dlock_status
do_force_release(Line *line)
{
	dlock_status status = dlock_force_release(handle, line->key, line->version,
											  text_of(line, "reason"), line->timeout, &line->version, &line->err);

	MORE(line, "version=%lld", (long long) line->version);
	return status;
}

/*
 * Several locks; see several.c.  Keys and slots are lists with commas.
 */

static dlock_status
do_all(Line *line)
{
	return all(line->key, text_of(line, "slots"), &line->options, line->more,
			   sizeof(line->more), &line->err);
}

static dlock_status
do_release_all(Line *line)
{
	return release_all(line->key, line->timeout, &line->err);
}

static dlock_status
do_infos(Line *line)
{
	return all_infos(line->key, line->more, sizeof(line->more), &line->err);
}

/*
 * Many calls; see scenarios.c
 */

static dlock_status
do_many(Line *line)
{
	return many(line->key, number_of(line, "count", 0), &line->options, &line->err);
}

static dlock_status
do_owned(Line *line)
{
	int64_t		n = 0;

	for (int i = 0; i < MAX_LOCKS; i++)
		n += locks[i] != NULL && dlock_is_owner(locks[i]);
	MORE(line, "count=%lld", (long long) n);
	return DLOCK_OK;
}

static dlock_status
do_race(Line *line)
{
	int64_t		bad = 0;
	int64_t		expired = 0;
	dlock_status status = race(line->key, number_of(line, "count", 0), &line->options,
							   &bad, &expired, &line->err);

	MORE(line, "bad=%lld expired=%lld", (long long) bad, (long long) expired);
	return status;
}

static dlock_status
do_cycle(Line *line)
{
	return cycle(line->key, text_of(line, "key"), number_of(line, "count", 0),
				 number_of(line, "hold", 0), &line->options, &line->err);
}

/* Threads, and calls that are started; what they do is the command's name. */
static dlock_status
do_crowd(Line *line)
{
	int64_t		counter = 0;
	int64_t		bad = crowd(line->words[0], line->key, number_of(line, "threads", 4),
							number_of(line, "count", 0), &line->options, &counter);

	MORE(line, "bad=%lld counter=%lld", (long long) bad, (long long) counter);
	return DLOCK_OK;
}

static const struct
{
	const char *name;
	bool		needs_lock;
	dlock_status (*run) (Line *line);
}			commands[] = {
	{"open", false, do_open},
	{"close", false, do_close},
	{"forget", false, do_forget},
	{"ping", false, do_ping},
	{"acquire", false, do_acquire},
	{"adopt", false, do_adopt},
	{"all", false, do_all},
	{"release_all", false, do_release_all},
	{"infos", false, do_infos},
	{"campaign", false, do_campaign},
	{"release", true, do_release},
	{"resign", true, do_resign},
	{"release_free", true, do_release_free},
	{"default", false, do_default},
	{"fence", true, do_fence},
	{"fence_connection", true, do_fence_connection},
	{"handover", true, do_handover},
	{"handover_key", false, do_handover_key},
	{"limit", false, do_limit},
	{"refresh", true, do_refresh},
	{"check", true, do_check},
	{"state", true, do_state},
	{"free", true, do_free},
	{"fork", true, do_fork},
	{"info", false, do_info},
	{"observe", false, do_observe},
	{"list", false, do_list},
	{"waiters", false, do_waiters},
	{"watch", false, do_watch},
	{"check_key", false, do_check_key},
	{"refresh_key", false, do_refresh_key},
	{"release_key", false, do_release_key},
	{"force_release", false, do_force_release},
	{"many", false, do_many},
	{"owned", false, do_owned},
	{"race", false, do_race},
	{"cycle", false, do_cycle},
	{"nest", false, do_crowd}, {"work", false, do_crowd},
	{"flights", false, do_crowd}, {"blocked", false, do_crowd},
	{"begin", false, do_crowd}, {"end", false, do_crowd},
	{"queue", false, do_crowd}, {"started", false, do_crowd},
	{"cancelled", false, do_crowd}, {"closed", false, do_crowd},
	{"keep", false, do_crowd}, {"start_one", false, do_crowd},
	{"give_beside", false, do_crowd}, {"settle", false, do_crowd},
};

static void
obey(char **words, int n)
{
	static Line line;
	size_t		count = sizeof(commands) / sizeof(commands[0]);
	int64_t		start = now_ms();
	dlock_status status = DLOCK_OK;
	size_t		i = 0;

	memset(&line, 0, sizeof(line));
	line.words = words;
	line.n = n;
	line.key = n > 1 ? words[1] : "";
	line.timeout = number_of(&line, "timeout", -1);
	line.version = number_of(&line, "version", 0);
	line.owner = text_of(&line, "owner");
	lock_options(&line.options, words, n);

	while (i < count && strcmp(commands[i].name, words[0]) != 0)
		i++;
	/* the others may follow a callback that has freed all locks */
	if (i < count && commands[i].needs_lock)
	{
		line.slot = slot_of(line.key);
		line.lock = line.slot >= 0 ? locks[line.slot] : NULL;
	}
	if (i == count || (commands[i].needs_lock && line.lock == NULL))
		MORE(&line, "what=%s", words[0]);
	else
		status = commands[i].run(&line);
	answer(status, &line.err, line.more, start);
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
		obey(words, n);
	}
	dlock_close(handle);
	return 0;
}
