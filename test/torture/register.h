/*-------------------------------------------------------------------------
 *
 * register.h
 *	  The fenced register: what the locks of a torture run protect.
 *
 *-------------------------------------------------------------------------
 */
#ifndef TORTURE_REGISTER_H
#define TORTURE_REGISTER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum RegisterOutcome
{
	REGISTER_OK,
	REGISTER_FENCED,			/* LK001: nothing was written */
	REGISTER_ERROR,				/* nothing was written, for another reason */
	REGISTER_UNKNOWN			/* there is no answer to COMMIT */
} RegisterOutcome;

/*
 * One transaction: fence, count, record in the journal.  Pauses for fence_ms
 * after the fence, and for commit_ms before the commit.
 */
extern RegisterOutcome register_write(const char *key, int64_t version, int client, long op,
									  int fence_ms, int commit_ms, int64_t *n, char *sqlstate);
extern void register_close(void);

#endif							/* TORTURE_REGISTER_H */
