/*-------------------------------------------------------------------------
 *
 * constants.h
 *	  Every time, size and limit of the library.
 *
 * Times are in milliseconds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONSTANTS_H
#define DLOCK_CONSTANTS_H

/*
 * Options
 */

/* dlock_open_options; the TTL is the server's default for dlock.default_ttl */
#define DLOCK_DEFAULT_TTL_MS 20000
#define DLOCK_DEFAULT_TIMEOUT_MS 10000
#define DLOCK_DEFAULT_CONNECTIONS 4
#define DLOCK_MIN_CONNECTIONS 2

/* a larger options struct was not initialized */
#define DLOCK_MAX_OPTIONS_SIZE 65536

/* a random owner: 128 bits in hexadecimal digits, and the terminating null */
#define DLOCK_OWNER_SIZE 33

/*
 * The life of a lock, in parts of its TTL
 */

/* how long it is ours after a request; the rest is for clocks that differ */
#define dlock_lease_ms(ttl) ((ttl) * 9 / 10)

/* how long after a renewal the program is told that it is in danger */
#define dlock_danger_ms(ttl) ((ttl) * 6 / 10)

/* the period of its renewals, with a jitter from 0 to DLOCK_JITTER - 1 */
#define DLOCK_JITTER 200
#define dlock_period_ms(ttl, jitter) \
	((ttl) * (1000 - DLOCK_JITTER / 2 + (jitter)) / 3000)

/* one that is due this soon is renewed together with one that is due now */
#define dlock_batch_ms(ttl) ((ttl) / 5)

/* how long the server may take to answer a renewal, or a connection to open */
#define dlock_answer_ms(ttl) dlock_max((ttl) / 3, 20)
#define dlock_connect_ms(ttl) dlock_max((ttl) / 4, 100)

/* the next try after the server refused a renewal */
#define dlock_refused_ms(ttl) dlock_max((ttl) / 10, 1)

/* an acquire that took longer than this is confirmed by a refresh */
#define dlock_confirm_ms(ttl) ((ttl) / 4)

/* how long it is held before the renewal thread opens a connection for it */
#define dlock_short_ms(ttl) dlock_min((ttl) / 10, 20)

/* how long a renewal may wait for a row that is in use, of its answer's time */
#define dlock_row_ms(answer) dlock_max((answer) / 3, 1)

/*
 * Connections
 */

/* how many a handle keeps that are not in use */
#define DLOCK_POOL_SIZE 4

/* pauses between two tries to connect; each is twice the one before */
#define DLOCK_BACKOFF_FIRST_MS 50
#define DLOCK_BACKOFF_LAST_MS 1000
#define DLOCK_BACKOFF_FULL_MS 2500	/* if the server is there, but full */

/* statements that are prepared on each of them; the server keeps a plan of each */
#define DLOCK_MAX_PREPARED 24

/* how long the renewal thread, which only has to wake up, may take to lend */
#define DLOCK_LEND_MS 2000

/* how long the last answer may take when a handle is closed */
#define DLOCK_FINISH_MS 1000

/* what the TTL says of a connection, unless the conninfo says otherwise */
#define dlock_clamp(x, low, high) dlock_min(dlock_max(x, low), high)
#define dlock_address_ms(ttl) dlock_clamp((ttl) / 4, 1000, 10000)
#define dlock_tcp_user_timeout_ms(ttl) dlock_clamp((ttl) / 3, 1000, 20000)
#define dlock_keepalives_idle_s(ttl) dlock_clamp((ttl) / 6000, 1, 10)
#define dlock_keepalives_interval_s(ttl) dlock_clamp((ttl) / 12000, 1, 10)
#define DLOCK_KEEPALIVES_COUNT 3

/*
 * Calls
 */

/* a call that waits asks this often whether the server is still there */
#define dlock_probe_ms(timeout) dlock_max((timeout) / 2, 250)

/* between two tries that a timeout of the server ends */
#define DLOCK_TIMED_OUT_PAUSE_MS 250

/*
 * Flights: calls and bytes of one statement, its parameters, how long it may wait
 * for a row that is in use, and how often it is asked what no connection can be
 * had to wait for
 */
#define DLOCK_MAX_FLIGHT 512
#define DLOCK_MAX_FLIGHT_BYTES 1000000
#define DLOCK_MAX_PARAMS 64
#define DLOCK_ROW_WAIT "100ms"
#define DLOCK_POLL_MS 250

/* parties of threads that wait (queue.c); more than there are flights at a time */
#define DLOCK_PARTIES 16

/*
 * A second flight beside the first: how many calls must wait for it at least, unless
 * they are quick; how long quick ones are left to it; how long it is not tried again if
 * it could not connect; and how often its driver looks whether it has been answered while
 * it connects
 */
#define DLOCK_SECOND_LEAST 16
#define DLOCK_HOLD_MS 20
#define DLOCK_SECOND_PAUSE_MS 5000
#define DLOCK_GLANCE_MS 2

/* the longest texts that may go with others; the server has the same limits */
#define DLOCK_MAX_KEY_BYTES 1024
#define DLOCK_MAX_OWNER_BYTES 1024
#define DLOCK_MAX_VALUE_BYTES 65536

/*
 * Tickets: how soon after a release they are asked for, lists of them, events that are kept because their ticket is not known
 * yet, the longest TTL until the request has claimed its grant, how long the
 * server may take to say that a wait is over, and the longest value of one
 */
#define DLOCK_NUDGE_MS 25
#define DLOCK_WAIT_BUCKETS 256
#define DLOCK_MAX_EARLY 256
#define DLOCK_CLAIM_MS 10000
#define DLOCK_OVERDUE_MS 1000
#define DLOCK_MAX_TICKET_BYTES 1024

/* the thread of async.c looks at all calls at most so often, and at least */
#define DLOCK_PILOT_MS 10
#define DLOCK_PILOT_LATE_MS 100

/* a watch holds a snapshot, so none lasts longer */
#define DLOCK_WATCH_SLICE_MS 60000

/* at most so many locks in one statement, and in dlock_acquire_all() */
#define DLOCK_MAX_BATCH 10000
#define DLOCK_MAX_KEYS 1000

/* when to look again for an orphaned grant, and for how long */
#define DLOCK_ORPHAN_PAUSE_MS 200
#define DLOCK_ORPHAN_LAST_MS 60000

/*
 * Events: one question in this time, some of them at once; and how deep the
 * values of one may be nested (ours are flat)
 */
#define DLOCK_HEAR_PAUSE_MS 250
#define DLOCK_HEAR_BURST 4
#define DLOCK_MAX_EVENT_DEPTH 8

/* no sleep is longer; afterwards the clock is read again (clock.c) */
#define DLOCK_MAX_SLEEP_MS 60000

#endif							/* DLOCK_CONSTANTS_H */
