/*-------------------------------------------------------------------------
 *
 * fork.h
 *	  Handles in a process that did not open them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FORK_H
#define DLOCK_FORK_H

#include "handle.h"

extern void dlock_fork_watch(void);
extern bool dlock_forked(const dlock_handle *handle);
extern void dlock_forked_close(dlock_handle *handle);

#endif							/* DLOCK_FORK_H */
