/*-------------------------------------------------------------------------
 *
 * api.h
 *	  What the files of the api share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_API_H
#define DLOCK_API_H

#include "engine/engine.h"

/* handle.c */
extern bool dlock_handle_is_forked(const dlock_handle *handle);
extern dlock_status dlock_handle_may_ask(dlock_handle *handle, dlock_error *err);
extern dlock_status dlock_handle_may_start(dlock_handle *handle, dlock_error *err);
extern dlock_status dlock_handle_start(dlock_op *op, dlock_op **started, dlock_error *err);
extern int64_t dlock_handle_timeout(const dlock_handle *handle, int64_t timeout_ms);
extern bool dlock_handle_take_options(void *to, size_t to_size, const void *from,
									  size_t from_size);

/* lock.c */
extern dlock_status dlock_lock_checked(const char *state);

#endif							/* DLOCK_API_H */
