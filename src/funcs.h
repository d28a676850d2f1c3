/*-------------------------------------------------------------------------
 *
 * funcs.h
 *	  What the SQL entry points share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FUNCS_H
#define DLOCK_FUNCS_H

#include "fmgr.h"

extern void dlock_funcs_prevent_read_only(const char *what);
extern void dlock_funcs_require_primary(const char *what);
extern void dlock_funcs_check_key(const char *key, int keylen);
extern void dlock_funcs_fence(const char *key, int keylen, int64 version, Oid role);

#endif							/* DLOCK_FUNCS_H */
