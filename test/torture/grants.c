/*-------------------------------------------------------------------------
 *
 * grants.c
 *	  Locks of libdlock: what a client asks for, and what it holds.
 *
 * This is common to threads that block in their calls (user.c) and to those that
 * do not (loop.c): what to ask for, and the lines of the history.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "grants.h"
#include "history.h"

#define HOT_KEYS 3
#define COLD_KEYS 40
#define PRIORITY_KEYS 1
#define WATCH_MS 100
#define MAX_WATCHED 16

dlock_handle *handle;

/* protects "lock" and "base" of the slots, for the thread that watches them */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* protected by the mutex */
static struct
{
	Slot	   *slots;
	int			n;
}			watched[MAX_WATCHED];
static int	nwatched;
static bool watching;

/* In the thread of the library. */
static void
on_event(const dlock_event *event, void *arg)
{
	Slot	   *slot = arg;

	if (event->type == DLOCK_EVENT_LOST)
		record_lost(client, event);
	else if (event->type == DLOCK_EVENT_PREEMPTED)
		__atomic_store_n(&slot->asked, 1, __ATOMIC_RELAXED);
}

bool
slot_is_asked(const Slot *slot)
{
	return __atomic_load_n(&slot->asked, __ATOMIC_RELAXED) != 0;
}

static void
watch_slot(Slot *slot)
{
	int64_t		base = slot->lock != NULL ? base_of(slot->lock) : 0;

	if (base <= slot->base + 5000)
		return;
	slot->base = base;
	history(now_us(), "renewed %d key=%s version=%lld base=%lld ttl=%lld",
			client, slot->key, (long long) slot->version,
			(long long) base, (long long) dlock_ttl_ms(slot->lock));
}

/* Renewals by the library are not calls of ours; record them, too. */
static void *
watch(void *arg)
{
	(void) arg;
	for (;;)
	{
		poll(NULL, 0, WATCH_MS);
		pthread_mutex_lock(&mutex);
		for (int i = 0; i < nwatched; i++)
			for (int j = 0; j < watched[i].n; j++)
				watch_slot(&watched[i].slots[j]);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

/*
 * Let these be watched.  They are there until the process ends, as is the thread,
 * and in the end none of them has a lock.
 */
void
slots_watch(Slot *slots, int n)
{
	pthread_t	watcher;

	pthread_mutex_lock(&mutex);
	if (nwatched == MAX_WATCHED ||
		(!watching && pthread_create(&watcher, NULL, watch, NULL) != 0))
		abort();
	watching = true;
	watched[nwatched].slots = slots;
	watched[nwatched++].n = n;
	pthread_mutex_unlock(&mutex);
}

static void
slot_fill(Slot *slot, const Wish *wish, dlock_lock *lock, int64_t base)
{
	pthread_mutex_lock(&mutex);
	snprintf(slot->key, sizeof(slot->key), "%s", wish->key);
	slot->version = dlock_version(lock);
	slot->session = wish->options.session != 0;
	slot->base = base;
	slot->lock = lock;
	pthread_mutex_unlock(&mutex);
}

/* Forget a lock, released or not. */
void
slot_drop(Slot *slot)
{
	dlock_lock *lock = slot->lock;

	remember(slot->key, slot->version);
	pthread_mutex_lock(&mutex);
	slot->lock = NULL;
	slot->base = 0;
	pthread_mutex_unlock(&mutex);
	dlock_free(lock);
}

/*
 * Requests
 */

/* All kinds, on the keys that others use by SQL (kinds.c). */
static void
make_shared(Wish *wish)
{
	int			kind = below(100);

	snprintf(wish->key, sizeof(wish->key), "shared%d", below(SHARED_KEYS));
	wish->options.shared = kind >= 40 && kind < 65;
	wish->options.slots = kind < 65 ? 1 : kind < 85 ? 2 : 3;
	if (chance(10))
		wish->options.at_least_ms = 50 + below(450);
	if (chance(10))
		wish->options.delay_ms = 100 + below(900);
	else
		wish->options.lazy = chance(10);
}

/*
 * Anything.  If it is alone, its thread has no other lock: two that wait without
 * limit for each other would wait forever.
 */
void
wish_make(Wish *wish, Slot *slot, bool alone)
{
	dlock_options *options = &wish->options;
	int			kind = below(100);

	dlock_options_init(options);

	/* never preempted without notice, which would not end our belief */
	options->cleanup_ms = 60000;
	if (kind < 45)
		snprintf(wish->key, sizeof(wish->key), "hot%d", below(HOT_KEYS));
	else if (kind < 60)
		make_shared(wish);
	else if (kind < 90)
		snprintf(wish->key, sizeof(wish->key), "cold%d", below(COLD_KEYS));
	else if (kind < 95)
	{
		snprintf(wish->key, sizeof(wish->key), "prio%d", below(PRIORITY_KEYS));
		options->priority = below(3);
	}
	else
	{
		snprintf(wish->key, sizeof(wish->key), "session");
		options->session = 1;
	}
	options->ttl_ms = 1000 + 500 * below(7);
	options->renew = chance(60);
	options->wait_ms = chance(40) ? 0 : 50 + below(chance(20) ? 4000 : 800);
	if (alone && chance(3))
		options->wait_ms = -1;
	options->callback = on_event;
	options->callback_arg = slot;
	__atomic_store_n(&slot->asked, 0, __ATOMIC_RELAXED);
}

void
wish_called(Wish *wish)
{
	dlock_options *options = &wish->options;

	wish->number = next_ops(1);
	snprintf(wish->owner, sizeof(wish->owner), "c%d-%ld", client, wish->number);
	options->owner = wish->owner;
	options->adopt = 1;
	history(now_us(), "call %d %ld acquire key=%s owner=%s ttl=%lld wait=%lld priority=%d session=%d"
			" slots=%d at_least=%d delay=%d lazy=%d",
			client, wish->number, wish->key, wish->owner, (long long) options->ttl_ms,
			(long long) options->wait_ms, (int) options->priority, options->session,
			options->shared ? 0 : (int) options->slots,
			(int) options->at_least_ms, (int) options->delay_ms, options->lazy);
}

/* The answer to a request; if it is a lock, the slot has it. */
void
wish_done(const Wish *wish, Slot *slot, dlock_status status, dlock_lock *lock,
		  const dlock_error *err)
{
	int64_t		base;

	if (status == DLOCK_BUSY)
		history(now_us(), "done %d %ld acquire busy", client, wish->number);
	else if (status != DLOCK_OK)
		record_otherwise(client, wish->number, "acquire", status, err);
	if (status != DLOCK_OK)
		return;

	base = base_of(lock);
	if (base > 0)
		history(now_us(), "done %d %ld acquire granted version=%lld base=%lld", client,
				wish->number, (long long) dlock_version(lock), (long long) base);
	else
		history(now_us(), "done %d %ld acquire granted version=%lld", client, wish->number,
				(long long) dlock_version(lock));
	slot_fill(slot, wish, lock, base);
}

long
release_called(const Slot *slot)
{
	long		number = next_ops(1);

	history(now_us(), "call %d %ld release key=%s version=%lld", client, number,
			slot->key, (long long) slot->version);
	return number;
}

void
release_done(long number, dlock_status status, const dlock_error *err)
{
	if (status == DLOCK_OK)
		history(now_us(), "done %d %ld release released", client, number);
	else if (status == DLOCK_NOT_HELD)
		history(now_us(), "done %d %ld release not_held", client, number);
	else if (status == DLOCK_HELD_BY_OTHER)
		history(now_us(), "done %d %ld release held_by_other", client, number);
	else
		record_otherwise(client, number, "release", status, err);
}
