/*-------------------------------------------------------------------------
 *
 * due.h
 *	  When a granter has to look at a ticket by itself.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DUE_H
#define DLOCK_DUE_H

extern void dlock_due_set(int64 ticket, int64 when);
extern int64 dlock_due_next(void);
extern int	dlock_due_take(int64 now, int64 *tickets, int max);

#endif							/* DLOCK_DUE_H */
