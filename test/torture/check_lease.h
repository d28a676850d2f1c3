/*-------------------------------------------------------------------------
 *
 * check_lease.h
 *	  The leases of the key that is being checked.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CHECK_LEASE_H
#define CHECK_LEASE_H

#include "check.h"

typedef struct Lease
{
	int64_t		version;
	uint32_t	client;
	uint32_t	grant;			/* the operation */
	uint32_t	next;			/* of another client with this version */

	Time		until;
	uint32_t	last;			/* the operation that until comes from, */
	Line		renewed;		/* or the note */
	int32_t		ttl;			/* the shortest that may be in force */
	int			pending;		/* renewals that have no answer yet */
	uint32_t	alone;			/* the only one of them that can be in force */
	bool		unknown;		/* there was one whose outcome is unknown */

	bool		shared;
	int32_t		at_least;
	int32_t		delay;

	bool		believes;
	Time		believes_from;
	Time		stopped;		/* when the client stopped believing, */
	Line		stopped_line;	/* by a call or a note */

	Time		released;		/* call of the first release that may count */
	uint32_t	release;
	Time		gone;			/* a client was told that it is over */
	Line		gone_line;
	bool		reported;
} Lease;

/* those of the key, in the order in which they became known */
extern Lease *leases;
extern uint32_t nleases;

extern void check_table_begin(uint32_t key);
extern Lease *check_table_find(int64_t version, uint32_t client);
extern Lease *check_table_add(int64_t version, uint32_t client);

#endif							/* CHECK_LEASE_H */
