/*-------------------------------------------------------------------------
 *
 * ticket_room.h
 *	  The room that tickets take.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TICKET_ROOM_H
#define DLOCK_TICKET_ROOM_H

#include "waiter.h"

#define DLOCK_MAX_TICKET_VALUE	1024

typedef enum DlockTicketState
{
	DLOCK_TICKET_UNKNOWN,
	DLOCK_TICKET_DRAFT,			/* its transaction is still open */
	DLOCK_TICKET_WAITING,		/* in the queue */
	DLOCK_TICKET_ENDING,		/* its granter has not committed yet */
	DLOCK_TICKET_GRANTED,
	DLOCK_TICKET_MISSED
} DlockTicketState;

/* What is asked for. */
typedef struct DlockTerms
{
	const char *key;
	int			keylen;
	Oid			role;
	const char *owner;
	const char *value;			/* or NULL */
	int64		ttl;			/* us, as are the others */
	int64		wait;			/* or DLOCK_NEVER */
	int64		cleanup;
	int64		at_least;
	int64		delay;
	int32		priority;
	int32		slots;
	bool		force;
	bool		lazy;
} DlockTerms;

#define DLOCK_SHORT_TEXT	152

typedef struct DlockTicket
{
	DlockWaiter waiter;			/* its "ticket" is the number */
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
	const char *value;
	int64		ttl;
	int64		wait;
	int64		cleanup;
	int64		at_least;
	int64		delay;
	TransactionId xid;			/* of one that is ending: the granter's */
	bool		force;
	bool		lazy;
	bool		has_waited;
	bool		logged;
	bool		has_request;	/* it is in the list of its request */
	char text[	DLOCK_SHORT_TEXT];
} DlockTicket;

extern Size dlock_ticket_room_shmem_size(void);
extern void dlock_ticket_room_shmem_init(void);

/* the lock of the tickets is held, exclusively to change anything */
extern bool dlock_ticket_room_is_full(void);
extern DlockTicket *dlock_ticket_room_take(const DlockKey *key,
										   const DlockTerms *terms);
extern void dlock_ticket_room_free(DlockTicket *ticket);
extern void dlock_ticket_room_keep(DlockTicket *ticket);
extern DlockTicket *dlock_ticket_room_find(int64 number);
extern DlockTicket *dlock_ticket_room_first(uint64 request_hash);
extern DlockTicket *dlock_ticket_room_next(const DlockTicket *ticket);
extern DlockTicket *dlock_ticket_room_at(int i);

extern uint64 dlock_ticket_room_hash(const DlockKey *key, const DlockTerms *terms);

#endif							/* DLOCK_TICKET_ROOM_H */
