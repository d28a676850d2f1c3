/*-------------------------------------------------------------------------
 *
 * connect_test.c
 *	  A connection that continues with the next server, or that the server has none left for.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/engine.h"
#include "net/conn.h"
#include "unit_test.h"

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
	conn = dlock_conn_new(handle->conninfo);
	if (conn == NULL)
		abort();
	dlock_conn_start(conn, 0, dlock_now());
	ok(conn->state == DLOCK_CONN_CONNECTING, "the first server: connecting");
	conn->schema = strdup("public");
	conn->direct = true;
	/* it is noted, and would be prepared the next time */
	(void) dlock_prepare_send(conn, "SELECT 1", &none);
	ok(conn->prepareds != NULL, "the first server: connected");
	conn->state = DLOCK_CONN_LISTEN;
	dlock_connect_silent(conn, dlock_now());
	ok(conn->state == DLOCK_CONN_CONNECTING && conn->tried == 1, "no answer: the next server");
	ok(conn->schema == NULL && conn->prepareds == NULL, "nothing is known of it");
	dlock_conn_free(conn);
	dlock_close(handle);
	close(fd);
}

/* A link whose connection is in that state, without a server. */
static DlockLink *
fake_link(dlock_handle *handle, DlockUse use, DlockConnState state)
{
	DlockLink  *link = calloc(1, sizeof(DlockLink));

	link->conn = dlock_conn_new(handle->conninfo);
	link->conn->state = state;
	link->use = use;
	link->next = handle->links;
	handle->links = link;
	handle->nlinks++;
	return link;
}

/*
 * The server has no connection left for a batch.  That of the background is lent to it
 * when it is idle.
 */
static void
test_full(bool is_idle)
{
	dlock_handle *handle = NULL;
	DlockRequest request;
	DlockLink  *main;
	DlockLink  *background;

	if (dlock_open("host=/nowhere", NULL, &handle, NULL) != DLOCK_OK)
		abort();
	dlock_request_init(&request, dlock_sql_probe, 0, NULL, 60000);
	request.use = DLOCK_USE_BATCH;
	pthread_mutex_lock(&handle->mutex);
	dlock_request_submit(handle, &request);
	background = handle->background = fake_link(handle, is_idle ? DLOCK_USE_NONE : DLOCK_USE_BACKGROUND,
												is_idle ? DLOCK_CONN_READY : DLOCK_CONN_BUSY);
	background->nsent = !is_idle;
	background->answer_by = DLOCK_NEVER;
	main = handle->main = fake_link(handle, DLOCK_USE_BATCH, DLOCK_CONN_CLOSED);
	main->conn->full_host = 0;
	main->conn->retry = true;
	main->connects = true;
	background->sent[0] = &handle->background_request;
	dlock_links_settle(handle, dlock_now());
	ok(request.state == DLOCK_REQUEST_QUEUED && main->is_full && main->retry_at > 0, "a full server: a pause");
	/* only that far: there is no server to send it to */
	if (!is_idle)
	{
		(void) dlock_links_schedule(handle, dlock_now());
		ok(handle->main == main && handle->background == background, "not while the background uses its connection");
	}
	dlock_request_take_out(handle, &request);
	pthread_mutex_unlock(&handle->mutex);
	background->nsent = 0;
	background->conn->state = DLOCK_CONN_CLOSED;
	dlock_close(handle);
}

void
test_connect(void)
{
	test_full(true);
	test_full(false);
	test_silent_listen();
}
