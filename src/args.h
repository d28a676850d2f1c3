/*-------------------------------------------------------------------------
 *
 * args.h
 *	  Reading and checking the arguments of the SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ARGS_H
#define DLOCK_ARGS_H

#include "fmgr.h"

#include "fsm.h"

#define DLOCK_NO_ARG	(-1)

#define DLOCK_MAX_VALUE	(64 * 1024)

/* of dlock_acquire_all */
#define DLOCK_MAX_KEYS	1000

extern void dlock_args_require_primary(const char *what);
extern void dlock_args_prevent_read_only(const char *what);

extern void dlock_args_null(const char *name);
extern void dlock_args_check_key(const char *key, int keylen);
extern void dlock_args_key(FunctionCallInfo fcinfo, DlockRequest *request);
extern char *dlock_args_text(FunctionCallInfo fcinfo, int argno,
							 const char *name, int limit);
extern int64 dlock_args_ttl(FunctionCallInfo fcinfo, int argno);
extern int64 dlock_args_span(FunctionCallInfo fcinfo, int argno,
							 const char *name);
extern int64 dlock_args_wait(FunctionCallInfo fcinfo, int argno,
							 const char *name);
extern void dlock_args_claim(FunctionCallInfo fcinfo, int version_arg,
							 int owner_arg, DlockRequest *request);
extern void dlock_args_acquire(FunctionCallInfo fcinfo, DlockRequest *request);
extern void dlock_args_enqueue(FunctionCallInfo fcinfo, DlockRequest *request);
extern DlockRequest *dlock_args_acquire_all(FunctionCallInfo fcinfo, int *nkeys);

#endif							/* DLOCK_ARGS_H */
