/*-------------------------------------------------------------------------
 *
 * connect_test.c
 *	  A connection that goes on to the next server, or that the server has none left for.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "async.h"
#include "clock.h"
#include "conn_int.h"
#include "flight.h"
#include "handle.h"
#include "pool.h"
#include "prepared.h"
#include "unit_test.h"
#include "util.h"

/* A port where a server listens, and says nothing. */
static int
listen_in_silence(int *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t	size = sizeof(address);
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *) &address, sizeof(address)) != 0 ||
		listen(fd, 8) != 0 || getsockname(fd, (struct sockaddr *) &address, &size) != 0)
		abort();
	*port = ntohs(address.sin_port);
	return fd;
}

/* It was in use, then was to listen, and its server does not answer. */
static void
test_silent_listen(void)
{
	dlock_handle *handle = NULL;
	DlockConn  *conn;
	DlockParams none = {0};
	char		conninfo[200];
	int			port;
	int			fd = listen_in_silence(&port);

	snprintf(conninfo, sizeof(conninfo), "host=127.0.0.1,127.0.0.1 port=%d,%d", port, port);
	if (dlock_open(conninfo, NULL, &handle, NULL) != DLOCK_OK)
		abort();
	conn = dlock_conn_new(handle->target);
	if (conn == NULL)
		abort();
	dlock_conn_start(conn, 0, dlock_now());
	ok(conn->state == DLOCK_CONN_CONNECTING, "the first server: connecting");
	conn->schema = dlock_strdup("public");
	conn->direct = true;
	/* it is noted, and would be prepared the next time */
	(void) dlock_prepared_send(conn, "SELECT 1", &none);
	ok(conn->prepareds != NULL, "the first server: connected");
	conn->state = DLOCK_CONN_LISTEN;
	dlock_connect_silent(conn, dlock_now());
	ok(conn->state == DLOCK_CONN_CONNECTING && conn->tried == 1, "no answer: the next server");
	ok(conn->schema == NULL && conn->prepareds == NULL, "nothing is known of it");
	dlock_conn_free(conn);
	dlock_close(handle);
	close(fd);
}

/*
 * The server is full, and the renewal thread, which would lend its connection, waits for
 * an answer.  Returns how long a driver waits for it.
 */
static int64_t
wait_for_loan(int64_t timeout_ms, dlock_op *under_way)
{
	dlock_handle *handle = NULL;
	DlockCall	call;
	int64_t		since;

	if (dlock_open("host=/nowhere", NULL, &handle, NULL) != DLOCK_OK)
		abort();
	dlock_call_init(&call, dlock_sql_probe, 0, NULL, timeout_ms);
	pthread_mutex_lock(&handle->mutex);
	dlock_flight_add(handle, &call);
	handle->main.conn = dlock_pool_take(handle, false, 0);
	handle->main.conn->full_host = 0;
	handle->main.conn->retry = true;
	handle->async.under_way = under_way;
	handle->lends = true;
	since = dlock_now();
	dlock_flight_settle(handle, &handle->main);
	since = dlock_now() - since;
	handle->async.under_way = NULL;
	dlock_queue_take_out(&handle->queue, &call);
	pthread_mutex_unlock(&handle->mutex);
	dlock_close(handle);
	return since;
}

static void
test_loan(void)
{
	dlock_op	other = {0};

	ok(wait_for_loan(50, NULL) < DLOCK_LEND_MS / 2, "a full server: not longer than the call");
	ok(wait_for_loan(60000, &other) < DLOCK_LEND_MS / 2, "a full server: not longer than other calls of the pilot may wait");
}

void
test_connect(void)
{
	test_loan();
	test_silent_listen();
}
