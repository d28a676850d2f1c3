/*-------------------------------------------------------------------------
 *
 * inspect.h
 *	  Statements that only read, for the command line.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_INSPECT_H
#define DLOCK_INSPECT_H

#include "dlock.h"
#include "net/reply.h"

extern dlock_status dlock_read(dlock_handle *handle, const char *sql,
							   int64_t timeout_ms, DlockReply **reply,
							   dlock_error *err);
extern dlock_status dlock_list_by(dlock_handle *handle, const char *sql,
								  const char *pattern, const char *after,
								  int64_t limit, int64_t timeout_ms,
								  dlock_info **infos, size_t *n,
								  dlock_error *err);

#endif							/* DLOCK_INSPECT_H */
