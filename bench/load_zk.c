/*-------------------------------------------------------------------------
 *
 * load_zk.c
 *	  ZooKeeper, through its own C library, the one without threads.
 *
 * A lock is an ephemeral node.  It belongs to the session, which is the owner,
 * and disappears with it when its heartbeats stop, which is the TTL.  Waiting
 * follows ZooKeeper's recipe: each waiter has a numbered ephemeral node and
 * watches the one before it.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <zookeeper/zookeeper.h>

#include "load.h"

#define ROOT	"/bench"
#define QUEUE	"/bench-queue"
#define TIMEOUT 40000			/* ms */

typedef struct ZkState
{
	zhandle_t  *zh;
	int			answers;
	int			succeeded;
	bool		connected;
	bool		done;			/* what we waited for has arrived */
	int			code;
	long		count;
	char		node[64];		/* our place in the queue */
} ZkState;

static void look(Client *client);

/*
 * Ask the library what it waits for.  It closes and opens sockets by itself
 * only when a connection is lost, which is an error here.
 */
static void
update(Client *client)
{
	ZkState    *state = client->state;
	struct timeval timeout;
	int			fd;
	int			interest;
	uint32_t	events = 0;
	int			code = zookeeper_interest(state->zh, &fd, &interest, &timeout);

	if (code != ZOK)
		load_die("zookeeper", zerror(code));
	if (interest & ZOOKEEPER_READ)
		events |= EPOLLIN;
	if (interest & ZOOKEEPER_WRITE)
		events |= EPOLLOUT;
	load_watch(client, fd, events);
}

static void
zk_ready(Client *client, uint32_t events)
{
	ZkState    *state = client->state;
	int			ready = 0;
	int			code;

	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		ready |= ZOOKEEPER_READ;
	if (events & EPOLLOUT)
		ready |= ZOOKEEPER_WRITE;
	code = zookeeper_process(state->zh, ready);
	if (code != ZOK && code != ZNOTHING)
		load_die("zookeeper", zerror(code));
	update(client);
}

/* The library sends heartbeats when it is called. */
static void
zk_tick(Client *client)
{
	update(client);
}

/* Before and after the clock runs: wait for an answer. */
static void
wait_for(Client *client, const bool *flag)
{
	ZkState    *state = client->state;

	while (!*flag)
	{
		struct timeval timeout;
		int			fd;
		int			interest;
		int			ready = 0;
		fd_set		readable;
		fd_set		writable;

		if (zookeeper_interest(state->zh, &fd, &interest, &timeout) != ZOK)
			load_die("could not connect", load.target);
		FD_ZERO(&readable);
		FD_ZERO(&writable);
		if (interest & ZOOKEEPER_READ)
			FD_SET(fd, &readable);
		if (interest & ZOOKEEPER_WRITE)
			FD_SET(fd, &writable);
		select(fd + 1, &readable, &writable, NULL, &timeout);
		if (FD_ISSET(fd, &readable))
			ready |= ZOOKEEPER_READ;
		if (FD_ISSET(fd, &writable))
			ready |= ZOOKEEPER_WRITE;
		zookeeper_process(state->zh, ready);
	}
}

static void
on_session(zhandle_t *zh, int type, int event, const char *path, void *context)
{
	Client	   *client = context;
	ZkState    *state = client->state;

	(void) zh;
	(void) path;
	if (type != ZOO_SESSION_EVENT)
		return;
	if (event == ZOO_CONNECTED_STATE)
		state->connected = true;
	else if (state->connected)
		load_die("zookeeper", "lost the connection");
}

static void
on_parent(int code, const char *value, const void *data)
{
	ZkState    *state = ((Client *) data)->state;

	(void) value;
	if (code != ZOK && code != ZNODEEXISTS)
		load_die("zookeeper", zerror(code));
	state->done = true;
}

static void
create_parent(Client *client, const char *path)
{
	ZkState    *state = client->state;

	state->done = false;
	zoo_acreate(state->zh, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, on_parent, client);
	wait_for(client, &state->done);
}

static void
zk_open(Client *client)
{
	ZkState    *state = load_alloc(sizeof(ZkState));

	zoo_set_debug_level((ZooLogLevel) 0);	/* serious errors end in
											 * load_die() */
	client->state = state;
	state->zh = zookeeper_init(load.target, on_session, TIMEOUT, NULL, client, 0);
	if (state->zh == NULL)
		load_die("zookeeper_init", load.target);
	wait_for(client, &state->connected);
	create_parent(client, ROOT);
	create_parent(client, QUEUE);
	update(client);
}

static void
answered(Client *client, bool success)
{
	ZkState    *state = client->state;

	state->succeeded += success;
	if (++state->answers == client->nkeys)
		load_done(client, state->succeeded);
}

static void
on_created(int code, const char *value, const void *data)
{
	(void) value;
	if (code != ZOK && code != ZNODEEXISTS)
		load_complain("zookeeper", zerror(code));
	answered((Client *) data, code == ZOK);
}

static void
on_deleted(int code, const void *data)
{
	if (code != ZOK)
		load_complain("zookeeper", zerror(code));
	answered((Client *) data, code == ZOK);
}

static void
on_predecessor(zhandle_t *zh, int type, int event, const char *path, void *context)
{
	(void) zh;
	(void) event;
	(void) path;
	if (type == ZOO_DELETED_EVENT)
		look(context);
}

static void
on_exists(int code, const struct Stat *stat, const void *data)
{
	(void) stat;
	if (code == ZNONODE)
		look((Client *) data);	/* it is gone meanwhile, so there is no watch */
	else if (code != ZOK)
		load_die("zookeeper", zerror(code));
}

static void
on_children(int code, const struct String_vector *strings, const void *data)
{
	Client	   *client = (Client *) data;
	ZkState    *state = client->state;
	const char *mine = state->node + strlen(QUEUE "/");
	const char *before = NULL;
	char		path[96];

	if (code != ZOK)
		load_die("zookeeper", zerror(code));
	for (int i = 0; i < strings->count; i++)
	{
		const char *name = strings->data[i];

		if (strcmp(name, mine) < 0 && (before == NULL || strcmp(name, before) > 0))
			before = name;
	}
	if (before == NULL)
	{
		answered(client, true);
		return;
	}
	snprintf(path, sizeof(path), QUEUE "/%s", before);
	zoo_awexists(state->zh, path, on_predecessor, client, on_exists, client);
	update(client);
}

/* Is it our turn? */
static void
look(Client *client)
{
	ZkState    *state = client->state;

	zoo_aget_children(state->zh, QUEUE, 0, on_children, client);
	update(client);
}

static void
on_queued(int code, const char *value, const void *data)
{
	Client	   *client = (Client *) data;
	ZkState    *state = client->state;

	if (code != ZOK)
		load_die("zookeeper", zerror(code));
	snprintf(state->node, sizeof(state->node), "%s", value);
	look(client);
}

static void
zk_start(Client *client, Op op)
{
	ZkState    *state = client->state;

	state->answers = 0;
	state->succeeded = 0;
	if (op == OP_WAIT)
		zoo_acreate(state->zh, QUEUE "/n-", client->owner, strlen(client->owner),
					&ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE,
					on_queued, client);
	else if (op == OP_RELEASE && state->node[0])
	{
		zoo_adelete(state->zh, state->node, -1, on_deleted, client);
		state->node[0] = '\0';
	}
	else
	{
		for (int i = 0; i < client->nkeys; i++)
		{
			char		path[40];

			snprintf(path, sizeof(path), ROOT "/%u", client->keys[i]);
			if (op == OP_RELEASE)
				zoo_adelete(state->zh, path, -1, on_deleted, client);
			else
				zoo_acreate(state->zh, path, client->owner, strlen(client->owner),
							&ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, on_created, client);
		}
	}
	update(client);
}

static void
on_count(int code, const struct String_vector *strings, const void *data)
{
	ZkState    *state = ((Client *) data)->state;

	if (code != ZOK)
		load_die("zookeeper", zerror(code));
	state->count += strings->count;
	state->done = true;
}

static long
zk_left(Client *client)
{
	static const char *const parents[] = {ROOT, QUEUE};
	ZkState    *state = client->state;

	state->count = 0;
	for (int i = 0; i < 2; i++)
	{
		state->done = false;
		zoo_aget_children(state->zh, parents[i], 0, on_count, client);
		wait_for(client, &state->done);
	}
	return state->count;
}

static void
zk_close(Client *client)
{
	ZkState    *state = client->state;

	zookeeper_close(state->zh);
	free(state);
}

static const Peer zookeeper = {
	"zookeeper", true, false, true, zk_open, zk_start, zk_ready, zk_tick,
	zk_left, zk_close, NULL
};

const Peer *
load_zk_peer(const char *name)
{
	return strcmp(name, zookeeper.name) == 0 ? &zookeeper : NULL;
}
