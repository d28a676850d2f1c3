/*-------------------------------------------------------------------------
 *
 * resolve.h
 *	  Looking up host names without blocking.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_RESOLVE_H
#define DLOCK_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct DlockResolve DlockResolve;

extern DlockResolve *dlock_resolve_start(const char *host);
extern int	dlock_resolve_fd(const DlockResolve *job);
extern int	dlock_resolve_take(DlockResolve *job, char ***addresses,
							   char *message, size_t size);
extern void dlock_resolve_abandon(DlockResolve *job);
extern bool dlock_resolve_needed(const char *host);

#endif							/* DLOCK_RESOLVE_H */
