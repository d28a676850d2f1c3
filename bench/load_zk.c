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
 * Readers and semaphores follow the recipes, too: a numbered ephemeral node of
 * the key, and then a look at all nodes of the key.  A reader is granted if no
 * writer came before it, and a place of a semaphore if fewer than --slots did.
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
#define PLACES	"/bench-places"
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
static bool is_semaphore(void);

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
	create_parent(client, PLACES);
	for (uint32_t key = 0; load.peer->shares && client->id == 0 && key < load.nkeys; key++)
	{
		char		path[40];

		snprintf(path, sizeof(path), PLACES "/%u", key);
		create_parent(client, path);
	}
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

/*
 * Readers and semaphores.  The number of the node, which is its place in the
 * order, is the token.
 */

static void
place_path(const Client *client, char *path, size_t size, bool with_number)
{
	int			len = snprintf(path, size, PLACES "/%u/%s", client->keys[0],
							   is_semaphore() ? "place-" : "read-");

	if (with_number)
		snprintf(path + len, size - len, "%010lld", (long long) client->tokens[0]);
}

/* It was not granted, and its node is gone again. */
static void
on_place_withdrawn(int code, const void *data)
{
	if (code != ZOK)
		load_complain("zookeeper", zerror(code));
	answered((Client *) data, false);
}

static void
on_places(int code, const struct String_vector *strings, const void *data)
{
	Client	   *client = (Client *) data;
	ZkState    *state = client->state;
	int			before = 0;
	char		path[64];

	if (code != ZOK)
		load_die("zookeeper", zerror(code));
	for (int i = 0; i < strings->count; i++)
	{
		const char *name = strings->data[i];
		const char *number = strrchr(name, '-');

		if (number != NULL && strtoll(number + 1, NULL, 10) < client->tokens[0] &&
			(is_semaphore() || strncmp(name, "write-", 6) == 0))
			before++;
	}
	if (before < (is_semaphore() ? load.slots : 1))
	{
		answered(client, true);
		return;
	}
	place_path(client, path, sizeof(path), true);
	zoo_adelete(state->zh, path, -1, on_place_withdrawn, client);
	update(client);
}

static void
on_place_created(int code, const char *value, const void *data)
{
	Client	   *client = (Client *) data;
	ZkState    *state = client->state;
	char		path[64];

	if (code != ZOK)
		load_die("zookeeper", zerror(code));
	client->tokens[0] = strtoll(strrchr(value, '-') + 1, NULL, 10);
	snprintf(path, sizeof(path), PLACES "/%u", client->keys[0]);
	zoo_aget_children(state->zh, path, 0, on_places, client);
	update(client);
}

static void
start_place(Client *client, Op op)
{
	ZkState    *state = client->state;
	char		path[64];

	place_path(client, path, sizeof(path), op == OP_RELEASE);
	if (op == OP_RELEASE)
		zoo_adelete(state->zh, path, -1, on_deleted, client);
	else
		zoo_acreate(state->zh, path, client->owner, strlen(client->owner),
					&ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE,
					on_place_created, client);
}

static void
zk_start(Client *client, Op op)
{
	ZkState    *state = client->state;

	state->answers = 0;
	state->succeeded = 0;
	if (load.peer->shares)
		start_place(client, op);
	else if (op == OP_WAIT)
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

static void
count_children(Client *client, const char *path)
{
	ZkState    *state = client->state;

	state->done = false;
	zoo_aget_children(state->zh, path, 0, on_count, client);
	wait_for(client, &state->done);
}

static long
zk_left(Client *client)
{
	ZkState    *state = client->state;

	state->count = 0;
	count_children(client, ROOT);
	count_children(client, QUEUE);
	for (uint32_t key = 0; load.peer->shares && key < load.nkeys; key++)
	{
		char		path[40];

		snprintf(path, sizeof(path), PLACES "/%u", key);
		count_children(client, path);
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

#define ZK_PEER(name, waits, shares) \
	{name, waits, false, true, shares, zk_open, zk_start, zk_ready, zk_tick, \
	zk_left, zk_close, NULL}

static const Peer peers[] = {
	ZK_PEER("zookeeper", true, false),
	ZK_PEER("zookeeper_shared", false, true),
	ZK_PEER("zookeeper_semaphore", false, true)
};

static bool
is_semaphore(void)
{
	return strcmp(load.peer->name, "zookeeper_semaphore") == 0;
}

const Peer *
load_zk_peer(const char *name)
{
	for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++)
		if (strcmp(peers[i].name, name) == 0)
			return &peers[i];
	return NULL;
}
