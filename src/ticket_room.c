/*-------------------------------------------------------------------------
 *
 * ticket_room.c
 *	  The room that tickets take.
 *
 * It is fixed, because an entry is compared at the commit of any transaction that
 * frees a key, where nothing may fail.  It has two parts.  An entry has room for
 * texts of an ordinary length; longer texts have a place of their own.  Neither
 * is touched before it is used, so room that is never used costs no memory.
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

#include "guc.h"
#include "ticket_room.h"

#define NOBODY			(-1)
#define LONG_TEXT		(DLOCK_MAX_KEY + DLOCK_MAX_OWNER + DLOCK_MAX_TICKET_VALUE + 3)

/* so many tickets a millisecond, on average, do not reach those of the next run */
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
dlock_ticket_room_shmem_size(void)
{
	Size		size = control_size();

	size = add_size(size, MAXALIGN(mul_size(max_entries(), sizeof(DlockTicket))));
	return add_size(size, mul_size(dlock_max_tickets, sizeof(LongText)));
}

void
dlock_ticket_room_shmem_init(void)
{
	bool		found;

	tickets = ShmemInitStruct("dlock tickets", dlock_ticket_room_shmem_size(), &found);
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
dlock_ticket_room_find(int64 number)
{
	for (int i = *head_of_number(number); i != NOBODY; i = entries[i].next_number)
		if (entries[i].waiter.ticket == number)
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

	link = head_of_number(ticket->waiter.ticket);
	while (*link != i)
		link = &entries[*link].next_number;
	*link = ticket->next_number;
}

/*
 * Requests
 *
 * A client that asks again and again leaves thousands of tickets of the same
 * request.  So one that is missed is taken out, because nobody looks for it by its
 * request any more, and taking one out does not look for its place.
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

/* It is not in the queue. */
void
dlock_ticket_room_free(DlockTicket *ticket)
{
	if (is_over(ticket))
		dlist_delete(&ticket->ended);
	else
		tickets->nwaiting--;
	unlink_number(ticket);
	unlink_request(ticket);
	free_long_text(ticket);
	ticket->waiter.ticket = 0;
	ticket->state = DLOCK_TICKET_UNKNOWN;
	ticket->next_free = tickets->free_entry;
	tickets->free_entry = ticket - entries;
}

/* The oldest one that has ended; if need be, one with a long key. */
static void
forget_oldest(bool with_long_text)
{
	dlist_iter	iter;

	dlist_foreach(iter, &tickets->ended)
	{
		DlockTicket *ticket = dlist_container(DlockTicket, ended, iter.cur);

		if (with_long_text && ticket->long_text == NOBODY)
			continue;
		dlock_ticket_room_free(ticket);
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
	pg_atomic_init_u32(&ticket->waiter.woken, 0);
	pg_atomic_init_u32(&ticket->waiter.stale, 0);
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
put_texts(DlockTicket *ticket, const DlockTerms *terms)
{
	int			ownerlen = strlen(terms->owner);
	int			valuelen = terms->value != NULL ? strlen(terms->value) : 0;
	char	   *to = ticket->text;

	ticket->long_text = NOBODY;
	if (terms->keylen + ownerlen + valuelen + 3 > DLOCK_SHORT_TEXT)
	{
		ticket->long_text = take_long_text();
		to = long_texts[ticket->long_text].text;
	}
	ticket->waiter.key = put_text(&to, terms->key, terms->keylen);
	ticket->waiter.owner = put_text(&to, terms->owner, ownerlen);
	ticket->value = terms->value != NULL ? put_text(&to, terms->value, valuelen) : NULL;
}

bool
dlock_ticket_room_is_full(void)
{
	return tickets->nwaiting >= dlock_max_tickets;
}

/* A request for the whole key is another one than a request for a place. */
uint64
dlock_ticket_room_hash(const DlockKey *key, const DlockTerms *terms)
{
	return hash_combine64(key->hash + (terms->slots == DLOCK_EXCLUSIVE ? 0 : 1),
						  dlock_waiter_owner(terms->role, terms->owner));
}

/* A draft, with a number and its texts.  There is room. */
DlockTicket *
dlock_ticket_room_take(const DlockKey *key, const DlockTerms *terms)
{
	DlockTicket *ticket = take_entry();
	int64		number = ++tickets->last_number;
	int		   *head;

	put_texts(ticket, terms);
	ticket->waiter.ticket = number;
	ticket->waiter.ready.ticket = number;
	ticket->waiter.ready.is_listed = false;
	ticket->state = DLOCK_TICKET_DRAFT;
	ticket->request_hash = dlock_ticket_room_hash(key, terms);
	head = head_of_number(number);
	ticket->next_number = *head;
	*head = ticket - entries;
	link_request(ticket);
	tickets->nwaiting++;
	return ticket;
}

/*
 * It has ended.  Remember it until its room is needed; its owner and value are
 * not.
 */
void
dlock_ticket_room_keep(DlockTicket *ticket)
{
	Assert(is_over(ticket));
	tickets->nwaiting--;
	dlist_push_tail(&tickets->ended, &ticket->ended);
	if (ticket->state == DLOCK_TICKET_MISSED)
		unlink_request(ticket);
	if (ticket->long_text == NOBODY || ticket->waiter.keylen >= DLOCK_SHORT_TEXT)
		return;
	memcpy(ticket->text, ticket->waiter.key, ticket->waiter.keylen + 1);
	ticket->waiter.key = ticket->text;
	free_long_text(ticket);
}

static DlockTicket *
entry_or_null(int i)
{
	return i == NOBODY ? NULL : &entries[i];
}

/* The tickets whose requests have this hash: the first one, or NULL. */
DlockTicket *
dlock_ticket_room_first(uint64 request_hash)
{
	return entry_or_null(*head_of_request(request_hash));
}

DlockTicket *
dlock_ticket_room_next(const DlockTicket *ticket)
{
	return entry_or_null(ticket->next_request);
}

/* Any entry, free ones included; NULL: there are no more. */
DlockTicket *
dlock_ticket_room_at(int i)
{
	return i < tickets->nentries ? &entries[i] : NULL;
}
