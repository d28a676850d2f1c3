/*-------------------------------------------------------------------------
 *
 * deadlock.h
 *	  Finds processes that wait for each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_DEADLOCK_H
#define DLOCK_DEADLOCK_H

extern void dlock_deadlock_check(int64 believe_since, bool *suspected);

#endif							/* DLOCK_DEADLOCK_H */
