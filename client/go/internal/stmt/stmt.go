// Package stmt has the statements of docs/protocol.md.
//
// Nothing depends on the search_path: names have their schema, operators and types are those of pg_catalog,
// and each argument is named and cast, so no function of another role fits. "@." is the schema of the
// extension. All parameters are texts or NULL, and all that is read is text, because drivers differ in
// how they write and read arrays, intervals and int8.
package stmt

import (
	"fmt"
	"strings"
)

var qualify = strings.NewReplacer(
	"::", "::pg_catalog.",
	" = ", " OPERATOR(pg_catalog.=) ",
	" <> ", " OPERATOR(pg_catalog.<>) ",
	" - ", " OPERATOR(pg_catalog.-) ",
	" * ", " OPERATOR(pg_catalog.*) ",
)

func sql(text string) string { return qualify.Replace(strings.Join(strings.Fields(text), " ")) }

func ms(x string) string   { return "(EXTRACT(EPOCH FROM " + x + ")::float8 * 1000::float8)::int8" }
func left(t string) string { return ms("(" + t + " - pg_catalog.clock_timestamp())") }

func refresh(key, version, owner, ttl, value string) string {
	return left("@.dlock_refresh(key => " + key + ", version => " + version + ", ttl => " + ttl + "::interval, owner => " +
		owner + ", value => " + value + "::text, at_least => NULL::interval)")
}

func unnest(types ...string) string {
	columns := make([]string, len(types))
	for i, t := range types {
		columns[i] = fmt.Sprintf("pg_catalog.unnest($%d::%s[])", i+1, t)
	}
	return strings.Join(columns, ", ")
}

const terms = `key => $1::text, ttl => $2::interval, owner => $3::text, value => $4::text,
	priority => $5::int4, cleanup => $6::interval, force => $7::bool, slots => $8::int4, at_least => $9::interval,
	delay => $10::interval, lazy => $11::bool, shared => $12::bool, again => true`

// The protocol.
var (
	// Hello asks for the process, which a pooler does not know, and the schema of the extension.
	Hello = sql(`
		SELECT pg_catalog.pg_backend_pid(), (SELECT pg_catalog.quote_ident(n.nspname::text)
			FROM pg_catalog.pg_extension AS e, pg_catalog.pg_namespace AS n
			WHERE n.oid = e.extnamespace AND (e.extname = 'dlock'::name OR e.extname = 'dlock_portable'::name
				OR e.extname = 'dlock_router'::name) ORDER BY e.extname LIMIT 1)`)
	Features = sql(`SELECT f.edition::text, f.version::text, f.features::text[] FROM @.dlock_features() AS f`)
	Listen   = "LISTEN dlock"
	Try      = sql(`SELECT @.dlock_acquire(` + terms + `, wait => '0'::interval, session => false)`)
	Enqueue  = sql(`SELECT @.dlock_enqueue(` + terms + `, wait => $13::interval)`)
	TryAll   = sql(`
		SELECT @.dlock_acquire_all(keys => $1::text[], ttl => $2::interval, owner => $3::text, value => $4::text,
			wait => '0'::interval, priority => $5::int4, session => false, slots => $6::int4[], shared => $7::bool[])`)
	// Claim (key, ticket, owner, TTL) asks what has become of the ticket; if it was granted, it is refreshed.
	Claim = sql(`
		SELECT s.state, s.version, CASE WHEN s.state = 'granted'::text
			THEN ` + refresh("$1::text", "s.version", "$3::text", "$4", "NULL") + ` END
		FROM (SELECT 1) AS one LEFT JOIN LATERAL @.dlock_ticket(ticket => $2::int8) AS s ON true`)
	Dequeue = sql(`SELECT @.dlock_dequeue(ticket => $1::int8)::text`)
	// Tickets returns those that do not wait any more.
	Tickets = sql(`
		SELECT u.t FROM pg_catalog.unnest($1::int8[]) AS u(t) LEFT JOIN LATERAL @.dlock_ticket(ticket => u.t) AS s ON true
		WHERE s.state IS NULL OR s.state <> 'waiting'::text`)
	// Refresh has key, version, owner, new value or NULL.
	Refresh = sql(`SELECT ` + refresh("$1::text", "$2::int8", "$3::text", "NULL", "$4"))
	// Renew (keys, versions, owners, which to refresh, lock_timeout) returns for each its number, how long it
	// lasts if it was refreshed, its state, and how long it may take to yield.
	Renew = sql(`
		SELECT x.i, x.expires, x.state, CASE WHEN x.state = 'preempting'::text THEN (SELECT
			` + left("l.requestor_deadline") + ` FROM @.dlock_get(key => x.k) AS l WHERE l.version = x.v) END
		FROM (SELECT u.i, u.k, u.v, CASE WHEN u.r THEN ` + refresh("u.k", "u.v", "u.o", "NULL", "NULL") + ` END AS expires,
				@.dlock_check(key => u.k, version => u.v, owner => u.o) AS state
			FROM (SELECT pg_catalog.set_config('lock_timeout', $5::text, true) OFFSET 0) AS l(t),
				ROWS FROM (` + unnest("text", "int8", "text", "bool") + `) WITH ORDINALITY AS u(k, v, o, r, i)
			WHERE l.t IS NOT NULL OFFSET 0) AS x`)
	Release = sql(`
		SELECT @.dlock_release(key => u.k, version => u.v, owner => u.o)
		FROM ROWS FROM (` + unnest("text", "int8", "text") + `) AS u(k, v, o)`)
	// GiveBack has keys, owners, and which may still be in the queue.
	GiveBack = sql(`
		SELECT CASE WHEN u.q AND EXISTS (SELECT FROM @.dlock_waiters AS w WHERE CASE WHEN w.ticket IS NOT NULL
				AND w.key = u.k AND w.owner = u.o THEN @.dlock_dequeue(ticket => w.ticket) END)
			THEN 'released'::text ELSE @.dlock_release(key => u.k, version => NULL::int8, owner => u.o) END
		FROM ROWS FROM (` + unnest("text", "text", "bool") + `) AS u(k, o, q)`)
	GiveBackPortable = sql(`
		SELECT @.dlock_release(key => u.k, version => NULL::int8, owner => u.o)
		FROM ROWS FROM (` + unnest("text", "text", "bool") + `) AS u(k, o, q)`)
	// Fence is sent within the transaction that it protects; the token is for fences that are triggers.
	Fence = sql(`SELECT @.dlock_fence(key => $1::text, version => $2::int8),
		pg_catalog.set_config('dlock.token', $2::int8::text, true)`)
	// Limit is rounded up: a part of a millisecond is not "go ahead".
	Limit = sql(`SELECT pg_catalog.ceil(EXTRACT(EPOCH FROM @.dlock_limit(key => $1::text, n => $2::int4,
		per => $3::interval, wait => '0'::interval, priority => $4::int4))::float8 * 1000::float8)::int8`)
	Get = sql(`
		SELECT l.version, l.owner, l.value, l.state FROM @.dlock_get(key => $1::text) AS l
		WHERE l.version IS NOT NULL ORDER BY l.version DESC`)
)
