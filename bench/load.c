/*-------------------------------------------------------------------------
 *
 * load.c
 *	  The load generator: many clients in one event loop, with the same work
 *	  for every peer.
 *
 * load PEER --target WHERE [options]
 *		prints one line of name=value, and before it, with --every, a line
 *		"series <seconds> <cycles/s>" for each interval.
 *
 * A client keeps its own connection, and sends the next request when it has the
 * answer to the last.  Nothing blocks while the clock runs: one process on one
 * core drives all clients, so that the server has the rest of the machine.  The
 * share of a core that the generator uses is printed (cpu), because a generator
 * that is near 1 measures itself.
 *
 * What the clients do (--work):
 *		cycle		acquire keys that no other client uses, and release them
 *		try			acquire a key that is held: the answer is busy
 *		wait		all want one key, in the peer's queue
 *		retry		all want one key, and try again after a while (--delay)
 *		refresh		renew leases that are held
 *		subsets		wait for several of the same few keys, all or none, in
 *					random order; that nobody else holds one is checked
 *		handover	one holds a key and another waits for it; measures the time
 *					from sending the release until the other has it
 *
 * Some peers have locks that several clients hold at once (readers, semaphores).
 * There the clients use the same keys, and with --beside others hold them, too.
 *
 * Times are of a cycle, of a wait from the first try until the grant, of a
 * refresh, or of a handover.
 *
 * This file has the options and the output.  load_loop.c has the event loop,
 * load_work.c and load_keys.c have what a client does, and load_pg.c, load_redis.c
 * and load_zk.c have the peers.
 *
 *-------------------------------------------------------------------------
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load.h"

const char *const load_works[] = {
	"cycle", "try", "wait", "retry", "refresh", "subsets", "handover"
};

Options		load = {
	.depth = 1,
	.nclients = 1,
	.nkeys = 100000,
	.slots = 200,
	.seconds = 1,
	.warmup = 0.3,
	.delay = 0.01,
	.check_left = true,
	.seed = 1
};
Tally		load_tally;

uint64_t
load_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

void
load_die(const char *what, const char *why)
{
	fprintf(stderr, "load: %s: %s\n", what, why);
	exit(1);
}

/* An error of the peer: counted, and the first few are shown. */
void
load_complain(const char *what, const char *why)
{
	if (load_tally.errors++ < 5)
		fprintf(stderr, "load: %s: %s\n", what, why);
}

void *
load_alloc(uint64_t size)
{
	void	   *memory = calloc(1, size);

	if (memory == NULL)
		load_die("out of memory", "calloc");
	return memory;
}

static int
compare(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return (x > y) - (x < y);
}

static double
quantile(double q)
{
	return load_tally.nsamples == 0 ? 0 : load_tally.samples[(size_t) (q * (load_tally.nsamples - 1))] / 10.0;
}

static void
report(void)
{
	double		sum = 0;
	uint64_t	least = UINT64_MAX;

	for (size_t i = 0; i < load_tally.nsamples; i++)
		sum += load_tally.samples[i] / 10.0;
	if (load_tally.nsamples > 0)
		qsort(load_tally.samples, load_tally.nsamples, sizeof(*load_tally.samples), compare);
	for (int i = 0; i < load.nclients; i++)
	{
		if (load_clients[i].cycles < least)
			least = load_clients[i].cycles;
	}
	printf("cycles=%llu rate=%.1f mean_us=%.1f p50_us=%.1f p99_us=%.1f max_us=%.1f "
		   "acquire_us=%.1f grants=%llu busy=%llu errors=%llu left=%ld least=%llu cpu=%.3f pid=%d releaser=%d\n",
		   (unsigned long long) load_tally.cycles, load_tally.cycles / load.seconds,
		   load_tally.nsamples ? sum / load_tally.nsamples : 0, quantile(0.5), quantile(0.99), quantile(1),
		   load_tally.acquired ? load_tally.acquire_time / 1000.0 / load_tally.acquired : 0,
		   (unsigned long long) load_tally.grants, (unsigned long long) load_tally.busy,
		   (unsigned long long) load_tally.errors, load_tally.left, (unsigned long long) least,
		   load_tally.cpu,
		   load.peer->pid ? load.peer->pid(&load_clients[0]) : 0,
		   load_releaser_pid());
}

static void
usage(void)
{
	fprintf(stderr,
			"usage: load PEER --target WHERE [options]\n"
			"  --work cycle|try|wait|retry|refresh|subsets|handover\n"
			"  --clients N   connections (1)\n"
			"  --keys N      how many keys there are (100000); of a refresh, leases\n"
			"  --depth N     keys at a time (1): a pipeline, or\n"
			"  --batch       one statement; of subsets, the most keys\n"
			"  --slots N     how many may hold a semaphore (200)\n"
			"  --beside N    how many others hold the keys (0), of a lock that is shared\n"
			"  --apart       release through connections of their own\n"
			"  --seconds S   how long (1), after --warmup S (0.3); or\n"
			"  --count N     how many cycles a client, from the first one\n"
			"  --delay S     between two tries (0.01)\n"
			"  --hold S      how long a lock is held (0)\n"
			"  --every S     print the rate of each interval\n"
			"  --seed N      for the choice of keys (1)\n"
			"  --keep        do not count the locks that are left at the end\n");
	exit(2);
}

static const Peer *
find_peer(const char *name)
{
	const Peer *found = load_pg_peer(name);

#ifndef ONLY_POSTGRES
	if (!found)
		found = load_redis_peer(name);
	if (!found)
		found = load_zk_peer(name);
#endif
	if (!found)
		load_die("no such peer", name);
	return found;
}

static void
read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{"target", required_argument, NULL, 't'},
		{"work", required_argument, NULL, 'w'},
		{"clients", required_argument, NULL, 'c'},
		{"keys", required_argument, NULL, 'k'},
		{"depth", required_argument, NULL, 'd'},
		{"batch", no_argument, NULL, 'b'},
		{"slots", required_argument, NULL, 'l'},
		{"beside", required_argument, NULL, 'o'},
		{"apart", no_argument, NULL, 'a'},
		{"seconds", required_argument, NULL, 's'},
		{"warmup", required_argument, NULL, 'u'},
		{"count", required_argument, NULL, 'n'},
		{"delay", required_argument, NULL, 'y'},
		{"hold", required_argument, NULL, 'h'},
		{"every", required_argument, NULL, 'e'},
		{"seed", required_argument, NULL, 'r'},
		{"keep", no_argument, NULL, 'p'},
		{NULL, 0, NULL, 0}
	};
	int			opt;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (opt)
		{
			case 't':
				load.target = optarg;
				break;
			case 'w':
				for (load.work = 0; strcmp(load_works[load.work], optarg) != 0; load.work++)
				{
					if (load.work == WORK_HANDOVER)
						usage();
				}
				break;
			case 'c':
				load.nclients = atoi(optarg);
				break;
			case 'k':
				load.nkeys = atoi(optarg);
				break;
			case 'd':
				load.depth = atoi(optarg);
				break;
			case 'b':
				load.batch = true;
				break;
			case 'l':
				load.slots = atoi(optarg);
				break;
			case 'o':
				load.beside = atoi(optarg);
				break;
			case 'a':
				load.apart = true;
				break;
			case 's':
				load.seconds = atof(optarg);
				break;
			case 'u':
				load.warmup = atof(optarg);
				break;
			case 'n':
				load.limit = strtoull(optarg, NULL, 10);
				load.warmup = 0;
				break;
			case 'y':
				load.delay = atof(optarg);
				break;
			case 'h':
				load.hold = atof(optarg);
				break;
			case 'e':
				load.every = atof(optarg);
				break;
			case 'r':
				load.seed = atoi(optarg);
				break;
			case 'p':
				load.check_left = false;
				break;
			default:
				usage();
		}
	}
	if (optind != argc - 1 || load.target == NULL || load.nclients < 1 ||
		load.depth < 1 || load.seconds <= 0)
		usage();
	load.peer = find_peer(argv[optind]);

	if (load.work == WORK_HANDOVER)
		load.nclients = 2;
	if ((load.work == WORK_WAIT || load.work == WORK_HANDOVER) && !load.peer->waits)
		load_die(load.peer->name, "cannot wait");
	if (load.work == WORK_REFRESH && !load.peer->refreshes)
		load_die(load.peer->name, "cannot refresh");
	if (load.depth > 1 && load.work != WORK_CYCLE && load.work != WORK_REFRESH && load.work != WORK_SUBSETS)
		load_die(load_works[load.work], "takes one key at a time");
	if (load.work == WORK_SUBSETS)
	{
		load.batch = true;
		if (!load.peer->waits || load.nkeys < (uint32_t) load.depth)
			load_die(load_works[load.work], "needs more keys than --depth, and a peer that waits");
	}
	if (load.peer->shares ? load.work != WORK_CYCLE || load.depth > 1 : load.beside > 0)
		load_die(load.peer->name, "others hold only keys that are shared, one key at a time");
	if ((load.work == WORK_CYCLE || load.work == WORK_REFRESH) &&
		load.nkeys / (load.peer->shares ? 1 : load.nclients) < (uint32_t) load.depth)
		load_die("--keys", "too few for this many clients");
}

int
main(int argc, char **argv)
{
	read_options(argc, argv);
	load_open();
	load_run();
	report();
	load_close();
	return load_tally.errors > 0 || load_tally.left > 0;
}
