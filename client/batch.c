/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  The statement of a flight: several calls as one.
 *
 * Calls of one kind are the rows of one SELECT, whose parameters are arrays.
 * Several kinds are joined by UNION ALL.  So a flight is always one statement,
 * which is one transaction, also through a pooler.  A pipeline would do the same
 * with several statements, but older libpq loses count when the commit at its
 * end fails.
 *
 * The kinds are executed in the order of DlockKind: what is released first can be
 * acquired by a neighbour.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "binary.h"
#include "constants.h"

/* Those of one kind together, in the order in which they came. */
void
dlock_batch_sort(DlockCall **calls, int n)
{
	DlockCall  *sorted[DLOCK_MAX_FLIGHT] = {0};
	int			at = 0;

	for (DlockKind kind = 0; kind < DLOCK_KINDS; kind++)
		for (int i = 0; i < n; i++)
			if (calls[i]->kind == kind)
				sorted[at++] = calls[i];
	memcpy(calls, sorted, (size_t) at * sizeof(DlockCall *));
}

/* The first call of that kind among sorted ones; n if there is none. */
int
dlock_batch_find(DlockCall *const *calls, int n, DlockKind kind)
{
	int			i = 0;

	while (i < n && calls[i]->kind != kind)
		i++;
	return i;
}

/* A part of the statement; its parameters come after those of earlier parts. */
static void
append_part(PQExpBuffer text, DlockKind kind, int before)
{
	const char *at = dlock_sql_parts[kind].text;

	appendPQExpBuffer(text, "%sSELECT %d, ", text->len > 0 ? " UNION ALL " : "", (int) kind);
	for (;;)
	{
		size_t		n = strcspn(at, "$");
		char	   *end;
		long		number;

		appendBinaryPQExpBuffer(text, at, n);
		at += n;
		if (*at == '\0')
			break;
		number = strtol(at + 1, &end, 10);
		appendPQExpBuffer(text, "$%ld", number + before);
		at = end;
	}
}

/*
 * The parameters of a statement.  The arrays are one behind the other, and may move
 * while they grow.
 */
typedef struct Params
{
	PQExpBufferData arrays;
	int			n;
	size_t		starts[DLOCK_MAX_PARAMS];
	int			lengths[DLOCK_MAX_PARAMS];
	int			formats[DLOCK_MAX_PARAMS];	/* 1: it is in arrays */
	const char *values[DLOCK_MAX_PARAMS];
} Params;

/* One parameter of all these calls. */
static void
add_array(Params *params, DlockType type, DlockCall *const *calls, int n, int which)
{
	size_t		start = params->arrays.len;

	dlock_binary_begin(&params->arrays, type, n);
	for (int i = 0; i < n; i++)
		dlock_binary_add(&params->arrays, type, calls[i]->params[which]);
	params->starts[params->n] = start;
	params->lengths[params->n] = (int) (params->arrays.len - start);
	params->formats[params->n++] = 1;
}

static void
add_text(Params *params, const char *text)
{
	params->values[params->n] = text;
	params->formats[params->n++] = 0;
}

static bool
send_params(DlockConn *conn, const char *sql, Params *params)
{
	DlockParams sent = {
		.n = params->n,.values = params->values,.lengths = params->lengths,.formats = params->formats
	};

	for (int i = 0; i < params->n; i++)
		if (params->formats[i] == 1)
			params->values[i] = params->arrays.data + params->starts[i];
	return dlock_conn_send_params(conn, sql, &sent);
}

/*
 * Send the calls as one statement; one call as its own.  They are sorted, and
 * have their parameters (dlock_call_set_params()).  The rows are the kind, the
 * number of a call of that kind, from 1, and its columns.  False: it could not
 * be sent.
 */
bool
dlock_batch_send(DlockConn *conn, DlockCall *const *calls, int n)
{
	PQExpBufferData text;
	Params		params;
	bool		sent = false;

	if (n == 1)
		return dlock_conn_send(conn, calls[0]->sql, calls[0]->nparams, calls[0]->params);

	initPQExpBuffer(&text);
	initPQExpBuffer(&params.arrays);
	params.n = 0;
	for (int first = 0; first < n;)
	{
		DlockKind	kind = calls[first]->kind;
		const DlockPart *part = &dlock_sql_parts[kind];
		int			after = first;

		while (after < n && calls[after]->kind == kind)
			after++;
		append_part(&text, kind, params.n);
		for (int p = 0; part->types[p] != DLOCK_TYPE_NONE; p++)
			add_array(&params, part->types[p], calls + first, after - first, p);
		if (part->is_limited)
			add_text(&params, DLOCK_ROW_WAIT);
		first = after;
	}
	if (!PQExpBufferDataBroken(text) && !PQExpBufferDataBroken(params.arrays))
		sent = send_params(conn, text.data, &params);
	termPQExpBuffer(&params.arrays);
	termPQExpBuffer(&text);
	return sent;
}
