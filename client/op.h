/*-------------------------------------------------------------------------
 *
 * op.h
 *	  One acquire, or one release, step by step.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_OP_H
#define DLOCK_OP_H

#include "call.h"
#include "handle.h"

/* What it does next, or waits for. */
typedef enum DlockStage
{
	DLOCK_STAGE_START,			/* nothing yet, or a pause before it */
	DLOCK_STAGE_TRY,
	DLOCK_STAGE_ENQUEUE,
	DLOCK_STAGE_WAIT,			/* for its ticket; see wait.c */
	DLOCK_STAGE_CLAIM,			/* asks what has become of the ticket */
	DLOCK_STAGE_CONFIRM,
	DLOCK_STAGE_DEQUEUE,
	DLOCK_STAGE_END
} DlockStage;

typedef struct DlockOp
{
	DlockWaker	waker;			/* of its owner; first, see async.c */

	/* constant */
	dlock_handle *handle;
	dlock_options options;		/* checked; its texts are the caller's */
	int64_t		timeout_ms;
	int64_t		wait_until;
	int64_t		until;			/* wait_until and the timeout */

	/* protected by the mutex of the handle, as is everything below */
	dlock_lock *lock;			/* what is asked for */
	DlockStage	stage;
	int64_t		due;			/* START, WAIT: when to go on */
	DlockCall	call;
	bool		in_doubt;		/* a try may have been granted */
	bool		in_queue;		/* a ticket may wait, or have been granted */
	dlock_status status;		/* END */
	dlock_error error;

	/* the ticket; see wait.c */
	struct DlockOp *prev;		/* of those that wait */
	struct DlockOp *next;
	bool		listed;
	int64_t		ticket;			/* 0: none */
	bool		heard;			/* its turn may have come */
	int64_t		quiet_until;	/* what is heard before is not acted upon */
	int64_t		asked_at;		/* when a server last knew of it */
	bool		said_missed;	/* an event did, and why: see error */
	int			missed;			/* so often without one */

	/* if it is a release instead; see giveback.c */
	bool		is_release;
	bool		stopped;		/* its renewals */
	int64_t		deadline;		/* until when it is ours */

	/* parameters */
	char		texts[6][32];
	const char *params[13];
} DlockOp;

extern dlock_status dlock_op_init(DlockOp *op, dlock_handle *handle,
								  const char *key, const dlock_options *options,
								  int64_t wait_until, dlock_error *err);
extern bool dlock_op_can_wait(const dlock_options *options);
extern void dlock_op_set_terms(DlockOp *op);
extern dlock_status dlock_op_run(DlockOp *op, dlock_error *err);

/* These need the mutex of the handle. */
extern bool dlock_op_step(DlockOp *op);
extern int64_t dlock_op_due(const DlockOp *op);
extern void dlock_op_abandon(DlockOp *op, dlock_status status, const char *why);
extern void dlock_op_ask(DlockOp *op, DlockStage stage, DlockKind kind,
						 const char *sql, int nparams);
extern void dlock_op_submit(DlockOp *op);
extern void dlock_op_end(DlockOp *op);
extern void dlock_op_end_with(DlockOp *op, const dlock_error *error);

/* giveback.c */
extern void dlock_op_init_release(DlockOp *op, dlock_lock *lock, int64_t timeout_ms);
extern bool dlock_op_step_release(DlockOp *op);

#endif							/* DLOCK_OP_H */
