/*-------------------------------------------------------------------------
 *
 * async.h
 *	  Calls of a program with an event loop.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ASYNC_H
#define DLOCK_ASYNC_H

#include "dlock.h"
#include "op.h"

struct dlock_op
{
	DlockOp		op;				/* first, so that both have one address */
	char	   *value;
	dlock_done	done;
	void	   *arg;
	dlock_op   *prev;			/* under way */
	dlock_op   *next;			/* under way, or done */
	bool		cancelling;		/* by a thread, which will finish it */
	bool		finished;
};

/* async.c */
extern void dlock_async_finish(dlock_handle *handle, dlock_op *op); /* with the mutex */
extern void dlock_async_stop(dlock_handle *handle);
extern void dlock_async_free(dlock_handle *handle);

/* pilot.c */
extern dlock_status dlock_pilot_start(dlock_handle *handle, dlock_error *err);	/* the same */
extern bool dlock_pilot_stop(dlock_handle *handle);

#endif							/* DLOCK_ASYNC_H */
