/*-------------------------------------------------------------------------
 *
 * user.h
 *	  A thread that uses locks of libdlock by calls that block.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_USER_H
#define TORTURE_USER_H

#include <stdbool.h>

/* Until the client is told to stop; "kinds": also by SQL, see kinds.h. */
extern void user_run(bool kinds);

#endif							/* TORTURE_USER_H */
