/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  What a server answered, row by row.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include <libpq-fe.h>

#include "internal.h"

int
dlock_answer_rows(const DlockAnswer *answer)
{
	return PQntuples(answer->result);
}

/* NULL for null. */
const char *
dlock_answer_get(const DlockAnswer *answer, int row, int column)
{
	if (row >= PQntuples(answer->result) || PQgetisnull(answer->result, row, column))
		return NULL;
	return PQgetvalue(answer->result, row, column);
}

/* 0 for null. */
int64_t
dlock_answer_int(const DlockAnswer *answer, int row, int column)
{
	const char *text = dlock_answer_get(answer, row, column);

	return text != NULL ? strtoll(text, NULL, 10) : 0;
}

void
dlock_answer_free(DlockAnswer *answer)
{
	if (answer == NULL)
		return;
	PQclear(answer->result);
	free(answer);
}
