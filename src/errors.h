/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  The error codes of dlock's own, in one place.
 *
 * Everything else uses the codes of PostgreSQL.  Clients branch on the code,
 * never on the text.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ERRORS_H
#define DLOCK_ERRORS_H

#include "utils/elog.h"

/* the caller is not, or not any more, the holder of the lock */
#define ERRCODE_DLOCK_FENCED	MAKE_SQLSTATE('L','K','0','0','1')

#endif							/* DLOCK_ERRORS_H */
