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

/* All but the first need the mutex of the handle. */

/* ride.c */
extern void dlock_flight_call(dlock_handle *handle, DlockCall *call);
extern void dlock_flight_wait(dlock_handle *handle, DlockCall *call);
extern bool dlock_flight_is_loading(const DlockCall *call);
extern void dlock_flight_leave(dlock_handle *handle, DlockCall *call);
extern void dlock_flight_drop_deserted(dlock_handle *handle);
extern void dlock_flight_hand_over(dlock_handle *handle, const DlockFlight *own);

/* flight.c */
extern DlockFlight *dlock_flight_to_drive(dlock_handle *handle, const DlockCall *call);
extern int64_t dlock_flight_look_at(const DlockCall *call);
extern int64_t dlock_flight_drive(dlock_handle *handle, DlockFlight *flight,
								  const DlockCall *own, int64_t until);
extern bool dlock_flight_needs_driver(const dlock_handle *handle, const DlockFlight *flight);
extern int64_t dlock_flight_depart(dlock_handle *handle, DlockFlight *flight,
								   const DlockCall *own, int64_t *until);
extern bool dlock_flight_is_waiting(const DlockFlight *flight);
extern void dlock_flight_arrive(dlock_handle *handle, DlockFlight *flight,
								const DlockCall *own, int64_t idle_until);
extern bool dlock_flight_is_deserted(const DlockFlight *flight);
extern bool dlock_flight_is_second(const dlock_handle *handle, const DlockFlight *flight);
extern void dlock_flight_drop_conn(dlock_handle *handle, DlockFlight *flight);

/* landing.c */
extern void dlock_flight_settle(dlock_handle *handle, DlockFlight *flight);
extern void dlock_flight_no_memory(dlock_handle *handle, DlockFlight *flight);

#endif							/* DLOCK_FLIGHT_H */
