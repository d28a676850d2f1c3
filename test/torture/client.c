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
 * A client has one handle of libdlock.  Some clients are one thread (user.c), in
 * others several threads share the handle, and some have an event loop on it
 * (loop.c), too.  The first thread also uses locks by SQL (kinds.c).
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

#include "client.h"
#include "dlock.h"
#include "grants.h"
#include "history.h"
#include "loop.h"
#include "register.h"
#include "sql.h"
#include "user.h"

#define MAX_PORTS 8
#define MAX_THREADS 5
#define OLD_TOKENS 8

typedef struct OldToken
{
	char		key[KEY_SIZE];
	int64_t		version;
} OldToken;

int			client;
atomic_bool stopping;

static long op;					/* number of the last operation; atomic */
static uint64_t seed;
static _Thread_local uint64_t state;
static _Thread_local OldToken old_tokens[OLD_TOKENS];
static _Thread_local int nold;

long
next_ops(int n)
{
	return __atomic_fetch_add(&op, n, __ATOMIC_RELAXED) + 1;
}

/* splitmix64: the sequence depends only on the seed and the thread */
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
	stopping = true;
}

void
remember(const char *key, int64_t version)
{
	OldToken   *token = &old_tokens[nold++ % OLD_TOKENS];

	snprintf(token->key, sizeof(token->key), "%s", key);
	token->version = version;
}

/* left_ms: what is left of our lease, or 0 */
void
do_write(const char *key, int64_t version, int left_ms)
{
	char		sqlstate[6];
	long		number = next_ops(1);
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

/* What was lost, or perhaps was. */
void
do_old_write(void)
{
	const OldToken *token;

	if (nold == 0)
		return;
	token = &old_tokens[below(nold < OLD_TOKENS ? nold : OLD_TOKENS)];
	do_write(token->key, token->version, 0);
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

/*
 * Threads
 */

static void *
user_main(void *arg)
{
	state = seed + (uint64_t) (uintptr_t) arg * 1000003;
	user_run(false);
	return NULL;
}

static void *
loop_main(void *arg)
{
	state = seed + (uint64_t) (uintptr_t) arg * 1000003;
	loop_run();
	return NULL;
}

/* All of them, until the client is told to stop. */
static void
run_threads(void)
{
	pthread_t	threads[MAX_THREADS];
	int			n = chance(40) ? 0 : 1 + below(MAX_THREADS - 1);
	bool		has_loop = chance(50);

	for (int i = 0; i < n + has_loop; i++)
		if (pthread_create(&threads[i], NULL, i < n ? user_main : loop_main,
						   (void *) (uintptr_t) (i + 1)) != 0)
		{
			fprintf(stderr, "no thread\n");
			exit(1);
		}
	user_run(true);
	for (int i = 0; i < n + has_loop; i++)
		pthread_join(threads[i], NULL);
}

int
main(int argc, char **argv)
{
	dlock_open_options options;
	dlock_error err;
	struct sigaction action;
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
	state = seed = strtoull(argv[2], NULL, 10);
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
	history(now_us(), "begin %d", client);
	run_threads();
	dlock_close(handle);
	history(now_us(), "end %d", client);
	return 0;
}
