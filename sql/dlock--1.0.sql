/* dlock: TTL locks in plain SQL */

-- complain if the script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dlock" to load this file. \quit

-- The table has its own schema, in which no other role can create, rename or
-- drop anything. If the extension itself is created in a schema of that name,
-- that schema already exists.
DO $$
DECLARE
	owner pg_catalog.oid := (SELECT n.nspowner FROM pg_catalog.pg_namespace n
							  WHERE n.nspname OPERATOR(pg_catalog.=) 'dlock'::pg_catalog.name);
	me pg_catalog.oid := (SELECT r.oid FROM pg_catalog.pg_roles r
						   WHERE r.rolname OPERATOR(pg_catalog.=) current_user);
BEGIN
	IF owner IS NULL THEN
		CREATE SCHEMA dlock;
		COMMENT ON SCHEMA dlock IS 'the tables of extension dlock';
	ELSIF '@extschema@'::pg_catalog.text OPERATOR(pg_catalog.<>) 'dlock'::pg_catalog.text THEN
		RAISE EXCEPTION USING
			ERRCODE = 'duplicate_schema',
			MESSAGE = 'schema "dlock" already exists',
			DETAIL = 'Extension dlock keeps its tables in a schema of that name.',
			HINT = 'Rename or drop that schema, or, if it is yours, create the extension in it.';
	ELSIF owner OPERATOR(pg_catalog.<>) me THEN
		RAISE EXCEPTION USING
			ERRCODE = 'insufficient_privilege',
			MESSAGE = 'schema "dlock" belongs to another role',
			DETAIL = 'Its owner could drop the tables of extension dlock, or put others in their place.',
			HINT = 'Drop that schema, and create it again as the role that creates the extension.';
	END IF;
END
$$;

-- src/rows/row.c depends on these columns and their order: first those of fixed
-- width, which are never null, then the key, then the others.
CREATE TABLE dlock.locks (
	run bigint NOT NULL,
	slot bigint NOT NULL,
	ttl bigint NOT NULL,
	cleanup bigint NOT NULL,
	at_least bigint NOT NULL,
	delay integer NOT NULL,
	role regrole NOT NULL,
	priority integer NOT NULL,
	slots integer NOT NULL,
	lazy boolean NOT NULL,
	held boolean NOT NULL,
	version bigint NOT NULL,
	acquired_at timestamptz NOT NULL,
	refreshed_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL,
	pid integer NOT NULL,
	key text COLLATE "C" NOT NULL,
	owner text COLLATE "C",
	value text,
	origin text,
	CONSTRAINT locks_pkey PRIMARY KEY (key, slot)
) USING heap WITH (
	-- room for the next versions of a row on its own page
	fillfactor = 50,
	autovacuum_vacuum_scale_factor = 0,
	autovacuum_vacuum_threshold = 2000,
	autovacuum_vacuum_insert_threshold = -1,
	autovacuum_vacuum_cost_delay = 0,
	-- truncation takes an exclusive lock, and a try must not wait for one
	vacuum_truncate = off,
	toast.vacuum_truncate = off,
	-- no query is planned with its statistics
	autovacuum_analyze_scale_factor = 100,
	autovacuum_analyze_threshold = 1000000000
);
ALTER TABLE dlock.locks ALTER COLUMN key SET STORAGE PLAIN;
ALTER TABLE dlock.locks ALTER COLUMN owner SET STORAGE MAIN;

COMMENT ON TABLE dlock.locks IS
	'one row for each key that is or was locked, and one for each place of a key; read it through the view dlock_locks, change it only through the functions';
COMMENT ON COLUMN dlock.locks.run IS
	'the run of the server that wrote the times, which are valid only in that run';
COMMENT ON COLUMN dlock.locks.slot IS
	'0 for the exclusive grant; a place of a key that several may hold has a number of its own';
COMMENT ON COLUMN dlock.locks.ttl IS 'microseconds; of a row that is not held, how long others stay out';
COMMENT ON COLUMN dlock.locks.cleanup IS 'microseconds';
COMMENT ON COLUMN dlock.locks.at_least IS 'microseconds, from acquired_at';
COMMENT ON COLUMN dlock.locks.delay IS 'milliseconds';
COMMENT ON COLUMN dlock.locks.slots IS 'how many may hold the key at once: 1, a number, or 0 for any number';
COMMENT ON COLUMN dlock.locks.pid IS 'the session that the grant ends with, or 0';
COMMENT ON COLUMN dlock.locks.origin IS 'of a grant without an owner';

-- The functions of the extension write to the table without firing triggers.
-- The apply worker of a subscription fires those that are enabled ALWAYS.
CREATE FUNCTION dlock.refuse_replication() RETURNS trigger
AS 'MODULE_PATHNAME', 'dlock_refuse_replication'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock.refuse_replication() FROM PUBLIC;
COMMENT ON FUNCTION dlock.refuse_replication IS
	'keeps logical replication and SQL from writing to dlock.locks';
CREATE TRIGGER refuse_replicated_row
	BEFORE INSERT OR UPDATE OR DELETE ON dlock.locks
	FOR EACH ROW EXECUTE FUNCTION dlock.refuse_replication();
CREATE TRIGGER count_restored_row
	AFTER INSERT OR UPDATE ON dlock.locks
	FOR EACH ROW EXECUTE FUNCTION dlock.refuse_replication();
CREATE TRIGGER refuse_replicated_truncate
	BEFORE TRUNCATE ON dlock.locks
	FOR EACH STATEMENT EXECUTE FUNCTION dlock.refuse_replication();
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_row;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER count_restored_row;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_truncate;

CREATE SEQUENCE dlock.versions AS bigint CACHE 1;
COMMENT ON SEQUENCE dlock.versions IS 'the versions of grants';
CREATE SEQUENCE dlock.incarnation AS bigint CACHE 1;
COMMENT ON SEQUENCE dlock.incarnation IS
	'the incarnation of the database that last drew a version';

SELECT pg_catalog.pg_extension_config_dump('dlock.locks', '');
SELECT pg_catalog.pg_extension_config_dump('dlock.versions', '');
SELECT pg_catalog.pg_extension_config_dump('dlock.incarnation', '');

REVOKE ALL ON TABLE dlock.locks FROM PUBLIC;
REVOKE ALL ON SEQUENCE dlock.versions, dlock.incarnation FROM PUBLIC;

CREATE FUNCTION dlock_acquire(
	key text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	value text DEFAULT NULL,
	wait interval DEFAULT '0',
	priority integer DEFAULT 0,
	cleanup interval DEFAULT '0',
	force boolean DEFAULT false,
	session boolean DEFAULT false,
	slots integer DEFAULT 1,
	at_least interval DEFAULT '0',
	delay interval DEFAULT '0',
	lazy boolean DEFAULT false,
	shared boolean DEFAULT false,
	again boolean DEFAULT true
) RETURNS bigint
AS 'MODULE_PATHNAME', 'dlock_acquire'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_acquire IS
	'acquire a lock; returns the version of the grant, or NULL if the lock is busy';

CREATE FUNCTION dlock_acquire_all(
	keys text[],
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	value text DEFAULT NULL,
	wait interval DEFAULT '0',
	priority integer DEFAULT 0,
	session boolean DEFAULT false,
	slots integer[] DEFAULT NULL,
	shared boolean[] DEFAULT NULL
) RETURNS bigint[]
AS 'MODULE_PATHNAME', 'dlock_acquire_all'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_acquire_all IS
	'acquire all of several locks or none; returns the versions of the grants, or NULL if a lock is busy';

CREATE PROCEDURE dlock_lock(
	key text,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	value text DEFAULT NULL,
	wait interval DEFAULT NULL,
	priority integer DEFAULT 0,
	cleanup interval DEFAULT '0',
	force boolean DEFAULT false,
	session boolean DEFAULT false,
	slots integer DEFAULT 1,
	at_least interval DEFAULT '0',
	delay interval DEFAULT '0',
	lazy boolean DEFAULT false,
	shared boolean DEFAULT false,
	again boolean DEFAULT true,
	INOUT version bigint DEFAULT NULL
)
AS 'MODULE_PATHNAME', 'dlock_lock'
LANGUAGE C;
COMMENT ON PROCEDURE dlock_lock IS
	'acquire a lock, waiting for it without holding a snapshot';

CREATE FUNCTION dlock_watch(
	key text,
	version bigint DEFAULT NULL,
	wait interval DEFAULT NULL
) RETURNS bigint
AS 'MODULE_PATHNAME', 'dlock_watch'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_watch IS
	'wait until the version of a key differs from the given one (NULL means free); returns the new version';

CREATE FUNCTION dlock_refresh(
	key text,
	version bigint DEFAULT NULL,
	ttl interval DEFAULT NULL,
	owner text DEFAULT NULL,
	value text DEFAULT NULL,
	at_least interval DEFAULT NULL
) RETURNS timestamptz
AS 'MODULE_PATHNAME', 'dlock_refresh'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_refresh IS
	'keep a lock for another TTL; returns its new expiry, or NULL if the lock is lost';

CREATE FUNCTION dlock_release(
	key text,
	version bigint DEFAULT NULL,
	owner text DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'dlock_release'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_release IS
	'release a lock; returns released, not_held or held_by_other';

CREATE FUNCTION dlock_release_session() RETURNS integer
AS 'MODULE_PATHNAME', 'dlock_release_session'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_release_session IS
	'release all session locks of this connection; returns how many there were';

CREATE FUNCTION dlock_check(
	key text,
	version bigint DEFAULT NULL,
	owner text DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'dlock_check'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_check IS
	'check whether the caller holds a lock; returns held, preempting, not_held or held_by_other';

CREATE FUNCTION dlock_holds(
	key text,
	version bigint DEFAULT NULL,
	owner text DEFAULT NULL
) RETURNS boolean
AS 'MODULE_PATHNAME', 'dlock_holds'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_holds IS
	'whether the caller holds a lock: dlock_check returns held or preempting';

CREATE FUNCTION dlock_fence(
	key text,
	version bigint
) RETURNS void
AS 'MODULE_PATHNAME', 'dlock_fence'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_fence IS
	'raise error LK001 unless the caller holds the lock; if it does, nobody can take the lock until the transaction ends';

CREATE FUNCTION dlock_fence_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'dlock_fence_trigger'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_fence_trigger IS
	'the fence as a trigger; arguments: the key, and the column of the token unless the token is in dlock.token';

CREATE FUNCTION dlock_handover(
	key text,
	version bigint,
	owner text,
	ttl interval DEFAULT NULL
) RETURNS bigint
AS 'MODULE_PATHNAME', 'dlock_handover'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_handover IS
	'give a lock to another owner of the same role; returns its new version, or NULL if the lock is lost';

CREATE FUNCTION dlock_limit(
	key text,
	n integer,
	per interval,
	wait interval DEFAULT '0',
	priority integer DEFAULT 0
) RETURNS interval
AS 'MODULE_PATHNAME', 'dlock_limit'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_limit IS
	'ask for a permit, of which there are at most n in any window of time; returns zero, or how long until asking again';

CREATE FUNCTION dlock_force_release(
	key text,
	reason text,
	version bigint DEFAULT NULL
) RETURNS bigint
AS 'MODULE_PATHNAME', 'dlock_force_release'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock_force_release(text, text, bigint) FROM PUBLIC;
COMMENT ON FUNCTION dlock_force_release IS
	'take a lock away from its holder, or from all of several; returns the highest version that was taken, or NULL if the lock is free';

CREATE FUNCTION dlock.locks_shown(
	OUT key text,
	OUT version bigint,
	OUT owner text,
	OUT role regrole,
	OUT value text,
	OUT state text,
	OUT priority integer,
	OUT acquired_at timestamptz,
	OUT refreshed_at timestamptz,
	OUT expires_at timestamptz,
	OUT remaining interval,
	OUT ttl interval,
	OUT pid integer,
	OUT slots integer,
	OUT using_pid integer,
	OUT requestor_owner text,
	OUT requestor_priority integer,
	OUT requestor_since timestamptz,
	OUT requestor_deadline timestamptz,
	OUT ends_at timestamptz,
	OUT origin text
) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'dlock_locks_shown'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock.locks_shown IS 'the rows of the view dlock_locks';

CREATE VIEW dlock_locks AS SELECT * FROM dlock.locks_shown();
COMMENT ON VIEW dlock_locks IS
	'one row for each live grant, and for each key that an open transaction keeps busy; owner and value of another role''s grant are null. Every query reads the whole table, also one with WHERE key = ...: use dlock_get(key) or dlock_list(pattern), which read the index';
COMMENT ON COLUMN dlock_locks.key IS 'what is locked';
COMMENT ON COLUMN dlock_locks.version IS 'the version of the grant; null if an open transaction is taking the key';
COMMENT ON COLUMN dlock_locks.owner IS 'the name of the request; null if the grant is another role''s, and you are not a member of pg_read_all_stats';
COMMENT ON COLUMN dlock_locks.role IS 'the role that the grant belongs to';
COMMENT ON COLUMN dlock_locks.value IS 'free text kept with the grant; visible to those who see the owner';
COMMENT ON COLUMN dlock_locks.state IS 'held, preempting, lapsed, cooling or pending';
COMMENT ON COLUMN dlock_locks.priority IS 'the priority of the request';
COMMENT ON COLUMN dlock_locks.acquired_at IS 'when the key was granted';
COMMENT ON COLUMN dlock_locks.refreshed_at IS 'when the grant was renewed last';
COMMENT ON COLUMN dlock_locks.expires_at IS 'when it ends if it is not renewed; if cooling, when the key is free';
COMMENT ON COLUMN dlock_locks.remaining IS 'how long until then';
COMMENT ON COLUMN dlock_locks.ttl IS 'for how long each renewal keeps it';
COMMENT ON COLUMN dlock_locks.pid IS 'the session that a session lock ends with';
COMMENT ON COLUMN dlock_locks.slots IS 'what was asked for: 1, a number of places, or null for a shared lock';
COMMENT ON COLUMN dlock_locks.using_pid IS 'the process whose open transaction is using the row';
COMMENT ON COLUMN dlock_locks.requestor_owner IS 'the owner of the request that has asked the holder to yield';
COMMENT ON COLUMN dlock_locks.requestor_priority IS 'its priority';
COMMENT ON COLUMN dlock_locks.requestor_since IS 'when it asked';
COMMENT ON COLUMN dlock_locks.requestor_deadline IS 'when the time of the holder is up';
COMMENT ON COLUMN dlock_locks.ends_at IS 'when it ends, however often it is renewed, by the max_hold of its policy; null if there is none';
COMMENT ON COLUMN dlock_locks.origin IS 'of a grant without an owner, the session that acquired it: process, application_name, client address; visible to those who see the owner';
GRANT SELECT ON dlock_locks TO PUBLIC;

CREATE FUNCTION dlock_get(
	key text
) RETURNS SETOF @extschema@.dlock_locks
AS 'MODULE_PATHNAME', 'dlock_get'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION dlock_get IS
	'the rows of dlock_locks of one key, found by the index';

CREATE FUNCTION dlock_list(
	pattern text DEFAULT '*',
	after text DEFAULT NULL,
	"limit" integer DEFAULT NULL
) RETURNS SETOF @extschema@.dlock_locks
AS 'MODULE_PATHNAME', 'dlock_list'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION dlock_list IS
	'the rows of dlock_locks of keys that match a pattern (* any text, ? one character), in the order of their keys: of at most "limit" keys that come after the given one; read by the index';

-- A request that waits without a connection: src/tickets/ticket.c, src/tickets/granter.c.
CREATE FUNCTION dlock_enqueue(
	key text,
	ttl interval,
	owner text,
	value text DEFAULT NULL,
	wait interval DEFAULT NULL,
	priority integer DEFAULT 0,
	cleanup interval DEFAULT '0',
	force boolean DEFAULT false,
	slots integer DEFAULT 1,
	at_least interval DEFAULT '0',
	delay interval DEFAULT '0',
	lazy boolean DEFAULT false,
	shared boolean DEFAULT false,
	again boolean DEFAULT true
) RETURNS bigint
AS 'MODULE_PATHNAME', 'dlock_enqueue'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_enqueue IS
	'put a request for a lock into the queue at commit, where it waits by itself; return its ticket';

CREATE FUNCTION dlock_ticket(ticket bigint)
RETURNS TABLE (key text, state text, "position" integer, version bigint)
AS 'MODULE_PATHNAME', 'dlock_ticket'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION dlock_ticket IS
	'what became of a ticket of the current role: waiting, granted or missed; no row if it is not known';

CREATE FUNCTION dlock_dequeue(ticket bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'dlock_dequeue'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_dequeue IS
	'withdraw a request that still waits; true if it did';

CREATE FUNCTION dlock.waiters_shown(
	OUT key text,
	OUT pid integer,
	OUT role regrole,
	OUT owner text,
	OUT priority integer,
	OUT slots integer,
	OUT "position" integer,
	OUT since timestamptz,
	OUT until timestamptz,
	OUT ticket bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'dlock_waiters_shown'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock.waiters_shown IS 'the rows of the view dlock_waiters';

CREATE VIEW dlock_waiters AS
	SELECT w.key, w.pid, w.ticket, w.role, w.owner, w.priority, w.slots, w."position", w.since, w.until
	  FROM dlock.waiters_shown() w;
COMMENT ON VIEW dlock_waiters IS
	'one row for each backend and each ticket that waits in this database; a watcher has no priority and no position';
COMMENT ON COLUMN dlock_waiters.key IS 'what is waited for';
COMMENT ON COLUMN dlock_waiters.pid IS 'the process that waits; null for a ticket';
COMMENT ON COLUMN dlock_waiters.ticket IS 'the ticket that waits; null for a process';
COMMENT ON COLUMN dlock_waiters.role IS 'the role of the request';
COMMENT ON COLUMN dlock_waiters.owner IS 'the name of the request; visible as in dlock_locks';
COMMENT ON COLUMN dlock_waiters.priority IS 'its priority; null for a watcher';
COMMENT ON COLUMN dlock_waiters.slots IS 'what it asks for: 1, a number of places, null for a shared lock, or 0 for a watcher, who wants none';
COMMENT ON COLUMN dlock_waiters."position" IS 'its place in the queue, from 1 on; null for a watcher';
COMMENT ON COLUMN dlock_waiters.since IS 'when it began to wait';
COMMENT ON COLUMN dlock_waiters.until IS 'how long it waits; null without limit';
GRANT SELECT ON dlock_waiters TO PUBLIC;

CREATE FUNCTION dlock_health(
	OUT name text,
	OUT status text,
	OUT detail text,
	OUT hint text
) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'dlock_health'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_health IS
	'report whether the grants of this server would survive a failover: the verdict, then the checks behind it';

-- What is counted: src/stats/stats.c, src/stats/contended_keys.c.
CREATE FUNCTION dlock.stats_shown(
	OUT grants bigint,
	OUT renewals bigint,
	OUT releases bigint,
	OUT busy bigint,
	OUT waits bigint,
	OUT wait_time interval,
	OUT timeouts bigint,
	OUT deadlocks bigint,
	OUT expired bigint,
	OUT lapsed_taken bigint,
	OUT asked bigint,
	OUT yielded bigint,
	OUT yield_time interval,
	OUT yield_max interval,
	OUT preempted bigint,
	OUT forced bigint,
	OUT fence_rejected bigint,
	OUT tickets_refused bigint,
	OUT waiting bigint,
	OUT stats_reset timestamptz
) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'dlock_stats_shown'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION dlock.stats_shown IS 'the row of the view dlock_stats';

CREATE VIEW dlock_stats AS SELECT * FROM dlock.stats_shown();
COMMENT ON VIEW dlock_stats IS
	'one row: what has happened to the locks of this database since the server was started or the statistics were reset';
COMMENT ON COLUMN dlock_stats.grants IS 'new grants';
COMMENT ON COLUMN dlock_stats.renewals IS 'refreshes, and acquires that got the same grant again';
COMMENT ON COLUMN dlock_stats.releases IS 'releases, also at the end of a session';
COMMENT ON COLUMN dlock_stats.busy IS 'acquires that did not wait and were not granted';
COMMENT ON COLUMN dlock_stats.waits IS 'acquires and tickets that waited in the queue';
COMMENT ON COLUMN dlock_stats.wait_time IS 'how long they waited, all together';
COMMENT ON COLUMN dlock_stats.timeouts IS 'waits that ended without the lock because the time was up';
COMMENT ON COLUMN dlock_stats.deadlocks IS 'waits that ended with 40P01';
COMMENT ON COLUMN dlock_stats.expired IS 'grants that ended by their TTL, or whose session was gone';
COMMENT ON COLUMN dlock_stats.lapsed_taken IS 'lazy grants that were taken over after their TTL';
COMMENT ON COLUMN dlock_stats.asked IS 'holders that were asked to yield';
COMMENT ON COLUMN dlock_stats.yielded IS 'holders that then released the lock';
COMMENT ON COLUMN dlock_stats.yield_time IS 'how long they took to do so, all together';
COMMENT ON COLUMN dlock_stats.yield_max IS 'the longest of these times';
COMMENT ON COLUMN dlock_stats.preempted IS 'grants that were taken by a higher priority';
COMMENT ON COLUMN dlock_stats.forced IS 'grants that were ended by dlock_force_release';
COMMENT ON COLUMN dlock_stats.fence_rejected IS 'errors LK001';
COMMENT ON COLUMN dlock_stats.tickets_refused IS 'requests that got no ticket because the server had no room for it: 53400';
COMMENT ON COLUMN dlock_stats.waiting IS 'how many wait in the queue now';
COMMENT ON COLUMN dlock_stats.stats_reset IS 'since when all this is counted';
GRANT SELECT ON dlock_stats TO PUBLIC;

CREATE FUNCTION dlock.wait_times_shown(
	OUT upper interval,
	OUT count bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'dlock_wait_times_shown'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 18;
COMMENT ON FUNCTION dlock.wait_times_shown IS 'the rows of the view dlock_wait_times';

CREATE VIEW dlock_wait_times AS SELECT * FROM dlock.wait_times_shown();
COMMENT ON VIEW dlock_wait_times IS
	'a histogram of waits: how many took at most "upper", and longer than the row before; null means no upper bound';
COMMENT ON COLUMN dlock_wait_times.upper IS 'the longest wait of this bucket; null for the last one, which has no bound';
COMMENT ON COLUMN dlock_wait_times.count IS 'waits that took at most that long, and longer than the bucket before';
GRANT SELECT ON dlock_wait_times TO PUBLIC;

CREATE FUNCTION dlock.contended_shown(
	OUT key text,
	OUT busy bigint,
	OUT waits bigint,
	OUT wait_time interval,
	OUT lost bigint
) RETURNS SETOF record
AS 'MODULE_PATHNAME', 'dlock_contended_shown'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION dlock.contended_shown IS 'the rows of the view dlock_contended';

CREATE VIEW dlock_contended AS SELECT * FROM dlock.contended_shown();
COMMENT ON VIEW dlock_contended IS
	'approximately the 100 keys that were busy, waited for or lost most often';
COMMENT ON COLUMN dlock_contended.key IS 'the key';
COMMENT ON COLUMN dlock_contended.busy IS 'acquires that did not wait and were not granted';
COMMENT ON COLUMN dlock_contended.waits IS 'acquires and tickets that waited';
COMMENT ON COLUMN dlock_contended.wait_time IS 'how long they waited, all together';
COMMENT ON COLUMN dlock_contended.lost IS 'grants that their holder did not release: expired, preempted, forced';
GRANT SELECT ON dlock_contended TO PUBLIC;

CREATE FUNCTION dlock_stats_reset() RETURNS void
AS 'MODULE_PATHNAME', 'dlock_stats_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock_stats_reset() FROM PUBLIC;
COMMENT ON FUNCTION dlock_stats_reset IS 'set the statistics of this database to zero';

-- What a role may do with keys of a prefix: src/policy/policy.c, which depends on the
-- columns and their order. Role 0 is everybody.
CREATE TABLE dlock.policies (
	prefix text COLLATE "C" NOT NULL,
	role regrole NOT NULL,
	allow boolean NOT NULL,
	max_ttl interval,
	max_priority integer,
	max_locks integer,
	max_hold interval,
	CONSTRAINT policies_pkey PRIMARY KEY (prefix, role)
) USING heap;
COMMENT ON TABLE dlock.policies IS
	'what roles may do with keys of a prefix; change it with dlock_policy and dlock_policy_drop';
COMMENT ON COLUMN dlock.policies.role IS '0 for everybody';
REVOKE ALL ON TABLE dlock.policies FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('dlock.policies', '');

CREATE FUNCTION dlock.policies_changed() RETURNS trigger
AS 'MODULE_PATHNAME', 'dlock_policies_changed'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock.policies_changed() FROM PUBLIC;
COMMENT ON FUNCTION dlock.policies_changed IS
	'makes all backends read dlock.policies again';
CREATE TRIGGER policies_changed
	AFTER INSERT OR UPDATE OR DELETE ON dlock.policies
	FOR EACH ROW EXECUTE FUNCTION dlock.policies_changed();
CREATE TRIGGER policies_truncated
	AFTER TRUNCATE ON dlock.policies
	FOR EACH STATEMENT EXECUTE FUNCTION dlock.policies_changed();
ALTER TABLE dlock.policies ENABLE ALWAYS TRIGGER policies_changed;
ALTER TABLE dlock.policies ENABLE ALWAYS TRIGGER policies_truncated;

CREATE FUNCTION dlock_policy(
	prefix text,
	role regrole,
	allow boolean DEFAULT true,
	max_ttl interval DEFAULT NULL,
	max_priority integer DEFAULT NULL,
	max_locks integer DEFAULT NULL,
	max_hold interval DEFAULT NULL
) RETURNS void
AS 'MODULE_PATHNAME', 'dlock_policy'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock_policy(text, regrole, boolean, interval, integer, integer, interval) FROM PUBLIC;
COMMENT ON FUNCTION dlock_policy IS
	'set what a role (NULL: every role) may do with keys that begin with a prefix';

CREATE FUNCTION dlock_policy_drop(
	prefix text,
	role regrole
) RETURNS boolean
AS 'MODULE_PATHNAME', 'dlock_policy_drop'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock_policy_drop(text, regrole) FROM PUBLIC;
COMMENT ON FUNCTION dlock_policy_drop IS
	'remove the policy of a prefix and a role; returns whether there was one';

CREATE VIEW dlock_policies AS
	SELECT p.prefix,
		   CASE WHEN p.role::pg_catalog.oid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid
				THEN p.role END AS role,
		   p.allow, p.max_ttl, p.max_priority, p.max_locks, p.max_hold
	  FROM dlock.policies p;
COMMENT ON VIEW dlock_policies IS
	'what roles may do with keys of a prefix; role null means every role';
COMMENT ON COLUMN dlock_policies.prefix IS 'the policy is for keys that begin with it; empty for all keys';
COMMENT ON COLUMN dlock_policies.role IS 'the role; null for every role';
COMMENT ON COLUMN dlock_policies.allow IS 'whether the role may acquire these keys at all';
COMMENT ON COLUMN dlock_policies.max_ttl IS 'the longest TTL; null for no limit';
COMMENT ON COLUMN dlock_policies.max_priority IS 'the highest priority; null for no limit';
COMMENT ON COLUMN dlock_policies.max_locks IS 'how many of these keys the role may hold; null for no limit';
COMMENT ON COLUMN dlock_policies.max_hold IS 'how long a grant may be held, however often it is renewed; null for no limit';
GRANT SELECT ON dlock_policies TO PUBLIC;

-- Which shards of keys this database serves: src/shard/shard.c, which depends on the
-- column. No row means all.
CREATE TABLE dlock.served (
	shards int4multirange NOT NULL
) USING heap;
COMMENT ON TABLE dlock.served IS
	'the shards that this database serves; no row means all; change it with dlock_serve';
REVOKE ALL ON TABLE dlock.served FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('dlock.served', '');

CREATE VIEW dlock_served AS
	SELECT COALESCE(pg_catalog.range_intersect_agg(s.shards),
					'{[0,1024)}'::pg_catalog.int4multirange) AS shards
	  FROM dlock.served s;
COMMENT ON VIEW dlock_served IS 'one row: the shards that this database serves';
COMMENT ON COLUMN dlock_served.shards IS 'the shards; {[0,1024)} is all of them';
GRANT SELECT ON dlock_served TO PUBLIC;

CREATE FUNCTION dlock.served_changed() RETURNS trigger
AS 'MODULE_PATHNAME', 'dlock_served_changed'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock.served_changed() FROM PUBLIC;
COMMENT ON FUNCTION dlock.served_changed IS
	'makes all backends read dlock.served again, and keeps logical replication from writing to it';
CREATE TRIGGER served_changed
	BEFORE INSERT OR UPDATE OR DELETE ON dlock.served
	FOR EACH ROW EXECUTE FUNCTION dlock.served_changed();
CREATE TRIGGER served_truncated
	BEFORE TRUNCATE ON dlock.served
	FOR EACH STATEMENT EXECUTE FUNCTION dlock.served_changed();
ALTER TABLE dlock.served ENABLE ALWAYS TRIGGER served_changed;
ALTER TABLE dlock.served ENABLE ALWAYS TRIGGER served_truncated;

CREATE FUNCTION dlock_shard(
	key text
) RETURNS integer
AS 'MODULE_PATHNAME', 'dlock_shard'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION dlock_shard IS
	'the shard of a key, a number from 0 to 1023; the same on every server';

CREATE FUNCTION dlock_serve(
	shards int4multirange
) RETURNS void
AS 'MODULE_PATHNAME', 'dlock_serve'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock_serve(int4multirange) FROM PUBLIC;
COMMENT ON FUNCTION dlock_serve IS
	'let this database grant only keys of these shards; NULL means all';

CREATE FUNCTION dlock_settle() RETURNS void
AS 'MODULE_PATHNAME', 'dlock_settle'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock_settle() FROM PUBLIC;
COMMENT ON FUNCTION dlock_settle IS
	'wait until all transactions have ended that may have acquired a lock before the last committed dlock_serve';

CREATE FUNCTION dlock_advance(
	version bigint
) RETURNS bigint
AS 'MODULE_PATHNAME', 'dlock_advance'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION dlock_advance(bigint) FROM PUBLIC;
COMMENT ON FUNCTION dlock_advance IS
	'lift the versions above the given one, never down; returns the highest version that may have been drawn';

CREATE FUNCTION dlock_features(
	OUT edition text,
	OUT version text,
	OUT features text[]
)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT 'c'::pg_catalog.text, '1.0'::pg_catalog.text,
		   '{acquire_all,again,at_least,connection_fence,delay,fence,fence_trigger,handover,lazy,limit,list,max_hold,policies,preemption,session,shards,shared,slots,statistics,tickets,wait,watch}'::pg_catalog.text[]
$$;
COMMENT ON FUNCTION dlock_features IS
	'which edition of dlock this is, its version, and what it has';

-- complain now rather than at the first lock
DO $$
BEGIN
	PERFORM @extschema@.dlock_check(''::pg_catalog.text, 0::pg_catalog.int8, NULL::pg_catalog.text);
EXCEPTION
	WHEN object_not_in_prerequisite_state THEN
		DECLARE
			hint pg_catalog.text;
		BEGIN
			GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
			RAISE WARNING USING ERRCODE = SQLSTATE, MESSAGE = SQLERRM, HINT = hint;
		END;
	WHEN invalid_parameter_value THEN
		NULL;					-- the key: it is loaded
END
$$;
