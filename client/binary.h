/*-------------------------------------------------------------------------
 *
 * binary.h
 *	  Arrays as parameters, in the server's binary format.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_BINARY_H
#define DLOCK_BINARY_H

#include "buffer.h"
#include "sql.h"

extern void dlock_binary_begin(PQExpBuffer array, DlockType type, int n);
extern void dlock_binary_add(PQExpBuffer array, DlockType type, const char *text);

#endif							/* DLOCK_BINARY_H */
