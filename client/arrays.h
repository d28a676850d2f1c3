/*-------------------------------------------------------------------------
 *
 * arrays.h
 *	  Several grants as parameters of a statement.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ARRAYS_H
#define DLOCK_ARRAYS_H

#include "buffer.h"
#include "handle.h"

/* The first three parameters of statements about several grants (sql.c). */
typedef struct DlockArrays
{
	PQExpBufferData keys;
	PQExpBufferData versions;
	PQExpBufferData owners;
} DlockArrays;

extern void dlock_arrays_init(DlockArrays *arrays);
extern void dlock_arrays_add(DlockArrays *arrays, const dlock_lock *lock);
extern bool dlock_arrays_params(DlockArrays *arrays, const char **params);
extern void dlock_arrays_free(DlockArrays *arrays);

extern void dlock_array_next(PQExpBuffer array);
extern void dlock_array_text(PQExpBuffer array, const char *text);
extern bool dlock_array_end(PQExpBuffer array);

#endif							/* DLOCK_ARRAYS_H */
