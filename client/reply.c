/*-------------------------------------------------------------------------
 *
 * reply.c
 *	  The rows that a server returned.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include <libpq-fe.h>

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

void
dlock_reply_free(DlockReply *reply)
{
	if (reply == NULL)
		return;
	PQclear(reply->result);
	free(reply);
}
