/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  What an error of the server means.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_ERRORS_H
#define DLOCK_ERRORS_H

#include <stdbool.h>
#include <stdint.h>

#include "dlock.h"

extern void dlock_error_make(dlock_error *error, const char *code,
							 const char *text, const char *detail,
							 const char *hint);
extern void dlock_error_parse(dlock_error *error, const char *text);
extern bool dlock_error_classify(dlock_error *error);
extern bool dlock_error_full(const dlock_error *error);
extern bool dlock_error_no_cluster(dlock_error *error, const char *function);
extern bool dlock_error_turned_away(const dlock_error *error);
extern bool dlock_error_timed_out(dlock_error *error, const char *function,
								  int64_t took_ms, int64_t statement_timeout_ms);

#endif							/* DLOCK_ERRORS_H */
