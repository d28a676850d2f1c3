/*-------------------------------------------------------------------------
 *
 * using.h
 *	  Which process is using a row.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_USING_H
#define DLOCK_USING_H

#include "access/htup.h"

extern int	dlock_using_xid(TransactionId xid);
extern int	dlock_using_row(HeapTuple tuple);

#endif							/* DLOCK_USING_H */
