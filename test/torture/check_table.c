/*-------------------------------------------------------------------------
 *
 * check_table.c
 *	  The leases of one key, by version.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "check_lease.h"

Lease	   *leases;
uint32_t	nleases;

static uint32_t room;
static uint32_t *by_version;
static uint32_t by_version_size;

static uint32_t
version_slot(int64_t version)
{
	uint64_t	h = (uint64_t) version * 0x9e3779b97f4a7c15ULL;
	uint32_t	at = (uint32_t) (h >> 32) & (by_version_size - 1);

	while (by_version[at] != NONE && leases[by_version[at]].version != version)
		at = (at + 1) & (by_version_size - 1);
	return at;
}

/* The client's lease of this version, or otherwise that of any client. */
Lease *
check_table_find(int64_t version, uint32_t client)
{
	uint32_t	first = by_version[version_slot(version)];

	for (uint32_t i = first; i != NONE; i = leases[i].next)
		if (leases[i].client == client)
			return &leases[i];
	return first != NONE ? &leases[first] : NULL;
}

Lease *
check_table_add(int64_t version, uint32_t client)
{
	uint32_t	slot = version_slot(version);
	Lease	   *lease = &leases[nleases];

	memset(lease, 0, sizeof(Lease));
	lease->version = version;
	lease->client = client;
	lease->next = by_version[slot];
	by_version[slot] = nleases++;
	return lease;
}

void
check_table_begin(uint32_t key)
{
	uint32_t	grants = 0;

	for (uint32_t i = 0; i < history.keys[key].nops; i++)
		grants += history.ops[history.by_key[history.keys[key].first + i]].outcome == OUT_GRANTED;
	if (grants >= room || leases == NULL)
	{
		free(leases);
		free(by_version);
		room = 1024;
		while (grants >= room)
			room *= 2;
		leases = check_alloc(room, sizeof(Lease));
		by_version = check_alloc((size_t) 2 * room, sizeof(uint32_t));
	}
	by_version_size = 64;
	while (by_version_size < 2 * grants)
		by_version_size *= 2;
	memset(by_version, 0xff, by_version_size * sizeof(uint32_t));
	nleases = 0;
}
