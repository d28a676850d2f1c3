/*-------------------------------------------------------------------------
 *
 * ticket.c
 *	  Tickets: requests that wait without a connection.
 *
 * A ticket is an entry of the queue that belongs to no process.  Its backend
 * makes it as a draft, which the commit publishes and a rollback discards.  The
 * granter of its database looks at it when it is woken.  When it is granted or
 * missed, it leaves the queue at once and is "ending" until the granter commits.  If
 * that fails, it returns to its position in the queue.  After the commit it is kept
 * for dlock_ticket(), until its memory is needed.
 *
 *		draft -> waiting <-> ending -> granted, missed
 *
 * Two locks: what makes a ticket an entry of the queue is protected by its
 * bucket's lock, as for every entry; the rest by the lock of the tickets, which
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
#include "database.h"
#include "guc.h"
#include "journal.h"
#include "shmem.h"
#include "stats/stats.h"
#include "tickets/ticket.h"

/*
 * For requesters
 */

/* Is this a ticket of the same role for the same key?  The owner may differ. */
static bool
is_same_request(const DlockTicket *ticket, uint64 hash, const DlockKey *key, Oid role)
{
	return ticket->request_hash == hash && ticket->entry.dboid == MyDatabaseId &&
		ticket->entry.terms.role == role && ticket->entry.hash == key->hash &&
		ticket->entry.keylen == key->len &&
		memcmp(ticket->entry.key, key->data, key->len) == 0;
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
 * is an upgrade or a downgrade.  Nor does a ticket for a grant anew: its requester
 * shares it with nobody.
 */
int64
dlock_ticket_find(const DlockKey *key, const DlockTerms *terms, int64 *version)
{
	uint64		hash = dlock_ticket_memory_hash(key, terms);
	TransactionId xid = InvalidTransactionId;
	DlockTicketState outcome = DLOCK_TICKET_UNKNOWN;
	int64		ending = 0;
	int64		number = 0;

	*version = 0;
	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	for (const DlockTicket *ticket = dlock_ticket_memory_first(hash);
		 ticket != NULL && number == 0; ticket = dlock_ticket_memory_next(ticket))
	{
		if (!is_same_request(ticket, hash, key, terms->role) ||
			ticket->state == DLOCK_TICKET_MISSED || ticket->entry.terms.anew ||
			(terms->capacity == DLOCK_EXCLUSIVE) !=
			(ticket->entry.terms.capacity == DLOCK_EXCLUSIVE) ||
			(ticket->state == DLOCK_TICKET_DRAFT && ticket->pid != MyProcPid))
			continue;

		/* its owner is not remembered; that version's is */
		if (ticket->state != DLOCK_TICKET_GRANTED &&
			strcmp(ticket->entry.terms.owner, terms->owner) != 0)
			continue;
		number = ticket->entry.ticket;
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
	dlock_stats_count(DLOCK_STAT_TICKETS_REFUSED);
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
	DlockTicket *ticket;
	int64		number;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	if (dlock_ticket_memory_is_full())
	{
		LWLockRelease(dlock_lwlock_tickets());
		raise_full();
	}
	ticket = dlock_ticket_memory_take(key, terms, db);
	ticket->pid = MyProcPid;
	ticket->version = 0;
	ticket->xid = InvalidTransactionId;
	ticket->has_waited = false;
	ticket->logged = false;
	number = ticket->entry.ticket;
	LWLockRelease(dlock_lwlock_tickets());
	return number;
}

/*
 * A draft at commit, or a ticket whose end was rolled back, enters the queue, and its
 * granter is woken.  Nobody else changes it until it is in the queue.
 */
static void
enter_queue(DlockTicket *ticket)
{
	uint64		hash = ticket->entry.hash;

	dlock_queue_lock(hash, LW_EXCLUSIVE);
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket->state = DLOCK_TICKET_WAITING;
	LWLockRelease(dlock_lwlock_tickets());
	dlock_queue_insert(&ticket->entry);
	dlock_queue_wake(&ticket->entry);
	dlock_queue_unlock(hash);
}

/* At commit: a draft enters the queue, and its wait begins. */
static void
publish_ticket(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	ticket = dlock_ticket_memory_find(number);
	LWLockRelease(dlock_lwlock_tickets());
	if (ticket == NULL)
		return;					/* withdrawn before the commit */

	/* nobody else changes a draft */
	ticket->entry.since = dlock_clock_now();
	ticket->entry.until = ticket->entry.terms.wait == DLOCK_NEVER ?
		DLOCK_NEVER : ticket->entry.since + ticket->entry.terms.wait;
	enter_queue(ticket);
}

/* At rollback, and when it is withdrawn before: a draft is forgotten. */
static void
discard_ticket(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket = dlock_ticket_memory_find(number);
	if (ticket != NULL && ticket->state == DLOCK_TICKET_DRAFT)
		dlock_ticket_memory_free(ticket);
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
	ticket = dlock_ticket_memory_find(number);
	if (ticket != NULL && ticket->state == DLOCK_TICKET_WAITING)
		hash = ticket->entry.hash;
	else
		ticket = NULL;
	LWLockRelease(dlock_lwlock_tickets());
	if (ticket == NULL)
		return NULL;

	dlock_queue_lock(hash, LW_EXCLUSIVE);
	if (ticket->entry.ticket == number && ticket->state == DLOCK_TICKET_WAITING)
		return ticket;
	dlock_queue_unlock(hash);
	return NULL;
}

/* Forget a ticket that waits.  Its bucket is locked exclusively, and unlocked here. */
static void
drop_waiting(DlockTicket *ticket)
{
	uint64		hash = ticket->entry.hash;

	dlock_queue_remove(&ticket->entry, true);
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	dlock_ticket_memory_free(ticket);
	LWLockRelease(dlock_lwlock_tickets());
	dlock_queue_unlock(hash);
}

/*
 * What a role may see of its ticket, except the position.  A draft is seen by its own
 * backend only.
 */
static DlockTicketState
read_ticket(int64 number, Oid role, DlockTicketShown *shown, TransactionId *xid,
			DlockTicketState *outcome)
{
	const DlockTicket *ticket;
	DlockTicketState state = DLOCK_TICKET_UNKNOWN;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	ticket = dlock_ticket_memory_find(number);
	if (ticket != NULL && ticket->entry.terms.role == role &&
		ticket->entry.dboid == MyDatabaseId &&
		(ticket->state != DLOCK_TICKET_DRAFT || ticket->pid == MyProcPid))
	{
		state = ticket->state;
		*xid = ticket->xid;
		*outcome = ticket->outcome;
		shown->version = ticket->version;
		shown->since = ticket->entry.since;
		shown->keylen = ticket->entry.keylen;
		memcpy(shown->key, ticket->entry.key, ticket->entry.keylen + 1);
	}
	LWLockRelease(dlock_lwlock_tickets());
	return state;
}

/*
 * The same, but a ticket that waits is returned, with its bucket locked exclusively.
 * NULL: it does not wait, and shown->state says what it does instead.
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

/* For dlock_ticket().  False: there is no such ticket of this role. */
bool
dlock_ticket_show(int64 number, Oid role, DlockTicketShown *shown)
{
	TransactionId xid;
	DlockTicketState outcome;
	DlockTicket *ticket = lock_or_read(number, role, shown, &xid, &outcome);

	shown->position = 0;
	if (ticket != NULL)
	{
		shown->position = dlock_queue_position(&ticket->entry) + 1;
		dlock_queue_unlock(ticket->entry.hash);
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
 * For dlock_dequeue(): withdraw a ticket.  False: no such ticket of this role waits.
 * If the ticket is ending, this waits for the granter's transaction.
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
			discard_ticket(number);
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
 * Copy a ticket, before the granter looks at its key.  From here on every change of
 * the key wakes it.  False: it does not wait any more.
 */
bool
dlock_ticket_look(int64 number, DlockTicketLook *look)
{
	DlockTicket *ticket = lock_waiting(number);
	const DlockQueueEntry *entry;

	if (ticket == NULL)
		return false;
	entry = &ticket->entry;
	look->number = number;
	look->behind = dlock_queue_rearm(&ticket->entry);
	look->upgrades = entry->upgrades;
	look->has_waited = ticket->has_waited;
	look->logged = ticket->logged;
	look->since = entry->since;
	look->until = entry->until;
	look->asking = entry->report.asking;

	/* the texts may be gone once the bucket is unlocked */
	memcpy(look->key_text, entry->key, entry->keylen + 1);
	look->key.data = look->key_text;
	look->key.len = entry->keylen;
	look->key.hash = entry->hash;
	look->terms = entry->terms;
	strlcpy(look->owner, entry->terms.owner, sizeof(look->owner));
	look->terms.owner = look->owner;
	if (entry->terms.value != NULL)
	{
		strlcpy(look->value, entry->terms.value, sizeof(look->value));
		look->terms.value = look->value;
	}
	dlock_queue_unlock(entry->hash);
	pg_memory_barrier();
	return true;
}

/*
 * The owner of a ticket for the whole key has a place of it: the ticket becomes an
 * upgrade.  False: another request for the key is one already, and the two would
 * wait for each other.
 */
bool
dlock_ticket_upgrade(int64 number)
{
	DlockTicket *ticket = lock_waiting(number);
	bool		is_first = true;

	if (ticket == NULL)
		return true;
	if (dlock_queue_upgrades(&ticket->entry))
		is_first = false;
	else
		dlock_queue_set_upgrades(&ticket->entry, true);
	dlock_queue_unlock(ticket->entry.hash);
	return is_first;
}

/* The owner has lost that place: the ticket returns to its normal position. */
void
dlock_ticket_step_back(int64 number)
{
	DlockTicket *ticket = lock_waiting(number);

	if (ticket == NULL)
		return;
	dlock_queue_set_upgrades(&ticket->entry, false);
	dlock_queue_unlock(ticket->entry.hash);
}

/* Publish a report for a ticket.  True: a holder is to be notified. */
bool
dlock_ticket_publish_report(int64 number, const DlockWaitReport *report, bool logged)
{
	DlockTicket *ticket = lock_waiting(number);
	bool		announce;

	if (ticket == NULL)
		return false;
	ticket->has_waited = true;
	ticket->logged = logged;
	announce = dlock_queue_publish(&ticket->entry, report);
	dlock_queue_unlock(ticket->entry.hash);
	return announce;
}

/*
 * The granter's open transaction has granted a ticket, or refuses it.  The ticket
 * leaves the queue; the end of the transaction decides.  False: it does not wait any
 * more.
 */
bool
dlock_ticket_end(int64 number, DlockTicketState outcome, int64 version,
				 TransactionId xid, bool wake_next)
{
	DlockTicket *ticket = lock_waiting(number);

	if (ticket == NULL)
		return false;
	dlock_queue_remove(&ticket->entry, wake_next);
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket->state = DLOCK_TICKET_ENDING;
	ticket->outcome = outcome;
	ticket->version = version;
	ticket->xid = xid;
	LWLockRelease(dlock_lwlock_tickets());
	dlock_queue_unlock(ticket->entry.hash);
	return true;
}

/* At commit of that transaction. */
void
dlock_ticket_settle(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	ticket = dlock_ticket_memory_find(number);
	ticket->state = ticket->outcome;
	dlock_ticket_memory_keep(ticket);
	LWLockRelease(dlock_lwlock_tickets());
}

/* At rollback: the ticket returns to its position, and is processed again. */
static void
return_ticket(int64 number)
{
	DlockTicket *ticket;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	ticket = dlock_ticket_memory_find(number);
	LWLockRelease(dlock_lwlock_tickets());

	/* nobody else changes a ticket that is ending */
	enter_queue(ticket);
}

/* At the end of the transaction that has taken a ticket. */
static void
end_draft(const void *what, bool committed)
{
	int64		number = *(const int64 *) what;

	if (committed)
		publish_ticket(number);
	else
		discard_ticket(number);
}

/* At the end of a granter's transaction that has granted or refused one. */
static void
end_ticket(const void *what, bool committed)
{
	int64		number = *(const int64 *) what;

	if (committed)
		dlock_ticket_settle(number);
	else
		return_ticket(number);
}

/*
 * Tickets and the table of locks.  A ticket is memory, and so outlives the table that
 * it was meant for.  If another table is created in the transaction that drops it,
 * nobody but us can tell.
 */
typedef struct Dropped
{
	int			db;
	int64		last;			/* no ticket up to this one will be granted */
} Dropped;

/* Our transaction drops the table.  It holds a lock that keeps out all new tickets. */
void
dlock_ticket_table_dropped(void)
{
	DlockDatabase *database = dlock_database(MyDatabaseId);
	Dropped		dropped = {0};

	if (database == NULL)
		return;
	dropped.db = dlock_database_number(database);
	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	dropped.last = dlock_ticket_memory_last();
	LWLockRelease(dlock_lwlock_tickets());
	(void) dlock_journal_add(DLOCK_NOTE_DROPPED, &dropped, sizeof(dropped));
}

/* At commit, before another transaction can open the new table. */
static void
end_dropped(const void *what, bool committed)
{
	const Dropped *dropped = what;

	if (!committed)
		return;
	LWLockAcquire(dlock_lwlock_tickets(), LW_EXCLUSIVE);
	dlock_ticket_memory_database(dropped->db)->dropped = dropped->last;
	LWLockRelease(dlock_lwlock_tickets());
}

/* Was this ticket meant for a table that is gone?  The new one is locked, or no matter. */
bool
dlock_ticket_is_void(int64 number)
{
	bool		result;

	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	result = number <=
		dlock_ticket_memory_database(dlock_database_number(dlock_database(MyDatabaseId)))->dropped;
	LWLockRelease(dlock_lwlock_tickets());
	return result;
}

/* At load time. */
void
dlock_ticket_init(void)
{
	dlock_journal_register(DLOCK_NOTE_DROPPED, end_dropped);
	dlock_journal_register(DLOCK_NOTE_DRAFT, end_draft);
	dlock_journal_register(DLOCK_NOTE_TICKET, end_ticket);
}

/* The numbers of all tickets that wait in a database, for its granter. */
int64 *
dlock_ticket_list(Oid dboid, int *n)
{
	int64	   *numbers = palloc(mul_size(dlock_max_tickets, sizeof(int64)) + 1);
	const DlockTicket *ticket;

	*n = 0;
	LWLockAcquire(dlock_lwlock_tickets(), LW_SHARED);
	for (int i = 0; (ticket = dlock_ticket_memory_at(i)) != NULL; i++)
		if (ticket->state == DLOCK_TICKET_WAITING && ticket->entry.dboid == dboid)
			numbers[(*n)++] = ticket->entry.ticket;
	LWLockRelease(dlock_lwlock_tickets());
	return numbers;
}

/* For the launcher: a database is gone, and its tickets with it. */
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
