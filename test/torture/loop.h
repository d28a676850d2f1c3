/*-------------------------------------------------------------------------
 *
 * loop.h
 *	  A thread that uses locks of libdlock by calls that do not block.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_LOOP_H
#define TORTURE_LOOP_H

/* Until the client is told to stop.  A handle has one of these at most. */
extern void loop_run(void);

#endif							/* TORTURE_LOOP_H */
