/*-------------------------------------------------------------------------
 *
 * load_work.c
 *	  The event loop of the load generator, and what its clients do.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "load.h"

#define SECOND		UINT64_C(1000000000)

/* the state of a client */
enum
{
	IDLE, ACQUIRING, HOLDING, RELEASING, REFRESHING, PAUSING, LEAVING,
	PREPARING, ENDING
};

Client	   *load_clients;

static int	epoll_fd;
static int	nall;				/* clients, and those that help them */
static Client *holder;			/* of what they try for, or share */
static int *held_by;			/* of subsets: which client, or -1 */
static int	busy_clients;		/* have an operation under way */
static uint64_t start_at;		/* counting begins, when warm */
static uint64_t stop_at;
static bool stopping;
static uint64_t handover_at;	/* when the release was sent; 0 = it was not */
static double interval_cycles;
static uint64_t nanswers;
static size_t max_samples;

/* Tell epoll what a client waits for, if that has changed. */
void
load_watch(Client *client, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events,.data = {.ptr = client}};

	if (fd != client->fd)
	{
		/* epoll forgets a closed socket by itself */
		if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
			load_die("epoll_ctl", strerror(errno));
	}
	else if (events != client->events &&
			 epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0)
		load_die("epoll_ctl", strerror(errno));
	client->fd = fd;
	client->events = events;
}

static uint64_t
next_random(Client *client)
{
	uint64_t	x = client->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return client->random = x;
}

/*
 * Each client has its own keys, so that no other client holds them: a busy answer
 * is much cheaper than a cycle and must not count as one.  Several keys at a time
 * are neighbours, so that they differ.
 */
static void
choose_keys(Client *client)
{
	uint32_t	own = load.nkeys / load.nclients;
	uint32_t	first;

	if (load.peer->shares)
	{
		client->keys[0] = next_random(client) % load.nkeys;
		return;
	}
	first = next_random(client) % own;

	for (int i = 0; i < client->nkeys; i++)
		client->keys[i] = client->id + (first + i) % own * load.nclients;
}

/* Up to so many different keys, in random order. */
static void
choose_subset(Client *client)
{
	client->nkeys = 1 + next_random(client) % load.depth;
	for (int i = 0; i < client->nkeys; i++)
	{
		bool		is_new;

		do
		{
			is_new = true;
			client->keys[i] = next_random(client) % load.nkeys;
			for (int j = 0; j < i; j++)
				is_new &= client->keys[j] != client->keys[i];
		} while (!is_new);
	}
}

/*
 * Note who has the keys of a subset.  They are given back when the release is
 * sent, because the next client may hear of its grant before this one of its
 * release.
 */
static void
note_keys(Client *client, bool is_grant)
{
	for (int i = 0; i < client->nkeys; i++)
	{
		int		   *by = &held_by[client->keys[i]];

		if (is_grant && *by != -1)
			load_complain("subsets", "two clients hold a key");
		*by = is_grant ? client->id : -1;
	}
}

static void
new_owner(Client *client)
{
	static uint64_t serial = 0;

	snprintf(client->owner, sizeof(client->owner), "%d-%llu", (int) getpid(),
			 (unsigned long long) ++serial);
}

static void
record(uint64_t begun, uint64_t ended, int n)
{
	if (ended < start_at || ended > stop_at)
		return;
	load_tally.cycles += n;
	interval_cycles += n;
	if (load_tally.nsamples == max_samples)
	{
		max_samples = max_samples ? max_samples * 2 : 65536;
		load_tally.samples = realloc(load_tally.samples, max_samples * sizeof(*load_tally.samples));
		if (load_tally.samples == NULL)
			load_die("out of memory", "samples");
	}
	load_tally.samples[load_tally.nsamples++] = (uint32_t) ((ended - begun) / 100);
}

static void
ask(Client *client, int phase, Op op)
{
	Client	   *by = client;

	client->phase = phase;
	if (op == OP_RELEASE && held_by != NULL)
		note_keys(client, false);
	if (op == OP_RELEASE && client->releaser != NULL)
	{
		by = client->releaser;
		by->nkeys = client->nkeys;
		memcpy(by->keys, client->keys, client->nkeys * sizeof(*by->keys));
		memcpy(by->tokens, client->tokens, client->nkeys * sizeof(*by->tokens));
		memcpy(by->owner, client->owner, sizeof(by->owner));
	}
	load.peer->start(by, op);
}

static void
rest(Client *client, int phase, double for_seconds)
{
	client->phase = phase;
	client->wake_at = load_now() + (uint64_t) (for_seconds * SECOND);
}

/*
 * The pause between two tries: half to one and a half times the delay, so that
 * the clients do not move in step.  A client that has just released pauses, too,
 * as it would in a queue.  Otherwise it would get the key again before any other
 * client tries, and only that client would be measured.
 */
static double
retry_delay(Client *client)
{
	return load.delay * (0.5 + (next_random(client) % 1000) / 1000.0);
}

static void
be_idle(Client *client)
{
	client->phase = IDLE;
	busy_clients--;
}

/*
 * The leases of a refresh stay; an operation is on the next few of them.
 */
static void
take_leases(Client *client, int n)
{
	if (client->lease >= client->nleases)
		client->lease = 0;
	client->nkeys = n < client->nleases - client->lease ? n :
		client->nleases - client->lease;
	for (int i = 0; i < client->nkeys; i++)
	{
		client->keys[i] = load.work == WORK_TRY ? 0 :
			client->id * client->nleases + client->lease + i;
		client->tokens[i] = client->leases[client->lease + i];
	}
	client->lease += client->nkeys;
}

static void
prepare(Client *client, int phase)
{
	take_leases(client, load.peer->shares ? 1 : load.room);
	if (load.peer->shares)
	{
		/* an owner has one place of a key */
		client->keys[0] = client->lease % load.nkeys;
		snprintf(client->owner, sizeof(client->owner), "%d-beside-%d",
				 (int) getpid(), client->lease);
	}
	ask(client, phase, phase == PREPARING ? OP_ACQUIRE : OP_RELEASE);
}

static void
prepared(Client *client)
{
	for (int i = 0; i < client->nkeys; i++)
		client->leases[client->lease - client->nkeys + i] = client->tokens[i];
	if (client->lease < client->nleases)
		prepare(client, client->phase);
	else
		be_idle(client);
}

/* The next cycle, or none. */
static void
begin(Client *client)
{
	if (stopping || (load.limit > 0 && client->cycles >= load.limit))
	{
		be_idle(client);
		return;
	}
	client->asked_at = load_now();
	switch (load.work)
	{
		case WORK_CYCLE:
			choose_keys(client);
			new_owner(client);
			ask(client, ACQUIRING, OP_ACQUIRE);
			break;
		case WORK_TRY:
		case WORK_RETRY:
			new_owner(client);
			ask(client, ACQUIRING, OP_ACQUIRE);
			break;
		case WORK_WAIT:
		case WORK_HANDOVER:
			new_owner(client);
			ask(client, ACQUIRING, OP_WAIT);
			break;
		case WORK_SUBSETS:
			choose_subset(client);
			new_owner(client);
			ask(client, ACQUIRING, OP_WAIT);
			break;
		case WORK_REFRESH:
			take_leases(client, load.depth);
			ask(client, REFRESHING, OP_REFRESH);
			break;
	}
}

static void
release(Client *client)
{
	if (load.peer->releases)
		ask(client, RELEASING, OP_RELEASE);
	else
	{
		record(client->asked_at, client->granted_at, client->nkeys);
		client->cycles += client->nkeys;
		begin(client);
	}
}

/*
 * The lock is ours.  The client that handed it over waits for it again; it has
 * time to fall asleep before we release.
 */
static void
handed_over(Client *client)
{
	if (handover_at > 0)
		record(handover_at, client->granted_at, 1);
	handover_at = 0;
	client->cycles++;
	rest(client, PAUSING, 0.002);
}

static void
acquired_some(Client *client, int succeeded)
{
	client->granted_at = load_now();
	if (load.work == WORK_TRY)
	{
		if (succeeded > 0)
			load_complain("try", "granted, though the key is taken");
		load_tally.busy++;
		record(client->asked_at, client->granted_at, 1);
		client->cycles++;
		begin(client);
		return;
	}
	if (succeeded < client->nkeys)
	{
		load_tally.busy++;
		if (load.work == WORK_RETRY)
		{
			if (stopping)
				be_idle(client);
			else if (load.delay > 0)
				rest(client, PAUSING, retry_delay(client));
			else
				ask(client, ACQUIRING, OP_ACQUIRE);
			return;
		}
		load_complain(load_works[load.work], "a lock that should be free was not granted");
		begin(client);
		return;
	}
	if (client->granted_at >= start_at && client->granted_at <= stop_at)
	{
		load_tally.grants += client->nkeys;
		load_tally.acquired++;
		load_tally.acquire_time += client->granted_at - client->asked_at;
	}
	if (held_by != NULL)
		note_keys(client, true);
	if (load.work == WORK_HANDOVER)
		handed_over(client);
	else
	{
		if (load.work != WORK_CYCLE)
			record(client->asked_at, client->granted_at, 1);
		if (load.hold > 0 && !stopping)
			rest(client, HOLDING, load.hold);
		else
			release(client);
	}
}

/* An operation has succeeded for so many of its keys. */
void
load_done(Client *client, int succeeded)
{
	nanswers++;
	if (client->acts_for != NULL)
		client = client->acts_for;
	switch (client->phase)
	{
		case PREPARING:
		case ENDING:
			if (succeeded < client->nkeys)
				load_die("could not prepare", "a lock was not granted or released");
			prepared(client);
			break;
		case ACQUIRING:
			acquired_some(client, succeeded);
			break;
		case RELEASING:
			if (succeeded < client->nkeys)
				load_complain("release", "not the owner");
			if (load.work == WORK_CYCLE)
			{
				record(client->asked_at, load_now(), client->nkeys);
				client->cycles += client->nkeys;
			}
			else if (load.work != WORK_HANDOVER)
				client->cycles++;
			if (load.work == WORK_RETRY && load.delay > 0 && !stopping)
				rest(client, LEAVING, retry_delay(client));
			else
				begin(client);
			break;
		case REFRESHING:
			if (succeeded < client->nkeys)
				load_complain("refresh", "not the owner");
			record(client->asked_at, load_now(), client->nkeys);
			client->cycles += client->nkeys;
			begin(client);
			break;
		default:
			load_die("an answer", "that nobody asked for");
	}
}

static void
woken(Client *client)
{
	client->wake_at = 0;
	if (client->phase == HOLDING)
		release(client);
	else if (load.work == WORK_HANDOVER)
	{
		handover_at = load_now();
		ask(client, RELEASING, OP_RELEASE);
	}
	else if (client->phase == LEAVING)
		begin(client);
	else if (stopping)
		be_idle(client);
	else
		ask(client, ACQUIRING, OP_ACQUIRE);
}

static uint64_t
next_timer(void)
{
	uint64_t	next = UINT64_MAX;

	for (int i = 0; i < load.nclients; i++)
	{
		if (load_clients[i].wake_at != 0 && load_clients[i].wake_at < next)
			next = load_clients[i].wake_at;
	}
	return next;
}

/* Wait for answers and timers, at most until then. */
static void
turn(uint64_t until)
{
	static uint64_t ticked_at = 0;
	struct epoll_event events[64];
	uint64_t	at = load_now();
	uint64_t	next = next_timer();
	struct timespec timeout = {0};
	int			n;

	if (next < until)
		until = next;
	if (until > at + SECOND / 2)
		until = at + SECOND / 2;
	if (until > at)
		timeout.tv_nsec = until - at;
	n = epoll_pwait2(epoll_fd, events, 64, &timeout, NULL);
	if (n < 0 && errno != EINTR)
		load_die("epoll_pwait2", strerror(errno));
	for (int i = 0; i < n; i++)
		load.peer->ready(events[i].data.ptr, events[i].events);

	at = load_now();
	if (next <= at)
	{
		for (int i = 0; i < load.nclients; i++)
		{
			if (load_clients[i].wake_at != 0 && load_clients[i].wake_at <= at)
				woken(&load_clients[i]);
		}
	}
	if (load.peer->tick && at > ticked_at + SECOND / 2)
	{
		ticked_at = at;
		for (int i = 0; i < nall; i++)
			load.peer->tick(&load_clients[i]);
	}
}

/* Start nothing new; let what is under way finish. */
static void
drain(const char *what)
{
	uint64_t	until = load_now() + 60 * SECOND;
	uint64_t	seen = nanswers;

	while (busy_clients > 0)
	{
		if (nanswers > seen)
			until = load_now() + 60 * SECOND;
		seen = nanswers;
		if (load_now() > until)
			load_die(what, "no answer for 60 s");
		turn(until);
	}
}

/*
 * What is held before the clock starts: the one key that the clients try for, or
 * the leases that they renew, of which each client has its share.
 */
static void
prepare_all(int phase)
{
	for (int i = 0; i < nall; i++)
	{
		Client	   *client = &load_clients[i];

		if ((load.work == WORK_REFRESH && i < load.nclients) || client == holder)
		{
			if (phase == PREPARING)
				new_owner(client);
			client->lease = 0;
			busy_clients++;
			prepare(client, phase);
		}
	}
	drain("prepare");
}

static void
run(void)
{
	uint64_t	begun = load_now();
	uint64_t	last;
	uint64_t	next = UINT64_MAX;

	start_at = begun + (uint64_t) (load.warmup * SECOND);
	stop_at = load.limit > 0 ? UINT64_MAX : start_at + (uint64_t) (load.seconds * SECOND);
	last = start_at;
	if (load.every > 0)
		next = start_at + (uint64_t) (load.every * SECOND);
	for (int i = 0; i < load.nclients; i++)
	{
		busy_clients++;
		begin(&load_clients[i]);
	}
	while (busy_clients > 0)
	{
		uint64_t	at;

		turn(stop_at < next ? stop_at : next);
		at = load_now();
		if (at >= next)
		{
			printf("series\t%.1f\t%.0f\n", (at - start_at) / (double) SECOND,
				   interval_cycles * SECOND / (at - last));
			fflush(stdout);
			interval_cycles = 0;
			last = at;
			next += (uint64_t) (load.every * SECOND);
		}
		if (at >= stop_at)
			break;
	}
	if (load.limit > 0)
	{
		stop_at = load_now();
		load.seconds = (stop_at - start_at) / (double) SECOND;
	}
	stopping = true;
	for (int i = 0; i < load.nclients; i++)
	{
		/* a pause that is no longer needed */
		if (load_clients[i].wake_at > 0 && load.work == WORK_RETRY)
			load_clients[i].wake_at = load_now();
	}
	drain("the last answers");
}

/* Of a core, by this process. */
static double
cpu_seconds(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
		(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* How many keys are held before the clock starts, by this client. */
static int
count_leases(const Client *client)
{
	if (client == holder && load.beside > 0)
		return load.beside;
	return load.work == WORK_REFRESH ? load.nkeys / load.nclients : 1;
}

/* The connections of one client, and what it needs to remember. */
static void
open_client(Client *client, int id)
{
	client->id = id;
	client->fd = -1;
	client->nkeys = load.depth;
	client->keys = load_alloc(load.room * sizeof(uint32_t));
	client->tokens = load_alloc(load.room * sizeof(int64_t));
	client->nleases = count_leases(client);
	client->leases = load_alloc(client->nleases * sizeof(int64_t));
	client->random = (UINT64_C(0x9E3779B97F4A7C15) * (id + 1)) ^
		(UINT64_C(0xD1B54A32D192ED03) * load.seed);
	load.peer->open(client);
}

/* The clients come first, then those that release for them, then the holder. */
void
load_open(void)
{
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		load_die("epoll_create1", strerror(errno));
	load.room = load.work == WORK_REFRESH && load.depth < 1000 ? 1000 : load.depth;
	nall = load.nclients;
	if (load.apart)
		nall += load.nclients;
	if (load.work == WORK_TRY || load.beside > 0)
		nall++;
	load_clients = load_alloc(nall * sizeof(Client));
	if (load.work == WORK_TRY || load.beside > 0)
		holder = &load_clients[nall - 1];
	if (load.work == WORK_SUBSETS)
	{
		held_by = load_alloc(load.nkeys * sizeof(*held_by));
		memset(held_by, -1, load.nkeys * sizeof(*held_by));
	}
	for (int i = 0; i < nall; i++)
		open_client(&load_clients[i], i);
	for (int i = 0; load.apart && i < load.nclients; i++)
	{
		load_clients[i].releaser = &load_clients[load.nclients + i];
		load_clients[load.nclients + i].acts_for = &load_clients[i];
	}
}

/* The process behind the connection that releases, 0 if there is none. */
int
load_releaser_pid(void)
{
	return load.apart && load.peer->pid ? load.peer->pid(load_clients[0].releaser) : 0;
}

void
load_run(void)
{
	double		cpu;
	uint64_t	begun;

	prepare_all(PREPARING);
	cpu = cpu_seconds();
	begun = load_now();
	run();
	load_tally.cpu = (cpu_seconds() - cpu) * SECOND / (load_now() - begun);
	prepare_all(ENDING);
	if (load.check_left)
		load_tally.left = load.peer->left(&load_clients[0]);
}

void
load_close(void)
{
	for (int i = 0; i < nall; i++)
	{
		Client	   *client = &load_clients[i];

		load.peer->close(client);
		free(client->keys);
		free(client->tokens);
		free(client->leases);
	}
	free(load_clients);
	free(held_by);
	close(epoll_fd);
}
