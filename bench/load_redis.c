/*-------------------------------------------------------------------------
 *
 * load_redis.c
 *	  Redis, through hiredis: SET NX PX, and a script that deletes or renews
 *	  the key if its value is still the owner's, as the documentation of Redis
 *	  recommends.  More than one key at a time is a pipeline.
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

static const char *const scripts[OP_COUNT] = {
	[OP_RELEASE] = "if redis.call('get', KEYS[1]) == ARGV[1] then"
	" return redis.call('del', KEYS[1]) else return 0 end",
	[OP_REFRESH] = "if redis.call('get', KEYS[1]) == ARGV[1] then"
	" return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
};

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
		const char *argv[] = {"SCRIPT", "LOAD", scripts[op]};
		redisReply *reply;

		if (scripts[op] == NULL)
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
		const char *set[] = {"SET", key, client->owner, "NX", "PX", TTL};
		const char *eval[] = {"EVALSHA", state->sha[op], "1", key, client->owner, TTL};

		snprintf(key, sizeof(key), "lock:%u", client->keys[i]);
		if (redisAppendCommandArgv(state->context,
								   op == OP_RELEASE ? 5 : 6,
								   op == OP_ACQUIRE ? set : eval, NULL) != REDIS_OK)
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

static const Peer redis = {
	"redis", false, true, true, redis_open, redis_start, redis_ready, NULL,
	redis_left, redis_close, NULL
};

const Peer *
load_redis_peer(const char *name)
{
	return strcmp(name, redis.name) == 0 ? &redis : NULL;
}
