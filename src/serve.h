/*-------------------------------------------------------------------------
 *
 * serve.h
 *	  Tickets: taking one, and what a granter does with one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SERVE_H
#define DLOCK_SERVE_H

#include "fsm.h"
#include "ticket.h"

typedef enum DlockServed
{
	DLOCK_SERVED_WAITS,			/* it has to wait */
	DLOCK_SERVED_ENDS,			/* it has ended, if the transaction commits */
	DLOCK_SERVED_GONE,			/* there is no such ticket any more */
	DLOCK_SERVED_TOO_LATE		/* it was withdrawn while it was granted: the
								 * transaction must not commit */
} DlockServed;

/* A ticket that has ended. */
typedef struct DlockServedTicket
{
	int64		number;
	char	   *key;
	int			keylen;
	int64		since;			/* lease time */
	bool		granted;
	bool		has_waited;
	bool		logged;
} DlockServedTicket;

extern int64 dlock_serve_enqueue(const DlockRequest *request, int *db);
extern DlockServed dlock_serve_look(int64 number, int64 *due, bool *is_new,
									DlockServedTicket *served);
extern DlockServed dlock_serve_miss(int64 number, const char *code,
									const char *reason,
									DlockServedTicket *served);
extern void dlock_serve_count(const DlockServedTicket *served, int64 now);

#endif							/* DLOCK_SERVE_H */
