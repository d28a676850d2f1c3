/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  The error codes that dlock defines.
 *
 * All other errors use PostgreSQL's codes.  Clients branch on the code, never
 * on the text.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ERRORS_H
#define DLOCK_ERRORS_H

#include "utils/elog.h"

/* the caller is not the holder of the lock, or no longer */
#define ERRCODE_DLOCK_FENCED	MAKE_SQLSTATE('L','K','0','0','1')

/* the key belongs to a shard that this database does not serve */
#define ERRCODE_DLOCK_NOT_SERVED	MAKE_SQLSTATE('L','K','0','0','2')

#endif							/* DLOCK_ERRORS_H */
