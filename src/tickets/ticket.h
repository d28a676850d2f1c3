/*-------------------------------------------------------------------------
 *
 * ticket.h
 *	  Tickets: requests that wait without a connection.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TICKETS_TICKET_H
#define DLOCK_TICKETS_TICKET_H

#include "queue/queue.h"
#include "tickets/ticket_memory.h"

/* A ticket that its granter looks at. */
typedef struct DlockTicketLook
{
	int64		number;
	DlockKey	key;
	DlockTerms	terms;
	bool		behind;			/* another request comes first */
	bool		upgrades;
	bool		has_waited;		/* it has been looked at before */
	bool		logged;			/* that it waits */
	int64		since;			/* lease time */
	int64		until;
	DlockAsking asking;
	char		key_text[DLOCK_MAX_KEY + 1];
	char		owner[DLOCK_MAX_OWNER + 1];
	char		value[DLOCK_MAX_TICKET_VALUE + 1];
} DlockTicketLook;

/* A ticket as its requester sees it. */
typedef struct DlockTicketShown
{
	DlockTicketState state;
	int			position;		/* 0: not known */
	int64		version;
	int64		since;			/* lease time */
	int			keylen;
	char		key[DLOCK_MAX_KEY + 1];
} DlockTicketShown;

extern void dlock_ticket_table_dropped(void);
extern bool dlock_ticket_is_void(int64 number);
extern void dlock_ticket_init(void);

/* for requesters */
extern int64 dlock_ticket_find(const DlockKey *key, const DlockTerms *terms,
							   int64 *version);
extern int64 dlock_ticket_draft(const DlockKey *key, const DlockTerms *terms, int db);
extern bool dlock_ticket_show(int64 number, Oid role, DlockTicketShown *shown);
extern bool dlock_ticket_remove(int64 number, Oid role,
								DlockTicketShown *shown);

/* for a granter */
extern bool dlock_ticket_look(int64 number, DlockTicketLook *look);
extern bool dlock_ticket_upgrade(int64 number);
extern void dlock_ticket_step_back(int64 number);
extern bool dlock_ticket_publish_report(int64 number, const DlockWaitReport *report,
										bool logged);
extern bool dlock_ticket_end(int64 number, DlockTicketState outcome,
							 int64 version, TransactionId xid, bool wake_next);
extern void dlock_ticket_settle(int64 number);
extern int64 *dlock_ticket_list(Oid dboid, int *n);

/* for the launcher */
extern void dlock_ticket_forget(Oid dboid);

#endif							/* DLOCK_TICKETS_TICKET_H */
