/*-------------------------------------------------------------------------
 *
 * constants.h
 *	  Every time, size and limit of the library.  Times are in milliseconds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_CONSTANTS_H
#define DLOCK_CONSTANTS_H

/*
 * Options
 */

/* dlock_open_options.ttl_ms: the server's default for dlock.default_ttl */
#define DLOCK_DEFAULT_TTL_MS 20000

/* dlock_open_options.timeout_ms */
#define DLOCK_DEFAULT_TIMEOUT_MS 10000

/* dlock_open_options.max_connections */
#define DLOCK_DEFAULT_CONNECTIONS 4

/* one for batches and one for renewals */
#define DLOCK_MIN_CONNECTIONS 2

/* a larger options struct was not initialized */
#define DLOCK_MAX_OPTIONS_SIZE 65536

/* slots within the library: any number of readers; 1 is exclusive */
#define DLOCK_SHARED 0

/* a random owner: 128 bits in hexadecimal digits, and the terminating null */
#define DLOCK_OWNER_SIZE 33

/*
 * The life of a lock, in parts of its TTL
 */

/* how long it is ours after a request; the rest is for clocks that differ */
#define dlock_lease_ms(ttl) ((ttl) * 9 / 10)

/* how long after a renewal the program is told that it is in danger */
#define dlock_danger_ms(ttl) ((ttl) * 6 / 10)

/* the period of its renewals varies by a tenth: the jitter is from 0 to this - 1 */
#define DLOCK_JITTER 200

/* the period of its renewals: a third of the TTL */
#define dlock_period_ms(ttl, jitter) \
	((ttl) * (1000 - DLOCK_JITTER / 2 + (jitter)) / 3000)

/* one that is due this soon is renewed together with one that is due now */
#define dlock_batch_ms(ttl) ((ttl) / 5)

/* how long the server may take to answer a renewal */
#define dlock_answer_ms(ttl) dlock_max((ttl) / 3, 20)

/* how long each address may take to accept the connection for renewals */
#define dlock_connect_ms(ttl) dlock_max((ttl) / 4, 100)

/* the next try after the server refused a renewal */
#define dlock_refused_ms(ttl) dlock_max((ttl) / 10, 1)

/* an acquire that took longer than this is confirmed by a refresh */
#define dlock_confirm_ms(ttl) ((ttl) / 4)

/* how long it is held before a connection is opened for its renewals */
#define dlock_short_ms(ttl) dlock_min((ttl) / 10, 20)

/* how long a renewal may wait for a row that is in use, of its answer's time */
#define dlock_row_ms(answer) dlock_max((answer) / 3, 1)

/*
 * Connections
 */

/* how many idle ones a handle keeps */
#define DLOCK_MAX_IDLE 4

/* the pause after the first failure to connect; each is twice the one before */
#define DLOCK_BACKOFF_FIRST_MS 50

/* the longest of these pauses */
#define DLOCK_BACKOFF_LAST_MS 1000

/* the longest one if the server is there, but accepts nobody */
#define DLOCK_BACKOFF_FULL_MS 2500

/* how many statements are prepared on each; the server keeps a plan of each */
#define DLOCK_MAX_PREPARED 24

/* how long a batch waits for the connection of the background, instead of a new one */
#define DLOCK_LEND_MS 2000

/* how long the last answers may take when a handle is closed */
#define DLOCK_FINISH_MS 1000

/* the pause before a second connection for batches is tried again */
#define DLOCK_SECOND_PAUSE_MS 5000

#define dlock_clamp(x, low, high) dlock_min(dlock_max(x, low), high)

/* how long an address may take to accept us, unless the conninfo says otherwise */
#define dlock_address_ms(ttl) dlock_clamp((ttl) / 4, 1000, 10000)

/* libpq's option of that name, unless the conninfo has it */
#define dlock_tcp_user_timeout_ms(ttl) dlock_clamp((ttl) / 3, 1000, 20000)

/* likewise, in seconds */
#define dlock_keepalives_idle_s(ttl) dlock_clamp((ttl) / 6000, 1, 10)

/* likewise, in seconds */
#define dlock_keepalives_interval_s(ttl) dlock_clamp((ttl) / 12000, 1, 10)

/* likewise */
#define DLOCK_KEEPALIVES_COUNT 3

/*
 * Requests
 */

/* a request that waits asks this often whether the server is still there */
#define dlock_probe_ms(timeout) dlock_max((timeout) / 2, 250)

/* between two tries that a timeout of the server ends */
#define DLOCK_TIMED_OUT_PAUSE_MS 250

/* how often the server is asked about what no connection can be had to wait for */
#define DLOCK_POLL_MS 250

/* requests in one statement */
#define DLOCK_MAX_BATCH 512

/* bytes of the values in one statement */
#define DLOCK_MAX_BATCH_BYTES 1000000

/* parameters of one statement: those of all kinds together, and some more */
#define DLOCK_MAX_PARAMS 64

/* how long a batch may wait for a row that is in use */
#define DLOCK_ROW_WAIT "100ms"

/* how many requests at least are worth a second batch, if they need a flush */
#define DLOCK_SECOND_LEAST 16

/* for how long quick requests are left to a second batch that was sent */
#define DLOCK_SECOND_HOLD_MS 20

/* the longest key that is sent with others; the server has the same limit */
#define DLOCK_MAX_KEY_BYTES 1024

/* likewise, of an owner */
#define DLOCK_MAX_OWNER_BYTES 1024

/* likewise, of a value */
#define DLOCK_MAX_VALUE_BYTES 65536

/* a watch holds a snapshot, so none lasts longer */
#define DLOCK_WATCH_SLICE_MS 60000

/* keys in dlock_acquire_all() */
#define DLOCK_MAX_KEYS 1000

/*
 * The background: renewals, tickets, events
 */

/* locks, tickets or abandoned requests in one statement */
#define DLOCK_MAX_RENEWED 10000

/* lists of tickets, by number */
#define DLOCK_WAIT_BUCKETS 256

/* events of tickets that are kept because the ticket is not known yet */
#define DLOCK_MAX_EARLY 256

/* how soon after a release tickets are asked for, where there are no events */
#define DLOCK_EARLY_POLL_MS 25

/* the longest TTL of a ticket's grant until the request has claimed it */
#define DLOCK_CLAIM_MS 10000

/* how long the server may take to say that a wait is over */
#define DLOCK_OVERDUE_MS 1000

/* the longest value of a request that waits by ticket */
#define DLOCK_MAX_TICKET_BYTES 1024

/* the first pause before an abandoned request is released again */
#define DLOCK_ABANDONED_PAUSE_MS 200

/* after this time it is left to its TTL */
#define DLOCK_ABANDONED_LAST_MS 60000

/* in the long run, one question about events in this time */
#define DLOCK_EVENT_PAUSE_MS 250

/* this many questions about events may follow each other at once */
#define DLOCK_EVENT_BURST 4

/*
 * The loop
 */

/* threads that are woken at a time */
#define DLOCK_MAX_SIGNALS 64

/* how long the background thread does not watch what another thread reads */
#define DLOCK_WATCH_PAUSE_MS 5

/* no sleep is longer; afterwards the clock is read again (util.c) */
#define DLOCK_MAX_SLEEP_MS 60000

#endif							/* DLOCK_CONSTANTS_H */
