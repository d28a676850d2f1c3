package example.dlock;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The statements of docs/protocol.md.  Each is written for a hostile search_path: names have their schema, operators
 * are written OPERATOR(pg_catalog.x), each argument is given by name and with its type.
 */
enum Sql {
    /** The process, which a pooler does not know, and the schema of the extension. */
    HELLO("SELECT pg_catalog.pg_backend_pid(), (SELECT pg_catalog.quote_ident(n.nspname::text) "
            + "FROM pg_catalog.pg_extension AS e, pg_catalog.pg_namespace AS n WHERE n.oid = e.extnamespace AND ("
            + "e.extname = 'dlock'::name OR e.extname = 'dlock_portable'::name OR e.extname = 'dlock_router'::name) "
            + "ORDER BY e.extname LIMIT 1)"),
    FEATURES("SELECT f.edition::text, f.version::text, f.features::text[] FROM @.dlock_features() AS f"),
    LISTEN("LISTEN dlock"),
    TRY("SELECT @.dlock_acquire(" + Terms.ALL + ", wait => '0'::interval, session => false)"),
    ENQUEUE("SELECT @.dlock_enqueue(" + Terms.ALL + ", wait => $13::interval)"),
    TRY_ALL("SELECT @.dlock_acquire_all(keys => $1::text[], ttl => $2::interval, owner => $3::text, "
            + "value => $4::text, wait => '0'::interval, priority => $5::int4, session => false, "
            + "slots => $6::int4[], shared => $7::bool[])"),
    /** Key, ticket, owner, TTL: what has become of the ticket; if it was granted, it is refreshed. */
    CLAIM("SELECT s.state, s.version, CASE WHEN s.state = 'granted'::text THEN ms((@.dlock_refresh(key => $1::text, "
            + "version => s.version, ttl => $4::interval, owner => $3::text, value => NULL::text, "
            + "at_least => NULL::interval) - pg_catalog.clock_timestamp())) END "
            + "FROM (SELECT 1) AS one LEFT JOIN LATERAL @.dlock_ticket(ticket => $2::int8) AS s ON true"),
    DEQUEUE("SELECT @.dlock_dequeue(ticket => $1::int8)"),
    /** Those that do not wait any more. */
    TICKETS("SELECT u.t FROM pg_catalog.unnest($1::int8[]) AS u(t) "
            + "LEFT JOIN LATERAL @.dlock_ticket(ticket => u.t) AS s ON true "
            + "WHERE s.state IS NULL OR s.state <> 'waiting'::text"),
    /** Key, version, owner; what is new, or NULL: value, TTL, at_least. */
    REFRESH("SELECT ms((@.dlock_refresh(key => $1::text, version => $2::int8, ttl => $5::interval, owner => $3::text, "
            + "value => $4::text, at_least => $6::interval) - pg_catalog.clock_timestamp()))"),
    /**
     * Keys, versions, owners, which to refresh, lock_timeout: for each its number, how long it lasts if it was
     * refreshed, its state, and how long it may take to yield.
     */
    RENEW("SELECT x.i, x.expires, x.state, CASE WHEN x.state = 'preempting'::text THEN (SELECT "
            + "ms((l.requestor_deadline - pg_catalog.clock_timestamp())) FROM @.dlock_get(key => x.k) AS l "
            + "WHERE l.version = x.v) END FROM (SELECT u.i, u.k, u.v, CASE WHEN u.r THEN ms((@.dlock_refresh("
            + "key => u.k, version => u.v, ttl => NULL::interval, owner => u.o, value => NULL::text, "
            + "at_least => NULL::interval) - pg_catalog.clock_timestamp())) END AS expires, "
            + "@.dlock_check(key => u.k, version => u.v, owner => u.o) AS state "
            + "FROM (SELECT pg_catalog.set_config('lock_timeout', $5::text, true) OFFSET 0) AS l(t), "
            + "ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::int8[]), pg_catalog.unnest($3::text[]), "
            + "pg_catalog.unnest($4::bool[])) WITH ORDINALITY AS u(k, v, o, r, i) WHERE l.t IS NOT NULL OFFSET 0) AS x"),
    RELEASE("SELECT @.dlock_release(key => u.k, version => u.v, owner => u.o) FROM ROWS FROM ("
            + "pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::int8[]), pg_catalog.unnest($3::text[])) AS u(k, v, o)"),
    /** Keys, owners, which may still be in the queue. */
    ABANDON("SELECT CASE WHEN u.q AND EXISTS (SELECT FROM @.dlock_waiters AS w WHERE CASE WHEN w.ticket IS NOT NULL "
            + "AND w.key = u.k AND w.owner = u.o THEN @.dlock_dequeue(ticket => w.ticket) END) THEN 'released'::text "
            + "ELSE @.dlock_release(key => u.k, version => NULL::int8, owner => u.o) END " + Terms.ABANDONED),
    ABANDON_PORTABLE("SELECT @.dlock_release(key => u.k, version => NULL::int8, owner => u.o) " + Terms.ABANDONED),
    /** Within the transaction that it protects; the token is for fences that are triggers. */
    FENCE("SELECT @.dlock_fence(key => $1::text, version => $2::int8), "
            + "pg_catalog.set_config('dlock.token', $2::int8::text, true)"),
    /** Rounded up: a part of a millisecond is not "go ahead". */
    LIMIT("SELECT pg_catalog.ceil(EXTRACT(EPOCH FROM @.dlock_limit(key => $1::text, n => $2::int4, "
            + "per => $3::interval, wait => '0'::interval, priority => $4::int4))::float8 * 1000::float8)::int8"),
    GET("SELECT l.version, l.owner, l.value, l.state FROM @.dlock_get(key => $1::text) AS l "
            + "WHERE l.version IS NOT NULL ORDER BY l.version DESC");

    /** As docs/protocol.md has it, with $1 for the first parameter and "@." for the schema. */
    final String text;

    private final Map<String, Jdbc> prepared = new ConcurrentHashMap<>();

    Sql(String brief) {
        text = written(brief);
    }

    /** A statement as JDBC has it, and which parameter belongs to which of its question marks. */
    record Jdbc(String sql, int[] order) {}

    /** With the schema of the extension. */
    Jdbc in(String schema) {
        return prepared.computeIfAbsent(schema, s -> {
            List<Integer> order = new ArrayList<>();
            Matcher marks = Pattern.compile("\\$(\\d+)").matcher(text);
            String sql = marks.replaceAll(mark -> {
                order.add(Integer.parseInt(mark.group(1)));
                return "?";
            });
            return new Jdbc(sql.replace("@.", s + "."), order.stream().mapToInt(i -> i).toArray());
        });
    }

    /** The abbreviations of this file written out: types, operators, and milliseconds. */
    private static String written(String brief) {
        return brief.replaceAll("\\bms\\((\\(.*?clock_timestamp\\(\\)\\))\\)",
                        "(EXTRACT(EPOCH FROM $1)::float8 * 1000::float8)::int8")
                .replaceAll("::(text|int4|int8|bool|interval|float8|name)\\b", "::pg_catalog.$1")
                .replaceAll(" (=|<>|-|\\*) ", " OPERATOR(pg_catalog.$1) ");
    }

    private static final class Terms {
        static final String ALL = "key => $1::text, ttl => $2::interval, owner => $3::text, value => $4::text, "
                + "priority => $5::int4, cleanup => $6::interval, force => $7::bool, slots => $8::int4, "
                + "at_least => $9::interval, delay => $10::interval, lazy => $11::bool, shared => $12::bool, again => true";
        static final String ABANDONED = "FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[]), "
                + "pg_catalog.unnest($3::bool[])) AS u(k, o, q)";
    }
}
