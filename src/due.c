/*-------------------------------------------------------------------------
 *
 * due.c
 *	  When a granter has to look at a ticket by itself.
 *
 * This is in the granter's own memory: a new granter begins by looking at all
 * tickets.  A ticket that does not wait any more is not taken out; it is found to
 * be gone when its time comes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/pairingheap.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "clock.h"
#include "due.h"

typedef struct Due
{
	int64		ticket;			/* the hash key */
	int64		when;			/* lease time */
	pairingheap_node node;
} Due;

static HTAB *by_ticket = NULL;
static pairingheap * by_time = NULL;

/* The first one is the earliest. */
static int
compare(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	int64		x = pairingheap_const_container(Due, node, a)->when;
	int64		y = pairingheap_const_container(Due, node, b)->when;

	return (x < y) - (x > y);
}

static void
init(void)
{
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);
	HASHCTL		ctl = {.keysize = sizeof(int64),.entrysize = sizeof(Due)};

	by_time = pairingheap_allocate(compare, NULL);
	ctl.hcxt = TopMemoryContext;
	by_ticket = hash_create("dlock due tickets", 256, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	MemoryContextSwitchTo(caller);
}

static void
drop(Due *due)
{
	pairingheap_remove(by_time, &due->node);
	(void) hash_search(by_ticket, &due->ticket, HASH_REMOVE, NULL);
}

/* A new time replaces an old one. */
void
dlock_due_set(int64 ticket, int64 when)
{
	Due		   *due;
	bool		found;

	if (by_ticket == NULL)
		init();
	due = hash_search(by_ticket, &ticket, HASH_FIND, NULL);
	if (due != NULL)
		drop(due);
	if (when == DLOCK_NEVER)
		return;
	due = hash_search(by_ticket, &ticket, HASH_ENTER, &found);
	due->when = when;
	pairingheap_add(by_time, &due->node);
}

static Due *
first_due(void)
{
	if (by_time == NULL || pairingheap_is_empty(by_time))
		return NULL;
	return pairingheap_container(Due, node, pairingheap_first(by_time));
}

int64
dlock_due_next(void)
{
	const Due  *due = first_due();

	return due != NULL ? due->when : DLOCK_NEVER;
}

/* Take up to so many whose time has come. */
int
dlock_due_take(int64 now, int64 *tickets, int max)
{
	Due		   *due;
	int			n = 0;

	while (n < max && (due = first_due()) != NULL && due->when <= now)
	{
		tickets[n++] = due->ticket;
		drop(due);
	}
	return n;
}
