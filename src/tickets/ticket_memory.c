/*-------------------------------------------------------------------------
 *
 * ticket_memory.c
 *	  The memory of tickets.
 *
 * Its size is fixed, because an entry of the queue is read at the commit of any
 * transaction that frees a key, where nothing may fail.  There are two arrays.  A
 * ticket has room for texts of an ordinary length; longer texts are in an array of
 * their own.  Neither is written before it is used, so pages that are never used
 * take no memory.
 *
 * There are twice as many entries as tickets may wait, so at least that many
 * that have ended are remembered.  If long texts need more room than there is,
 * those with long keys are forgotten earlier.
 *
 * Numbers begin with the time at which the server started, and so are not used
 * again after a restart: a number of an earlier run is unknown.  They stay below
 * 2^53, so that a client may take them for floating-point numbers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "database.h"
#include "guc.h"
#include "tickets/ticket_memory.h"

#define NOBODY			(-1)
#define LONG_TEXT		(DLOCK_MAX_KEY + DLOCK_MAX_OWNER + DLOCK_MAX_TICKET_VALUE + 3)

/*
 * At fewer tickets per millisecond than this, numbers of one run stay below those
 * of the next.
 */
#define NUMBERS_A_MS	4096

typedef union LongText
{
	int			next_free;
	char text[	LONG_TEXT];
} LongText;

typedef struct Tickets
{
	int64		last_number;
	int			nwaiting;		/* drafts included */
	int			nentries;		/* that have been used so far */
	int			nlong;
	int			free_entry;
	int			free_long;
	dlist_head	ended;
	DlockTicketDatabase databases[DLOCK_MAX_DATABASES]; /* by their numbers */
	int			heads[FLEXIBLE_ARRAY_MEMBER];	/* by number, then by request */
} Tickets;

static Tickets *tickets = NULL;
static DlockTicket *entries = NULL;
static LongText *long_texts = NULL;

static int
max_entries(void)
{
	return dlock_max_tickets * 2;
}

static uint32
nheads(void)
{
	return pg_nextpower2_32(Max(max_entries(), 1));
}

static Size
control_size(void)
{
	return MAXALIGN(add_size(offsetof(Tickets, heads),
							 mul_size(nheads(), 2 * sizeof(int))));
}

Size
dlock_ticket_memory_shmem_size(void)
{
	Size		size = control_size();

	size = add_size(size, MAXALIGN(mul_size(max_entries(), sizeof(DlockTicket))));
	return add_size(size, mul_size(dlock_max_tickets, sizeof(LongText)));
}

void
dlock_ticket_memory_shmem_init(void)
{
	bool		found;

	tickets = ShmemInitStruct("dlock tickets", dlock_ticket_memory_shmem_size(), &found);
	entries = (DlockTicket *) ((char *) tickets + control_size());
	long_texts = (LongText *) ((char *) entries +
							   MAXALIGN(max_entries() * sizeof(DlockTicket)));
	if (found)
		return;

	tickets->last_number = GetCurrentTimestamp() / 1000 * NUMBERS_A_MS;
	tickets->nwaiting = 0;
	tickets->nentries = 0;
	tickets->nlong = 0;
	tickets->free_entry = NOBODY;
	tickets->free_long = NOBODY;
	dlist_init(&tickets->ended);
	memset(tickets->databases, 0, sizeof(tickets->databases));
	for (int i = 0; i < DLOCK_MAX_DATABASES; i++)
		dlock_ready_list_init(&tickets->databases[i].ready);
	for (int i = 0; i < 2 * nheads(); i++)
		tickets->heads[i] = NOBODY;
}

static int *
head_of_number(int64 number)
{
	return &tickets->heads[number & (nheads() - 1)];
}

static int *
head_of_request(uint64 hash)
{
	return &tickets->heads[nheads() + (hash & (nheads() - 1))];
}

DlockTicket *
dlock_ticket_memory_find(int64 number)
{
	for (int i = *head_of_number(number); i != NOBODY; i = entries[i].next_number)
		if (entries[i].entry.ticket == number)
			return &entries[i];
	return NULL;
}

static bool
is_over(const DlockTicket *ticket)
{
	return ticket->state == DLOCK_TICKET_GRANTED ||
		ticket->state == DLOCK_TICKET_MISSED;
}

static void
unlink_number(DlockTicket *ticket)
{
	int			i = ticket - entries;
	int		   *link;

	link = head_of_number(ticket->entry.ticket);
	while (*link != i)
		link = &entries[*link].next_number;
	*link = ticket->next_number;
}

/*
 * Requests
 *
 * Tickets are found by the hash of their request, so that a client that asks again
 * gets the ticket that it has.  Such a client may leave thousands of tickets that
 * were missed.  Nobody looks for these, so they are taken out, which takes constant
 * time.
 */

static void
link_request(DlockTicket *ticket)
{
	int			i = ticket - entries;
	int		   *head = head_of_request(ticket->request_hash);

	ticket->has_request = true;
	ticket->previous_request = NOBODY;
	ticket->next_request = *head;
	if (*head != NOBODY)
		entries[*head].previous_request = i;
	*head = i;
}

static void
unlink_request(DlockTicket *ticket)
{
	if (!ticket->has_request)
		return;
	ticket->has_request = false;
	if (ticket->next_request != NOBODY)
		entries[ticket->next_request].previous_request = ticket->previous_request;
	if (ticket->previous_request != NOBODY)
		entries[ticket->previous_request].next_request = ticket->next_request;
	else
		*head_of_request(ticket->request_hash) = ticket->next_request;
}

static void
free_long_text(DlockTicket *ticket)
{
	if (ticket->long_text == NOBODY)
		return;
	long_texts[ticket->long_text].next_free = tickets->free_long;
	tickets->free_long = ticket->long_text;
	ticket->long_text = NOBODY;
}

static void
count_waiting(const DlockTicket *ticket, int change)
{
	tickets->nwaiting += change;
	tickets->databases[ticket->db].nwaiting += change;
	Assert(tickets->databases[ticket->db].nwaiting >= 0);
}

/* Forget a ticket, which is not in the queue. */
void
dlock_ticket_memory_free(DlockTicket *ticket)
{
	if (is_over(ticket))
		dlist_delete(&ticket->ended);
	else
		count_waiting(ticket, -1);
	unlink_number(ticket);
	unlink_request(ticket);
	free_long_text(ticket);
	ticket->entry.ticket = 0;
	ticket->state = DLOCK_TICKET_UNKNOWN;
	ticket->next_free = tickets->free_entry;
	tickets->free_entry = ticket - entries;
}

/* Forget the ticket that ended first, of all or of those that use a long text. */
static void
forget_oldest(bool with_long_text)
{
	dlist_iter	iter;

	dlist_foreach(iter, &tickets->ended)
	{
		DlockTicket *ticket = dlist_container(DlockTicket, ended, iter.cur);

		if (with_long_text && ticket->long_text == NOBODY)
			continue;
		dlock_ticket_memory_free(ticket);
		return;
	}
}

static DlockTicket *
take_entry(void)
{
	DlockTicket *ticket;

	if (tickets->free_entry == NOBODY && tickets->nentries == max_entries())
		forget_oldest(false);
	if (tickets->free_entry != NOBODY)
	{
		ticket = &entries[tickets->free_entry];
		tickets->free_entry = ticket->next_free;
		return ticket;
	}
	Assert(tickets->nentries < max_entries());
	ticket = &entries[tickets->nentries++];
	memset(ticket, 0, sizeof(*ticket));
	pg_atomic_init_u32(&ticket->entry.woken, 0);
	pg_atomic_init_u64(&ticket->entry.changed, 0);
	pg_atomic_init_u32(&ticket->entry.in_circle, 0);
	return ticket;
}

static int
take_long_text(void)
{
	int			i;

	if (tickets->free_long == NOBODY && tickets->nlong == dlock_max_tickets)
		forget_oldest(true);
	if (tickets->free_long == NOBODY)
		return tickets->nlong++;
	i = tickets->free_long;
	tickets->free_long = long_texts[i].next_free;
	return i;
}

static const char *
put_text(char **to, const char *text, int len)
{
	char	   *copy = *to;

	memcpy(copy, text, len);
	copy[len] = '\0';
	*to += len + 1;
	return copy;
}

static void
put_texts(DlockTicket *ticket, const DlockKey *key, const DlockTerms *terms)
{
	int			ownerlen = strlen(terms->owner);
	int			valuelen = terms->value != NULL ? strlen(terms->value) : 0;
	char	   *to = ticket->text;

	ticket->long_text = NOBODY;
	if (key->len + ownerlen + valuelen + 3 > DLOCK_SHORT_TEXT)
	{
		ticket->long_text = take_long_text();
		to = long_texts[ticket->long_text].text;
	}
	ticket->entry.key = put_text(&to, key->data, key->len);
	ticket->entry.terms.owner = put_text(&to, terms->owner, ownerlen);
	ticket->entry.terms.value = terms->value != NULL ?
		put_text(&to, terms->value, valuelen) : NULL;
}

/* What belongs to a database, by its number. */
DlockTicketDatabase *
dlock_ticket_memory_database(int db)
{
	return &tickets->databases[db];
}

/* The number that was taken last. */
int64
dlock_ticket_memory_last(void)
{
	return tickets->last_number;
}

/* In all databases. */
int
dlock_ticket_memory_waiting(void)
{
	return tickets->nwaiting;
}

bool
dlock_ticket_memory_is_full(void)
{
	return tickets->nwaiting >= dlock_max_tickets;
}

/* The hash of a request.  One for the whole key differs from one for a place. */
uint64
dlock_ticket_memory_hash(const DlockKey *key, const DlockTerms *terms)
{
	return hash_combine64(key->hash + (terms->capacity == DLOCK_EXCLUSIVE ? 0 : 1),
						  dlock_queue_owner_name(terms->role, terms->owner));
}

/* A draft, with a number, its terms and its texts.  The caller knows that there is room. */
DlockTicket *
dlock_ticket_memory_take(const DlockKey *key, const DlockTerms *terms, int db)
{
	DlockEntrant entrant = {.kind = DLOCK_WAIT_TURN,.terms = *terms};
	DlockTicket *ticket = take_entry();
	int64		number = ++tickets->last_number;
	int		   *head;

	dlock_queue_fill(&ticket->entry, key, &entrant);
	put_texts(ticket, key, terms);
	ticket->entry.ticket = number;
	ticket->entry.ready.ticket = number;
	ticket->entry.ready.list = &tickets->databases[db].ready;
	ticket->entry.ready.is_listed = false;
	ticket->db = db;
	ticket->state = DLOCK_TICKET_DRAFT;
	ticket->request_hash = dlock_ticket_memory_hash(key, terms);
	head = head_of_number(number);
	ticket->next_number = *head;
	*head = ticket - entries;
	link_request(ticket);
	count_waiting(ticket, 1);
	return ticket;
}

/*
 * A ticket has ended.  Keep it until its memory is needed, with its key, but without
 * its owner and value.
 */
void
dlock_ticket_memory_keep(DlockTicket *ticket)
{
	Assert(is_over(ticket));
	count_waiting(ticket, -1);
	dlist_push_tail(&tickets->ended, &ticket->ended);
	if (ticket->state == DLOCK_TICKET_MISSED)
		unlink_request(ticket);
	if (ticket->long_text == NOBODY || ticket->entry.keylen >= DLOCK_SHORT_TEXT)
		return;
	memcpy(ticket->text, ticket->entry.key, ticket->entry.keylen + 1);
	ticket->entry.key = ticket->text;
	free_long_text(ticket);
}

static DlockTicket *
entry_or_null(int i)
{
	return i == NOBODY ? NULL : &entries[i];
}

/* The tickets whose requests have this hash: the first one, or NULL. */
DlockTicket *
dlock_ticket_memory_first(uint64 request_hash)
{
	return entry_or_null(*head_of_request(request_hash));
}

DlockTicket *
dlock_ticket_memory_next(const DlockTicket *ticket)
{
	return entry_or_null(ticket->next_request);
}

/* Any entry, free ones included; NULL: there are no more. */
DlockTicket *
dlock_ticket_memory_at(int i)
{
	return i < tickets->nentries ? &entries[i] : NULL;
}
