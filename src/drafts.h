/*-------------------------------------------------------------------------
 *
 * drafts.h
 *	  The tickets that the current transaction decides about.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DRAFTS_H
#define DLOCK_DRAFTS_H

extern void dlock_drafts_prepare(void);
extern void dlock_drafts_add(int64 ticket, bool is_draft);
extern void dlock_drafts_at_end(bool committed);
extern void dlock_drafts_at_abort_sub(SubTransactionId subid);

#endif							/* DLOCK_DRAFTS_H */
