/*-------------------------------------------------------------------------
 *
 * client.c
 *	  A client of a torture run: uses locks at random, and records its
 *	  requests, the answers, and what it believes.
 *
 *	  client NUMBER SEED HISTORY PORT[,PORT...] MORE
 *
 * PORTs are the ports of the servers on 127.0.0.1, MORE is the rest of the
 * connection string.  On SIGTERM it finishes what it does, releases what it
 * holds, and exits.
 *
 * This file uses exclusive locks, through libdlock.  kinds.c uses the others, in
 * SQL.  Most of the time the client behaves correctly.  Sometimes it lets a lock expire, sleeps
 * through its lease, or writes with the token of a lock that it has lost, which
 * the fence must reject.
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
#include "client.h"
#include "dlock.h"
#include "history.h"
#include "kinds.h"
#include "register.h"
#include "sql.h"

#define HOT_KEYS 3
#define COLD_KEYS 40
#define PRIORITY_KEYS 1
#define MAX_PORTS 8
#define SLOTS 3
#define OLD_TOKENS 8
#define WATCH_MS 100

/* A lock that we hold, or have lost and not closed yet. */
typedef struct Slot
{
	dlock_lock *lock;			/* NULL: free */
	char		key[KEY_SIZE];
	int64_t		version;
	bool		session;
	int64_t		base;			/* when its TTL began, as far as we know */
	int			asked;			/* to yield; atomic */
} Slot;

typedef struct OldToken
{
	char		key[KEY_SIZE];
	int64_t		version;
} OldToken;

int			client;
long		op;
volatile	sig_atomic_t stopping;

static dlock_handle *handle;

/* protects "lock" and "base" of the slots, for the thread that watches them */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Slot slots[SLOTS];
static OldToken old_tokens[OLD_TOKENS];
static int	nold;
static uint64_t state;

/* splitmix64: the sequence depends only on the seed */
static uint64_t
next_random(void)
{
	uint64_t	z = (state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

int
below(int n)
{
	return (int) (next_random() % (uint64_t) n);
}

bool
chance(int percent)
{
	return below(100) < percent;
}

void
rest(int ms)
{
	if (!stopping)
		poll(NULL, 0, ms);
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
	Slot	   *slot = arg;

	if (event->type == DLOCK_EVENT_LOST)
		record_lost(client, event);
	else if (event->type == DLOCK_EVENT_PREEMPTED)
		__atomic_store_n(&slot->asked, 1, __ATOMIC_RELAXED);
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
		for (int i = 0; i < SLOTS; i++)
		{
			Slot	   *slot = &slots[i];
			int64_t		base = slot->lock != NULL ? base_of(slot->lock) : 0;

			if (base <= slot->base + 5000)
				continue;
			slot->base = base;
			history(now_us(), "renewed %d key=%s version=%lld base=%lld ttl=%lld",
					client, slot->key, (long long) slot->version,
					(long long) base, (long long) dlock_ttl_ms(slot->lock));
		}
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

void
remember(const char *key, int64_t version)
{
	OldToken   *token = &old_tokens[nold++ % OLD_TOKENS];

	snprintf(token->key, sizeof(token->key), "%s", key);
	token->version = version;
}

/* Forget a lock, released or not. */
static void
drop(Slot *slot)
{
	dlock_lock *lock = slot->lock;

	remember(slot->key, slot->version);
	pthread_mutex_lock(&mutex);
	slot->lock = NULL;
	slot->base = 0;
	pthread_mutex_unlock(&mutex);
	dlock_free(lock);
}

static void
do_acquire(Slot *slot)
{
	dlock_options options;
	dlock_error err;
	dlock_lock *lock;
	dlock_status status;
	char		key[KEY_SIZE];
	char		owner[32];
	long		number = ++op;
	bool		others = false;
	int			kind = below(100);
	int64_t		base;

	for (int i = 0; i < SLOTS; i++)
		others = others || slots[i].lock != NULL;

	dlock_options_init(&options);

	/* never preempted without notice, which would not end our belief */
	options.cleanup_ms = 60000;
	if (kind < 45)
		snprintf(key, sizeof(key), "hot%d", below(HOT_KEYS));
	else if (kind < 55)
		snprintf(key, sizeof(key), "shared%d", below(SHARED_KEYS));
	else if (kind < 90)
		snprintf(key, sizeof(key), "cold%d", below(COLD_KEYS));
	else if (kind < 95)
	{
		snprintf(key, sizeof(key), "prio%d", below(PRIORITY_KEYS));
		options.priority = below(3);
	}
	else
	{
		snprintf(key, sizeof(key), "session");
		options.session = 1;
	}
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].lock != NULL && strcmp(slots[i].key, key) == 0)
			return;

	options.ttl_ms = 1000 + 500 * below(7);
	options.renew = chance(60);
	options.wait_ms = chance(40) ? 0 : 50 + below(chance(20) ? 4000 : 800);
	/* two clients that wait without limit for each other would wait forever */
	if (!others && chance(3))
		options.wait_ms = -1;
	snprintf(owner, sizeof(owner), "c%d-%ld", client, number);
	options.owner = owner;
	options.callback = on_event;
	options.callback_arg = slot;
	__atomic_store_n(&slot->asked, 0, __ATOMIC_RELAXED);

	history(now_us(), "call %d %ld acquire key=%s owner=%s ttl=%lld wait=%lld priority=%d session=%d",
			client, number, key, owner, (long long) options.ttl_ms,
			(long long) options.wait_ms, (int) options.priority, options.session);
	status = dlock_acquire(handle, key, &options, &lock, &err);
	if (status == DLOCK_BUSY)
		history(now_us(), "done %d %ld acquire busy", client, number);
	else if (status != DLOCK_OK)
		record_otherwise(client, number, "acquire", status, &err);
	if (status != DLOCK_OK)
		return;

	base = base_of(lock);
	if (base > 0)
		history(now_us(), "done %d %ld acquire granted version=%lld base=%lld", client, number,
				(long long) dlock_version(lock), (long long) base);
	else
		history(now_us(), "done %d %ld acquire granted version=%lld", client, number,
				(long long) dlock_version(lock));
	pthread_mutex_lock(&mutex);
	snprintf(slot->key, sizeof(slot->key), "%s", key);
	slot->version = dlock_version(lock);
	slot->session = options.session != 0;
	slot->base = base;
	slot->lock = lock;
	pthread_mutex_unlock(&mutex);
}

static void
do_refresh(Slot *slot)
{
	dlock_error err;
	long		number = ++op;

	/* never shorter: the server's lease must not end before ours */
	int64_t		ttl = dlock_ttl_ms(slot->lock);
	dlock_status status;

	if (chance(20) && ttl < 6000)
		ttl += 500;
	history(now_us(), "call %d %ld refresh key=%s version=%lld ttl=%lld", client, number,
			slot->key, (long long) slot->version, (long long) ttl);
	status = dlock_refresh(slot->lock, ttl, -1, &err);
	if (status == DLOCK_OK)
		history(now_us(), "done %d %ld refresh ok", client, number);
	else if (status == DLOCK_LOST)
		history(now_us(), "done %d %ld refresh lost", client, number);
	else
		record_otherwise(client, number, "refresh", status, &err);
}

static void
do_release(Slot *slot)
{
	dlock_error err;
	long		number = ++op;
	dlock_status status;

	history(now_us(), "call %d %ld release key=%s version=%lld", client, number,
			slot->key, (long long) slot->version);
	status = dlock_release(slot->lock, -1, &err);
	if (status == DLOCK_OK)
		history(now_us(), "done %d %ld release released", client, number);
	else if (status == DLOCK_NOT_HELD)
		history(now_us(), "done %d %ld release not_held", client, number);
	else if (status == DLOCK_HELD_BY_OTHER)
		history(now_us(), "done %d %ld release held_by_other", client, number);
	else
		record_otherwise(client, number, "release", status, &err);
	drop(slot);
}

/* left_ms: what is left of our lease, or 0 */
void
do_write(const char *key, int64_t version, int left_ms)
{
	char		sqlstate[6];
	long		number = ++op;
	int64_t		n = 0;
	int			pause = 0;
	bool		early = chance(70);

	/* fenced, beyond the lease: nobody can get the lock until we are done */
	if (left_ms > 0 && chance(8))
		pause = left_ms * 10 / 9 + below(1000);
	else if (chance(20))
		pause = below(60);

	history(now_us(), "call %d %ld write key=%s version=%lld", client, number, key,
			(long long) version);
	switch (register_write(key, version, client, number, early ? pause : 0,
						   early ? 0 : pause, &n, sqlstate))
	{
		case REGISTER_OK:
			history(now_us(), "done %d %ld write ok n=%lld", client, number, (long long) n);
			break;
		case REGISTER_FENCED:
			history(now_us(), "done %d %ld write fenced", client, number);
			break;
		case REGISTER_ERROR:
			history(now_us(), "done %d %ld write error state=%s", client, number, sqlstate);
			break;
		case REGISTER_UNKNOWN:
			history(now_us(), "done %d %ld write unknown", client, number);
			break;
	}
}

/* Use a lock as a program without a fence does. */
static void
do_use(const Slot *slot)
{
	int64_t		now = now_us();

	if (dlock_is_owner(slot->lock))
		history(now, "owns %d key=%s version=%lld", client, slot->key, (long long) slot->version);
}

static void
step(void)
{
	Slot	   *slot = &slots[below(SLOTS)];
	int			what = below(100);

	if (chance(40))
	{
		kinds_step();
		return;
	}
	if (slot->lock == NULL)
	{
		if (what < 10 && nold > 0)
		{
			const OldToken *token = &old_tokens[below(nold < OLD_TOKENS ? nold : OLD_TOKENS)];

			do_write(token->key, token->version, 0);
		}
		else if (what < 70)
			do_acquire(slot);
		else
			rest(below(20));
		return;
	}

	if (__atomic_load_n(&slot->asked, __ATOMIC_RELAXED))
	{
		do_release(slot);
		return;
	}
	do_use(slot);
	if (what < 35)
		do_write(slot->key, slot->version, (int) dlock_left_ms(slot->lock));
	else if (what < 50)
		do_refresh(slot);
	else if (what < 85 || (what < 88 && slot->session))
		do_release(slot);		/* without it, the end of its connection does
								 * that */
	else if (what < 88)
		drop(slot);
	else if (what < 89)
		rest(1000 + below(4000));
	else
		rest(below(100));
}

static int
parse_ports(const char *text, int *ports, char *hosts, char *list, size_t size)
{
	int			n = 0;

	hosts[0] = list[0] = '\0';
	while (*text != '\0' && n < MAX_PORTS)
	{
		char	   *end;
		size_t		used;

		ports[n] = (int) strtol(text, &end, 10);
		if (end == text)
			return 0;
		used = strlen(hosts);
		snprintf(hosts + used, size - used, "%s127.0.0.1", n > 0 ? "," : "");
		used = strlen(list);
		snprintf(list + used, size - used, "%s%d", n > 0 ? "," : "", ports[n]);
		n++;
		text = *end == ',' ? end + 1 : end;
	}
	return n;
}

int
main(int argc, char **argv)
{
	dlock_open_options options;
	dlock_error err;
	struct sigaction action;
	pthread_t	watcher;
	int			ports[MAX_PORTS];
	int			nports = 0;
	char		hosts[200];
	char		list[200];
	char		conninfo[1000];

	if (argc == 6)
		nports = parse_ports(argv[4], ports, hosts, list, sizeof(hosts));
	if (nports == 0)
	{
		fprintf(stderr, "usage: %s NUMBER SEED HISTORY PORT[,PORT...] MORE\n", argv[0]);
		return 2;
	}
	client = atoi(argv[1]);
	state = strtoull(argv[2], NULL, 10);
	if (history_open(argv[3]) != 0)
	{
		perror(argv[3]);
		return 1;
	}
	memset(&action, 0, sizeof(action));
	action.sa_handler = on_term;
	sigaction(SIGTERM, &action, NULL);

	snprintf(conninfo, sizeof(conninfo), "host=%s port=%s %s", hosts, list, argv[5]);
	sql_servers(ports, nports, argv[5]);
	dlock_open_options_init(&options);
	options.ttl_ms = 3000;
	options.timeout_ms = 4000;
	if (dlock_open(conninfo, &options, &handle, &err) != DLOCK_OK)
	{
		fprintf(stderr, "%s\n", err.message);
		return 1;
	}
	if (pthread_create(&watcher, NULL, watch, NULL) != 0)
	{
		fprintf(stderr, "no thread\n");
		return 1;
	}

	history(now_us(), "begin %d", client);
	while (!stopping)
		step();
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].lock != NULL)
			do_release(&slots[i]);
	kinds_end();
	register_close();

	/* the watcher no longer uses a lock, and ends with us */
	pthread_mutex_lock(&mutex);
	dlock_close(handle);
	history(now_us(), "end %d", client);
	return 0;
}
