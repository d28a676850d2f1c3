/*-------------------------------------------------------------------------
 *
 * reply.c
 *	  The rows that a server returned.
 *
 * The server may be broken, or not ours.  So nothing here relies on what it says: there
 * may be any number of rows and columns, and any text or null in each.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include <libpq-fe.h>

#include "base/constants.h"
#include "net/reply.h"

/* What replies share; the threads that free them may run at the same time. */
typedef struct DlockRows
{
	PGresult   *result;
	int			users;			/* atomic */
} DlockRows;

/* It takes the result over.  NULL: no memory, and the result is still there. */
DlockReply *
dlock_reply_make(PGresult *result)
{
	DlockReply *reply = malloc(sizeof(DlockReply));
	DlockRows  *rows = malloc(sizeof(DlockRows));

	if (reply == NULL || rows == NULL)
	{
		free(reply);
		free(rows);
		return NULL;
	}
	rows->result = result;
	rows->users = 1;
	reply->rows = rows;
	reply->row = -1;
	reply->column = 0;
	return reply;
}

/* One row of it, from that column on, to be freed on its own.  NULL: no memory. */
DlockReply *
dlock_reply_row(const DlockReply *reply, int row, int column)
{
	DlockReply *made = malloc(sizeof(DlockReply));

	if (made == NULL)
		return NULL;
	made->rows = reply->rows;
	made->row = row;
	made->column = column;
	__atomic_fetch_add(&reply->rows->users, 1, __ATOMIC_RELAXED);
	return made;
}

int
dlock_reply_rows(const DlockReply *reply)
{
	return reply->row < 0 ? PQntuples(reply->rows->result) : 1;
}

/* NULL for null. */
const char *
dlock_reply_get(const DlockReply *reply, int row, int column)
{
	const PGresult *result = reply->rows->result;

	if (row >= dlock_reply_rows(reply))
		return NULL;
	if (reply->row >= 0)
		row = reply->row;
	column += reply->column;
	/* libpq would say so in a notice, and that is all */
	if (column >= PQnfields(result))
		return NULL;
	return PQgetisnull(result, row, column) ? NULL : PQgetvalue(result, row, column);
}

/* The same of a column that no server of ours leaves null: "" for null. */
const char *
dlock_reply_text(const DlockReply *reply, int row, int column)
{
	const char *text = dlock_reply_get(reply, row, column);

	return text != NULL ? text : "";
}

/* 0 for null.  It may be any number, as of a version; see dlock_reply_amount(). */
int64_t
dlock_reply_int(const DlockReply *reply, int row, int column)
{
	const char *text = dlock_reply_get(reply, row, column);

	return text != NULL ? strtoll(text, NULL, 10) : 0;
}

/* A number or a time to compute with: it is cut, so that nothing overflows. */
int64_t
dlock_reply_amount(const DlockReply *reply, int row, int column)
{
	int64_t		number = dlock_reply_int(reply, row, column);

	if (number > DLOCK_MAX_AMOUNT)
		return DLOCK_MAX_AMOUNT;
	return number < -DLOCK_MAX_AMOUNT ? -DLOCK_MAX_AMOUNT : number;
}

/* Which of n things a row is about, whose numbers are from 1: from 0, or -1 for none. */
int
dlock_reply_index(const DlockReply *reply, int row, int column, int n)
{
	int64_t		number = dlock_reply_int(reply, row, column);

	return number >= 1 && number <= n ? (int) number - 1 : -1;
}

/* False for null. */
bool
dlock_reply_bool(const DlockReply *reply, int row, int column)
{
	const char *text = dlock_reply_get(reply, row, column);

	return text != NULL && text[0] == 't';
}

/* 1 is exclusive, null is shared: DLOCK_SHARED. */
int32_t
dlock_reply_slots(const DlockReply *reply, int row, int column)
{
	int64_t		slots = dlock_reply_int(reply, row, column);

	if (dlock_reply_get(reply, row, column) == NULL)
		return DLOCK_SHARED;
	return slots >= 1 && slots <= INT32_MAX ? (int32_t) slots : 1;
}

void
dlock_reply_free(DlockReply *reply)
{
	if (reply == NULL)
		return;
	if (__atomic_sub_fetch(&reply->rows->users, 1, __ATOMIC_ACQ_REL) == 0)
	{
		PQclear(reply->rows->result);
		free(reply->rows);
	}
	free(reply);
}
