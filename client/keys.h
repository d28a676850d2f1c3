/*-------------------------------------------------------------------------
 *
 * keys.h
 *	  A statement that only reads, for the command line.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_KEYS_H
#define DLOCK_KEYS_H

#include "dlock.h"
#include "reply.h"

extern dlock_status dlock_read(dlock_handle *handle, const char *sql,
							   int64_t timeout_ms, DlockReply **reply,
							   dlock_error *err);

#endif							/* DLOCK_KEYS_H */
