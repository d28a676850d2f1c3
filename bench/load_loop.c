/*-------------------------------------------------------------------------
 *
 * load_loop.c
 *	  The event loop of the load generator: connections, timers, and the course
 *	  of a run.
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

#include "load_work.h"

Client	   *load_clients;
Course		load_course;

static int	epoll_fd;
static int	nall;				/* clients, and those that help them */
static Client *holder;			/* of what they try for, or share */

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
				load_woken(&load_clients[i]);
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
	uint64_t	seen = load_course.answers;

	while (load_course.busy > 0)
	{
		if (load_course.answers > seen)
			until = load_now() + 60 * SECOND;
		seen = load_course.answers;
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
prepare_all(bool is_end)
{
	for (int i = 0; i < nall; i++)
	{
		Client	   *client = &load_clients[i];

		if ((load.work == WORK_REFRESH && i < load.nclients) || client == holder)
			load_prepare(client, is_end);
	}
	drain("prepare");
}

static void
run(void)
{
	uint64_t	begun = load_now();
	uint64_t	last;
	uint64_t	next = UINT64_MAX;
	uint64_t	seen = 0;

	load_course.start_at = begun + (uint64_t) (load.warmup * SECOND);
	load_course.stop_at = load.limit > 0 ? UINT64_MAX :
		load_course.start_at + (uint64_t) (load.seconds * SECOND);
	last = load_course.start_at;
	if (load.every > 0)
		next = load_course.start_at + (uint64_t) (load.every * SECOND);
	for (int i = 0; i < load.nclients; i++)
		load_begin(&load_clients[i]);
	while (load_course.busy > 0)
	{
		uint64_t	at;

		turn(load_course.stop_at < next ? load_course.stop_at : next);
		at = load_now();
		if (at >= next)
		{
			printf("series\t%.1f\t%.0f\n", (at - load_course.start_at) / (double) SECOND,
				   (double) (load_tally.cycles - seen) * SECOND / (at - last));
			fflush(stdout);
			seen = load_tally.cycles;
			last = at;
			next += (uint64_t) (load.every * SECOND);
		}
		if (at >= load_course.stop_at)
			break;
	}
	if (load.limit > 0)
	{
		load_course.stop_at = load_now();
		load.seconds = (load_course.stop_at - load_course.start_at) / (double) SECOND;
	}
	load_course.stopping = true;
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
	load_keys_open();
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

	prepare_all(false);
	cpu = cpu_seconds();
	begun = load_now();
	run();
	load_tally.cpu = (cpu_seconds() - cpu) * SECOND / (load_now() - begun);
	prepare_all(true);
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
	load_keys_close();
	close(epoll_fd);
}
