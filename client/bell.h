/*-------------------------------------------------------------------------
 *
 * bell.h
 *	  Waking a thread that sleeps in poll().
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BELL_H
#define DLOCK_BELL_H

#include <stdbool.h>

typedef struct DlockBell
{
	int			fds[2];			/* of a pipe; -1: it is not made yet */
} DlockBell;

extern void dlock_bell_init(DlockBell *bell);
extern bool dlock_bell_make(DlockBell *bell);
extern int	dlock_bell_fd(const DlockBell *bell);
extern void dlock_bell_ring(const DlockBell *bell);
extern void dlock_bell_quiet(const DlockBell *bell);
extern void dlock_bell_free(DlockBell *bell);

#endif							/* DLOCK_BELL_H */
