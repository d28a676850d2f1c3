/*-------------------------------------------------------------------------
 *
 * reply.c
 *	  The rows that a server returned.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include <libpq-fe.h>

#include "dlock.h"
#include "reply.h"

int
dlock_reply_rows(const DlockReply *reply)
{
	return PQntuples(reply->result);
}

/* NULL for null. */
const char *
dlock_reply_get(const DlockReply *reply, int row, int column)
{
	if (row >= PQntuples(reply->result) || PQgetisnull(reply->result, row, column))
		return NULL;
	return PQgetvalue(reply->result, row, column);
}

/* 0 for null. */
int64_t
dlock_reply_int(const DlockReply *reply, int row, int column)
{
	const char *text = dlock_reply_get(reply, row, column);

	return text != NULL ? strtoll(text, NULL, 10) : 0;
}

/* False for null. */
bool
dlock_reply_bool(const DlockReply *reply, int row, int column)
{
	const char *text = dlock_reply_get(reply, row, column);

	return text != NULL && text[0] == 't';
}

/* 1 is exclusive, null is shared. */
int32_t
dlock_reply_slots(const DlockReply *reply, int row, int column)
{
	int64_t		slots = dlock_reply_int(reply, row, column);

	if (dlock_reply_get(reply, row, column) == NULL)
		return DLOCK_SHARED;
	return slots == 1 ? DLOCK_EXCLUSIVE : (int32_t) slots;
}

void
dlock_reply_free(DlockReply *reply)
{
	if (reply == NULL)
		return;
	PQclear(reply->result);
	free(reply);
}
