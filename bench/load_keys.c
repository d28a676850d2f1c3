/*-------------------------------------------------------------------------
 *
 * load_keys.c
 *	  Which keys the clients of the load generator ask for, and under which name.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load_work.h"

static int *held_by;			/* of subsets: which client, or -1 */

void
load_keys_open(void)
{
	if (load.work == WORK_SUBSETS)
	{
		held_by = load_alloc(load.nkeys * sizeof(*held_by));
		memset(held_by, -1, load.nkeys * sizeof(*held_by));
	}
}

void
load_keys_close(void)
{
	free(held_by);
}

uint64_t
load_random(Client *client)
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
void
load_choose_keys(Client *client)
{
	uint32_t	own = load.nkeys / load.nclients;
	uint32_t	first;

	if (load.peer->shares)
	{
		client->keys[0] = load_random(client) % load.nkeys;
		return;
	}
	first = load_random(client) % own;

	for (int i = 0; i < client->nkeys; i++)
		client->keys[i] = client->id + (first + i) % own * load.nclients;
}

/* Up to this many different keys, in random order. */
void
load_choose_subset(Client *client)
{
	client->nkeys = 1 + load_random(client) % load.depth;
	for (int i = 0; i < client->nkeys; i++)
	{
		bool		is_new;

		do
		{
			is_new = true;
			client->keys[i] = load_random(client) % load.nkeys;
			for (int j = 0; j < i; j++)
				is_new &= client->keys[j] != client->keys[i];
		} while (!is_new);
	}
}

/*
 * Note who has the keys of a subset; other work needs no such notes.  The keys are
 * given back when the release is sent, because the next client may hear of its
 * grant before this one of its release.
 */
void
load_note_keys(const Client *client, bool is_grant)
{
	for (int i = 0; held_by != NULL && i < client->nkeys; i++)
	{
		int		   *by = &held_by[client->keys[i]];

		if (is_grant && *by != -1)
			load_complain("subsets", "two clients hold a key");
		*by = is_grant ? client->id : -1;
	}
}

void
load_new_owner(Client *client)
{
	static uint64_t serial = 0;

	snprintf(client->owner, sizeof(client->owner), "%d-%llu", (int) getpid(),
			 (unsigned long long) ++serial);
}
