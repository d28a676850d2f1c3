/*-------------------------------------------------------------------------
 *
 * flight.h
 *	  Calls that go together.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FLIGHT_H
#define DLOCK_FLIGHT_H

#include "call.h"
#include "queue.h"

extern void dlock_flight_call(dlock_handle *handle, DlockCall *call);

/* These need the mutex of the handle. */
extern void dlock_flight_wait(dlock_handle *handle, DlockCall *call);
extern void dlock_flight_leave(dlock_handle *handle, DlockCall *call);
extern int64_t dlock_flight_drive(dlock_handle *handle, int64_t until);
extern void dlock_flight_hand_over(dlock_handle *handle);

#endif							/* DLOCK_FLIGHT_H */
