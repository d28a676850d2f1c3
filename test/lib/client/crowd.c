/*-------------------------------------------------------------------------
 *
 * crowd.c
 *	  What the driver does with many threads on one handle, and with many calls
 *	  that are under way at once.
 *
 * Each is one command of driver.c.  It returns how much went wrong.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

typedef struct Member
{
	pthread_t	thread;
	const char *key;
	const dlock_options *options;
	int			number;
	int64_t		rounds;
	int64_t		bad;
} Member;

/* Protected by the lock alone, which the sanitizer cannot know. */
static int64_t inside;
static int64_t turns;

static void
expect(Member *member, dlock_status status, dlock_status expected, const dlock_error *err)
{
	if (status == expected)
		return;
	if (member->bad++ < 3)
		fprintf(stderr, "thread %d: %s instead of %s: %s\n", member->number,
				dlock_status_name(status), dlock_status_name(expected), err->message);
}

/*
 * Calls of all kinds, of which some fail: an empty key; and, unless the key is
 * "own", one that a policy denies, and one that another client holds.
 */
static void
all_kinds(Member *member, int64_t round)
{
	char		key[200];
	char		denied[200];
	dlock_options options = *member->options;
	dlock_lock *lock = NULL;
	dlock_lock *none = NULL;
	dlock_error err;

	snprintf(key, sizeof(key), "%s %d", member->key, member->number);
	snprintf(denied, sizeof(denied), "denied %d", member->number);
	if (round % 2 == 1)
		options.value = "value";
	expect(member, dlock_acquire(handle, key, &options, &lock, &err), DLOCK_OK, &err);
	if (lock == NULL)
		return;
	if (member->number % 4 == 0)
		expect(member, dlock_acquire(handle, "", &options, &none, &err), DLOCK_INVALID, &err);
	if (member->number % 4 == 1 && strcmp(member->key, "own") != 0)
		expect(member, dlock_acquire(handle, denied, &options, &none, &err), DLOCK_DENIED, &err);
	if (member->number % 4 == 2 && strcmp(member->key, "own") != 0)
		expect(member, dlock_acquire(handle, "held", &options, &none, &err), DLOCK_BUSY, &err);
	expect(member, dlock_refresh(lock, 0, -1, &err), DLOCK_OK, &err);
	expect(member, dlock_check(lock, -1, &err), DLOCK_OK, &err);
	if (round % 3 == 0)
	{
		expect(member, dlock_release_key(handle, key, dlock_version(lock), NULL, -1, &err),
			   DLOCK_OK, &err);
		expect(member, dlock_check_key(handle, key, dlock_version(lock), NULL, -1, &err),
			   DLOCK_NOT_HELD, &err);
	}
	else
		expect(member, dlock_release(lock, -1, &err), DLOCK_OK, &err);
	dlock_free(lock);
}

static void *
flights_main(void *arg)
{
	Member	   *member = arg;

	for (int64_t i = 0; i < member->rounds; i++)
		all_kinds(member, i);
	return NULL;
}

/* One key for all of them, which they wait for. */
static void *
queue_main(void *arg)
{
	Member	   *member = arg;

	for (int64_t i = 0; i < member->rounds; i++)
	{
		dlock_lock *lock = NULL;
		dlock_error err;

		expect(member, dlock_acquire(handle, member->key, member->options, &lock, &err),
			   DLOCK_OK, &err);
		if (lock == NULL)
			continue;
		if (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) != 1)
			member->bad++;
		__atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED);
		__atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
		expect(member, dlock_release(lock, -1, &err), DLOCK_OK, &err);
		dlock_free(lock);
	}
	return NULL;
}

static int64_t
in_threads(void *(*thread_main) (void *), const char *key, int64_t threads,
		   int64_t rounds, const dlock_options *options)
{
	Member	   *members = calloc((size_t) threads, sizeof(Member));
	int64_t		bad = 0;

	for (int64_t i = 0; i < threads; i++)
	{
		members[i].key = key;
		members[i].options = options;
		members[i].number = (int) i;
		members[i].rounds = rounds;
		if (pthread_create(&members[i].thread, NULL, thread_main, &members[i]) != 0)
			abort();
	}
	for (int64_t i = 0; i < threads; i++)
	{
		pthread_join(members[i].thread, NULL);
		bad += members[i].bad;
	}
	free(members);
	return bad;
}

/*
 * A release that waits for a row, while others continue; the test is told when they
 * are done, and then lets the row go.
 */
static void *
release_main(void *arg)
{
	Member	   *member = arg;
	dlock_error err;

	expect(member, dlock_release(kept(member->key), 120000, &err), DLOCK_OK, &err);
	return NULL;
}

static int64_t
beside_a_blocked_release(const char *key, int64_t threads, int64_t rounds,
						 const dlock_options *options)
{
	Member		member = {.key = key};
	int64_t		bad;

	if (kept(key) == NULL || pthread_create(&member.thread, NULL, release_main, &member) != 0)
		abort();
	bad = in_threads(flights_main, "beside", threads, rounds, options);
	puts("! done beside version=1 reason=none left=0 owner=0 nested=ok");
	fflush(stdout);
	pthread_join(member.thread, NULL);
	return bad + member.bad;
}

/*
 * One thread that acquires and releases a key, while the driver continues with other
 * commands ("begin"), until "end" waits for it.
 */
static Member begun;
static char begun_key[200];
static dlock_options begun_options;

static void *
begun_main(void *arg)
{
	Member	   *member = arg;
	dlock_lock *lock = NULL;
	dlock_error err;

	expect(member, dlock_acquire(handle, member->key, member->options, &lock, &err), DLOCK_OK, &err);
	if (lock != NULL)
		expect(member, dlock_release(lock, -1, &err), DLOCK_OK, &err);
	dlock_free(lock);
	return NULL;
}

static int64_t
begin(const char *key, const dlock_options *options)
{
	snprintf(begun_key, sizeof(begun_key), "%s", key);
	begun_options = *options;
	begun = (Member)
	{
		.key = begun_key,.options = &begun_options
	};
	return pthread_create(&begun.thread, NULL, begun_main, &begun);
}

static int64_t
end(void)
{
	pthread_join(begun.thread, NULL);
	return begun.bad;
}

/*
 * Calls that are started: all acquires first; each that is granted is released.
 */

typedef struct Loop
{
	int64_t		under_way;
	int64_t		ok;				/* released */
	int64_t		cancelled;
	int64_t		bad;
	bool		keeps;			/* what is granted */
	int			nkept;
	dlock_lock *kept[4];
} Loop;

static void
released(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
		 void *arg)
{
	Loop	   *loop = arg;

	(void) op;
	loop->under_way--;
	if (status == DLOCK_OK)
		loop->ok++;
	else if (loop->bad++ < 3)
		fprintf(stderr, "release: %s\n", err->message);
	dlock_free(lock);
}

static void
acquired(dlock_op *op, dlock_status status, dlock_lock *lock, const dlock_error *err,
		 void *arg)
{
	Loop	   *loop = arg;

	(void) op;
	loop->under_way--;
	if (status == DLOCK_OK && loop->keeps)
		loop->kept[loop->nkept++] = lock;
	else if (status == DLOCK_OK)
	{
		if (!dlock_is_owner(lock) || dlock_release_start(lock, -1, released, loop, NULL, NULL) != DLOCK_OK)
			loop->bad++;
		else
			loop->under_way++;
	}
	else if (status == DLOCK_CANCELLED)
		loop->cancelled++;
	else if (loop->bad++ < 3)
		fprintf(stderr, "acquire: %s\n", err->message);
}

/* A key with a percent sign stands for several keys. */
static int64_t
start_all(Loop *loop, const char *key, int64_t count, const dlock_options *options,
		  dlock_op **ops)
{
	const char *mark = strchr(key, '%');

	for (int64_t i = 0; i < count; i++)
	{
		char		name[200];
		dlock_op   *op = NULL;
		dlock_error err;

		if (mark != NULL)
			snprintf(name, sizeof(name), "%.*s%lld", (int) (mark - key), key, (long long) i);
		else
			snprintf(name, sizeof(name), "%s", key);
		if (dlock_acquire_start(handle, name, options, acquired, loop, &op, &err) != DLOCK_OK)
			loop->bad++;
		else
			loop->under_way++;
		if (ops != NULL)
			ops[i] = op;
	}
	return loop->under_way;
}

static void
until_left(Loop *loop, int64_t left)
{
	struct pollfd fd = {.fd = dlock_handle_fd(handle),.events = POLLIN};

	while (loop->under_way > left)
	{
		if (poll(&fd, 1, 120000) == 0)
		{
			fprintf(stderr, "%lld calls do not come to an end\n", (long long) loop->under_way);
			loop->bad++;
			return;
		}
		dlock_handle_process(handle);
	}
}

static void
until_done(Loop *loop)
{
	until_left(loop, 0);
}

/* Some locks, which are kept until another acquire is under way. */
static Loop kept_loop;

static int64_t
keep_some(const char *key, int64_t count, const dlock_options *options)
{
	kept_loop = (Loop)
	{
		.keeps = true
	};
	if (count > 4)
		return 1;
	start_all(&kept_loop, key, count, options, NULL);
	until_done(&kept_loop);
	return kept_loop.bad + (kept_loop.nkept != count);
}

static int64_t
start_one(const char *key, const dlock_options *options)
{
	kept_loop.keeps = false;
	start_all(&kept_loop, key, 1, options, NULL);
	return kept_loop.bad;
}

/* They are released one by one, while that acquire gets no answer. */
static int64_t
give_beside(void)
{
	while (kept_loop.nkept > 0)
	{
		if (dlock_release_start(kept_loop.kept[--kept_loop.nkept], -1, released, &kept_loop, NULL, NULL) != DLOCK_OK)
			return kept_loop.bad + 1;
		kept_loop.under_way++;
		until_left(&kept_loop, 1);
	}
	return kept_loop.bad + (kept_loop.under_way != 1);
}

static int64_t
cancel_all(Loop *loop, const char *key, int64_t count, const dlock_options *options)
{
	dlock_op  **ops = calloc((size_t) count, sizeof(dlock_op *));

	start_all(loop, key, count, options, ops);
	for (int64_t i = 0; i < count; i++)
		if (ops[i] != NULL)
			dlock_op_cancel(ops[i]);
	until_done(loop);
	free(ops);
	return loop->bad + (loop->cancelled != count);
}

int64_t
crowd(const char *what, const char *key, int64_t threads, int64_t count,
	  const dlock_options *options, int64_t *counter)
{
	Loop		loop = {0};

	if (strcmp(what, "work") == 0)
		return work(threads, count, counter);
	if (strcmp(what, "nest") == 0)
		return nest_threads(threads, count);
	if (strcmp(what, "flights") == 0)
		return in_threads(flights_main, key, threads, count, options);
	if (strcmp(what, "blocked") == 0)
		return beside_a_blocked_release(key, threads, count, options);
	if (strcmp(what, "begin") == 0)
		return begin(key, options);
	if (strcmp(what, "end") == 0)
		return end();
	if (strcmp(what, "queue") == 0)
	{
		int64_t		bad;

		turns = 0;
		bad = in_threads(queue_main, key, threads, count, options);
		*counter = turns;
		return bad;
	}
	if (strcmp(what, "keep") == 0)
		return keep_some(key, count, options);
	if (strcmp(what, "start_one") == 0)
		return start_one(key, options);
	if (strcmp(what, "give_beside") == 0)
		return give_beside();
	if (strcmp(what, "settle") == 0)
	{
		until_done(&kept_loop);
		*counter = kept_loop.ok;
		return kept_loop.bad;
	}
	if (strcmp(what, "cancelled") == 0)
		return cancel_all(&loop, key, count, options);
	start_all(&loop, key, count, options, NULL);
	if (strcmp(what, "closed") == 0)
	{
		dlock_close(handle);
		handle = NULL;
	}
	else
		until_done(&loop);
	*counter = loop.ok;
	return loop.bad;
}
