/*-------------------------------------------------------------------------
 *
 * load_pg.c
 *	  The peers in PostgreSQL, including dlock, through libpq.
 *
 * Statements are prepared once per connection.  With --depth they go through
 * libpq's pipeline, which PostgreSQL runs as one transaction; with --batch one
 * statement takes all keys as an array.
 *
 *-------------------------------------------------------------------------
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "load.h"

/*
 * The letters name the parameters: key, key of its own, number of the key, owner,
 * token, slots.  In the statements for many keys those of keys and tokens are
 * arrays.  The keys of p are not those of k: nobody ever locks them exclusively.
 */
typedef struct Statement
{
	const char *parameters;
	const char *one;
	const char *many;
} Statement;

typedef struct PgPeer
{
	Peer		peer;
	Statement	of[OP_COUNT];
	const char *left;
} PgPeer;

typedef struct PgState
{
	PGconn	   *conn;
	Op			op;
	bool		many;			/* one statement for all keys */
	bool		pipeline;
	int			answers;
	int			succeeded;
	char	   *keys;			/* arrays, as text */
	char	   *tokens;
} PgState;

/* room for an element of an array */
#define ELEMENT 24

#define LIVE_DLOCK "SELECT count(*) FROM dlock_locks"
#define LIVE_ADVISORY "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"

static void pg_open(Client *client);
static void pg_start(Client *client, Op op);
static void pg_ready(Client *client, uint32_t events);
static long pg_left(Client *client);
static void pg_close(Client *client);
static int	pg_pid(Client *client);

#define PG_PEER(name, waits, refreshes, releases) \
	{name, waits, refreshes, releases, false, pg_open, pg_start, pg_ready, NULL, \
	pg_left, pg_close, pg_pid}

#define SHARED_PG_PEER(name, releases) \
	{name, false, false, releases, true, pg_open, pg_start, pg_ready, NULL, \
	pg_left, pg_close, pg_pid}

static const PgPeer peers[] = {
	{
		PG_PEER("dlock", true, true, true),
		{
			{
				"ko", "SELECT dlock_acquire($1, '1min', $2)",
				"SELECT dlock_acquire(k, '1min', $2) FROM unnest($1::text[]) AS k"
			},
			{
				"ko", "SELECT dlock_acquire($1, '1min', $2, wait => '1min')", NULL
			},
			{
				"kt", "SELECT dlock_release($1, $2)",
				"SELECT dlock_release(k, v) FROM unnest($1::text[], $2::bigint[]) AS t(k, v)"
			},
			{
				"kt", "SELECT dlock_refresh($1, $2, '1min')",
				"SELECT dlock_refresh(k, v, '1min') FROM unnest($1::text[], $2::bigint[]) AS t(k, v)"
			}
		},
		LIVE_DLOCK
	},
	{
		/* any number of readers */
		SHARED_PG_PEER("dlock_shared", true),
		{
			{
				"po", "SELECT dlock_acquire($1, '1min', $2, shared => true)", NULL
			},
			{
				NULL, NULL, NULL
			},
			{
				"pt", "SELECT dlock_release($1, $2)", NULL
			},
			{
				NULL, NULL, NULL
			}
		},
		LIVE_DLOCK
	},
	{
		SHARED_PG_PEER("dlock_semaphore", true),
		{
			{
				"pos", "SELECT dlock_acquire($1, '1min', $2, slots => $3)", NULL
			},
			{
				NULL, NULL, NULL
			},
			{
				"pt", "SELECT dlock_release($1, $2)", NULL
			},
			{
				NULL, NULL, NULL
			}
		},
		LIVE_DLOCK
	},
	{
		/* a permit is never given back */
		SHARED_PG_PEER("dlock_limit", false),
		{
			{
				"ps", "SELECT dlock_limit($1, $2, '1min') = '0'", NULL
			}
		},
		LIVE_DLOCK
	},
	{
		/* all keys or none */
		PG_PEER("dlock_all", true, false, true),
		{
			{
				"ko", "SELECT dlock_acquire_all(ARRAY[$1], '1min', $2)",
				"SELECT dlock_acquire_all($1, '1min', $2)"
			},
			{
				"ko", "SELECT dlock_acquire_all(ARRAY[$1], '1min', $2, wait => '1min')",
				"SELECT dlock_acquire_all($1, '1min', $2, wait => '1min')"
			},
			{
				"kt", "SELECT dlock_release($1, $2)",
				"SELECT dlock_release(k, v) FROM unnest($1::text[], $2::bigint[]) AS t(k, v)"
			},
			{
				NULL, NULL, NULL
			}
		},
		LIVE_DLOCK
	},
	{
		PG_PEER("plpgsql", false, true, true),
		{
			{
				"ko", "SELECT plain_acquire($1, '1min', $2)",
				"SELECT plain_acquire(k, '1min', $2) FROM unnest($1::text[]) AS k"
			},
			{
				NULL, NULL, NULL
			},
			{
				"kt", "SELECT plain_release($1, $2)",
				"SELECT plain_release(k, v) FROM unnest($1::text[], $2::bigint[]) AS t(k, v)"
			},
			{
				"kt", "SELECT plain_refresh($1, $2, '1min')",
				"SELECT plain_refresh(k, v, '1min') FROM unnest($1::text[], $2::bigint[]) AS t(k, v)"
			}
		},
		"SELECT count(*) FROM plain_locks WHERE expires > clock_timestamp()"
	},
	{
		PG_PEER("advisory", true, false, true),
		{
			{
				"n", "SELECT pg_try_advisory_lock($1)",
				"SELECT pg_try_advisory_lock(k) FROM unnest($1::bigint[]) AS k"
			},
			{
				"n", "SELECT pg_advisory_lock($1)", NULL
			},
			{
				"n", "SELECT pg_advisory_unlock($1)",
				"SELECT pg_advisory_unlock(k) FROM unnest($1::bigint[]) AS k"
			},
			{
				NULL, NULL, NULL
			}
		},
		LIVE_ADVISORY
	},

	/* the ceilings */
	{
		PG_PEER("select", false, false, true),
		{
			{
				"", "SELECT 1", NULL
			},
			{
				NULL, NULL, NULL
			},
			{
				"", "SELECT 1", NULL
			},
			{
				NULL, NULL, NULL
			}
		},
		LIVE_ADVISORY
	},
	{
		/* for work that takes one round trip */
		PG_PEER("select_once", false, false, false),
		{
			{
				"", "SELECT 1", NULL
			}
		},
		LIVE_ADVISORY
	},
	{
		/* the smallest transaction that writes WAL, and so is flushed */
		PG_PEER("commit", false, false, true),
		{
			{
				"", "SELECT pg_logical_emit_message(true, '', '')", NULL
			},
			{
				NULL, NULL, NULL
			},
			{
				"", "SELECT pg_logical_emit_message(true, '', '')", NULL
			},
			{
				NULL, NULL, NULL
			}
		},
		LIVE_ADVISORY
	},
	{
		/* a commit record and nothing else, which is never waited for */
		PG_PEER("xid", false, false, true),
		{
			{
				"", "SELECT pg_current_xact_id()", NULL
			},
			{
				NULL, NULL, NULL
			},
			{
				"", "SELECT pg_current_xact_id()", NULL
			},
			{
				NULL, NULL, NULL
			}
		},
		LIVE_ADVISORY
	},
	{
		PG_PEER("hot_update", false, false, false),
		{
			{
				"ko", "UPDATE plain_locks SET owner = $2 WHERE key = $1 RETURNING 1", NULL
			}
		},
		LIVE_ADVISORY
	}
};

static const char *const names[OP_COUNT] = {"acquire", "wait", "release", "refresh"};
static const char *const names_many[OP_COUNT] = {
	"acquire_many", "wait_many", "release_many", "refresh_many"
};

static const PgPeer *chosen;

const Peer *
load_pg_peer(const char *name)
{
	for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++)
	{
		if (strcmp(peers[i].peer.name, name) == 0)
		{
			chosen = &peers[i];
			return &chosen->peer;
		}
	}
	return NULL;
}

static void
prepare(PGconn *conn, const char *name, const char *query)
{
	PGresult   *result;

	if (query == NULL)
		return;
	result = PQprepare(conn, name, query, 0, NULL);
	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		load_die(query, PQerrorMessage(conn));
	PQclear(result);
}

static void
pg_open(Client *client)
{
	PgState    *state = load_alloc(sizeof(PgState));

	client->state = state;
	state->conn = PQconnectdb(load.target);
	if (PQstatus(state->conn) != CONNECTION_OK)
		load_die("could not connect", PQerrorMessage(state->conn));
	for (int op = 0; op < OP_COUNT; op++)
	{
		prepare(state->conn, names[op], chosen->of[op].one);
		prepare(state->conn, names_many[op], chosen->of[op].many);
	}
	if (PQsetnonblocking(state->conn, 1) != 0)
		load_die("PQsetnonblocking", PQerrorMessage(state->conn));
	state->pipeline = load.depth > 1 && !load.batch;
	if (state->pipeline && !PQenterPipelineMode(state->conn))
		load_die("PQenterPipelineMode", PQerrorMessage(state->conn));
	load_watch(client, PQsocket(state->conn), EPOLLIN);
}

/* {lock:1,lock:2} */
static char *
array(char **buffer, Client *client, char parameter)
{
	char	   *at;

	if (*buffer == NULL)
		*buffer = load_alloc((uint64_t) ELEMENT * load.room + 3);
	at = *buffer;
	for (int i = 0; i < client->nkeys; i++)
	{
		*at++ = i == 0 ? '{' : ',';
		if (parameter == 't')
			at += sprintf(at, "%lld", (long long) client->tokens[i]);
		else
			at += sprintf(at, "%s%u", parameter == 'k' ? "lock:" : "", client->keys[i]);
	}
	strcpy(at, "}");
	return *buffer;
}

static void
send_statement(Client *client, int i)
{
	PgState    *state = client->state;
	const Statement *statement = &chosen->of[state->op];
	const char *values[3];
	char		buffers[3][ELEMENT];
	int			n = 0;

	for (const char *p = statement->parameters; *p; p++, n++)
	{
		values[n] = buffers[n];
		if (*p == 'o')
			values[n] = client->owner;
		else if (*p == 's')
			sprintf(buffers[n], "%d", load.slots);
		else if (state->many)
			values[n] = array(*p == 't' ? &state->tokens : &state->keys, client, *p);
		else if (*p == 't')
			sprintf(buffers[n], "%lld", (long long) client->tokens[i]);
		else
			sprintf(buffers[n], "%s%u", *p == 'k' ? "lock:" : *p == 'p' ? "place:" : "",
					client->keys[i]);
	}
	if (!PQsendQueryPrepared(state->conn,
							 state->many ? names_many[state->op] : names[state->op],
							 n, values, NULL, NULL, 0))
		load_die("PQsendQueryPrepared", PQerrorMessage(state->conn));
}

static void
flush(Client *client)
{
	PgState    *state = client->state;
	int			status = PQflush(state->conn);

	if (status < 0)
		load_die("PQflush", PQerrorMessage(state->conn));
	load_watch(client, PQsocket(state->conn), status > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void
pg_start(Client *client, Op op)
{
	PgState    *state = client->state;

	state->op = op;
	state->answers = 0;
	state->succeeded = 0;
	state->many = client->nkeys > 1 && !state->pipeline;
	if (state->many && chosen->of[op].many == NULL)
		load_die(chosen->peer.name, "has no statement for many keys");
	for (int i = 0; i < (state->many ? 1 : client->nkeys); i++)
		send_statement(client, i);
	if (state->pipeline && !PQpipelineSync(state->conn))
		load_die("PQpipelineSync", PQerrorMessage(state->conn));
	flush(client);
}

/* NULL, false, and any word other than "released" mean no. */
static bool
is_success(PgState *state, PGresult *result, int row)
{
	const char *value = PQgetvalue(result, row, 0);

	if (PQgetisnull(result, row, 0))
		return false;
	if (state->op == OP_RELEASE && (*value == 'n' || *value == 'h'))
		return false;
	return strcmp(value, "f") != 0;
}

/* {1,2}: the tokens of all keys in one value */
static int
take_tokens(Client *client, const char *value)
{
	int			n = 0;

	while (*value != '}' && n < client->nkeys)
		client->tokens[n++] = strtoll(value + 1, (char **) &value, 10);
	return n;
}

static void
take_result(Client *client, PGresult *result)
{
	PgState    *state = client->state;
	bool		tokens = state->op == OP_ACQUIRE || state->op == OP_WAIT;

	switch (PQresultStatus(result))
	{
		case PGRES_TUPLES_OK:
			for (int row = 0; row < PQntuples(result); row++)
			{
				if (!is_success(state, result, row))
					continue;
				if (tokens && *PQgetvalue(result, row, 0) == '{')
				{
					state->succeeded += take_tokens(client, PQgetvalue(result, row, 0));
					continue;
				}
				if (tokens)
					client->tokens[state->many ? row : state->answers] =
						strtoll(PQgetvalue(result, row, 0), NULL, 10);
				state->succeeded++;
			}
			state->answers++;
			break;
		case PGRES_PIPELINE_SYNC:
			break;
		default:
			load_complain(chosen->peer.name, PQresultErrorMessage(result));
			state->answers++;
	}
}

/* In a pipeline a NULL ends each statement, and the sync ends all. */
static void
pg_ready(Client *client, uint32_t events)
{
	PgState    *state = client->state;
	bool		done = false;

	if (events & EPOLLOUT)
		flush(client);
	if (!PQconsumeInput(state->conn))
		load_die("lost the connection", PQerrorMessage(state->conn));
	while (!done && !PQisBusy(state->conn))
	{
		PGresult   *result = PQgetResult(state->conn);

		if (result == NULL)
		{
			done = !state->pipeline;
			continue;
		}
		take_result(client, result);
		done = PQresultStatus(result) == PGRES_PIPELINE_SYNC;
		PQclear(result);
	}
	if (done)
		load_done(client, state->succeeded);
}

static long
pg_left(Client *client)
{
	PGconn	   *conn = ((PgState *) client->state)->conn;
	PGresult   *result;
	long		left;

	if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF && !PQexitPipelineMode(conn))
		load_die("PQexitPipelineMode", PQerrorMessage(conn));
	result = PQexec(conn, chosen->left);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		load_die(chosen->left, PQerrorMessage(conn));
	left = strtol(PQgetvalue(result, 0, 0), NULL, 10);
	PQclear(result);
	return left;
}

static void
pg_close(Client *client)
{
	PgState    *state = client->state;

	PQfinish(state->conn);
	free(state->keys);
	free(state->tokens);
	free(state);
}

static int
pg_pid(Client *client)
{
	return PQbackendPID(((PgState *) client->state)->conn);
}
