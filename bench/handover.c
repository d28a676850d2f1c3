/*-------------------------------------------------------------------------
 *
 * handover.c
 *	  How long a lock is on its way from one client to the next.
 *
 * handover latency CONNINFO ROUNDS
 *		One client holds, another waits.  The time runs from the moment that
 *		the holder sends its release until the waiter has its answer.  The
 *		waiter is known to be asleep when the time begins.
 *
 * handover hot CONNINFO CLIENTS SECONDS
 *		Many clients that want one key all the time: how many grants a second,
 *		and the longest that one had to wait for one.
 *
 * Each thing is measured for dlock and for pg_advisory_lock in turn, in the
 * same run.  scripts/bench-wait runs it.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

typedef struct Way
{
	const char *name;
	const char *setup;			/* of each connection */
	const char *get;			/* waits, or tries and may give NULL */
	const char *give;			/* $1: what get returned */
	bool		retries;
} Way;

#define DLOCK_GIVE "SELECT dlock_release('hot', $1::bigint)"

static const Way advisory = {
	"pg_advisory_lock", "",
	"SELECT coalesce(nullif(pg_advisory_lock(1)::text, ''), '0')",
	"SELECT pg_advisory_unlock(1), $1::text", false
};
static const Way waiting = {
	"dlock", "",
	"SELECT dlock_acquire('hot', '1h', wait => NULL)", DLOCK_GIVE, false
};
static const Way waiting_async = {
	"dlock, grants not flushed",
	"SET dlock.durable_grants = off; SET synchronous_commit = off",
	"SELECT dlock_acquire('hot', '1h', wait => NULL)", DLOCK_GIVE, false
};
static const Way retrying = {
	"dlock, try and retry", "",
	"SELECT dlock_acquire('hot', '1h')", DLOCK_GIVE, true
};

/* between two tries: 1 to 9 ms, 5 on average */
#define RETRY_MIN_US	1000
#define RETRY_SPREAD_US 8000

static double
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e6 + ts.tv_nsec / 1e3;
}

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "handover: %s: %s\n", what, why);
	exit(1);
}

static PGresult *
must(PGconn *conn, PGresult *res)
{
	ExecStatusType status = PQresultStatus(res);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("query failed", PQerrorMessage(conn));
	return res;
}

static PGconn *
open_connection(const char *conninfo, const Way *way)
{
	PGconn	   *conn = PQconnectdb(conninfo);

	if (PQstatus(conn) != CONNECTION_OK)
		die("could not connect", PQerrorMessage(conn));
	if (way != NULL)
	{
		PQclear(must(conn, PQexec(conn, way->setup[0] != '\0' ? way->setup : "SELECT 1")));
		PQclear(must(conn, PQprepare(conn, "get", way->get, 0, NULL)));
		PQclear(must(conn, PQprepare(conn, "give", way->give, 1, NULL)));
	}
	return conn;
}

/* Takes the lock; false if it is busy. */
static bool
get(PGconn *conn, char *token, size_t size)
{
	PGresult   *res = must(conn, PQexecPrepared(conn, "get", 0, NULL, NULL, NULL, 0));
	bool		got = !PQgetisnull(res, 0, 0);

	if (got)
		snprintf(token, size, "%s", PQgetvalue(res, 0, 0));
	PQclear(res);
	return got;
}

static void
give(PGconn *conn, const char *token)
{
	PQclear(must(conn, PQexecPrepared(conn, "give", 1, &token, NULL, NULL, 0)));
}

static int
by_size(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return x < y ? -1 : x > y;
}

/*
 * Latency
 */

static void
wait_until_asleep(PGconn *monitor, int pid)
{
	char		sql[200];

	snprintf(sql, sizeof(sql),
			 "SELECT wait_event_type IN ('Extension', 'Lock') AND state = 'active'"
			 " FROM pg_stat_activity WHERE pid = %d", pid);
	for (;;)
	{
		PGresult   *res = must(monitor, PQexec(monitor, sql));
		bool		asleep = PQgetvalue(res, 0, 0)[0] == 't';

		PQclear(res);
		if (asleep)
			return;
		usleep(200);
	}
}

/* Until the connection's query is done; returns its only value. */
static void
finish(PGconn *conn, char *token, size_t size)
{
	PGresult   *res;

	while (PQisBusy(conn))
	{
		struct pollfd fd = {PQsocket(conn), POLLIN, 0};

		if (poll(&fd, 1, -1) < 0 && errno != EINTR)
			die("could not poll", strerror(errno));
		if (!PQconsumeInput(conn))
			die("connection lost", PQerrorMessage(conn));
	}
	res = must(conn, PQgetResult(conn));
	if (token != NULL)
		snprintf(token, size, "%s", PQgetvalue(res, 0, 0));
	PQclear(res);
	while ((res = PQgetResult(conn)) != NULL)
		PQclear(res);
}

static double
measure_latency(const char *conninfo, const Way *way, int rounds, double base)
{
	PGconn	   *monitor = open_connection(conninfo, NULL);
	PGconn	   *conns[2] = {
		open_connection(conninfo, way), open_connection(conninfo, way)
	};
	double	   *took = malloc(rounds * sizeof(double));
	char		token[64];
	double		median;

	if (took == NULL)
		die("could not allocate", "out of memory");
	get(conns[0], token, sizeof(token));
	for (int i = 0; i < rounds; i++)
	{
		PGconn	   *holder = conns[i % 2];
		PGconn	   *waiter = conns[1 - i % 2];
		const char *params[1] = {token};
		char		next[64];
		double		began;

		if (!PQsendQueryPrepared(waiter, "get", 0, NULL, NULL, NULL, 0))
			die("could not send", PQerrorMessage(waiter));
		PQflush(waiter);
		wait_until_asleep(monitor, PQbackendPID(waiter));

		began = now_us();
		if (!PQsendQueryPrepared(holder, "give", 1, params, NULL, NULL, 0))
			die("could not send", PQerrorMessage(holder));
		PQflush(holder);
		finish(waiter, next, sizeof(next));
		took[i] = now_us() - began;
		finish(holder, NULL, 0);
		strcpy(token, next);
	}
	give(conns[rounds % 2], token);

	qsort(took, rounds, sizeof(double), by_size);
	median = took[rounds / 2];
	printf("%-28s %10.0f %10.0f %10.0f", way->name, median,
		   took[(int) (rounds * 0.99)], took[rounds - 1]);
	if (base > 0)
		printf(" %8.2f", median / base);
	printf("\n");
	fflush(stdout);
	PQfinish(conns[0]);
	PQfinish(conns[1]);
	PQfinish(monitor);
	free(took);
	return median;
}

/*
 * A hot key
 */

typedef struct Count
{
	volatile bool go;
	volatile bool stop;
	struct
	{
		long		grants;
		double		worst;		/* us */
	}			of[];
} Count;

static void
hammer(const char *conninfo, const Way *way, Count *count, int me)
{
	PGconn	   *conn = open_connection(conninfo, way);
	unsigned int seed = me + 1;

	while (!count->go)
		usleep(1000);
	while (!count->stop)
	{
		double		began = now_us();
		double		took;
		char		token[64];

		while (!get(conn, token, sizeof(token)))
		{
			if (count->stop)
				break;
			usleep(RETRY_MIN_US + rand_r(&seed) % RETRY_SPREAD_US);
		}
		took = now_us() - began;
		if (took > count->of[me].worst)
			count->of[me].worst = took;
		if (count->stop && way->retries)
			break;
		count->of[me].grants++;
		give(conn, token);
	}
	PQfinish(conn);
	exit(0);
}

static void
measure_hot(const char *conninfo, const Way *way, int clients, int seconds)
{
	size_t		size = sizeof(Count) + clients * sizeof(((Count *) 0)->of[0]);
	Count	   *count = mmap(NULL, size, PROT_READ | PROT_WRITE,
							 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	long		grants = 0;
	long		least = 0;
	double		worst = 0;

	if (count == MAP_FAILED)
		die("could not map memory", strerror(errno));
	memset(count, 0, size);
	fflush(stdout);
	for (int i = 0; i < clients; i++)
	{
		pid_t		pid = fork();

		if (pid < 0)
			die("could not fork", strerror(errno));
		if (pid == 0)
			hammer(conninfo, way, count, i);
	}
	usleep(1000000);
	count->go = true;
	usleep(seconds * 1000000);
	count->stop = true;
	for (int i = 0; i < clients; i++)
		(void) wait(NULL);

	for (int i = 0; i < clients; i++)
	{
		grants += count->of[i].grants;
		if (i == 0 || count->of[i].grants < least)
			least = count->of[i].grants;
		if (count->of[i].worst > worst)
			worst = count->of[i].worst;
	}
	printf("%-28s %10.0f %10.1f %10ld %10ld\n", way->name,
		   (double) grants / seconds, worst / 1000, least, grants / clients);
	fflush(stdout);
	munmap(count, size);
}

int
main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "latency") == 0)
	{
		int			rounds = atoi(argv[3]);
		double		base;

		printf("handover, us (%d rounds)      %10s %10s %10s %8s\n", rounds,
			   "median", "p99", "worst", "ratio");
		base = measure_latency(argv[2], &advisory, rounds, 0);
		measure_latency(argv[2], &waiting_async, rounds, base);
		measure_latency(argv[2], &waiting, rounds, base);
		return 0;
	}
	if (argc == 5 && strcmp(argv[1], "hot") == 0)
	{
		int			clients = atoi(argv[3]);
		int			seconds = atoi(argv[4]);

		printf("one key, %3d clients         %10s %10s %10s %10s\n", clients,
			   "grants/s", "worst ms", "least", "mean");
		measure_hot(argv[2], &advisory, clients, seconds);
		measure_hot(argv[2], &waiting, clients, seconds);
		measure_hot(argv[2], &waiting_async, clients, seconds);
		measure_hot(argv[2], &retrying, clients, seconds);
		return 0;
	}
	fprintf(stderr, "usage: handover latency CONNINFO ROUNDS | handover hot CONNINFO CLIENTS SECONDS\n");
	return 2;
}
