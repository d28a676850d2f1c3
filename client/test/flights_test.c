/*-------------------------------------------------------------------------
 *
 * flights_test.c
 *	  Who drives which flight, and whose calls it carries.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "binary.h"
#include "clock.h"
#include "conn_int.h"
#include "flight.h"
#include "handle.h"
#include "pool.h"
#include "queue.h"
#include "unit_test.h"
#include "waker.h"

#define CALLS 40

static dlock_handle *
open_handle(int connections)
{
	dlock_handle *handle = NULL;
	dlock_open_options options;
	dlock_error err;

	dlock_open_options_init(&options);
	options.max_connections = connections;
	if (dlock_open("host=/nowhere", &options, &handle, &err) != DLOCK_OK)
		abort();
	return handle;
}

/* Its owner sleeps, unless waker is NULL. */
static void
add_kind(dlock_handle *handle, DlockCall *call, DlockKind kind, DlockWaker *waker)
{
	static const char *params[] = {"key", "1", "owner", "100ms"};

	dlock_call_init(call, dlock_sql_release, 4, params, 60000);
	call->kind = kind;
	dlock_flight_add(handle, call);
	if (waker != NULL)
		dlock_waker_prepare(waker, call->shared);
	call->waker = waker;
}

static void
add(dlock_handle *handle, DlockCall *call, DlockWaker *waker)
{
	add_kind(handle, call, DLOCK_TRIES_FOR_KEY, waker);
}

static void
take_off(DlockFlight *flight, DlockCall *call)
{
	flight->air[0] = call;
	flight->nair = 1;
	call->state = DLOCK_CALL_FLYING;
	call->flight = flight;
}

static void
test_drivers(void)
{
	dlock_handle *handle = open_handle(4);
	DlockCall	calls[CALLS];
	DlockCall	own;
	DlockWaker	wakers[CALLS] = {0};

	add(handle, &own, NULL);
	ok(dlock_flight_to_drive(handle, &own) == &handle->main, "nobody drives the main flight");
	dlock_queue_take_out(&handle->queue, &own);
	take_off(&handle->main, &own);
	handle->main.driven = true;

	for (int i = 0; i < CALLS; i++)
	{
		bool		enough = i + 1 >= 2 * DLOCK_SECOND_LEAST;

		add(handle, &calls[i], &wakers[i]);
		ok((dlock_flight_to_drive(handle, &calls[i]) == &handle->second) == enough,
		   "%d calls wait: %s second flight", i + 1, enough ? "a" : "no");
	}
	handle->second.retry_at = dlock_now() + 60000;
	ok(dlock_flight_to_drive(handle, &calls[0]) == NULL, "it could not connect a moment ago");
	handle->second.retry_at = 0;
	handle->nspare = 1;
	ok(dlock_flight_to_drive(handle, &calls[0]) == NULL, "the last spare connection is left to others");
	handle->nspare = 0;

	/* its driver has left */
	handle->second.conn = dlock_pool_spare(handle, false, 0);
	dlock_queue_take_out(&handle->queue, &calls[0]);
	take_off(&handle->second, &calls[0]);
	ok(dlock_flight_to_drive(handle, &calls[1]) == &handle->second, "one that waits drives what nobody drives");
	ok(dlock_flight_to_drive(handle, &calls[0]) == &handle->second, "and so does one that it carries");
	dlock_flight_hand_over(handle, &handle->main);
	ok((wakers[0].woken & DLOCK_WOKEN_LOOK) != 0, "who drives the main flight has it driven by another");
	wakers[0].woken = 0;
	dlock_flight_hand_over(handle, &handle->second);
	ok(wakers[0].woken == 0, "but not who drives it");
	handle->second.driven = true;
	ok(dlock_flight_to_drive(handle, &calls[1]) == NULL, "one driver for each");

	/* the main flight is forgotten */
	handle->main.driven = false;
	own.waker = &wakers[CALLS - 1];
	own.shared = NULL;
	dlock_flight_hand_over(handle, &handle->second);
	ok((wakers[CALLS - 1].woken & DLOCK_WOKEN_LOOK) != 0, "who drives the second has the main one driven by another");
	handle->main.nair = handle->second.nair = 0;
	dlock_close(handle);
}

static void
test_passengers(void)
{
	dlock_handle *handle = open_handle(4);
	DlockWoken	list = {0};
	DlockCall	own;
	DlockCall	sleeper;
	DlockCall	driver;
	DlockCall	started;
	DlockWaker	waker = {0};
	DlockWaker	listed = {.list = &list};

	add(handle, &sleeper, &waker);
	add(handle, &driver, NULL);
	add(handle, &started, NULL);
	started.waker = &listed;
	add(handle, &own, NULL);
	dlock_queue_board(&handle->queue, &handle->second, DLOCK_ALL, &own, true, dlock_now());
	ok(handle->second.nair == 3 && sleeper.flight == &handle->second && own.flight == &handle->second &&
	   started.flight == &handle->second,
	   "the second flight carries the calls of its driver, of threads that sleep, and those that were started");
	ok(handle->queue.n == 1 && driver.state == DLOCK_CALL_QUEUED, "not that of one who is awake");
	dlock_queue_board(&handle->queue, &handle->main, DLOCK_ALL, NULL, false, dlock_now());
	ok(handle->main.nair == 1 && handle->queue.n == 0, "the main flight carries all");
	handle->main.nair = handle->second.nair = 0;
	dlock_close(handle);
}

/* A second flight, or none. */
static bool
is_second_wanted(dlock_handle *handle, const DlockCall *call)
{
	return dlock_flight_to_drive(handle, call) == &handle->second;
}

static void
test_quick(void)
{
	dlock_handle *handle = open_handle(4);
	DlockWaker	wakers[CALLS] = {0};
	DlockCall	calls[CALLS];
	DlockCall	flying;
	DlockCall	slow;
	DlockWaker	waker = {0};

	add(handle, &flying, NULL);
	dlock_queue_take_out(&handle->queue, &flying);
	take_off(&handle->main, &flying);
	handle->main.nair = 2 * DLOCK_SECOND_LEAST; /* so they have to be quick */
	handle->main.driven = true;
	add(handle, &slow, &waker);
	ok(!is_second_wanted(handle, &slow), "a call that is not quick waits for the main flight");
	for (int i = 0; i < DLOCK_SECOND_LEAST; i++)
	{
		add_kind(handle, &calls[i], DLOCK_RELEASES, &wakers[i]);
		ok(is_second_wanted(handle, &calls[i]), "%d quick calls wait: a second flight", i + 1);
	}
	ok(dlock_flight_look_at(&calls[0]) > dlock_now() && dlock_flight_look_at(&slow) == DLOCK_NEVER,
	   "a quick call looks now and then whether there can be one");
	dlock_queue_take_out(&handle->queue, &calls[1]);

	/*
	 * who drove the main flight has left, and another one is about to drive
	 * it
	 */
	handle->main.driven = false;
	ok(is_second_wanted(handle, &calls[0]) == false, "who is awake drives the main flight");
	flying.waker = &waker;
	ok(is_second_wanted(handle, &calls[0]), "but not with a quick call, if one that it carries can");
	ok(dlock_flight_to_drive(handle, &slow) == &handle->main, "others do");
	handle->main.driven = true;
	add_kind(handle, &calls[1], DLOCK_RELEASES, &wakers[1]);
	ok(dlock_flight_to_drive(handle, &slow) == NULL, "who is not quick does not drive it");
	handle->target->unflushed = true;
	ok(dlock_flight_to_drive(handle, &calls[0]) == NULL, "without a flush, no call is quick");
	handle->main.nair = DLOCK_SECOND_LEAST;
	ok(is_second_wanted(handle, &slow), "all go if there are as many as in the air");
	handle->main.nair = 2 * DLOCK_SECOND_LEAST;
	handle->target->unflushed = false;
	dlock_queue_board(&handle->queue, &handle->second, DLOCK_QUICK, &calls[0], true, dlock_now());
	dlock_queue_put_back(&handle->queue, handle->second.air, handle->second.nair);
	dlock_queue_board(&handle->queue, &handle->second, DLOCK_QUICK, &slow, true, dlock_now());
	ok(handle->second.nair == DLOCK_SECOND_LEAST && handle->second.is_quick && handle->queue.n == 1 &&
	   slow.state == DLOCK_CALL_QUEUED, "it carries the quick calls, and no other one, even its driver's");
	handle->second.sent_at = dlock_now();
	handle->second.driven = true;

	dlock_queue_take_out(&handle->queue, &slow);
	handle->main.nair = handle->second.nair = 0;
	dlock_close(handle);
}

/* What the main flight leaves to a quick one, and what not. */
static void
test_left_to_quick(void)
{
	dlock_handle *handle = open_handle(4);
	DlockWoken	list = {0};
	DlockWaker	listed = {.list = &list};
	DlockWaker	waker = {0};
	DlockCall	own;
	DlockCall	started;
	DlockCall	sleeper;

	add_kind(handle, &started, DLOCK_RELEASES, NULL);
	dlock_queue_take_out(&handle->queue, &started);
	started.waker = &listed;
	dlock_flight_add(handle, &started);
	add_kind(handle, &own, DLOCK_RELEASES, NULL);
	add_kind(handle, &sleeper, DLOCK_RELEASES, &waker);
	dlock_queue_board(&handle->queue, &handle->main, DLOCK_SLOW, &own, false, dlock_now());
	ok(handle->main.nair == 1 && own.state == DLOCK_CALL_FLYING, "the main flight takes the call of its driver");
	ok(handle->queue.n == 2 && handle->queue.nquick == 2 && started.state == DLOCK_CALL_QUEUED,
	   "and leaves other quick ones to it, also those of an event loop");
	dlock_queue_board(&handle->queue, &handle->main, DLOCK_ALL, NULL, false, dlock_now());
	ok(handle->main.nair == 2 && handle->queue.n == 0 && handle->queue.nquick == 0, "until all may go with it");
	handle->main.nair = 0;
	dlock_close(handle);
}

/* What the thread of an event loop drives. */
static void
test_needs_driver(void)
{
	dlock_handle *handle = open_handle(4);
	DlockWaker	waker = {0};
	DlockCall	flying;
	DlockCall	quick;

	ok(!dlock_flight_needs_driver(handle, &handle->main) && !dlock_flight_needs_driver(handle, &handle->second),
	   "there is nothing to do");
	add(handle, &flying, NULL);
	ok(dlock_flight_needs_driver(handle, &handle->main), "a call waits for the main flight");
	handle->main.driven = true;
	ok(!dlock_flight_needs_driver(handle, &handle->main), "which another thread drives");
	handle->main.driven = false;
	dlock_queue_take_out(&handle->queue, &flying);
	take_off(&handle->main, &flying);
	ok(dlock_flight_needs_driver(handle, &handle->main), "it is in the air");
	add_kind(handle, &quick, DLOCK_RELEASES, NULL);
	ok(!dlock_flight_needs_driver(handle, &handle->second), "a quick call, but who waits for it drives the main one");
	quick.waker = &waker;
	ok(dlock_flight_needs_driver(handle, &handle->second), "a quick call, and who waits for it sleeps");
	handle->queue.first->ready_at = dlock_now() + 60000;
	ok(!dlock_flight_needs_driver(handle, &handle->second), "not yet");
	handle->queue.first->ready_at = 0;
	handle->nspare = 1;
	ok(!dlock_flight_needs_driver(handle, &handle->second), "not with the last spare connection");
	handle->nspare = 0;
	dlock_queue_take_out(&handle->queue, &quick);
	handle->second.conn = dlock_pool_spare(handle, false, 0);
	ok(dlock_flight_needs_driver(handle, &handle->second), "it has a connection");
	handle->main.nair = 0;
	dlock_flight_drop_deserted(handle);
	ok(handle->second.conn != NULL, "which it keeps while it connects, for the next call");
	take_off(&handle->second, &quick);
	handle->second.air[0] = NULL;
	dlock_flight_drop_deserted(handle);
	ok(handle->second.conn == NULL && handle->nspare == 0, "but not if nobody waits for what is in the air");
	handle->main.conn = dlock_pool_take(handle, false, 0);
	handle->main.driven = true;
	dlock_flight_drop_deserted(handle);
	ok(handle->main.conn != NULL, "its driver keeps that of the main flight");
	handle->main.driven = false;
	dlock_flight_drop_deserted(handle);
	ok(handle->main.conn == NULL && handle->nconns == 0, "which is not left half open by a call that was cancelled");
	dlock_close(handle);
}

/* There is no answer; then connections that were opened earlier are not used any more. */
static void
test_silent(bool is_silent)
{
	dlock_handle *handle = open_handle(4);
	DlockWaker	waker = {0};
	DlockCall	flying;

	add(handle, &flying, &waker);
	dlock_queue_take_out(&handle->queue, &flying);
	take_off(&handle->main, &flying);
	handle->main.conn = dlock_pool_new(handle);
	if (is_silent)
		handle->main.conn->state = DLOCK_CONN_BUSY;
	handle->main.is_old = true;
	handle->idle[handle->nidle++] = dlock_pool_new(handle);
	dlock_flight_settle(handle, &handle->main);
	ok(flying.state == DLOCK_CALL_QUEUED && flying.in_doubt && handle->main.nair == 0,
	   "%s: the call goes again", is_silent ? "there is no answer" : "the connection is closed");
	ok(handle->nidle == !is_silent && handle->nconns == 1 + !is_silent,
	   "... and %s", is_silent ? "connections that were opened earlier are dropped" : "others may be good");
	dlock_queue_take_out(&handle->queue, &flying);
	dlock_close(handle);
}

static void
test_parties(void)
{
	dlock_handle *handle = open_handle(2);
	DlockCall	calls[4];
	DlockWaker	wakers[4] = {0};

	for (int i = 0; i < 3; i++)
		add(handle, &calls[i], &wakers[i]);
	ok(calls[0].shared == NULL && calls[1].shared != NULL && calls[1].shared == calls[2].shared,
	   "those who wait together share a word, but for the first");
	dlock_queue_board(&handle->queue, &handle->main, DLOCK_ALL, NULL, false, dlock_now());
	add(handle, &calls[3], &wakers[3]);
	ok(calls[3].shared == NULL, "the next flight has a leader of its own");
	wakers[0].next = &wakers[1];
	wakers[1].next = &wakers[2];
	dlock_waker_wake_list(&wakers[0], DLOCK_WOKEN_DONE);
	for (int i = 0; i < 3; i++)
		ok(dlock_waker_sleep(&wakers[i], DLOCK_WOKEN_DONE, DLOCK_NEVER) == DLOCK_WOKEN_DONE, "all are told: %d", i);
	ok(dlock_waker_sleep(&wakers[3], DLOCK_WOKEN_DONE, dlock_now() + 1) == 0, "not the next");
	dlock_queue_take_out(&handle->queue, &calls[3]);
	handle->main.nair = 0;
	dlock_close(handle);
}

/*
 * A thread hands a flight over to the pilot, which is loading another one: the pilot
 * has looked whether it is needed, and is about to sleep.
 */
static void
test_roused(void)
{
	dlock_handle *handle = open_handle(4);
	DlockWoken *woken = &handle->async.woken;
	DlockCall	call;
	DlockWaker	waker = {.list = woken};

	dlock_look(woken);
	ok(dlock_may_sleep(woken), "the pilot sleeps if there is nothing new");
	woken->sleeps = false;
	add_kind(handle, &call, DLOCK_TRIES_FOR_KEY, NULL);
	call.waker = &waker;
	dlock_queue_take_out(&handle->queue, &call);
	take_off(&handle->main, &call);
	dlock_flight_hand_over(handle, NULL);
	ok(!dlock_may_sleep(woken), "not if it got a flight while it loaded the other one");
	dlock_look(woken);
	ok(dlock_may_sleep(woken), "it looks once");
	handle->main.nair = 0;
	dlock_close(handle);
}

/* The bytes after the length of the only element. */
static bool
is_sent_as(DlockType type, const char *text, const char *bytes, size_t n)
{
	PQExpBufferData array;
	bool		same;

	initPQExpBuffer(&array);
	dlock_binary_begin(&array, type, 1);
	dlock_binary_add(&array, type, text);
	same = array.len == 24 + n && (unsigned char) array.data[23] == n &&
		memcmp(array.data + 24, bytes, n) == 0;
	termPQExpBuffer(&array);
	return same;
}

static void
test_binary(void)
{
	ok(is_sent_as(DLOCK_TYPE_TEXT, "a\"b", "a\"b", 3), "a text as it is");
	ok(is_sent_as(DLOCK_TYPE_INT4, "-2", "\xff\xff\xff\xfe", 4), "an integer");
	ok(is_sent_as(DLOCK_TYPE_INT8, "4294967298", "\0\0\0\1\0\0\0\2", 8), "a longer one");
	ok(is_sent_as(DLOCK_TYPE_BOOL, "t", "\1", 1) && is_sent_as(DLOCK_TYPE_BOOL, "f", "\0", 1), "a boolean");
	ok(is_sent_as(DLOCK_TYPE_INTERVAL, "2 ms", "\0\0\0\0\0\0\7\xd0\0\0\0\0\0\0\0\0", 16), "an interval");
	ok(is_sent_as(DLOCK_TYPE_INTERVAL, "18446744073709553 ms",
				  "\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0", 16),
	   "one that is too long does not become a short one");
}

void
test_flights(void)
{
	test_binary();
	test_drivers();
	test_passengers();
	test_quick();
	test_left_to_quick();
	test_needs_driver();
	test_silent(true);
	test_silent(false);
	test_parties();
	test_roused();
}
