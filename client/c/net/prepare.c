/*-------------------------------------------------------------------------
 *
 * prepare.c
 *	  Sending a statement, which is prepared if it is sent more than once.
 *
 * A program sends few different statements, again and again, and the server takes
 * longer to parse and plan one than to execute it.  So a statement that is sent
 * for the second time is prepared.  That takes one more round trip, once; its
 * parameters are kept meanwhile.  A statement that is sent only once, like those of
 * most commands, costs nothing more.
 *
 * Behind a pooler nothing is prepared, because the next statement may go to
 * another server process.  A pooler that could not be recognized (connect.c) shows
 * when a process does not know the statement (26000).  Nothing has been executed
 * then, and from then on the text of each statement is sent.  The name of a statement
 * is a hash of its text, so that a process which knows it from another client of the
 * pooler executes the same.
 *
 * If what a plan depends on changes, because the extension is updated or created
 * again, the server makes a new plan from the text, in which no name depends on the
 * search_path (sql.c).  It refuses to do so if the type of a result changes.  Then a
 * new connection prepares it again.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>

#include "base/constants.h"
#include "base/sql.h"
#include "base/util.h"
#include "net/conn.h"

typedef struct DlockPrepared
{
	char	   *sql;			/* as in sql.c; NULL: free */
	char		name[32];		/* on the server; empty: it is not there */
} DlockPrepared;

typedef struct DlockPrepareds
{
	DlockPrepared list[DLOCK_MAX_PREPARED];
	int			oldest;			/* the first to be given up for another */

	/* the one that is being prepared, or NULL, and what it will be sent with */
	DlockPrepared *coming;
	int			nparams;
	char	   *params[DLOCK_MAX_PARAMS];
	int			lengths[DLOCK_MAX_PARAMS];
	int			formats[DLOCK_MAX_PARAMS];
} DlockPrepareds;

#define WAITERS "@.dlock_waiters"

/*
 * The text with the schema of the extension instead of "@"; NULL: no memory.  The portable
 * edition has no view of waiters.
 */
static char *
qualify(DlockConn *conn, const char *sql)
{
	PQExpBufferData text;
	const char *at;

	initPQExpBuffer(&text);
	while ((at = strstr(sql, "@.")) != NULL)
	{
		appendBinaryPQExpBuffer(&text, sql, (size_t) (at - sql));
		if (conn->portable && strncmp(at, WAITERS, strlen(WAITERS)) == 0)
		{
			appendPQExpBufferStr(&text, dlock_sql_no_waiters);
			sql = at + strlen(WAITERS);
			continue;
		}
		appendPQExpBufferStr(&text, conn->schema);
		/* the dot stays */
		sql = at + 1;
	}
	appendPQExpBufferStr(&text, sql);
	if (!PQExpBufferDataBroken(text))
		return text.data;
	termPQExpBuffer(&text);
	dlock_fail(&conn->error, DLOCK_NO_MEMORY, "out of memory");
	return NULL;
}

static bool
send_text(DlockConn *conn, const char *sql, const DlockParams *params)
{
	char	   *text = qualify(conn, sql);
	bool		sent = text != NULL &&
		PQsendQueryParams(conn->pg, text, params->n, NULL, params->values, params->lengths,
						  params->formats, 0);

	free(text);
	return sent;
}

/*
 * Have we sent it before?  If not, it is noted, if there is memory: then the next one
 * will be prepared.  What is prepared stays so; what came only once makes room.
 */
static DlockPrepared *
find_or_note(DlockConn *conn, const char *sql)
{
	DlockPrepareds *prepareds = conn->prepareds;
	DlockPrepared *this;

	if (prepareds == NULL)
		prepareds = conn->prepareds = calloc(1, sizeof(DlockPrepareds));
	if (prepareds == NULL)
		return NULL;
	for (int i = 0; i < DLOCK_MAX_PREPARED; i++)
		if (prepareds->list[i].sql != NULL && strcmp(prepareds->list[i].sql, sql) == 0)
			return &prepareds->list[i];
	this = &prepareds->list[prepareds->oldest];
	prepareds->oldest = (prepareds->oldest + 1) % DLOCK_MAX_PREPARED;
	if (this->name[0] == '\0')
	{
		free(this->sql);
		this->sql = strdup(sql);
	}
	return NULL;
}

/* FNV-1a, 64 bits. */
static uint64_t
hash_of(const char *text)
{
	uint64_t	hash = UINT64_C(14695981039346656037);

	for (; *text != '\0'; text++)
		hash = (hash ^ (unsigned char) *text) * UINT64_C(1099511628211);
	return hash;
}

static void
drop_params(DlockPrepareds *prepareds)
{
	for (int i = 0; i < prepareds->nparams; i++)
		free(prepareds->params[i]);
	prepareds->nparams = 0;
}

static bool
keep_params(DlockConn *conn, const DlockParams *params)
{
	DlockPrepareds *prepareds = conn->prepareds;

	for (int i = 0; i < params->n; i++)
	{
		const char *value = params->values[i];
		bool		is_binary = params->formats != NULL && params->formats[i] != 0;
		size_t		size = 0;

		if (value != NULL)
			size = is_binary ? (size_t) params->lengths[i] : strlen(value) + 1;
		prepareds->params[i] = value != NULL ? malloc(size) : NULL;
		prepareds->lengths[i] = (int) size;
		prepareds->formats[i] = is_binary;
		prepareds->nparams = i + 1;
		if (value != NULL && prepareds->params[i] == NULL)
		{
			drop_params(prepareds);
			dlock_fail(&conn->error, DLOCK_NO_MEMORY, "out of memory");
			return false;
		}
		if (value != NULL)
			memcpy(prepareds->params[i], value, size);
	}
	return true;
}

static bool
prepare(DlockConn *conn, DlockPrepared *this, const DlockParams *params)
{
	DlockPrepareds *prepareds = conn->prepareds;
	char	   *text = qualify(conn, this->sql);
	bool		sent = false;

	if (text != NULL && keep_params(conn, params))
	{
		snprintf(this->name, sizeof(this->name), "dlock_%016llx", (unsigned long long) hash_of(text));
		prepareds->coming = this;
		sent = PQsendPrepare(conn->pg, this->name, text, 0, NULL);
	}
	free(text);
	return sent;
}

static bool
execute(DlockConn *conn, const DlockPrepared *this, const DlockParams *params)
{
	return PQsendQueryPrepared(conn->pg, this->name, params->n, params->values, params->lengths,
							   params->formats, 0);
}

static bool
is_by_text(const DlockConn *conn)
{
	return !conn->direct || __atomic_load_n(&conn->conninfo->by_text, __ATOMIC_RELAXED);
}

bool
dlock_prepare_send(DlockConn *conn, const char *sql, const DlockParams *params)
{
	DlockPrepared *this = is_by_text(conn) ? NULL : find_or_note(conn, sql);

	if (this == NULL)
		return send_text(conn, sql, params);
	if (this->name[0] == '\0')
		return prepare(conn, this, params);
	return execute(conn, this, params);
}

bool
dlock_prepare_is_coming(const DlockConn *conn)
{
	return conn->prepareds != NULL && conn->prepareds->coming != NULL;
}

/* Is it there now?  Another client of a pooler may have prepared it before. */
static bool
is_prepared(const PGresult *result)
{
	const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return PQresultStatus(result) == PGRES_COMMAND_OK ||
		(code != NULL && strcmp(code, "42P05") == 0);
}

/* If it could not be prepared, the text is sent, and tells why. */
bool
dlock_prepare_came(DlockConn *conn)
{
	DlockPrepareds *prepareds = conn->prepareds;
	DlockPrepared *this = prepareds->coming;
	DlockParams params = {
		.n = prepareds->nparams,.values = (const char *const *) prepareds->params,
		.lengths = prepareds->lengths,.formats = prepareds->formats
	};
	bool		sent;

	prepareds->coming = NULL;
	if (is_prepared(conn->result))
		sent = execute(conn, this, &params);
	else
	{
		this->name[0] = '\0';
		sent = send_text(conn, this->sql, &params);
	}
	PQclear(conn->result);
	conn->result = NULL;
	drop_params(prepareds);
	return sent;
}

/*
 * Has the statement failed because the server has forgotten it, or does not want to
 * execute it any more?  Then a new connection sends its text.
 */
bool
dlock_prepare_is_lost(DlockConn *conn, const PGresult *result)
{
	const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

	if (conn->prepareds == NULL)
		return false;
	if (strcmp(conn->error.sqlstate, "26000") == 0)
	{
		__atomic_store_n(&conn->conninfo->by_text, true, __ATOMIC_RELAXED);
		return true;
	}
	return strcmp(conn->error.sqlstate, "0A000") == 0 && function != NULL &&
		strcmp(function, "RevalidateCachedQuery") == 0;
}

/* The connection is closed. */
void
dlock_prepare_forget(DlockConn *conn)
{
	DlockPrepareds *prepareds = conn->prepareds;

	if (prepareds == NULL)
		return;
	drop_params(prepareds);
	for (int i = 0; i < DLOCK_MAX_PREPARED; i++)
		free(prepareds->list[i].sql);
	free(prepareds);
	conn->prepareds = NULL;
}
