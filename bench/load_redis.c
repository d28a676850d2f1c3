/*-------------------------------------------------------------------------
 *
 * load_redis.c
 *	  Redis, through hiredis: SET NX PX, and a script that deletes or renews
 *	  the key if its value is still the owner's, as the documentation of Redis
 *	  recommends.  More than one key at a time is a pipeline.  Readers,
 *	  semaphores and rates are sorted sets, changed by scripts.
 *
 *-------------------------------------------------------------------------
 */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "load.h"

#define TTL "60000"

typedef struct RedisPeer
{
	Peer		peer;
	const char *scripts[OP_COUNT];	/* if there is none, a plain SET */
} RedisPeer;

static void redis_open(Client *client);
static void redis_start(Client *client, Op op);
static void redis_ready(Client *client, uint32_t events);
static long redis_left(Client *client);
static void redis_close(Client *client);

#define REDIS_PEER(name, refreshes, releases, shares) \
	{name, false, refreshes, releases, shares, redis_open, redis_start, redis_ready, \
	NULL, redis_left, redis_close, NULL}

/*
 * A holder that died must not keep its place, so each place is a member of a
 * sorted set whose score is the time when it ends, by the clock of the server.
 */
#define NOW \
	"local t = redis.call('time') local now = t[1] * 1000 + math.floor(t[2] / 1000)" \
	" redis.call('zremrangebyscore', KEYS[1], '-inf', now)"
#define IF_ROOM \
	" if redis.call('zcard', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end"
#define TAKE_PLACE \
	" redis.call('zadd', KEYS[1], now + ARGV[2], ARGV[1])" \
	" redis.call('pexpire', KEYS[1], ARGV[2]) return 1"
#define LEAVE_PLACE "return redis.call('zrem', KEYS[1], ARGV[1])"

static const RedisPeer peers[] = {
	{
		REDIS_PEER("redis", true, true, false),
		{
			[OP_RELEASE] = "if redis.call('get', KEYS[1]) == ARGV[1] then"
			" return redis.call('del', KEYS[1]) else return 0 end",
			[OP_REFRESH] = "if redis.call('get', KEYS[1]) == ARGV[1] then"
			" return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
		}
	},
	{
		/* KEYS[2] is the writer's */
		REDIS_PEER("redis_shared", false, true, true),
		{
			[OP_ACQUIRE] = "if redis.call('exists', KEYS[2]) == 1 then return 0 end "
			NOW TAKE_PLACE,
			[OP_RELEASE] = LEAVE_PLACE
		}
	},
	{
		REDIS_PEER("redis_semaphore", false, true, true),
		{
			[OP_ACQUIRE] = NOW IF_ROOM TAKE_PLACE,
			[OP_RELEASE] = LEAVE_PLACE
		}
	},
	{
		/* a rate: the same, but nobody leaves */
		REDIS_PEER("redis_limit", false, false, true),
		{
			[OP_ACQUIRE] = NOW IF_ROOM TAKE_PLACE
		}
	},
	{
		/* a rate in each window of the clock, not in any; KEYS[1] is a set */
		REDIS_PEER("redis_counter", false, false, true),
		{
			[OP_ACQUIRE] = "local n = redis.call('incr', KEYS[2])"
			" if n == 1 then redis.call('pexpire', KEYS[2], ARGV[2]) end"
			" if n <= tonumber(ARGV[3]) then return 1 else return 0 end"
		}
	}
};

static const RedisPeer *chosen;

typedef struct RedisState
{
	redisContext *context;
	char		sha[OP_COUNT][41];
	int			answers;
	int			succeeded;
} RedisState;

static redisReply *
command(redisContext *context, int argc, const char **argv)
{
	redisReply *reply = redisCommandArgv(context, argc, argv, NULL);

	if (reply == NULL)
		load_die("redis", context->errstr);
	if (reply->type == REDIS_REPLY_ERROR)
		load_die("redis", reply->str);
	return reply;
}

static redisContext *
connect_blocking(void)
{
	char		host[64];
	int			port;
	redisContext *context;

	if (sscanf(load.target, "%63[^:]:%d", host, &port) != 2)
		load_die("--target is not host:port", load.target);
	context = redisConnect(host, port);
	if (context == NULL || context->err)
		load_die("could not connect", context ? context->errstr : load.target);
	return context;
}

/*
 * Connect and load the scripts synchronously, then continue without blocking.
 */
static void
redis_open(Client *client)
{
	RedisState *state = load_alloc(sizeof(RedisState));

	client->state = state;
	state->context = connect_blocking();
	for (int op = 0; op < OP_COUNT; op++)
	{
		const char *argv[] = {"SCRIPT", "LOAD", chosen->scripts[op]};
		redisReply *reply;

		if (chosen->scripts[op] == NULL)
			continue;
		reply = command(state->context, 3, argv);
		snprintf(state->sha[op], sizeof(state->sha[op]), "%s", reply->str);
		freeReplyObject(reply);
	}
	redisEnableKeepAlive(state->context);
	state->context->flags &= ~REDIS_BLOCK;
	load_watch(client, state->context->fd, EPOLLIN);
}

static void
flush(Client *client)
{
	RedisState *state = client->state;
	int			done;

	if (redisBufferWrite(state->context, &done) != REDIS_OK)
		load_die("redis", state->context->errstr);
	load_watch(client, state->context->fd, done ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static void
redis_start(Client *client, Op op)
{
	RedisState *state = client->state;

	state->answers = 0;
	state->succeeded = 0;
	for (int i = 0; i < client->nkeys; i++)
	{
		char		key[24];
		char		writer[32];
		char		slots[12];
		const char *set[] = {"SET", key, client->owner, "NX", "PX", TTL};
		const char *eval[] = {"EVALSHA", state->sha[op], "1", key, client->owner, TTL};
		const char *eval_place[] = {
			"EVALSHA", state->sha[op], "2", key, writer, client->owner, TTL, slots
		};
		const char **argv = chosen->peer.shares ? eval_place : eval;
		int			argc = chosen->peer.shares ? 8 : 6;

		snprintf(key, sizeof(key), "lock:%u", client->keys[i]);
		snprintf(writer, sizeof(writer), "%s:writer", key);
		snprintf(slots, sizeof(slots), "%d", load.slots);
		if (chosen->scripts[op] == NULL)
			argv = set;
		else if (op == OP_RELEASE)
			argc = chosen->peer.shares ? 6 : 5;
		if (redisAppendCommandArgv(state->context, argc, argv, NULL) != REDIS_OK)
			load_die("redis", state->context->errstr);
	}
	flush(client);
}

static bool
is_success(const redisReply *reply)
{
	switch (reply->type)
	{
		case REDIS_REPLY_STATUS:
			return true;
		case REDIS_REPLY_INTEGER:
			return reply->integer == 1;
		case REDIS_REPLY_ERROR:
			load_complain("redis", reply->str);
			return false;
		default:
			return false;
	}
}

static void
redis_ready(Client *client, uint32_t events)
{
	RedisState *state = client->state;
	void	   *reply;

	if (events & EPOLLOUT)
		flush(client);
	if ((events & ~EPOLLOUT) && redisBufferRead(state->context) != REDIS_OK)
		load_die("redis", state->context->errstr);
	while (state->answers < client->nkeys)
	{
		if (redisGetReplyFromReader(state->context, &reply) != REDIS_OK)
			load_die("redis", state->context->errstr);
		if (reply == NULL)
			return;
		state->answers++;
		state->succeeded += is_success(reply);
		freeReplyObject(reply);
	}
	load_done(client, state->succeeded);
}

static long
redis_left(Client *client)
{
	const char *argv[] = {"DBSIZE"};
	redisContext *context = connect_blocking();
	redisReply *reply = command(context, 1, argv);
	long		left = (long) reply->integer;

	(void) client;
	freeReplyObject(reply);
	redisFree(context);
	return left;
}

static void
redis_close(Client *client)
{
	RedisState *state = client->state;

	redisFree(state->context);
	free(state);
}

const Peer *
load_redis_peer(const char *name)
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
