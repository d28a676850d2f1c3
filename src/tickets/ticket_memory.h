/*-------------------------------------------------------------------------
 *
 * ticket_memory.h
 *	  The memory of tickets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TICKETS_TICKET_MEMORY_H
#define DLOCK_TICKETS_TICKET_MEMORY_H

#include "queue/queue.h"

typedef enum DlockTicketState
{
	DLOCK_TICKET_UNKNOWN,
	DLOCK_TICKET_DRAFT,			/* its transaction is still open */
	DLOCK_TICKET_WAITING,		/* in the queue */
	DLOCK_TICKET_ENDING,		/* its granter has not committed yet */
	DLOCK_TICKET_GRANTED,
	DLOCK_TICKET_MISSED
} DlockTicketState;

/*
 * What belongs to a database: its tickets, and the process that grants them
 * (granter.c).  All but "ready" is protected by the lock of the tickets.
 */
typedef struct DlockTicketDatabase
{
	DlockReadyList ready;		/* tickets that the granter has to look at */
	int			nwaiting;		/* tickets that have not ended, with drafts */
	int			granter;		/* its process; 0: none is registered */
	int64		started_at;		/* lease time; 0: none is being started */
	int64		dropped;		/* tickets up to this number are void: the
								 * table of locks was dropped */
} DlockTicketDatabase;

#define DLOCK_SHORT_TEXT	152

typedef struct DlockTicket
{
	DlockQueueEntry entry;		/* its "ticket" is the number */
	DlockTicketState state;
	DlockTicketState outcome;	/* of one that is ending */
	int			db;				/* the number of the database */
	int			pid;			/* of a draft: the backend's */
	int			long_text;		/* or NOBODY */
	int			next_number;	/* the next entry with the same ... */
	int			next_request;	/* ... and the one before, or NOBODY */
	int			previous_request;
	int			next_free;
	uint64		request_hash;
	dlist_node	ended;			/* in the list of those, oldest first */
	int64		version;
	TransactionId xid;			/* of one that is ending: the granter's */
	bool		has_waited;
	bool		logged;
	bool		has_request;	/* it is in the list of its request */
	char text[	DLOCK_SHORT_TEXT];
} DlockTicket;

extern Size dlock_ticket_memory_shmem_size(void);
extern void dlock_ticket_memory_shmem_init(void);

extern DlockTicketDatabase *dlock_ticket_memory_database(int db);

/* the lock of the tickets is held, exclusively to change anything */
extern int64 dlock_ticket_memory_last(void);
extern int	dlock_ticket_memory_waiting(void);
extern bool dlock_ticket_memory_is_full(void);
extern DlockTicket *dlock_ticket_memory_take(const DlockKey *key,
											 const DlockTerms *terms, int db);
extern void dlock_ticket_memory_free(DlockTicket *ticket);
extern void dlock_ticket_memory_keep(DlockTicket *ticket);
extern DlockTicket *dlock_ticket_memory_find(int64 number);
extern DlockTicket *dlock_ticket_memory_first(uint64 request_hash);
extern DlockTicket *dlock_ticket_memory_next(const DlockTicket *ticket);
extern DlockTicket *dlock_ticket_memory_at(int i);

extern uint64 dlock_ticket_memory_hash(const DlockKey *key, const DlockTerms *terms);

#endif							/* DLOCK_TICKETS_TICKET_MEMORY_H */
