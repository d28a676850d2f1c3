/*-------------------------------------------------------------------------
 *
 * ticket.c
 *	  Tickets: requests that wait without a connection.
 *
 * A ticket is an entry of the queue that belongs to no process.  Its backend
 * makes it as a draft, which the commit publishes and a rollback discards.  The
 * granter of its database looks at it when it is woken.  When it is granted or
 * missed, it leaves the queue at once and is "ending" until the granter commits;
 * if that fails, it gets its place back.  After that it is kept to answer
 * those that ask, until its room is needed.
 *
 *		draft -> waiting <-> ending -> granted, missed
 *
 * Two locks: what makes a ticket an entry of the queue is protected by its
 * bucket's lock, as for every waiter; the rest by the lock of the tickets, which
 * comes after it.  A ticket starts or stops waiting under both.  So a process that
 * holds the bucket's lock, and finds that the ticket waits, knows that it
 * stays so.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"

#include "clock.h"
#include "desk.h"
#include "guc.h"
#include "lwlocks.h"
#include "ticket.h"

/*
 * For requesters
 */

static bool
is_same_request(const DlockTicket *ticket, uint64 hash, const DlockKey *key, Oid role)
{
	return ticket->request_hash == hash && ticket->waiter.dboid == MyDatabaseId &&
		ticket->waiter.role == role && ticket->waiter.hash == key->hash &&
		ticket->waiter.keylen == key->len &&
		memcmp(ticket->waiter.key, key->data, key->len) == 0;
}

/* Is the commit of a granter's transaction visible to all? */
static bool
has_ended(TransactionId xid)
{
	return !TransactionIdIsInProgress(xid) && TransactionIdDidCommit(xid);
}

/*
 * The ticket that this role and owner have for the key so far, or 0.  If it was
 * granted, it counts only if that version is still held, which the caller has to
 * find out.  A draft of another backend does not count: it may be rolled back.  Nor
 * does a ticket for a place if the whole key is wanted, or the other way round: that
 * is an upgrade or a downgrade.
 */
int64
dlock_ticket_find(const DlockKey *key, const DlockTerms *terms, int64 *version)
{
	uint64		hash = dlock_ticket_room_hash(key, terms);
	TransactionId xid = InvalidTransactionId;
	DlockTicketState outcome = DLOCK_TICKET_UNKNOWN;
	int64		ending = 0;
	int64		number = 0;

	*version = 0;
	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	for (const DlockTicket *ticket = dlock_ticket_room_first(hash);
		 ticket != NULL && number == 0; ticket = dlock_ticket_room_next(ticket))
	{
		if (!is_same_request(ticket, hash, key, terms->role) ||
			ticket->state == DLOCK_TICKET_MISSED ||
			(terms->slots == DLOCK_EXCLUSIVE) !=
			(ticket->waiter.slots == DLOCK_EXCLUSIVE) ||
			(ticket->state == DLOCK_TICKET_DRAFT && ticket->pid != MyProcPid))
			continue;

		/* its owner is not remembered; that version's is */
		if (ticket->state != DLOCK_TICKET_GRANTED &&
			strcmp(ticket->waiter.owner, terms->owner) != 0)
			continue;
		number = ticket->waiter.ticket;
		if (ticket->state == DLOCK_TICKET_GRANTED)
			*version = ticket->version;
		if (ticket->state == DLOCK_TICKET_ENDING)
		{
			xid = ticket->xid;
			outcome = ticket->outcome;
			ending = ticket->version;
		}
	}
	LWLockRelease(dlock_lwlock_tickets());

	/* the requester may have heard of its end before the granter notes it */
	if (TransactionIdIsValid(xid) && has_ended(xid))
	{
		if (outcome == DLOCK_TICKET_GRANTED)
			*version = ending;
		else
			number = 0;
	}
	return number;
}

static void
raise_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many tickets are waiting"),
			 errdetail("\"dlock.max_tickets\" is %d.", dlock_max_tickets),
			 errhint("Wait with dlock_acquire, or increase \"dlock.max_tickets\" and restart the server.")));
}

/* A new ticket, which the end of the transaction publishes or discards. */
int64
dlock_ticket_draft(const DlockKey *key, const DlockTerms *terms, int db)
{
	DlockEntrant entrant = {.kind = DLOCK_WAIT_TURN};
	DlockTicket *ticket;
	int64		number;

	entrant.role = terms->role;
	entrant.owner = terms->owner;
	entrant.priority = terms->priority;
	entrant.slots = terms->slots;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	if (dlock_ticket_room_is_full())
	{
		LWLockRelease(dlock_lwlock_tickets());
		raise_full();
	}
	ticket = dlock_ticket_room_take(key, terms);
	dlock_waiter_fill(&ticket->waiter, key, &entrant);
	ticket->waiter.ready.list = dlock_desk_ready(db);
	ticket->db = db;
	ticket->pid = MyProcPid;
	ticket->version = 0;
	ticket->xid = InvalidTransactionId;
	ticket->ttl = terms->ttl;
	ticket->wait = terms->wait;
	ticket->cleanup = terms->cleanup;
	ticket->at_least = terms->at_least;
	ticket->delay = terms->delay;
	ticket->force = terms->force;
	ticket->lazy = terms->lazy;
	ticket->has_waited = false;
	ticket->logged = false;
	dlock_desk_come(db);
	number = ticket->waiter.ticket;
	LWLockRelease(dlock_lwlock_tickets());
	return number;
}

/* Nobody else touches it until it is in the queue. */
static void
enter_queue(DlockTicket *ticket)
{
	uint64		hash = ticket->waiter.hash;

	dlock_queue_lock(hash, LW_EXCLUSIVE);
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket->state = DLOCK_TICKET_WAITING;
	LWLockRelease(dlock_lwlock_tickets());
	dlock_queue_insert(&ticket->waiter);
	dlock_queue_wake(&ticket->waiter);
	dlock_queue_unlock(hash);
}

/* At commit: it enters the queue, and its wait begins. */
void
dlock_ticket_publish(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	ticket = dlock_ticket_room_find(number);
	LWLockRelease(dlock_lwlock_tickets());
	if (ticket == NULL)
		return;					/* withdrawn before the commit */

	/* nobody else touches a draft */
	ticket->waiter.since = dlock_clock_now();
	ticket->waiter.until = ticket->wait == DLOCK_NEVER ?
		DLOCK_NEVER : ticket->waiter.since + ticket->wait;
	enter_queue(ticket);
}

void
dlock_ticket_discard(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket = dlock_ticket_room_find(number);
	if (ticket != NULL && ticket->state == DLOCK_TICKET_DRAFT)
	{
		dlock_desk_go(ticket->db);
		dlock_ticket_room_free(ticket);
	}
	LWLockRelease(dlock_lwlock_tickets());
}

/*
 * The ticket, if it waits, with its bucket locked exclusively.  NULL, and nothing
 * is locked: it does not.
 */
static DlockTicket *
lock_waiting(int64 number)
{
	DlockTicket *ticket;
	uint64		hash = 0;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	ticket = dlock_ticket_room_find(number);
	if (ticket != NULL && ticket->state == DLOCK_TICKET_WAITING)
		hash = ticket->waiter.hash;
	else
		ticket = NULL;
	LWLockRelease(dlock_lwlock_tickets());
	if (ticket == NULL)
		return NULL;

	dlock_queue_lock(hash, LW_EXCLUSIVE);
	if (ticket->waiter.ticket == number && ticket->state == DLOCK_TICKET_WAITING)
		return ticket;
	dlock_queue_unlock(hash);
	return NULL;
}

/* Nobody waits for it any more.  Its bucket is locked, and unlocked here. */
static void
drop_waiting(DlockTicket *ticket)
{
	uint64		hash = ticket->waiter.hash;

	dlock_queue_remove(&ticket->waiter, true);
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	dlock_desk_go(ticket->db);
	dlock_ticket_room_free(ticket);
	LWLockRelease(dlock_lwlock_tickets());
	dlock_queue_unlock(hash);
}

/* What there is to see of a ticket of this role; its position comes later. */
static DlockTicketState
read_ticket(int64 number, Oid role, DlockTicketShown *shown, TransactionId *xid,
			DlockTicketState *outcome)
{
	const DlockTicket *ticket;
	DlockTicketState state = DLOCK_TICKET_UNKNOWN;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	ticket = dlock_ticket_room_find(number);
	if (ticket != NULL && ticket->waiter.role == role &&
		ticket->waiter.dboid == MyDatabaseId &&
		(ticket->state != DLOCK_TICKET_DRAFT || ticket->pid == MyProcPid))
	{
		state = ticket->state;
		*xid = ticket->xid;
		*outcome = ticket->outcome;
		shown->version = ticket->version;
		shown->since = ticket->waiter.since;
		shown->keylen = ticket->waiter.keylen;
		memcpy(shown->key, ticket->waiter.key, ticket->waiter.keylen + 1);
	}
	LWLockRelease(dlock_lwlock_tickets());
	return state;
}

/*
 * The same, but if it waits, it is returned with its bucket locked.  NULL: it does
 * not, and shown->state is what it does instead.
 */
static DlockTicket *
lock_or_read(int64 number, Oid role, DlockTicketShown *shown, TransactionId *xid,
			 DlockTicketState *outcome)
{
	for (;;)
	{
		DlockTicket *ticket;

		CHECK_FOR_INTERRUPTS();
		shown->state = read_ticket(number, role, shown, xid, outcome);
		if (shown->state != DLOCK_TICKET_WAITING)
			return NULL;
		ticket = lock_waiting(number);
		if (ticket != NULL)
			return ticket;
	}
}

/* False: there is no such ticket of this role. */
bool
dlock_ticket_show(int64 number, Oid role, DlockTicketShown *shown)
{
	TransactionId xid;
	DlockTicketState outcome;
	DlockTicket *ticket = lock_or_read(number, role, shown, &xid, &outcome);

	shown->position = 0;
	if (ticket != NULL)
	{
		shown->position = dlock_queue_position(&ticket->waiter) + 1;
		dlock_queue_unlock(ticket->waiter.hash);
	}
	else if (shown->state == DLOCK_TICKET_ENDING)
	{
		/* it has ended when its granter's commit is visible to all */
		if (has_ended(xid))
			shown->state = outcome;
		else
		{
			shown->state = DLOCK_TICKET_WAITING;
			shown->position = 1;
		}
	}
	return shown->state != DLOCK_TICKET_UNKNOWN;
}

/*
 * Withdraw a request that waits.  False: there is no such request of this role,
 * or not any more.  If it is being granted, this waits until that is certain.
 */
bool
dlock_ticket_remove(int64 number, Oid role, DlockTicketShown *shown)
{
	TransactionId xid;
	DlockTicketState outcome;
	DlockTicket *ticket;

	while ((ticket = lock_or_read(number, role, shown, &xid, &outcome)) == NULL)
	{
		if (shown->state == DLOCK_TICKET_DRAFT)
		{
			dlock_ticket_discard(number);
			return true;
		}
		if (shown->state != DLOCK_TICKET_ENDING)
			return false;
		if (TransactionIdIsValid(xid))
			XactLockTableWait(xid, NULL, NULL, XLTW_None);
	}
	drop_waiting(ticket);
	return true;
}

/*
 * For a granter
 */

/*
 * Read a ticket, before its key is looked at.  From here on every change of the
 * key wakes it.  False: it does not wait any more.
 */
bool
dlock_ticket_look(int64 number, DlockTicketLook *look)
{
	DlockTicket *ticket = lock_waiting(number);
	const DlockWaiter *waiter;
	DlockTerms *terms = &look->terms;

	if (ticket == NULL)
		return false;
	waiter = &ticket->waiter;
	look->number = number;
	look->behind = dlock_queue_rearm(&ticket->waiter);
	look->upgrades = waiter->upgrades;
	look->has_waited = ticket->has_waited;
	look->logged = ticket->logged;
	look->since = waiter->since;
	look->until = waiter->until;
	look->asking = waiter->asking;
	memcpy(look->key, waiter->key, waiter->keylen + 1);
	strlcpy(look->owner, waiter->owner, sizeof(look->owner));
	if (ticket->value != NULL)
		strlcpy(look->value, ticket->value, sizeof(look->value));

	terms->key = look->key;
	terms->keylen = waiter->keylen;
	terms->role = waiter->role;
	terms->owner = look->owner;
	terms->value = ticket->value != NULL ? look->value : NULL;
	terms->ttl = ticket->ttl;
	terms->wait = ticket->wait;
	terms->cleanup = ticket->cleanup;
	terms->at_least = ticket->at_least;
	terms->delay = ticket->delay;
	terms->priority = waiter->priority;
	terms->slots = waiter->slots;
	terms->force = ticket->force;
	terms->lazy = ticket->lazy;
	dlock_queue_unlock(waiter->hash);
	pg_memory_barrier();
	return true;
}

/*
 * Its owner has a place of the key, and wants it for itself: it comes before all
 * others.  False: another request does already, and the two would wait for
 * each other.
 */
bool
dlock_ticket_upgrade(int64 number)
{
	DlockTicket *ticket = lock_waiting(number);
	bool		is_first = true;

	if (ticket == NULL)
		return true;
	if (dlock_queue_upgrades(&ticket->waiter))
		is_first = false;
	else
		dlock_queue_set_upgrades(&ticket->waiter, true);
	dlock_queue_unlock(ticket->waiter.hash);
	return is_first;
}

/* That place is gone: it waits like all others. */
void
dlock_ticket_step_back(int64 number)
{
	DlockTicket *ticket = lock_waiting(number);

	if (ticket == NULL)
		return;
	dlock_queue_set_upgrades(&ticket->waiter, false);
	dlock_queue_unlock(ticket->waiter.hash);
}

/* Tell the others what was seen.  True: somebody is to be notified. */
bool
dlock_ticket_tell(int64 number, const DlockOutlook *outlook, bool logged)
{
	DlockTicket *ticket = lock_waiting(number);
	bool		announce;

	if (ticket == NULL)
		return false;
	ticket->has_waited = true;
	ticket->logged = logged;
	announce = dlock_waiter_publish(&ticket->waiter, outlook);
	dlock_queue_unlock(ticket->waiter.hash);
	return announce;
}

/*
 * The open transaction has granted it, or refuses it.  It leaves the queue; the
 * end of the transaction decides.  False: it does not wait any more.
 */
bool
dlock_ticket_end(int64 number, DlockTicketState outcome, int64 version,
				 TransactionId xid, bool wake_next)
{
	DlockTicket *ticket = lock_waiting(number);

	if (ticket == NULL)
		return false;
	dlock_queue_remove(&ticket->waiter, wake_next);
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket->state = DLOCK_TICKET_ENDING;
	ticket->outcome = outcome;
	ticket->version = version;
	ticket->xid = xid;
	LWLockRelease(dlock_lwlock_tickets());
	dlock_queue_unlock(ticket->waiter.hash);
	return true;
}

/* That transaction has committed. */
void
dlock_ticket_settle(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket = dlock_ticket_room_find(number);
	ticket->state = ticket->outcome;
	dlock_desk_go(ticket->db);
	dlock_ticket_room_keep(ticket);
	LWLockRelease(dlock_lwlock_tickets());
}

/* It has not: the ticket gets its place back, and is looked at again. */
void
dlock_ticket_return(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	ticket = dlock_ticket_room_find(number);
	LWLockRelease(dlock_lwlock_tickets());

	/* nobody else touches one that is ending */
	enter_queue(ticket);
}

/* It is to be missed: no waiter needs to see a deadlock with it any more. */
void
dlock_ticket_give_up(int64 number)
{
	DlockTicket *ticket = lock_waiting(number);

	if (ticket == NULL)
		return;
	dlock_waiter_withdraw(&ticket->waiter);
	dlock_queue_unlock(ticket->waiter.hash);
}

/* All that wait in a database. */
int64 *
dlock_ticket_list(Oid dboid, int *n)
{
	int64	   *numbers = palloc(mul_size(dlock_max_tickets, sizeof(int64)) + 1);
	const DlockTicket *ticket;

	*n = 0;
	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	for (int i = 0; (ticket = dlock_ticket_room_at(i)) != NULL; i++)
		if (ticket->state == DLOCK_TICKET_WAITING && ticket->waiter.dboid == dboid)
			numbers[(*n)++] = ticket->waiter.ticket;
	LWLockRelease(dlock_lwlock_tickets());
	return numbers;
}

/* A database is gone, and its tickets with it. */
void
dlock_ticket_forget(Oid dboid)
{
	int			n;
	int64	   *numbers = dlock_ticket_list(dboid, &n);

	for (int i = 0; i < n; i++)
	{
		DlockTicket *ticket = lock_waiting(numbers[i]);

		if (ticket != NULL)
			drop_waiting(ticket);
	}
	pfree(numbers);
}
