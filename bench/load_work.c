/*-------------------------------------------------------------------------
 *
 * load_work.c
 *	  What the clients of the load generator do.
 *
 * A client is a machine of a few states.  It moves on when it has an answer
 * (load_done()), or when its timer ends (load_woken()).
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load_work.h"

/* the state of a client */
enum
{
	IDLE, ACQUIRING, HOLDING, RELEASING, REFRESHING, PAUSING, LEAVING,
	PREPARING, ENDING
};

static uint64_t handover_at;	/* when the release was sent; 0 = it was not */

static void
record(uint64_t begun, uint64_t ended, int n)
{
	static size_t max_samples = 0;

	if (ended < load_course.start_at || ended > load_course.stop_at)
		return;
	load_tally.cycles += n;
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
	if (op == OP_RELEASE)
		load_note_keys(client, false);
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
	return load.delay * (0.5 + (load_random(client) % 1000) / 1000.0);
}

static void
be_idle(Client *client)
{
	client->phase = IDLE;
	load_course.busy--;
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
prepare_next(Client *client, int phase)
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
		prepare_next(client, client->phase);
	else
		be_idle(client);
}

/* Take what a client holds before the clock starts, or give it back. */
void
load_prepare(Client *client, bool is_end)
{
	if (!is_end)
		load_new_owner(client);
	client->lease = 0;
	load_course.busy++;
	prepare_next(client, is_end ? ENDING : PREPARING);
}

/* The next cycle, or none. */
static void
begin(Client *client)
{
	if (load_course.stopping || (load.limit > 0 && client->cycles >= load.limit))
	{
		be_idle(client);
		return;
	}
	client->asked_at = load_now();
	switch (load.work)
	{
		case WORK_CYCLE:
			load_choose_keys(client);
			load_new_owner(client);
			ask(client, ACQUIRING, OP_ACQUIRE);
			break;
		case WORK_TRY:
		case WORK_RETRY:
			load_new_owner(client);
			ask(client, ACQUIRING, OP_ACQUIRE);
			break;
		case WORK_WAIT:
		case WORK_HANDOVER:
			load_new_owner(client);
			ask(client, ACQUIRING, OP_WAIT);
			break;
		case WORK_SUBSETS:
			load_choose_subset(client);
			load_new_owner(client);
			ask(client, ACQUIRING, OP_WAIT);
			break;
		case WORK_REFRESH:
			take_leases(client, load.depth);
			ask(client, REFRESHING, OP_REFRESH);
			break;
	}
}

void
load_begin(Client *client)
{
	load_course.busy++;
	begin(client);
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
			if (load_course.stopping)
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
	if (client->granted_at >= load_course.start_at && client->granted_at <= load_course.stop_at)
	{
		load_tally.grants += client->nkeys;
		load_tally.acquired++;
		load_tally.acquire_time += client->granted_at - client->asked_at;
	}
	load_note_keys(client, true);
	if (load.work == WORK_HANDOVER)
		handed_over(client);
	else
	{
		if (load.work != WORK_CYCLE)
			record(client->asked_at, client->granted_at, 1);
		if (load.hold > 0 && !load_course.stopping)
			rest(client, HOLDING, load.hold);
		else
			release(client);
	}
}

/* An operation has succeeded for this many of its keys. */
void
load_done(Client *client, int succeeded)
{
	load_course.answers++;
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
			if (load.work == WORK_RETRY && load.delay > 0 && !load_course.stopping)
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

void
load_woken(Client *client)
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
	else if (load_course.stopping)
		be_idle(client);
	else
		ask(client, ACQUIRING, OP_ACQUIRE);
}
