/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  Calls that wait for the next flight.  All need the mutex of the handle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_QUEUE_H
#define DLOCK_QUEUE_H

#include "call.h"
#include "handle.h"

/* Which calls; see queue.c. */
typedef enum DlockWhich
{
	DLOCK_NONE, DLOCK_QUICK, DLOCK_SLOW, DLOCK_ALL
} DlockWhich;

extern void dlock_flight_add(dlock_handle *handle, DlockCall *call);
extern int64_t dlock_flight_limit(const DlockCall *call);
extern void dlock_queue_put_back(DlockQueue *queue, DlockCall **calls, int n);
extern void dlock_queue_take_out(DlockQueue *queue, DlockCall *call);
extern int64_t dlock_queue_next_ready(const DlockQueue *queue);
extern bool dlock_queue_has(const DlockQueue *queue, DlockWhich which, int64_t now);
extern bool dlock_call_is_quick(const DlockCall *call);
extern void dlock_queue_board(DlockQueue *queue, DlockFlight *flight, DlockWhich which,
							  const DlockCall *own, bool is_second, int64_t now);
extern void dlock_call_finish(DlockFlight *flight, DlockCall *call);
extern void dlock_call_finish_with(DlockFlight *flight, DlockCall *call,
								   const dlock_error *error);

#endif							/* DLOCK_QUEUE_H */
