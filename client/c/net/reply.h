/*-------------------------------------------------------------------------
 *
 * reply.h
 *	  The rows that a server returned.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_REPLY_H
#define DLOCK_REPLY_H

#include <stdbool.h>
#include <stdint.h>

/* amounts of anything, and times in milliseconds, are not beyond this: 31,000 years */
#define DLOCK_MAX_AMOUNT INT64_C(1000000000000000)

/*
 * The result of a statement that did not fail, or the row of it that answers one
 * of several calls.
 */
typedef struct DlockReply
{
	struct DlockRows *rows;
	int			row;			/* the only one, or -1: all are ours */
	int			column;			/* the first one */
} DlockReply;

struct pg_result;				/* a PGresult */

extern DlockReply *dlock_reply_make(struct pg_result *result);
extern DlockReply *dlock_reply_row(const DlockReply *reply, int row, int column);

extern int	dlock_reply_rows(const DlockReply *reply);
extern const char *dlock_reply_get(const DlockReply *reply, int row, int column);
extern const char *dlock_reply_text(const DlockReply *reply, int row, int column);
extern int64_t dlock_reply_int(const DlockReply *reply, int row, int column);
extern int64_t dlock_reply_amount(const DlockReply *reply, int row, int column);
extern int	dlock_reply_index(const DlockReply *reply, int row, int column, int n);
extern bool dlock_reply_bool(const DlockReply *reply, int row, int column);
extern int32_t dlock_reply_slots(const DlockReply *reply, int row, int column);
extern void dlock_reply_free(DlockReply *reply);

#endif							/* DLOCK_REPLY_H */
