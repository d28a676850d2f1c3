/*-------------------------------------------------------------------------
 *
 * funcs.h
 *	  What the SQL functions share with the trigger.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FUNCS_H
#define DLOCK_FUNCS_H

extern void dlock_funcs_fence(const char *key, int keylen, int64 version, Oid role,
							  bool exclusive_only);

#endif							/* DLOCK_FUNCS_H */
