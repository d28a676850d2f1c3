/*-------------------------------------------------------------------------
 *
 * ticket_grant.h
 *	  What a granter does for a ticket.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TICKETS_TICKET_GRANT_H
#define DLOCK_TICKETS_TICKET_GRANT_H

#include "rules/lock_rules.h"
#include "tickets/ticket.h"

typedef enum DlockLookResult
{
	DLOCK_LOOK_WAITS,			/* it has to wait */
	DLOCK_LOOK_ENDS,			/* it has ended, if the transaction commits */
	DLOCK_LOOK_GONE,			/* there is no such ticket any more */
	DLOCK_LOOK_TOO_LATE			/* withdrawn while it was granted: the
								 * transaction must not commit */
} DlockLookResult;

/* A ticket that has ended. */
typedef struct DlockEndedTicket
{
	int64		number;
	char	   *key;
	int			keylen;
	int64		since;			/* lease time */
	bool		granted;
	int64		version;		/* of the grant */
	const char *code;			/* why it is missed: an SQLSTATE, or NULL */
	const char *reason;
	bool		has_waited;
	bool		logged;
} DlockEndedTicket;

extern DlockLookResult dlock_ticket_grant_look(int64 number, int64 *due, bool *is_new,
											   DlockEndedTicket *ended);
extern DlockLookResult dlock_ticket_grant_miss(int64 number, const char *code,
											   const char *reason,
											   DlockEndedTicket *ended);
extern void dlock_ticket_grant_announce(const DlockEndedTicket *ended);
extern void dlock_ticket_grant_count(const DlockEndedTicket *ended, int64 now);

#endif							/* DLOCK_TICKETS_TICKET_GRANT_H */
