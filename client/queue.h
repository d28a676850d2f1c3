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

extern void dlock_flight_add(dlock_handle *handle, DlockCall *call);
extern int64_t dlock_flight_limit(const DlockCall *call);
extern void dlock_queue_put_back(DlockFlight *flight, DlockCall **calls, int n);
extern void dlock_queue_take_out(DlockFlight *flight, DlockCall *call);
extern int64_t dlock_queue_next_ready(const DlockFlight *flight);
extern void dlock_queue_board(DlockFlight *flight, int64_t now);
extern void dlock_call_finish(DlockFlight *flight, DlockCall *call);
extern void dlock_call_finish_with(DlockFlight *flight, DlockCall *call,
								   const dlock_error *error);

#endif							/* DLOCK_QUEUE_H */
