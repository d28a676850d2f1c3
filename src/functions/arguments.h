/*-------------------------------------------------------------------------
 *
 * arguments.h
 *	  Reading and checking the arguments of the SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_FUNCTIONS_ARGUMENTS_H
#define DLOCK_FUNCTIONS_ARGUMENTS_H

#include "fmgr.h"

#include "rules/lock_rules.h"

#define DLOCK_NO_ARG	(-1)

/* of dlock_acquire_all */
#define DLOCK_MAX_KEYS	1000

extern void dlock_arguments_require_primary(const char *what);
extern void dlock_arguments_prevent_read_only(const char *what);

extern void dlock_arguments_null(const char *name) __attribute__((noreturn));
extern void dlock_arguments_check_key(const char *key, int keylen);
extern void dlock_arguments_key(FunctionCallInfo fcinfo, DlockRequest *request);
extern char *dlock_arguments_text(FunctionCallInfo fcinfo, int argno,
								  const char *name, int limit);
extern int64 dlock_arguments_ttl(FunctionCallInfo fcinfo, int argno);
extern int64 dlock_arguments_span(FunctionCallInfo fcinfo, int argno,
								  const char *name);
extern int64 dlock_arguments_wait(FunctionCallInfo fcinfo, int argno,
								  const char *name);
extern void dlock_arguments_claim(FunctionCallInfo fcinfo, int version_arg,
								  int owner_arg, DlockRequest *request);
extern void dlock_arguments_acquire(FunctionCallInfo fcinfo, DlockRequest *request);
extern void dlock_arguments_limit(FunctionCallInfo fcinfo, DlockRequest *request);
extern void dlock_arguments_enqueue(FunctionCallInfo fcinfo, DlockRequest *request);
extern DlockRequest *dlock_arguments_acquire_all(FunctionCallInfo fcinfo, int *nkeys);

#endif							/* DLOCK_FUNCTIONS_ARGUMENTS_H */
