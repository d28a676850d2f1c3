/*-------------------------------------------------------------------------
 *
 * journal.c
 *	  What the current transaction has done, for its end.
 *
 * Much of what an operation leads to happens only when its transaction ends: those
 * that wait for a key are woken, statistics are counted, tickets enter the queue,
 * the end of a grant is logged.  And a rollback to a savepoint undoes a part of it.
 * So an operation writes notes, each with its subtransaction.  At load time, a
 * module registers what becomes of its kind of notes.  xact.c calls
 * dlock_journal_end() and dlock_journal_abort_sub().
 *
 * The notes are in the order in which they were written.  The end handles them by
 * kind, in the order of DlockNoteKind: what is counted or gone is so before
 * anybody is woken that looks for it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "journal.h"

typedef struct Note
{
	union
	{
		char		what[DLOCK_NOTE_SIZE];
		int64		align;
	}			u;
	DlockNoteKind kind;
	SubTransactionId subid;
} Note;

/*
 * The memory is kept for the next transaction: xact.c does not look at the end of
 * a transaction that has no notes.
 */
static Note *notes = NULL;
static int	nnotes = 0;
static int	maxnotes = 0;
static int	nkind[DLOCK_NOTE_KINDS];	/* how many there are of each kind */
static DlockNoteEnd ends[DLOCK_NOTE_KINDS];

#define KEEP_NOTES	1024

/* At load time: what becomes of this kind of notes. */
void
dlock_journal_register(DlockNoteKind kind, DlockNoteEnd end)
{
	ends[kind] = end;
}

/* Make room for one more note, so that adding it cannot fail. */
void
dlock_journal_reserve(void)
{
	int			newmax = Max(maxnotes * 2, 64);
	Size		size;

	if (nnotes < maxnotes)
		return;
	size = mul_size(newmax, sizeof(Note));
	notes = notes == NULL ? MemoryContextAllocHuge(TopMemoryContext, size) :
		repalloc_huge(notes, size);
	maxnotes = newmax;
}

/*
 * Write a note.  Returns its number, which is valid until the subtransaction ends
 * or an earlier note is taken back.
 */
int
dlock_journal_add(DlockNoteKind kind, const void *what, Size size)
{
	Note	   *note;

	Assert(size <= DLOCK_NOTE_SIZE);
	dlock_journal_reserve();
	note = &notes[nnotes];
	memset(&note->u, 0, sizeof(note->u));
	memcpy(note->u.what, what, size);
	note->kind = kind;
	note->subid = GetCurrentSubTransactionId();
	nkind[kind]++;
	return nnotes++;
}

/* What a note says, for changing it.  The next note may move it. */
void *
dlock_journal_at(int note)
{
	return notes[note].u.what;
}

/* The last note was not needed after all. */
void
dlock_journal_take_back(int note)
{
	Assert(note == nnotes - 1);
	nkind[notes[note].kind]--;
	nnotes = note;
}

/* Only the last note can be taken back. */
bool
dlock_journal_is_last(int note)
{
	return note == nnotes - 1;
}

/* Is this the last note, and does it say the same as the one before it? */
bool
dlock_journal_repeats(int note)
{
	return note == nnotes - 1 && note > 0 &&
		memcmp(&notes[note], &notes[note - 1], sizeof(Note)) == 0;
}

bool
dlock_journal_is_empty(void)
{
	return nnotes == 0;
}

bool
dlock_journal_has(DlockNoteKind kind)
{
	return nkind[kind] > 0;
}

/* The first note of this kind that has the number "from" or a higher one, or -1. */
int
dlock_journal_next(DlockNoteKind kind, int from)
{
	for (int i = from; i < nnotes && nkind[kind] > 0; i++)
		if (notes[i].kind == kind)
			return i;
	return -1;
}

/* These notes and all that follow have come to their end.  Must not fail. */
static void
end_from(int first, bool committed)
{
	for (int kind = 0; kind < DLOCK_NOTE_KINDS; kind++)
		for (int i = first; i < nnotes && nkind[kind] > 0; i++)
			if (notes[i].kind == kind)
			{
				ends[kind] (notes[i].u.what, committed);
				nkind[kind]--;
			}
	nnotes = first;
}

/* The transaction has ended.  Called by xact.c; must not fail. */
void
dlock_journal_end(bool committed)
{
	end_from(0, committed);
	if (maxnotes > KEEP_NOTES)
	{
		pfree(notes);
		notes = NULL;
		maxnotes = 0;
	}
}

/*
 * A subtransaction is rolled back, with those within it, which have higher numbers.
 * Their notes come last.  Called by xact.c; must not fail.
 */
void
dlock_journal_abort_sub(SubTransactionId subid)
{
	int			first = nnotes;

	while (first > 0 && notes[first - 1].subid >= subid)
		first--;
	end_from(first, false);
}
