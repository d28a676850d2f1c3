/*-------------------------------------------------------------------------
 *
 * sql.c
 *	  Every statement that the library sends.
 *
 * The search_path of a session is not under our control.  The owner of a
 * database sets it for all sessions, and behind a pooler it is what another
 * client left there.  A name that is looked up by it may resolve to an object of
 * another role, whose code would then run with our privileges, perhaps those of
 * a superuser.  So no statement here depends on the search_path:
 *
 * - Functions, types, relations and collations have their schema.  Operators
 *   are written OPERATOR(pg_catalog.=), and a constant beside one is cast.
 *   LIKE, IN, BETWEEN, NULLIF, IS DISTINCT FROM, CASE x WHEN, USING and NATURAL
 *   JOIN look up an operator by the search_path and are not used.  EXTRACT,
 *   LEAST, GREATEST, CASE WHEN, IS NULL and ORDER BY do not.
 * - "@." is the schema of the extension, in which others may have functions of
 *   the same names.  A call gives every argument, by its name and with its
 *   exact type, so that no function with fewer arguments or other types fits.
 *   One that has these arguments and further ones with defaults makes the call
 *   ambiguous (42725).  Then it fails and runs nothing.  Arguments are given by
 *   name because a newer server may have more of them, at any position.
 *
 * test/t/security/902_hostile_search_path.pl places an object of another role beside everything that is
 * used here.
 *
 *-------------------------------------------------------------------------
 */
#include "base/sql.h"

#define TEXT "::pg_catalog.text"
#define INT4 "::pg_catalog.int4"
#define INT8 "::pg_catalog.int8"
#define BOOL "::pg_catalog.bool"
#define INTERVAL "::pg_catalog.interval"

#define EQUALS " OPERATOR(pg_catalog.=) "
#define MINUS " OPERATOR(pg_catalog.-) "
#define IS_LIKE " OPERATOR(pg_catalog.~~) "

#define NOW "pg_catalog.clock_timestamp()"

#define EPOCH_MS(x) \
"(EXTRACT(EPOCH FROM " x ") OPERATOR(pg_catalog.*) 1000::pg_catalog.numeric)" INT8

/*
 * Connecting: $1 is the process that libpq believes to be connected to, $2 the schema
 * that the program has named, or null.
 *
 * A session that is ours alone gets a search_path without schemas of other
 * roles, in case a statement below ever misses a qualification.  It is ours if
 * its process is the one that libpq was told: a pooler that shares servers
 * between clients has numbers of its own, because it has to pass on requests to
 * cancel.  In a shared session the setting would affect the next client.  As an
 * option of the connection it would be refused by PgBouncer, and would replace
 * the caller's options.
 *
 * The caller says how long a call may wait, and the library enforces that.  So
 * timeouts that are set for all statements of a role or database are turned off
 * in such a session too.  Through a pooler they stay; statement_timeout is
 * returned so that errors.c recognizes its effect, and the call is repeated.
 * transaction_timeout exists since PostgreSQL 17.
 *
 * A statement that is given up ends with its connection, because a cancel would need
 * another one.  But a server looks for the end of a connection only if it is told to, and
 * some operating systems, on which the setting is an error, cannot tell.
 *
 * The extension may be dlock_router, which passes each call on to a cluster that
 * commits it by itself.  The library does not depend on several calls taking
 * effect together, so in such a session it allows them in one transaction.  Events
 * of the clusters do not reach a router.
 *
 * The portable edition may have been installed without an extension; then the program
 * names its schema.  Everybody can set its settings, so these are not asked for.
 *
 * The last columns say whether a grant is answered before it is flushed, and whether it
 * is the portable edition.
 *
 * connect.c needs a warning of the server (hear_notice()), so warnings must not
 * be turned off.  With a pooler in between that is up to the administrator.
 */
#define IS_EXTENSION(name) "e.extname" EQUALS "'" name "'::pg_catalog.name"

/* The schema that is named, or that of an extension: dlock comes before the others. */
#define FROM_SCHEMA(named, is_one) \
" FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_extension e ON e.extnamespace" EQUALS "n.oid AND (" is_one ")" \
" WHERE CASE WHEN " named TEXT " IS NULL THEN e.extname IS NOT NULL ELSE n.nspname" EQUALS named "::pg_catalog.name END" \
" ORDER BY e.extname LIMIT 1"

#define IS_PORTABLE "(e.extname IS NULL OR " IS_EXTENSION("dlock_portable") ")"

const char	dlock_sql_lookup[] =
"SELECT pg_catalog.quote_ident(n.nspname" TEXT "), pg_catalog.pg_backend_pid(),"
" (SELECT " EPOCH_MS("LEAST(pg_catalog.current_setting('dlock.default_ttl', true)" INTERVAL ","
					 " pg_catalog.current_setting('dlock.max_ttl', true)" INTERVAL ")") " WHERE NOT " IS_PORTABLE "),"
" (SELECT " EPOCH_MS("pg_catalog.current_setting('statement_timeout')" INTERVAL) "),"
" CASE WHEN pg_catalog.current_setting('client_min_messages')" EQUALS "'error'" TEXT
" THEN pg_catalog.set_config('client_min_messages', 'warning', false) END,"
" CASE WHEN pg_catalog.pg_backend_pid()" EQUALS "$1" INT4 " THEN pg_catalog.concat("
"pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false),"
" pg_catalog.set_config('statement_timeout', '0', false),"
" pg_catalog.set_config('lock_timeout', '0', false),"
" CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL"
" THEN pg_catalog.set_config('transaction_timeout', '0', false) END,"
" CASE WHEN pg_catalog.version() OPERATOR(pg_catalog.~) '-(linux|darwin|freebsd|openbsd|netbsd)'" TEXT
" THEN pg_catalog.set_config('client_connection_check_interval', '1s', false) END,"
" CASE WHEN " IS_EXTENSION("dlock_router")
" THEN pg_catalog.set_config('dlock_router.autocommit_ok', 'on', false) END) END,"
" " IS_EXTENSION("dlock_router") ","
" pg_catalog.current_setting('dlock.durable_grants', true)" EQUALS "'off'" TEXT
" AND pg_catalog.current_setting('synchronous_commit')" EQUALS "'off'" TEXT ","
" " IS_PORTABLE
FROM_SCHEMA("$2", IS_EXTENSION("dlock") " OR " IS_EXTENSION("dlock_portable") " OR " IS_EXTENSION("dlock_router"));

/*
 * On a connection of the program: the schema, and the fence in that schema, which
 * replaces %s.  $1 is the schema that the program has named, or null.
 */
const char	dlock_sql_schema[] =
"SELECT pg_catalog.quote_ident(n.nspname" TEXT ")"
FROM_SCHEMA("$1", IS_EXTENSION("dlock") " OR " IS_EXTENSION("dlock_portable"));

const char	dlock_sql_fence[] = "SELECT %s.dlock_fence(key => $1" TEXT ", version => $2" INT8 ")";

/*
 * The same for a whole connection: what dlock.fence is to be.  A server without the library
 * would accept any name with a dot, but shows only those that it knows.
 */
const char	dlock_sql_fence_connection[] =
"SELECT pg_catalog.set_config('dlock.fence', $1" TEXT ", false)"
" FROM pg_catalog.pg_settings s WHERE s.name" EQUALS "'dlock.fence'" TEXT;

/* is the server there? */
const char	dlock_sql_probe[] = "SELECT 1";

const char	dlock_sql_listen[] = "LISTEN dlock";

/*
 * Acquiring: key, TTL, owner, value, priority, session, slots, cleanup, force,
 * at_least, delay, lazy, again, and the wait, if there is one.  A CALL waits without a
 * snapshot.  lock_timeout would end the wait; arguments are computed before it
 * begins.
 */
#define WAITS(n) \
"CASE WHEN pg_catalog.set_config('lock_timeout', '0', true) IS NOT NULL THEN $" n INTERVAL " END"

#define TERMS(wait) \
", ttl => $2" INTERVAL ", owner => $3" TEXT ", value => $4" TEXT ", wait => " wait INTERVAL \
", priority => $5" INT4 ", session => $6" BOOL

/* null: any number of readers */
#define SLOTS(n) "slots => COALESCE(" n ", 1" INT4 "), shared => " n " IS NULL"

#define ACQUIRE_ARGUMENTS(wait) \
"key => $1" TEXT TERMS(wait) ", " SLOTS("$7" INT4) ", cleanup => $8" INTERVAL \
", force => $9" BOOL ", at_least => $10" INTERVAL ", delay => $11" INTERVAL ", lazy => $12" BOOL ", again => $13" BOOL

const char	dlock_sql_try[] = "SELECT @.dlock_acquire(" ACQUIRE_ARGUMENTS("'0'") ")";

const char	dlock_sql_wait[] =
"CALL @.dlock_lock(" ACQUIRE_ARGUMENTS(WAITS("14")) ", version => NULL" INT8 ")";

/*
 * Acquiring all: keys, TTL, owner, value, priority, session, all slots, which are
 * shared, and the wait, if there is one.  Returns a row for each key, or none if one is busy.
 */
#define ACQUIRE_ALL(wait) \
"SELECT u.i, u.v FROM ROWS FROM (pg_catalog.unnest(@.dlock_acquire_all(" \
"keys => $1" TEXT "[]" TERMS(wait) ", slots => $7" INT4 "[], shared => $8" BOOL "[])))" \
" WITH ORDINALITY AS u(v, i)"

const char	dlock_sql_try_all[] = ACQUIRE_ALL("'0'");
const char	dlock_sql_wait_all[] = ACQUIRE_ALL(WAITS("9"));

/*
 * One grant: key, version, owner, and for a refresh its TTL.
 *
 * What waits for a row that an open transaction is using has lock_timeout as its
 * last parameter, for the transaction of this statement.  Arguments are computed
 * before the function is called.
 */
#define LIMITED(n, x) \
"CASE WHEN pg_catalog.set_config('lock_timeout', $" n TEXT ", true) IS NOT NULL THEN " x " END"

#define GRANT ", version => $2" INT8 ", owner => $3" TEXT

#define NAMED "key => $1" TEXT GRANT

/* of a refresh: what else it could change */
#define KEEP_REST ", value => NULL" TEXT ", at_least => NULL" INTERVAL

#define REFRESH \
"@.dlock_refresh(key => " LIMITED("5", "$1" TEXT) GRANT ", ttl => $4" INTERVAL KEEP_REST ")"

const char	dlock_sql_release[] =
"SELECT @.dlock_release(key => " LIMITED("4", "$1" TEXT) GRANT ")";

const char	dlock_sql_check[] = "SELECT @.dlock_check(" NAMED ")";

/* the new expiry */
const char	dlock_sql_refresh_key[] = "SELECT " EPOCH_MS(REFRESH);

/* how long it lasts from now on, which is its TTL, and its slots */
const char	dlock_sql_adopt[] =
"SELECT " EPOCH_MS(REFRESH MINUS NOW) ","
" (SELECT l.slots FROM @.dlock_get(key => $1" TEXT ") l WHERE l.version" EQUALS "$2" INT8 ")";

/* how long it lasts from now on, null if it was not refreshed, and its state */
const char	dlock_sql_refresh[] =
"SELECT " EPOCH_MS(REFRESH MINUS NOW) ", @.dlock_check(" NAMED ")";

/*
 * key, version, the next owner, TTL, lock_timeout.  The second column is the version that
 * this owner has already: it may come from a call that got no answer.
 */
const char	dlock_sql_handover[] =
"SELECT @.dlock_handover(key => " LIMITED("5", "$1" TEXT) GRANT ", ttl => $4" INTERVAL "),"
" (SELECT pg_catalog.max(l.version) FROM @.dlock_get(key => $1" TEXT ") l WHERE l.owner" EQUALS "$3" TEXT
" AND l.role" TEXT EQUALS "pg_catalog.quote_ident(CURRENT_USER" TEXT ")"
" AND l.version OPERATOR(pg_catalog.>) $2" INT8 " AND l.state OPERATOR(pg_catalog.<>) 'cooling'" TEXT ")";

/* key, number, window, priority, wait; less than a millisecond is not "go ahead" */
const char	dlock_sql_limit[] =
"SELECT pg_catalog.ceil(EXTRACT(EPOCH FROM @.dlock_limit(key => $1" TEXT ", n => $2" INT4 ", per => $3" INTERVAL
", priority => $4" INT4 ", wait => " WAITS("5") ")) OPERATOR(pg_catalog.*) 1000::pg_catalog.numeric)" INT8;

/* key, reason, version, lock_timeout */
const char	dlock_sql_force_release[] =
"SELECT @.dlock_force_release(key => " LIMITED("4", "$1" TEXT) ", reason => $2" TEXT ", version => $3" INT8 ")";

/*
 * Several grants: keys, versions, owners.  The version alone names a grant, but
 * the server finds the place of an owner directly.
 */
#define GRANTS \
"pg_catalog.unnest($1" TEXT "[]), pg_catalog.unnest($2" INT8 "[]), pg_catalog.unnest($3" TEXT "[])"

#define LIMIT(n) \
"(SELECT pg_catalog.set_config('lock_timeout', $" n TEXT ", true) OFFSET 0) AS l(t)"

#define EACH_RELEASED \
"u.i, @.dlock_release(key => u.k, version => u.v, owner => u.o)"

#define OF_GRANTS \
" FROM " LIMIT("4") ", ROWS FROM (" GRANTS ") WITH ORDINALITY AS u(k, v, o, i) WHERE l.t IS NOT NULL"

const char	dlock_sql_release_all[] = "SELECT " EACH_RELEASED OF_GRANTS;

/*
 * Tickets.  Enqueue: as for an acquire, but with the wait in the place of the
 * session.
 */
const char	dlock_sql_enqueue[] =
"SELECT @.dlock_enqueue(key => $1" TEXT ", ttl => $2" INTERVAL ", owner => $3" TEXT ", value => $4" TEXT
", priority => $5" INT4 ", wait => $6" INTERVAL ", " SLOTS("$7" INT4) ", cleanup => $8" INTERVAL
", force => $9" BOOL ", at_least => $10" INTERVAL ", delay => $11" INTERVAL ", lazy => $12" BOOL
", again => $13" BOOL ")";

/*
 * Key, ticket, owner, TTL, lock_timeout.  What has become of the ticket, null if
 * it is not known; if it was granted, the version, and if that could be refreshed, how
 * long it lasts from now on.
 */
#define CLAIM(key, ticket, owner, ttl) \
"s.state, s.version" TEXT ", CASE WHEN s.state" EQUALS "'granted'" TEXT " THEN " \
EPOCH_MS("@.dlock_refresh(key => " key ", version => s.version, ttl => " ttl ", owner => " owner \
KEEP_REST ")" MINUS NOW) TEXT " END"

const char	dlock_sql_claim[] =
"SELECT " CLAIM(LIMITED("5", "$1" TEXT), "$2" INT8, "$3" TEXT, "$4" INTERVAL)
" FROM (SELECT 1) AS one LEFT JOIN LATERAL @.dlock_ticket(ticket => $2" INT8 ") AS s ON true";

const char	dlock_sql_dequeue[] = "SELECT @.dlock_dequeue(ticket => $1" INT8 ")";

/* tickets; returns those that do not wait any more */
const char	dlock_sql_tickets[] =
"SELECT u.t FROM pg_catalog.unnest($1" INT8 "[]) AS u(t)"
" LEFT JOIN LATERAL @.dlock_ticket(ticket => u.t) AS s ON true"
" WHERE s.state IS NULL OR s.state OPERATOR(pg_catalog.<>) 'waiting'" TEXT;

/*
 * Calls that go together (batch.c).  A function is called for each row; whether
 * the rows are those of one call or of several makes no difference to the server.
 *
 * The arrays are unnested in a list of results, which takes the server less time
 * than functions in FROM: it does not store the rows before it reads them.
 */
#define UNNEST(n, type) "pg_catalog.unnest($" n type "[])"

#define NUMBERS(type) "pg_catalog.generate_subscripts($1" type "[], 1" INT4 ")"

#define LIMITED_BY(n) " FROM " LIMIT(n) " WHERE l.t IS NOT NULL"

#define NO_TEXT ", NULL" TEXT

#define EACH_OF_GRANTS(more, names, limit) \
" FROM (SELECT " UNNEST("1", TEXT) ", " UNNEST("2", INT8) ", " UNNEST("3", TEXT) more ", " \
NUMBERS(TEXT) limit ") AS u(" names ", i)"

#define EACH_REQUEST(sixth, names) \
" FROM (SELECT " UNNEST("1", TEXT) ", " UNNEST("2", INTERVAL) ", " UNNEST("3", TEXT) \
", " UNNEST("4", TEXT) ", " UNNEST("5", INT4) ", " UNNEST("6", sixth) ", " UNNEST("7", INT4) \
", " UNNEST("8", INTERVAL) ", " UNNEST("9", BOOL) ", " UNNEST("10", INTERVAL) \
", " UNNEST("11", INTERVAL) ", " UNNEST("12", BOOL) ", " UNNEST("13", BOOL) ", " NUMBERS(TEXT) ") AS u(" names ", i)"

#define EACH_TRIED(more) \
"u.i, @.dlock_acquire(key => u.k, ttl => u.t, owner => u.o, wait => '0'" INTERVAL more ")" TEXT \
NO_TEXT NO_TEXT

#define GRANT_TYPES DLOCK_TYPE_TEXT, DLOCK_TYPE_INT8, DLOCK_TYPE_TEXT

#define REQUEST_TYPES(sixth) \
DLOCK_TYPE_TEXT, DLOCK_TYPE_INTERVAL, DLOCK_TYPE_TEXT, DLOCK_TYPE_TEXT, DLOCK_TYPE_INT4, sixth, \
DLOCK_TYPE_INT4, DLOCK_TYPE_INTERVAL, DLOCK_TYPE_BOOL, DLOCK_TYPE_INTERVAL, DLOCK_TYPE_INTERVAL, \
DLOCK_TYPE_BOOL, DLOCK_TYPE_BOOL

const DlockPart dlock_sql_parts[DLOCK_KINDS] = {
	[DLOCK_DEQUEUES] = {
		"u.i, @.dlock_dequeue(ticket => u.t)" TEXT NO_TEXT NO_TEXT
		" FROM (SELECT " UNNEST("1", INT8) ", " NUMBERS(INT8) ") AS u(t, i)",
		{DLOCK_TYPE_INT8}, 0
	},
	[DLOCK_RELEASES] = {
		EACH_RELEASED NO_TEXT NO_TEXT EACH_OF_GRANTS("", "k, v, o", LIMITED_BY("4")),
		{GRANT_TYPES}, 1
	},
	[DLOCK_REFRESHES] = {
		"u.i, " EPOCH_MS("@.dlock_refresh(key => u.k, version => u.v, ttl => u.t, owner => u.o, value => NULL" TEXT
						 ", at_least => NULL" INTERVAL ")" MINUS NOW) TEXT ", @.dlock_check(key => u.k, version => u.v, owner => u.o)" NO_TEXT
		EACH_OF_GRANTS(", " UNNEST("4", INTERVAL), "k, v, o, t", LIMITED_BY("5")),
		{GRANT_TYPES, DLOCK_TYPE_INTERVAL}, 1
	},
	[DLOCK_CHECKS] = {
		"u.i, @.dlock_check(key => u.k, version => u.v, owner => u.o)" NO_TEXT NO_TEXT
		EACH_OF_GRANTS("", "k, v, o", ""),
		{GRANT_TYPES}, 0
	},
	/* of an acquire that has no more than that */
	[DLOCK_TRIES_FOR_KEY] = {
		EACH_TRIED(", value => NULL" TEXT ", priority => 0" INT4 ", session => false, slots => 1" INT4
				   ", cleanup => '0'" INTERVAL ", force => false, at_least => '0'" INTERVAL
				   ", delay => '0'" INTERVAL ", lazy => false, shared => false, again => true")
		" FROM (SELECT " UNNEST("1", TEXT) ", " UNNEST("2", INTERVAL) ", " UNNEST("3", TEXT)
		", " NUMBERS(TEXT) ") AS u(k, t, o, i)",
		{DLOCK_TYPE_TEXT, DLOCK_TYPE_INTERVAL, DLOCK_TYPE_TEXT}, 0
	},
	[DLOCK_TRIES] = {
		EACH_TRIED(", value => u.v, priority => u.p, session => u.c, " SLOTS("u.s")
				   ", cleanup => u.y, force => u.f, at_least => u.a, delay => u.d, lazy => u.l, again => u.g")
		EACH_REQUEST(BOOL, "k, t, o, v, p, c, s, y, f, a, d, l, g"),
		{REQUEST_TYPES(DLOCK_TYPE_BOOL)}, 0
	},
	[DLOCK_ENQUEUES] = {
		"u.i, @.dlock_enqueue(key => u.k, ttl => u.t, owner => u.o, value => u.v, priority => u.p"
		", wait => u.w, " SLOTS("u.s") ", cleanup => u.y, force => u.f, at_least => u.a, delay => u.d"
		", lazy => u.l, again => u.g)" TEXT NO_TEXT NO_TEXT
		EACH_REQUEST(INTERVAL, "k, t, o, v, p, w, s, y, f, a, d, l, g"),
		{REQUEST_TYPES(DLOCK_TYPE_INTERVAL)}, 0
	},
	[DLOCK_CLAIMS] = {
		"u.i, " CLAIM("u.k", "u.v", "u.o", "u.t")
		EACH_OF_GRANTS(", " UNNEST("4", INTERVAL), "k, v, o, t", LIMITED_BY("5"))
		" LEFT JOIN LATERAL @.dlock_ticket(ticket => u.v) AS s ON true",
		{GRANT_TYPES, DLOCK_TYPE_INTERVAL}, 1
	}
};

/*
 * Renewal: the grants, which of them to refresh, lock_timeout.
 *
 * Refreshes those that are to be renewed, then checks all.  A row that an open
 * transaction is using would keep the others waiting, so lock_timeout limits
 * that, for the transaction of this statement.
 */
const char	dlock_sql_renew[] =
"SELECT x.i, x.refreshed, x.state,"
" CASE WHEN x.state" EQUALS "'preempting'" TEXT " THEN"
" (SELECT " EPOCH_MS("l.requestor_deadline" MINUS NOW)
" FROM @.dlock_get(key => x.k) l WHERE l.version" EQUALS "x.v) END"
" FROM (SELECT u.i, u.k, u.v,"
" CASE WHEN u.r THEN " EPOCH_MS("@.dlock_refresh(key => u.k, version => u.v,"
								" ttl => NULL" INTERVAL ", owner => u.o" KEEP_REST ")" MINUS NOW) " END AS refreshed,"
" @.dlock_check(key => u.k, version => u.v, owner => u.o) AS state"
" FROM " LIMIT("5") ","
" ROWS FROM (" GRANTS ", pg_catalog.unnest($4" BOOL "[]))"
" WITH ORDINALITY AS u(k, v, o, r, i)"
" WHERE l.t IS NOT NULL OFFSET 0) AS x";

/*
 * Keys, owners, whether the request may still be in the queue, and tickets (0: not known).
 * A request that was withdrawn was not granted.  Where the third is null, the owner may
 * have other requests, and only that of the ticket is taken back.
 */
const char	dlock_sql_abandoned[] =
"SELECT CASE WHEN u.t OPERATOR(pg_catalog.<>) 0" INT8 " AND @.dlock_dequeue(ticket => u.t) THEN 'released'" TEXT
" WHEN u.q AND EXISTS (SELECT FROM @.dlock_waiters w WHERE"
" CASE WHEN w.ticket IS NOT NULL AND w.key" EQUALS "u.k AND w.owner" EQUALS "u.o"
" THEN @.dlock_dequeue(ticket => w.ticket) END) THEN 'released'" TEXT
" WHEN u.q IS NOT NULL THEN @.dlock_release(key => u.k, version => NULL" INT8 ", owner => u.o)"
" ELSE (SELECT @.dlock_release(key => u.k, version => s.version, owner => u.o)"
" FROM @.dlock_ticket(ticket => u.t) s WHERE s.version IS NOT NULL) END"
" FROM ROWS FROM (" UNNEST("1", TEXT) ", " UNNEST("2", TEXT) ", " UNNEST("3", BOOL) ", " UNNEST("4", INT8)
") AS u(k, o, q, t)";

/*
 * The portable edition does not tell who waits: this takes the place of dlock_waiters.
 */
const char	dlock_sql_no_waiters[] =
"(SELECT NULL" TEXT " AS key, NULL" INT4 " AS pid, NULL" INT8 " AS ticket, NULL::pg_catalog.regrole AS role, NULL" TEXT " AS owner,"
" NULL" INT4 " AS priority, NULL" INT4 " AS slots, NULL" INT4 " AS \"position\", NULL::pg_catalog.timestamptz AS since,"
" NULL::pg_catalog.timestamptz AS until WHERE false)";

/*
 * Looking: fill_info() and dlock_list_waiters() in inspect.c know the columns by
 * number.  A key that an open transaction keeps busy has no version.  Whether we
 * may see owner and value is decided as the server does it; a router names roles
 * that it need not have.
 */
#define MAY_NOT_SEE(role) \
role " IS NOT NULL AND (pg_catalog.pg_has_role(" \
"pg_catalog.to_regrole(" role TEXT ")::pg_catalog.oid, 'USAGE'" TEXT ")" \
" OR pg_catalog.pg_has_role('pg_read_all_stats'::pg_catalog.name, 'USAGE'" TEXT ")) IS NOT TRUE"

#define INFO_COLUMNS \
"l.key, l.version, l.owner, l.role" TEXT ", l.value, l.state, l.priority, " \
EPOCH_MS("l.acquired_at") ", " EPOCH_MS("l.refreshed_at") ", " EPOCH_MS("l.expires_at") ", " \
EPOCH_MS("l.remaining") ", " EPOCH_MS("l.ttl") ", l.pid, l.requestor_priority IS NOT NULL, " \
"l.requestor_owner, l.requestor_priority, " \
EPOCH_MS("l.requestor_since") ", " EPOCH_MS("l.requestor_deadline") ", " \
"GREATEST(" EPOCH_MS("l.requestor_deadline" MINUS NOW) ", 0" INT8 "), l.slots, l.using_pid, " MAY_NOT_SEE("l.role") ", l.origin"

/* key; its grants, the oldest first, and then what is pending */
const char	dlock_sql_info[] = "SELECT " INFO_COLUMNS
" FROM @.dlock_get(key => $1" TEXT ") l ORDER BY l.version, l.using_pid";

/* A pattern, the key before the first one or NULL, the number of keys or NULL. */
#define LISTED "@.dlock_list(pattern => $1" TEXT ", after => $2" TEXT ", \"limit\" => $3" INT4 ")"
#define BY_KEY " ORDER BY l.key COLLATE pg_catalog.\"C\", l.version, l.using_pid"

const char	dlock_sql_list[] = "SELECT " INFO_COLUMNS " FROM " LISTED " l" BY_KEY;

/*
 * The same, and the same pattern for LIKE, by which the keys that are waited for or
 * contended come too.  Each look at a key sees its newest state, so a key must be looked
 * at once only: its grants of two moments could be two holders.
 */
const char	dlock_sql_list_hot[] =
"WITH k AS MATERIALIZED (SELECT x.key FROM (SELECT DISTINCT w.key FROM @.dlock_waiters w"
" UNION SELECT c.key FROM @.dlock_contended c) x WHERE x.key" IS_LIKE "$4" TEXT ")"
" SELECT " INFO_COLUMNS
" FROM (SELECT p.* FROM " LISTED " p"
" WHERE NOT EXISTS (SELECT FROM k WHERE k.key" EQUALS "p.key)"
" UNION ALL SELECT g.* FROM k, @.dlock_get(key => k.key) g) l" BY_KEY;

const char	dlock_sql_waiters[] =
"SELECT w.key, w.pid, w.owner, w.position IS NULL, w.priority, w.position, "
EPOCH_MS("w.since") ", " EPOCH_MS("w.until") ", "
"GREATEST(" EPOCH_MS(NOW MINUS "w.since") ", 0" INT8 "), w.slots, " MAY_NOT_SEE("w.role")
", w.ticket"
" FROM @.dlock_waiters w WHERE w.key" IS_LIKE "$1" TEXT
" ORDER BY w.key COLLATE pg_catalog.\"C\", w.position NULLS LAST, w.since, w.pid, w.ticket LIMIT $2" INT8;

/* key, version, timeout */
const char	dlock_sql_watch[] =
"SELECT @.dlock_watch(key => $1" TEXT ", version => $2" INT8 ", wait => $3" INTERVAL ")";

/* name, status, detail, hint; the first row is the verdict */
const char	dlock_sql_health[] =
"SELECT h.name, h.status, h.detail, h.hint FROM @.dlock_health() h";

/* name, value, whether the value is a time in milliseconds */
const char	dlock_sql_stats[] =
"SELECT v.name, v.value, v.is_time FROM @.dlock_stats s, LATERAL (VALUES "
"('grants'" TEXT ", s.grants, false), "
"('renewals'" TEXT ", s.renewals, false), "
"('releases'" TEXT ", s.releases, false), "
"('busy'" TEXT ", s.busy, false), "
"('waits'" TEXT ", s.waits, false), "
"('wait_time'" TEXT ", " EPOCH_MS("s.wait_time") ", true), "
"('timeouts'" TEXT ", s.timeouts, false), "
"('deadlocks'" TEXT ", s.deadlocks, false), "
"('expired'" TEXT ", s.expired, false), "
"('lapsed_taken'" TEXT ", s.lapsed_taken, false), "
"('asked'" TEXT ", s.asked, false), "
"('yielded'" TEXT ", s.yielded, false), "
"('yield_time'" TEXT ", " EPOCH_MS("s.yield_time") ", true), "
"('yield_max'" TEXT ", " EPOCH_MS("s.yield_max") ", true), "
"('preempted'" TEXT ", s.preempted, false), "
"('forced'" TEXT ", s.forced, false), "
"('fence_rejected'" TEXT ", s.fence_rejected, false), "
"('tickets_refused'" TEXT ", s.tickets_refused, false), "
"('waiting'" TEXT ", s.waiting, false), "
"('stats_reset'" TEXT ", " EPOCH_MS("s.stats_reset") ", true)) v(name, value, is_time)";

/* the upper bound in milliseconds or null, how many */
const char	dlock_sql_wait_times[] =
"SELECT " EPOCH_MS("t.upper") ", t.count FROM @.dlock_wait_times t";

/* key, busy, waits, how long in milliseconds, lost */
const char	dlock_sql_contended[] =
"SELECT c.key, c.busy, c.waits, " EPOCH_MS("c.wait_time") ", c.lost FROM @.dlock_contended c";
