/*-------------------------------------------------------------------------
 *
 * tell.h
 *	  Calling the program back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_TELL_H
#define DLOCK_TELL_H

#include "handle.h"

extern bool dlock_tell(dlock_handle *handle, int64_t now);

#endif							/* DLOCK_TELL_H */
