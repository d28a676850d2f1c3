/*-------------------------------------------------------------------------
 *
 * several.c
 *	  What the driver does with several locks and grants, and with locks within
 *	  locks.
 *
 * Each is one command of driver.c.
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define MAX_KEYS 1010

static char text[8000];
static char *words[MAX_KEYS];

/* Split a list with commas; valid until the next call. */
static size_t
split(const char *list)
{
	size_t		n = 0;

	snprintf(text, sizeof(text), "%s", list);
	for (char *word = strtok(text, ","); word != NULL && n < MAX_KEYS; word = strtok(NULL, ","))
		words[n++] = word;
	return n;
}

/* "a..3" stands for a0, a1 and a2. */
static size_t
split_keys(const char *list)
{
	static char names[MAX_KEYS][50];
	const char *dots = strstr(list, "..");
	size_t		n = 0;

	if (dots == NULL)
		return split(list);
	for (; n < (size_t) atoi(dots + 2) && n < MAX_KEYS; n++)
	{
		snprintf(names[n], sizeof(names[n]), "%.*s%d", (int) (dots - list), list, (int) n);
		words[n] = names[n];
	}
	return n;
}

dlock_status
all(const char *list, const char *slot_list, const dlock_options *options,
	char *more, size_t size, dlock_error *err)
{
	static dlock_lock *locks[MAX_KEYS];
	int32_t		slots[MAX_KEYS] = {0};
	int			shared[MAX_KEYS] = {0};
	size_t		n = 0;
	size_t		len = 0;
	dlock_options mine = *options;
	dlock_status status;

	mine.slots = 1;
	mine.shared = 0;
	if (slot_list != NULL)
		n = split(slot_list);
	for (size_t i = 0; i < n; i++)
	{
		shared[i] = atoi(words[i]) == -1;
		slots[i] = atoi(words[i]) == 0 || shared[i] ? 1 : (int32_t) atoi(words[i]);
	}
	n = split_keys(list);
	memset(locks, 0xff, sizeof(locks));
	status = dlock_acquire_all(handle, (const char *const *) words, n,
							   slot_list != NULL ? slots : NULL, slot_list != NULL ? shared : NULL, &mine, locks, err);
	for (size_t i = 0; i < n; i++)
	{
		/* all or none */
		if ((locks[i] != NULL) != (status == DLOCK_OK))
			abort();
		keep(locks[i]);
		if (locks[i] != NULL && len + 100 < size)
			len += (size_t) snprintf(more + len, size - len, "%s%lld", i == 0 ? "versions=" : ",",
									 (long long) dlock_version(locks[i]));
	}
	if (n > 0 && locks[0] != NULL)
		snprintf(more + len, size - len, " ttl=%lld owner=%s", (long long) dlock_ttl_ms(locks[n - 1]),
				 dlock_owner(locks[n - 1]));
	return status;
}

dlock_status
release_all(const char *list, int64_t timeout, dlock_error *err)
{
	dlock_lock *locks[MAX_KEYS];
	size_t		n = split_keys(list);

	for (size_t i = 0; i < n; i++)
		locks[i] = kept(words[i]);
	return dlock_release_all(locks, n, timeout, err);
}

/* A row, as the answer shows it. */
void
show_info(const dlock_info *info, char *more, size_t size)
{
	snprintf(more, size,
			 "key=%s version=%lld info_owner=%s role=%s value=%s state=%s priority=%d"
			 " ttl=%lld remaining=%lld expires_in=%lld pid=%d requestor=%d/%s/%d/%d slots=%d",
			 info->key, (long long) info->version, info->owner ? info->owner : "-",
			 info->role, info->value ? info->value : "-", info->state, (int) info->priority,
			 (long long) info->ttl_ms, (long long) info->remaining_ms,
			 (long long) (info->expires_at_ms - info->refreshed_at_ms), info->pid != 0,
			 info->has_requestor, info->requestor_owner ? info->requestor_owner : "-",
			 (int) info->requestor_priority, info->requestor_left_ms > 0, info->shared ? -1 : info->slots == 1 ? 0 : (int) info->slots);
}

/* The grants of a key: "version/slots/state", with commas. */
dlock_status
all_infos(const char *key, char *more, size_t size, dlock_error *err)
{
	dlock_info *found = NULL;
	size_t		n = 0;
	dlock_status status = dlock_get_info(handle, key, -1, &found, &n, err);
	size_t		len = (size_t) snprintf(more, size, "count=%d grants=", (int) n);

	for (size_t i = 0; i < n && len + 100 < size; i++)
		len += (size_t) snprintf(more + len, size - len, "%s%lld/%d/%s", i == 0 ? "" : ",",
								 (long long) found[i].version, found[i].shared ? -1 : found[i].slots == 1 ? 0 : (int) found[i].slots, found[i].state);
	dlock_list_free(found, n);
	return status;
}

/*
 * Threads that acquire the same key within each other, and now and then one of
 * their own that nobody else has.
 */

typedef struct Nest
{
	pthread_t	thread;
	bool		alone;			/* there is no other thread */
	int			rounds;
	int			bad;
} Nest;

static void
nested(Nest *nest, const dlock_options *options, int depth)
{
	dlock_lock *lock = NULL;
	dlock_lock *inner = NULL;
	dlock_error err;

	if (dlock_acquire(handle, "nest", options, &lock, &err) != DLOCK_OK)
	{
		nest->bad++;
		return;
	}
	if (!dlock_is_owner(lock))
		nest->bad++;
	if (depth > 0)
		nested(nest, options, depth - 1);
	if (!dlock_is_owner(lock))
		nest->bad++;

	/* freed without a release, it must not count any more; see reenter.c */
	if (dlock_acquire(handle, "nest", options, &inner, &err) != DLOCK_OK || inner != lock)
		nest->bad++;
	if (!nest->alone && dlock_release(inner, -1, &err) != DLOCK_OK)
		nest->bad++;
	dlock_free(inner);
	if (dlock_release(lock, -1, &err) != DLOCK_OK)
		nest->bad++;
	dlock_free(lock);
}

static void *
nest_main(void *arg)
{
	Nest	   *nest = arg;
	dlock_options options;

	dlock_options_init(&options);
	options.wait_ms = 60000;
	options.reentrant = 1;
	for (int i = 0; i < nest->rounds; i++)
		nested(nest, &options, i % 3);
	return NULL;
}

int64_t
nest_threads(int64_t threads, int64_t rounds)
{
	Nest	   *nests = calloc((size_t) threads, sizeof(Nest));
	int64_t		bad = 0;

	for (int64_t i = 0; i < threads; i++)
	{
		nests[i].alone = threads == 1;
		nests[i].rounds = (int) rounds;
		if (pthread_create(&nests[i].thread, NULL, nest_main, &nests[i]) != 0)
			abort();
	}
	for (int64_t i = 0; i < threads; i++)
	{
		pthread_join(nests[i].thread, NULL);
		bad += nests[i].bad;
	}
	free(nests);
	return bad;
}
