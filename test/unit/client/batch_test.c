/*-------------------------------------------------------------------------
 *
 * batch_test.c
 *	  Which requests are sent together, and when a second batch leaves.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "net/conn.h"
#include "unit_test.h"

#define REQUESTS 40

static dlock_handle *
open_handle(int connections)
{
	dlock_handle *handle = NULL;
	dlock_open_options options;

	dlock_open_options_init(&options);
	options.max_connections = connections;
	if (dlock_open("host=/nowhere", &options, &handle, NULL) != DLOCK_OK)
		abort();
	return handle;
}

static void
add(dlock_handle *handle, DlockRequest *request, DlockKind kind)
{
	static const char *params[] = {"key", "1", "owner", "100ms"};

	dlock_request_init(request, dlock_sql_release, 4, params, 60000);
	request->kind = kind;
	dlock_request_submit(handle, request);
}

static void
empty(dlock_handle *handle)
{
	while (handle->queue.first != NULL)
		dlock_request_take_out(handle, handle->queue.first);
}

/* A link on which n requests were sent; the first one is that. */
static DlockLink *
fake_link(dlock_handle *handle, DlockUse use, DlockRequest *first, int n)
{
	DlockLink  *link = calloc(1, sizeof(DlockLink));

	if (link == NULL)
		abort();
	link->conn = dlock_conn_new(handle->conninfo);
	link->conn->state = DLOCK_CONN_BUSY;
	link->use = use;
	link->sent[0] = first;
	link->nsent = n;
	link->sent_at = dlock_now();
	link->answer_by = DLOCK_NEVER;
	link->next = handle->links;
	handle->links = link;
	handle->nlinks++;
	if (first != NULL)
	{
		first->state = DLOCK_REQUEST_SENT;
		first->link = link;
	}
	return link;
}

static void
test_second(void)
{
	dlock_handle *handle = open_handle(4);
	DlockRequest requests[REQUESTS];
	DlockRequest sent = {0};
	DlockRequest quick;
	int64_t		now = dlock_now();

	handle->main = fake_link(handle, DLOCK_USE_BATCH, &sent, 1);
	for (int i = 0; i < REQUESTS; i++)
	{
		bool		enough = i + 1 >= 2 * DLOCK_SECOND_LEAST;

		add(handle, &requests[i], DLOCK_TRIES_FOR_KEY);
		ok(dlock_batch_has(handle, true, now) == enough, "%d requests wait: %s second batch", i + 1, enough ? "a" : "no");
		ok(dlock_links_could_send(handle, &requests[i]) == enough, "... and it could be sent");
	}
	handle->second_retry_at = dlock_now() + 60000;
	ok(!dlock_links_could_send(handle, &requests[0]), "it could not connect a moment ago");
	handle->second_retry_at = 0;
	handle->nspare = 1;
	ok(!dlock_links_could_send(handle, &requests[0]), "the last spare connection is left to others");
	handle->nspare = 0;
	empty(handle);

	/* quick ones */
	handle->main->nsent = 2 * DLOCK_SECOND_LEAST;
	add(handle, &requests[0], DLOCK_TRIES_FOR_KEY);
	ok(!dlock_batch_has(handle, true, now), "a request that is not quick waits for the main batch");
	add(handle, &quick, DLOCK_RELEASES);
	ok(dlock_batch_has(handle, true, now), "a quick one does not");
	handle->queue.last->ready_at = now + 60000;
	ok(!dlock_batch_has(handle, true, now), "unless it has to pause");
	handle->queue.last->ready_at = 0;
	handle->conninfo->unflushed = true;
	ok(!dlock_batch_has(handle, true, now), "without a flush, no request is quick");
	for (int i = 1; i < DLOCK_SECOND_LEAST; i++)
		add(handle, &requests[i], DLOCK_TRIES_FOR_KEY);
	handle->main->nsent = DLOCK_SECOND_LEAST;
	ok(dlock_batch_has(handle, true, now), "all go if there are as many as were sent");
	handle->conninfo->unflushed = false;
	empty(handle);

	/* what the main batch leaves to a quick one */
	handle->main->nsent = 0;
	handle->second = fake_link(handle, DLOCK_USE_SECOND, &sent, 1);
	handle->second->is_quick = true;
	add(handle, &quick, DLOCK_RELEASES);
	ok(dlock_batch_has(handle, false, handle->second->sent_at), "the main batch takes a quick request, if there is no other");
	add(handle, &requests[0], DLOCK_TRIES_FOR_KEY);
	handle->queue.last->ready_at = now + 60000;
	ok(!dlock_batch_has(handle, false, handle->second->sent_at), "otherwise it leaves it to the second one");
	ok(dlock_batch_has(handle, false, handle->second->sent_at + DLOCK_SECOND_HOLD_MS), "for a while");
	empty(handle);
	handle->second->nsent = 0;
	dlock_close(handle);
}

/* There is no answer; then idle connections are not used any more. */
static void
test_silent(bool is_silent)
{
	dlock_handle *handle = open_handle(4);
	DlockRequest request;
	DlockLink  *idle;

	add(handle, &request, DLOCK_TRIES_FOR_KEY);
	dlock_request_take_out(handle, &request);
	idle = fake_link(handle, DLOCK_USE_NONE, NULL, 0);
	idle->conn->state = DLOCK_CONN_READY;
	handle->main = fake_link(handle, DLOCK_USE_BATCH, &request, 1);
	if (is_silent)
		handle->main->answer_by = 0;
	else
		handle->main->conn->state = DLOCK_CONN_CLOSED;
	dlock_links_settle(handle, dlock_now());
	ok(request.state == DLOCK_REQUEST_QUEUED && request.in_doubt && handle->main->nsent == 0,
	   "%s: the request goes again", is_silent ? "there is no answer" : "the connection is closed");
	ok(handle->nlinks == 1 + !is_silent, "... and %s", is_silent ? "idle connections are dropped" : "others may be good");
	empty(handle);
	dlock_close(handle);
}

/* The time of a request is up; nobody waits for what was sent. */
static void
test_expired(void)
{
	dlock_handle *handle = open_handle(4);
	DlockRequest queued;
	DlockRequest sent;

	add(handle, &sent, DLOCK_TRIES_FOR_KEY);
	dlock_request_take_out(handle, &sent);
	add(handle, &queued, DLOCK_TRIES_FOR_KEY);
	handle->main = fake_link(handle, DLOCK_USE_BATCH, &sent, 1);
	dlock_request_expire(handle, dlock_now());
	ok(sent.state == DLOCK_REQUEST_SENT && queued.state == DLOCK_REQUEST_QUEUED && handle->expire_at < DLOCK_NEVER,
	   "their time is not up");
	queued.until = sent.until = dlock_now();
	dlock_request_expire(handle, dlock_now());
	ok(sent.state == DLOCK_REQUEST_DONE && sent.in_doubt && sent.error.status == DLOCK_TIMEOUT, "it is up: sent");
	ok(queued.state == DLOCK_REQUEST_DONE && !queued.in_doubt && queued.error.status == DLOCK_TIMEOUT, "it is up: queued");
	ok(dlock_batch_is_deserted(handle->main) && handle->expire_at == DLOCK_NEVER, "nothing is left");
	dlock_links_settle(handle, dlock_now());
	(void) dlock_links_schedule(handle, dlock_now());
	ok(handle->main == NULL, "the connection is not left half open");
	dlock_close(handle);
}

/* The bytes after the length of the only element. */
static bool
is_sent_as(DlockType type, const char *text, const char *bytes, size_t n)
{
	DlockParamList list;
	bool		same;

	dlock_params_init(&list);
	dlock_params_add_array(&list, type, 1);
	dlock_params_add_element(&list, type, text);
	same = dlock_params_finish(&list) && (size_t) list.lengths[0] == 24 + n &&
		(unsigned char) list.values[0][23] == n && memcmp(list.values[0] + 24, bytes, n) == 0;
	dlock_params_free(&list);
	return same;
}

static void
test_binary(void)
{
	DlockParamList list;

	ok(is_sent_as(DLOCK_TYPE_TEXT, "a\"b", "a\"b", 3), "a text as it is");
	ok(is_sent_as(DLOCK_TYPE_INT4, "-2", "\xff\xff\xff\xfe", 4), "an integer");
	ok(is_sent_as(DLOCK_TYPE_INT8, "4294967298", "\0\0\0\1\0\0\0\2", 8), "a longer one");
	ok(is_sent_as(DLOCK_TYPE_BOOL, "t", "\1", 1) && is_sent_as(DLOCK_TYPE_BOOL, "f", "\0", 1), "a boolean");
	ok(is_sent_as(DLOCK_TYPE_INTERVAL, "2 ms", "\0\0\0\0\0\0\7\xd0\0\0\0\0\0\0\0\0", 16), "an interval");
	ok(is_sent_as(DLOCK_TYPE_INTERVAL, "18446744073709553 ms",
				  "\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0", 16),
	   "one that is too long does not become a short one");

	dlock_params_init(&list);
	dlock_params_add_array(&list, DLOCK_TYPE_TEXT, 2);
	dlock_params_add_element(&list, DLOCK_TYPE_TEXT, "x");
	dlock_params_add_element(&list, DLOCK_TYPE_TEXT, NULL);
	dlock_params_add_text(&list, "text");
	dlock_params_add_array(&list, DLOCK_TYPE_INT8, 0);
	ok(dlock_params_finish(&list) && list.n == 3 && list.lengths[0] == 29 && list.lengths[2] == 12 &&
	   list.formats[0] == 1 && list.formats[1] == 0 && strcmp(list.values[1], "text") == 0 &&
	   memcmp(list.values[0] + 25, "\xff\xff\xff\xff", 4) == 0, "several parameters, with a null and an empty array");
	dlock_params_free(&list);
}

void
test_batches(void)
{
	test_binary();
	test_second();
	test_silent(true);
	test_silent(false);
	test_expired();
}
