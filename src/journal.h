/*-------------------------------------------------------------------------
 *
 * journal.h
 *	  What the current transaction has done, for its end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_JOURNAL_H
#define DLOCK_JOURNAL_H

/* In the order in which the end of a transaction handles them. */
typedef enum DlockNoteKind
{
	DLOCK_NOTE_COUNT,			/* DlockStat: the commit counts it */
	DLOCK_NOTE_PIN,				/* a key is marked (places.c) */
	DLOCK_NOTE_REMOVED,			/* a row is removed (place_count.c) */
	DLOCK_NOTE_YIELD,			/* int64: a holder yields, asked at that time */
	DLOCK_NOTE_POLICY,			/* Oid: the table of policies is changed */
	DLOCK_NOTE_DRAFT,			/* int64: a ticket that was taken */
	DLOCK_NOTE_TICKET,			/* int64: a ticket that was granted or refused */
	DLOCK_NOTE_DROPPED,			/* the table of locks is dropped (ticket.c) */
	DLOCK_NOTE_TABLE,			/* Oid: the table of locks was changed by SQL,
								 * or dropped */
	DLOCK_NOTE_KEY,				/* DlockChange: a key has changed, wake those
								 * that wait for it */
	DLOCK_NOTE_LOST,			/* DlockKey *: its holder has lost a grant */
	DLOCK_NOTE_LOG,				/* a pointer: the end of a grant, for the log */
	DLOCK_NOTE_SESSION,			/* int64: a version that ends with its session */
	DLOCK_NOTE_ENDED			/* int64: a version that has ended */
} DlockNoteKind;

#define DLOCK_NOTE_KINDS	(DLOCK_NOTE_ENDED + 1)

/* What a note says; its kind tells which type this is. */
#define DLOCK_NOTE_SIZE		32

/*
 * What becomes of a note: its transaction has committed, or it was rolled back, or
 * its subtransaction was.  Must not fail, and must not write another note.
 */
typedef void (*DlockNoteEnd) (const void *what, bool committed);

extern void dlock_journal_register(DlockNoteKind kind, DlockNoteEnd end);

extern void dlock_journal_reserve(void);
extern int	dlock_journal_add(DlockNoteKind kind, const void *what, Size size);
extern void *dlock_journal_at(int note);
extern void dlock_journal_take_back(int note);
extern bool dlock_journal_is_last(int note);
extern bool dlock_journal_repeats(int note);
extern bool dlock_journal_is_empty(void);
extern bool dlock_journal_has(DlockNoteKind kind);
extern int	dlock_journal_next(DlockNoteKind kind, int from);

/* for xact.c */
extern void dlock_journal_end(bool committed);
extern void dlock_journal_abort_sub(SubTransactionId subid);

#endif							/* DLOCK_JOURNAL_H */
