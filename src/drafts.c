/*-------------------------------------------------------------------------
 *
 * drafts.c
 *	  The tickets that the current transaction decides about.
 *
 * Those that a backend has taken are drafts: they enter the queue at the commit.
 * Those that a granter has granted or refused have ended at the commit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "drafts.h"
#include "ticket.h"

typedef struct Noted
{
	int64		ticket;
	bool		is_draft;
	SubTransactionId subid;
} Noted;

/* in order; the memory is kept for the next transaction */
static Noted *noted = NULL;
static int	nnoted = 0;
static int	maxnoted = 0;

/* Make room for one more, so that adding it cannot fail. */
void
dlock_drafts_prepare(void)
{
	int			newmax = maxnoted == 0 ? 64 : maxnoted * 2;
	Size		size = mul_size(newmax, sizeof(Noted));

	if (nnoted < maxnoted)
		return;
	noted = noted == NULL ? MemoryContextAlloc(TopMemoryContext, size) :
		repalloc(noted, size);
	maxnoted = newmax;
}

void
dlock_drafts_add(int64 ticket, bool is_draft)
{
	Assert(nnoted < maxnoted);
	noted[nnoted].ticket = ticket;
	noted[nnoted].is_draft = is_draft;
	noted[nnoted].subid = GetCurrentSubTransactionId();
	nnoted++;
}

/* Must not fail. */
static void
end_from(int first, bool committed)
{
	for (int i = first; i < nnoted; i++)
	{
		int64		ticket = noted[i].ticket;

		if (noted[i].is_draft && committed)
			dlock_ticket_publish(ticket);
		else if (noted[i].is_draft)
			dlock_ticket_discard(ticket);
		else if (committed)
			dlock_ticket_settle(ticket);
		else
			dlock_ticket_return(ticket);
	}
	nnoted = first;
}

void
dlock_drafts_at_end(bool committed)
{
	end_from(0, committed);
}

/* Those of this subtransaction and its children come last. */
void
dlock_drafts_at_abort_sub(SubTransactionId subid)
{
	int			first = nnoted;

	while (first > 0 && noted[first - 1].subid >= subid)
		first--;
	end_from(first, false);
}
