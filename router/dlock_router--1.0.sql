/* dlock_router: the functions of dlock over several clusters */

-- complain if the script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dlock_router" to load this file. \quit

-- Clients look for one of the two, so both would be one too many.
DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_extension e
				WHERE e.extname OPERATOR(pg_catalog.=) 'dlock'::pg_catalog.name) THEN
		RAISE EXCEPTION USING
			ERRCODE = 'object_not_in_prerequisite_state',
			MESSAGE = 'extension "dlock" is installed in this database',
			DETAIL = 'A database holds locks or routes to clusters that do, but not both.',
			HINT = 'Create the router in a database of its own. It may be on the same server.';
	END IF;
END
$$;

-- As with dlock: nobody else can create, rename or drop anything in this schema.
DO $$
DECLARE
	owner pg_catalog.oid := (SELECT n.nspowner FROM pg_catalog.pg_namespace n
							  WHERE n.nspname OPERATOR(pg_catalog.=) 'dlock_router'::pg_catalog.name);
BEGIN
	IF owner IS NULL THEN
		CREATE SCHEMA dlock_router;
		COMMENT ON SCHEMA dlock_router IS 'the table of extension dlock_router, and what its functions use';
		GRANT USAGE ON SCHEMA dlock_router TO PUBLIC;
	ELSE
		RAISE EXCEPTION USING
			ERRCODE = 'duplicate_schema',
			MESSAGE = 'schema "dlock_router" already exists',
			DETAIL = 'Extension dlock_router creates a schema of that name for its table.',
			HINT = 'Rename or drop that schema.';
	END IF;
END
$$;

--
-- The clusters
--
-- PL/Proxy reads them from the options of a foreign server. dlock_router.apply()
-- writes these whenever the table changes: p0 to p1023 are the shards, the others
-- the clusters in the order of their names. Every session notices such a change
-- with its next call. The server has a version only while there are clusters.
--

CREATE TABLE dlock_router.clusters (
	name text COLLATE "C" NOT NULL,
	shards int4multirange NOT NULL,
	connection text NOT NULL,
	CONSTRAINT clusters_pkey PRIMARY KEY (name),
	CONSTRAINT clusters_connection_key UNIQUE (connection),
	CONSTRAINT clusters_name_check CHECK (name OPERATOR(pg_catalog.<>) ''::pg_catalog.text),
	CONSTRAINT clusters_shards_check
		CHECK (shards OPERATOR(pg_catalog.<@) '{[0,1024)}'::pg_catalog.int4multirange),
	-- the role is always the caller's, everybody can read these strings, and
	-- dlock_router.apply() adds options
	CONSTRAINT clusters_connection_check
		CHECK (connection OPERATOR(pg_catalog.!~*) '(^|\s)(user|password|options)\s*='::pg_catalog.text
			   AND connection OPERATOR(pg_catalog.!~*) '^\s*postgres(ql)?://'::pg_catalog.text)
);
COMMENT ON TABLE dlock_router.clusters IS
	'the clusters, the shards that each of them serves, and how to connect to them';
COMMENT ON COLUMN dlock_router.clusters.connection IS
	'a connection string of libpq without user, password and options; everybody can read it';
REVOKE ALL ON TABLE dlock_router.clusters FROM PUBLIC;
GRANT SELECT ON TABLE dlock_router.clusters TO PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('dlock_router.clusters', '');

CREATE SERVER dlock_router FOREIGN DATA WRAPPER plproxy
	OPTIONS (p0 'dbname=none', modular_mapping '1');
COMMENT ON SERVER dlock_router IS
	'the clusters, for PL/Proxy; made from table dlock_router.clusters';
GRANT USAGE ON FOREIGN SERVER dlock_router TO PUBLIC;
CREATE USER MAPPING FOR PUBLIC SERVER dlock_router;

CREATE FUNCTION dlock_router.apply() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	nobodys int4multirange;
	pairs text;
	changes text;
BEGIN
	-- one at a time
	LOCK TABLE dlock_router.clusters IN SHARE ROW EXCLUSIVE MODE;

	SELECT string_agg(format('%s and %s: %s', a.name, b.name, a.shards * b.shards), '; '
					  ORDER BY a.name, b.name)
	  INTO pairs
	  FROM dlock_router.clusters a JOIN dlock_router.clusters b
		   ON a.name < b.name AND a.shards && b.shards;
	IF pairs IS NOT NULL THEN
		RAISE EXCEPTION USING
			ERRCODE = 'check_violation',
			MESSAGE = 'shards belong to several clusters',
			DETAIL = pairs,
			TABLE = 'clusters', SCHEMA = 'dlock_router';
	END IF;
	SELECT '{[0,1024)}'::int4multirange - range_agg(c.shards) INTO nobodys
	  FROM dlock_router.clusters c;
	IF nobodys <> '{}' THEN
		RAISE EXCEPTION USING
			ERRCODE = 'check_violation',
			MESSAGE = 'shards belong to no cluster',
			DETAIL = nobodys::text,
			HINT = 'Give all 1,024 shards to clusters in one transaction.',
			TABLE = 'clusters', SCHEMA = 'dlock_router';
	END IF;

	-- PL/Proxy names types without their schema. And while a shard moves, one
	-- router may know it before another: then a cluster must not call a grant of
	-- the other cluster not held.
	WITH safe AS (
		SELECT c.name, c.shards, c.connection
			   || ' options=''-c search_path=pg_catalog,pg_temp -c dlock.only_served=on''' AS connection
		  FROM dlock_router.clusters c
	), wanted AS (
		SELECT 'p' || s.shard AS name, c.connection AS value
		  FROM generate_series(0, 1023) s(shard) JOIN safe c ON c.shards @> s.shard
		UNION ALL
		SELECT 'p' || k.partition, c.connection
		  FROM dlock_router.partitions() k JOIN safe c ON c.name = k.cluster
		UNION ALL
		SELECT 'p0', 'dbname=none' WHERE NOT EXISTS (SELECT FROM dlock_router.clusters)
	), present AS (
		SELECT o.option_name AS name, o.option_value AS value
		  FROM pg_foreign_server f, pg_options_to_table(f.srvoptions) o
		 WHERE f.srvname = 'dlock_router' AND o.option_name <> 'modular_mapping'
	)
	SELECT string_agg(CASE WHEN w.name IS NULL THEN format('DROP %I', p.name)
						   WHEN p.name IS NULL THEN format('ADD %I %L', w.name, w.value)
						   ELSE format('SET %I %L', w.name, w.value) END, ', ')
	  INTO changes
	  FROM wanted w FULL JOIN present p ON w.name = p.name
	 WHERE w.value IS DISTINCT FROM p.value;

	IF changes IS NOT NULL THEN
		EXECUTE format('ALTER SERVER dlock_router VERSION %s OPTIONS (%s)',
					   CASE WHEN nobodys IS NULL THEN 'NULL' ELSE '''1''' END, changes);
	END IF;
	RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION dlock_router.apply() FROM PUBLIC;
COMMENT ON FUNCTION dlock_router.apply IS
	'tells PL/Proxy of a change of dlock_router.clusters';

-- the partition of each cluster, after those of the shards
CREATE FUNCTION dlock_router.partitions(OUT partition integer, OUT cluster text)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT (1023 + row_number() OVER (ORDER BY c.name))::int4, c.name
	  FROM dlock_router.clusters c ORDER BY c.name
$$;
COMMENT ON FUNCTION dlock_router.partitions IS
	'the clusters, and which partition of the foreign server each of them is';

-- At commit, so that a transaction can take a shard from one row and add it to
-- another.
CREATE CONSTRAINT TRIGGER clusters_changed
	AFTER INSERT OR UPDATE OR DELETE ON dlock_router.clusters
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION dlock_router.apply();
CREATE FUNCTION dlock_router.refuse_truncate() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
BEGIN
	RAISE EXCEPTION USING
		ERRCODE = 'feature_not_supported',
		MESSAGE = 'table "dlock_router.clusters" cannot be truncated',
		HINT = 'Use DELETE.';
END
$$;
REVOKE ALL ON FUNCTION dlock_router.refuse_truncate() FROM PUBLIC;
COMMENT ON FUNCTION dlock_router.refuse_truncate IS
	'PL/Proxy would not be told of it';
CREATE TRIGGER clusters_truncated
	BEFORE TRUNCATE ON dlock_router.clusters
	FOR EACH STATEMENT EXECUTE FUNCTION dlock_router.refuse_truncate();
ALTER TABLE dlock_router.clusters ENABLE ALWAYS TRIGGER clusters_changed;
ALTER TABLE dlock_router.clusters ENABLE ALWAYS TRIGGER clusters_truncated;

--
-- Where to send a call: router.c
--

CREATE FUNCTION dlock_shard(
	key text
) RETURNS integer
AS 'MODULE_PATHNAME', 'dlock_router_shard'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION dlock_shard IS
	'the shard of a key, a number from 0 to 1023; the same on every server';

CREATE FUNCTION dlock_router.to_read(text) RETURNS integer
AS 'MODULE_PATHNAME', 'dlock_router_to_read'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_router.to_read IS 'the partition for a call that changes nothing';

CREATE FUNCTION dlock_router.to_write(text, boolean) RETURNS integer
AS 'MODULE_PATHNAME', 'dlock_router_to_write'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_router.to_write IS
	'the partition for a call that changes a lock; an error in a transaction and for session locks';

CREATE FUNCTION dlock_router.to_write_all(text[], boolean) RETURNS integer
AS 'MODULE_PATHNAME', 'dlock_router_to_write_all'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_router.to_write_all IS
	'the same for several keys; an error if they are of several shards';

CREATE FUNCTION dlock_router.to_ticket(bigint, boolean) RETURNS integer
AS 'MODULE_PATHNAME', 'dlock_router_to_ticket'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_router.to_ticket IS
	'the partition for a call with a ticket; the second argument: does it change something?';

--
-- The functions of dlock
--
-- The clusters have dlock in a schema of the same name as the router's. A call
-- gives every argument by its name, because a cluster may have a newer dlock. The
-- names are quoted, or PL/Proxy would replace them, and have no types, because
-- PL/Proxy adds these.
--

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
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write($1, $9);
	SELECT @extschema@.dlock_acquire(
		"key" => $1, "ttl" => $2, "owner" => $3, "value" => $4, "wait" => $5,
		"priority" => $6, "cleanup" => $7, "force" => $8, "session" => $9,
		"slots" => $10, "at_least" => $11, "delay" => $12, "lazy" => $13,
		"shared" => $14, "again" => $15);
$$;
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
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write_all($1, $7);
	SELECT @extschema@.dlock_acquire_all(
		"keys" => $1, "ttl" => $2, "owner" => $3, "value" => $4, "wait" => $5,
		"priority" => $6, "session" => $7, "slots" => $8, "shared" => $9);
$$;
COMMENT ON FUNCTION dlock_acquire_all IS
	'acquire all of several locks of the same shard or none; returns the versions of the grants, or NULL if a lock is busy';

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
LANGUAGE plpgsql AS $$
BEGIN
	version := @extschema@.dlock_acquire(dlock_lock.key, dlock_lock.ttl, dlock_lock.owner,
		dlock_lock.value, dlock_lock.wait, dlock_lock.priority, dlock_lock.cleanup,
		dlock_lock.force, dlock_lock.session, dlock_lock.slots, dlock_lock.at_least,
		dlock_lock.delay, dlock_lock.lazy, dlock_lock.shared, dlock_lock.again);
END
$$;
COMMENT ON PROCEDURE dlock_lock IS
	'acquire a lock, waiting for it';

CREATE FUNCTION dlock_watch(
	key text,
	version bigint DEFAULT NULL,
	wait interval DEFAULT NULL
) RETURNS bigint
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_read($1);
	SELECT @extschema@.dlock_watch("key" => $1, "version" => $2, "wait" => $3);
$$;
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
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write($1, false);
	SELECT @extschema@.dlock_refresh(
		"key" => $1, "version" => $2, "ttl" => $3, "owner" => $4, "value" => $5,
		"at_least" => $6);
$$;
COMMENT ON FUNCTION dlock_refresh IS
	'keep a lock for another TTL; returns its new expiry, or NULL if the lock is lost';

CREATE FUNCTION dlock_release(
	key text,
	version bigint DEFAULT NULL,
	owner text DEFAULT NULL
) RETURNS text
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write($1, false);
	SELECT @extschema@.dlock_release("key" => $1, "version" => $2, "owner" => $3);
$$;
COMMENT ON FUNCTION dlock_release IS
	'release a lock; returns released, not_held or held_by_other';

-- This connection has none.
CREATE FUNCTION dlock_release_session() RETURNS integer
LANGUAGE sql VOLATILE PARALLEL UNSAFE AS 'SELECT 0';
COMMENT ON FUNCTION dlock_release_session IS
	'release all session locks of this connection; through a router there are none';

CREATE FUNCTION dlock_check(
	key text,
	version bigint DEFAULT NULL,
	owner text DEFAULT NULL
) RETURNS text
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_read($1);
	SELECT @extschema@.dlock_check("key" => $1, "version" => $2, "owner" => $3);
$$;
COMMENT ON FUNCTION dlock_check IS
	'check whether the caller holds a lock; returns held, preempting, not_held or held_by_other';

CREATE FUNCTION dlock_handover(
	key text,
	version bigint,
	owner text,
	ttl interval DEFAULT NULL
) RETURNS bigint
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write($1, false);
	SELECT @extschema@.dlock_handover(
		"key" => $1, "version" => $2, "owner" => $3, "ttl" => $4);
$$;
COMMENT ON FUNCTION dlock_handover IS
	'give a lock to another owner of the same role; returns its new version, or NULL if the lock is lost';

CREATE FUNCTION dlock_limit(
	key text,
	n integer,
	per interval,
	wait interval DEFAULT '0',
	priority integer DEFAULT 0
) RETURNS interval
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write($1, false);
	SELECT @extschema@.dlock_limit(
		"key" => $1, "n" => $2, "per" => $3, "wait" => $4, "priority" => $5);
$$;
COMMENT ON FUNCTION dlock_limit IS
	'ask for a permit, of which there are at most n in any window of time; returns zero, or how long until asking again';

CREATE FUNCTION dlock_holds(
	key text,
	version bigint DEFAULT NULL,
	owner text DEFAULT NULL
) RETURNS boolean
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_read($1);
	SELECT @extschema@.dlock_holds("key" => $1, "version" => $2, "owner" => $3);
$$;
COMMENT ON FUNCTION dlock_holds IS
	'whether the caller holds a lock: dlock_check returns held or preempting';

CREATE FUNCTION dlock_force_release(
	key text,
	reason text,
	version bigint DEFAULT NULL
) RETURNS bigint
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write($1, false);
	SELECT @extschema@.dlock_force_release(
		"key" => $1, "reason" => $2, "version" => $3);
$$;
REVOKE ALL ON FUNCTION dlock_force_release FROM PUBLIC;
COMMENT ON FUNCTION dlock_force_release IS
	'take a lock away from its holder, or from all of several; returns the highest version that was taken, or NULL if the lock is free';

-- A ticket of the router is that of the cluster, followed by the shard in the
-- last ten bits, so that it leads back to its cluster.
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
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_write($1, false);
	SELECT pg_catalog.int8or(pg_catalog.int8mul(@extschema@.dlock_enqueue(
		"key" => $1, "ttl" => $2, "owner" => $3, "value" => $4, "wait" => $5,
		"priority" => $6, "cleanup" => $7, "force" => $8, "slots" => $9,
		"at_least" => $10, "delay" => $11, "lazy" => $12, "shared" => $13,
		"again" => $14), 1024::pg_catalog.int8),
		@extschema@.dlock_shard("key" => $1)::pg_catalog.int8);
$$;
COMMENT ON FUNCTION dlock_enqueue IS
	'put a request into the queue; returns its ticket';

CREATE FUNCTION dlock_router.ticket_of(bigint,
	OUT key text, OUT state text, OUT "position" integer, OUT version bigint)
RETURNS SETOF record
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_ticket($1, false);
	SELECT t."key", t."state", t."position", t."version"
	  FROM @extschema@.dlock_ticket(
		"ticket" => pg_catalog.int8shr($1, 10)) t;
$$;
COMMENT ON FUNCTION dlock_router.ticket_of IS 'dlock_ticket, on the cluster of the ticket';

-- PL/Proxy returns rows one by one, and would mix them up with those of another
-- call of the same query. So a function around it collects them.
CREATE FUNCTION dlock_ticket(
	ticket bigint,
	OUT key text, OUT state text, OUT "position" integer, OUT version bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 1 AS $$
BEGIN
	RETURN QUERY SELECT t.* FROM dlock_router.ticket_of(dlock_ticket.ticket) t;
END
$$;
COMMENT ON FUNCTION dlock_ticket IS
	'the state of a request that was put into the queue; no row if it is not known';

CREATE FUNCTION dlock_dequeue(
	ticket bigint
) RETURNS boolean
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_ticket($1, true);
	SELECT @extschema@.dlock_dequeue("ticket" => pg_catalog.int8shr($1, 10));
$$;
COMMENT ON FUNCTION dlock_dequeue IS
	'withdraw a request that still waits; returns whether it did';

--
-- What does not work through a router
--

CREATE FUNCTION dlock_fence(key text, version bigint) RETURNS void
AS 'MODULE_PATHNAME', 'dlock_router_refuse_fence'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_fence IS 'not available: a fence belongs to the database that has the data';

CREATE FUNCTION dlock_fence_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'dlock_router_refuse_fence'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_fence_trigger IS
	'not available: a fence belongs to the database that has the data';

CREATE FUNCTION dlock_serve(shards int4multirange) RETURNS void
AS 'MODULE_PATHNAME', 'dlock_router_refuse_admin'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_serve IS 'not available: call it on a cluster';

CREATE FUNCTION dlock_settle() RETURNS void
AS 'MODULE_PATHNAME', 'dlock_router_refuse_admin'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_settle IS 'not available: call it on a cluster';

CREATE FUNCTION dlock_advance(version bigint) RETURNS bigint
AS 'MODULE_PATHNAME', 'dlock_router_refuse_admin'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_advance IS 'not available: call it on a cluster';

CREATE FUNCTION dlock_policy(
	prefix text,
	role regrole,
	allow boolean DEFAULT true,
	max_ttl interval DEFAULT NULL,
	max_priority integer DEFAULT NULL,
	max_locks integer DEFAULT NULL,
	max_hold interval DEFAULT NULL
) RETURNS void
AS 'MODULE_PATHNAME', 'dlock_router_refuse_admin'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_policy IS 'not available: call it on each cluster';

CREATE FUNCTION dlock_policy_drop(prefix text, role regrole) RETURNS boolean
AS 'MODULE_PATHNAME', 'dlock_router_refuse_admin'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_policy_drop IS 'not available: call it on each cluster';

CREATE FUNCTION dlock_stats_reset() RETURNS void
AS 'MODULE_PATHNAME', 'dlock_router_refuse_admin'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION dlock_stats_reset IS 'not available: call it on each cluster';

CREATE FUNCTION dlock_features(
	OUT edition text,
	OUT version text,
	OUT features text[]
)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT 'c'::pg_catalog.text, '1.0'::pg_catalog.text,
		   '{acquire_all,again,at_least,delay,handover,lazy,limit,list,preemption,shards,shared,slots,statistics,tickets,wait,watch}'::pg_catalog.text[]
$$;
COMMENT ON FUNCTION dlock_features IS
	'which edition of dlock the clusters have, the version of the router, and what works through it';

--
-- What is on the clusters
--
-- One after the other. A cluster that does not answer is left out with a warning,
-- so that the others can be seen. A role is shown by its name, because the router
-- need not have that role.
--

CREATE TYPE dlock_router.grants AS (
	key text,
	version bigint,
	owner text,
	role text,
	value text,
	state text,
	priority integer,
	acquired_at timestamptz,
	refreshed_at timestamptz,
	expires_at timestamptz,
	remaining interval,
	ttl interval,
	pid integer,
	slots integer,
	using_pid integer,
	requestor_owner text,
	requestor_priority integer,
	requestor_since timestamptz,
	requestor_deadline timestamptz,
	ends_at timestamptz,
	origin text
);
COMMENT ON TYPE dlock_router.grants IS 'a row of dlock_locks on a cluster';

CREATE FUNCTION dlock_router.list_of(integer, text, text, integer)
RETURNS SETOF dlock_router.grants
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON $1;
	SELECT l.key, l.version, l.owner, l.role::pg_catalog.text AS role, l.value, l.state,
		   l.priority, l.acquired_at, l.refreshed_at, l.expires_at, l.remaining, l.ttl,
		   l.pid, l.slots, l.using_pid, l.requestor_owner, l.requestor_priority,
		   l.requestor_since, l.requestor_deadline, l.ends_at, l.origin
	  FROM @extschema@.dlock_list("pattern" => $2,
		"after" => $3, "limit" => $4) l;
$$;
COMMENT ON FUNCTION dlock_router.list_of IS 'dlock_list, on the cluster of a partition';

CREATE FUNCTION dlock_router.get_of(text)
RETURNS SETOF dlock_router.grants
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON dlock_router.to_read($1);
	SELECT l.key, l.version, l.owner, l.role::pg_catalog.text AS role, l.value, l.state,
		   l.priority, l.acquired_at, l.refreshed_at, l.expires_at, l.remaining, l.ttl,
		   l.pid, l.slots, l.using_pid, l.requestor_owner, l.requestor_priority,
		   l.requestor_since, l.requestor_deadline, l.ends_at, l.origin
	  FROM @extschema@.dlock_get("key" => $1) l;
$$;
COMMENT ON FUNCTION dlock_router.get_of IS 'dlock_get, on the cluster of the key';

CREATE FUNCTION dlock_router.missing(cluster text, message text) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RAISE WARNING USING
		MESSAGE = format('cluster "%s" is missing here, because it does not answer', missing.cluster),
		DETAIL = missing.message;
END
$$;
COMMENT ON FUNCTION dlock_router.missing IS 'warns that a cluster is left out';

CREATE FUNCTION dlock_router.list_all(pattern text, after text, "limit" integer)
RETURNS TABLE (granted dlock_router.grants, cluster text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM dlock_router.partitions() LOOP
		BEGIN
			RETURN QUERY SELECT l, c.cluster
			  FROM dlock_router.list_of(c.partition, list_all.pattern, list_all.after, list_all."limit") l;
		EXCEPTION
			WHEN data_exception THEN
				RAISE;			-- an argument is invalid
			WHEN OTHERS THEN
				PERFORM dlock_router.missing(c.cluster, SQLERRM);
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION dlock_router.list_all IS 'dlock_list, on all clusters';

CREATE VIEW dlock_locks AS
	SELECT (a.granted).*, a.cluster FROM dlock_router.list_all('*', NULL, NULL) a;
COMMENT ON VIEW dlock_locks IS
	'one row for each live grant on all clusters, and for each key that an open transaction keeps busy';
GRANT SELECT ON dlock_locks TO PUBLIC;

CREATE FUNCTION dlock_get(
	key text
) RETURNS SETOF @extschema@.dlock_locks
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 1
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY SELECT g.*,
		(SELECT c.name FROM dlock_router.clusters c
		  WHERE c.shards @> @extschema@.dlock_shard(dlock_get.key))
	  FROM dlock_router.get_of(dlock_get.key) g;
END
$$;
COMMENT ON FUNCTION dlock_get IS
	'the rows of dlock_locks of one key, found by the index';

CREATE FUNCTION dlock_list(
	pattern text DEFAULT '*',
	after text DEFAULT NULL,
	"limit" integer DEFAULT NULL
) RETURNS SETOF @extschema@.dlock_locks
LANGUAGE plpgsql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 100
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	-- each cluster has returned its first ones
	RETURN QUERY SELECT (r.granted).*, r.cluster
	  FROM (SELECT a.granted, a.cluster,
				   dense_rank() OVER (ORDER BY (a.granted).key COLLATE "C") AS nth
			  FROM dlock_router.list_all(dlock_list.pattern, dlock_list.after, dlock_list."limit") a) r
	 WHERE dlock_list."limit" IS NULL OR r.nth <= dlock_list."limit"
	 ORDER BY (r.granted).key COLLATE "C", (r.granted).version;
END
$$;
COMMENT ON FUNCTION dlock_list IS
	'the rows of dlock_locks of keys that match a pattern, in the order of their keys, read by the index';

CREATE FUNCTION dlock_router.waiters_of(integer,
	OUT key text, OUT pid integer, OUT ticket bigint, OUT role text, OUT owner text,
	OUT priority integer, OUT slots integer, OUT "position" integer, OUT since timestamptz,
	OUT until timestamptz)
RETURNS SETOF record
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON $1;
	SELECT w.key, w.pid,
		   pg_catalog.int8or(pg_catalog.int8mul(w.ticket, 1024::pg_catalog.int8),
							 @extschema@.dlock_shard(w.key)::pg_catalog.int8) AS ticket,
		   w.role::pg_catalog.text AS role, w.owner, w.priority, w.slots, w."position",
		   w.since, w.until
	  FROM @extschema@.dlock_waiters w;
$$;
COMMENT ON FUNCTION dlock_router.waiters_of IS 'dlock_waiters, on the cluster of a partition';

CREATE FUNCTION dlock_router.waiters_shown(
	OUT key text,
	OUT pid integer,
	OUT ticket bigint,
	OUT role text,
	OUT owner text,
	OUT priority integer,
	OUT slots integer,
	OUT "position" integer,
	OUT since timestamptz,
	OUT until timestamptz,
	OUT cluster text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM dlock_router.partitions() LOOP
		BEGIN
			RETURN QUERY SELECT w.*, c.cluster FROM dlock_router.waiters_of(c.partition) w;
		EXCEPTION WHEN OTHERS THEN
			PERFORM dlock_router.missing(c.cluster, SQLERRM);
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION dlock_router.waiters_shown IS 'the rows of the view dlock_waiters';

CREATE VIEW dlock_waiters AS SELECT * FROM dlock_router.waiters_shown();
COMMENT ON VIEW dlock_waiters IS
	'one row for each backend and each ticket that waits on a cluster; a watcher has no priority and no position';
GRANT SELECT ON dlock_waiters TO PUBLIC;

CREATE FUNCTION dlock_router.health_of(integer,
	OUT name text, OUT status text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON $1;
	SELECT h.name, h.status, h.detail, h.hint FROM @extschema@.dlock_health() h;
$$;
COMMENT ON FUNCTION dlock_router.health_of IS 'dlock_health, on the cluster of a partition';

-- Which shards a cluster serves by itself: those of the map, or grants are refused.
CREATE FUNCTION dlock_router.served_of(integer) RETURNS text
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON $1;
	SELECT s.shards::pg_catalog.text FROM @extschema@.dlock_served s;
$$;
COMMENT ON FUNCTION dlock_router.served_of IS 'dlock_served, on the cluster of a partition';

CREATE FUNCTION dlock_router.served_if_there(partition integer) RETURNS int4multirange
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN dlock_router.served_of(served_if_there.partition)::int4multirange;
EXCEPTION WHEN OTHERS THEN
	RETURN NULL;
END
$$;
COMMENT ON FUNCTION dlock_router.served_if_there IS
	'the shards that the cluster of a partition serves, or NULL if it does not answer';

CREATE FUNCTION dlock_router.health_all(
	OUT name text, OUT status text, OUT detail text, OUT hint text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	c record;
	mapped int4multirange;
	served int4multirange;
BEGIN
	FOR c IN SELECT * FROM dlock_router.partitions() LOOP
		BEGIN
			RETURN QUERY SELECT c.cluster || ': ' || h.name, h.status, h.detail, h.hint
			  FROM dlock_router.health_of(c.partition) h;
			served := dlock_router.served_of(c.partition)::int4multirange;
			SELECT m.shards INTO mapped FROM dlock_router.clusters m WHERE m.name = c.cluster;
			name := c.cluster || ': shards';
			IF served @> mapped AND mapped @> served THEN
				status := 'ok';
				detail := format('serves what the router sends it: %s', served);
				hint := NULL;
			ELSE
				status := CASE WHEN served @> mapped THEN 'warning' ELSE 'problem' END;
				detail := format('serves %s, but the router sends it %s', served, mapped);
				hint := 'If no shard is being moved, correct dlock_router.clusters or call dlock_serve on the cluster.';
			END IF;
			RETURN NEXT;
		EXCEPTION WHEN OTHERS THEN
			name := c.cluster || ': server';
			status := 'problem';
			detail := 'does not answer: ' || SQLERRM;
			hint := 'Its shards cannot be locked until it is back. All others can.';
			RETURN NEXT;
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION dlock_router.health_all IS 'dlock_health of all clusters';

CREATE FUNCTION dlock_health(
	OUT name text,
	OUT status text,
	OUT detail text,
	OUT hint text
) RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
	WITH checks AS MATERIALIZED (
		SELECT * FROM dlock_router.health_all() WITH ORDINALITY AS h(name, status, detail, hint, i)
	), verdict AS (
		SELECT CASE WHEN count(*) = 0 OR bool_or(c.status NOT IN ('ok', 'warning')) THEN 'problem'
					WHEN bool_or(c.status = 'warning') THEN 'warning'
					ELSE 'ok' END AS status,
			   count(*) AS n
		  FROM checks c
	)
	SELECT s.name, s.status, s.detail, s.hint
	  FROM (SELECT 'failover' AS name, v.status,
				   CASE WHEN v.n = 0 THEN 'the router has no clusters'
						WHEN v.status = 'ok' THEN 'on every cluster, grants survive the loss of a server'
						ELSE (SELECT 'see: ' || string_agg(c.name, ', ' ORDER BY c.i)
								FROM checks c WHERE c.status = v.status) END AS detail,
				   (SELECT c.hint FROM checks c WHERE c.status = v.status AND v.status <> 'ok'
													 AND c.hint IS NOT NULL
					 ORDER BY c.i LIMIT 1) AS hint,
				   0::bigint AS i
			  FROM verdict v
			UNION ALL
			SELECT c.name, c.status, c.detail, c.hint, c.i FROM checks c) s
	 ORDER BY s.i
$$;
COMMENT ON FUNCTION dlock_health IS
	'report whether the grants of all clusters would survive a failover: the verdict, then the checks behind it, each with its cluster';

CREATE TYPE dlock_router.counts AS (
	grants bigint,
	renewals bigint,
	releases bigint,
	busy bigint,
	waits bigint,
	wait_time interval,
	timeouts bigint,
	deadlocks bigint,
	expired bigint,
	lapsed_taken bigint,
	asked bigint,
	yielded bigint,
	yield_time interval,
	yield_max interval,
	preempted bigint,
	forced bigint,
	fence_rejected bigint,
	tickets_refused bigint,
	waiting bigint,
	stats_reset timestamptz
);
COMMENT ON TYPE dlock_router.counts IS 'the row of dlock_stats on a cluster';

CREATE FUNCTION dlock_router.stats_of(integer) RETURNS SETOF dlock_router.counts
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON $1;
	SELECT s.grants, s.renewals, s.releases, s.busy, s.waits, s.wait_time, s.timeouts,
		   s.deadlocks, s.expired, s.lapsed_taken, s.asked, s.yielded, s.yield_time,
		   s.yield_max, s.preempted, s.forced, s.fence_rejected, s.tickets_refused, s.waiting, s.stats_reset
	  FROM @extschema@.dlock_stats s;
$$;
COMMENT ON FUNCTION dlock_router.stats_of IS 'dlock_stats, on the cluster of a partition';

CREATE FUNCTION dlock_router.stats_all()
RETURNS TABLE (counted dlock_router.counts, cluster text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM dlock_router.partitions() LOOP
		BEGIN
			RETURN QUERY SELECT s, c.cluster FROM dlock_router.stats_of(c.partition) s;
		EXCEPTION WHEN OTHERS THEN
			PERFORM dlock_router.missing(c.cluster, SQLERRM);
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION dlock_router.stats_all IS 'dlock_stats, on all clusters';

CREATE VIEW dlock_stats_by_cluster AS
	SELECT a.cluster, (a.counted).* FROM dlock_router.stats_all() a;
COMMENT ON VIEW dlock_stats_by_cluster IS
	'what has happened to the locks of each cluster since its server was started or the statistics were reset';
GRANT SELECT ON dlock_stats_by_cluster TO PUBLIC;

CREATE VIEW dlock_stats AS
	SELECT pg_catalog.sum(s.grants)::pg_catalog.int8 AS grants,
		   pg_catalog.sum(s.renewals)::pg_catalog.int8 AS renewals,
		   pg_catalog.sum(s.releases)::pg_catalog.int8 AS releases,
		   pg_catalog.sum(s.busy)::pg_catalog.int8 AS busy,
		   pg_catalog.sum(s.waits)::pg_catalog.int8 AS waits,
		   pg_catalog.sum(s.wait_time) AS wait_time,
		   pg_catalog.sum(s.timeouts)::pg_catalog.int8 AS timeouts,
		   pg_catalog.sum(s.deadlocks)::pg_catalog.int8 AS deadlocks,
		   pg_catalog.sum(s.expired)::pg_catalog.int8 AS expired,
		   pg_catalog.sum(s.lapsed_taken)::pg_catalog.int8 AS lapsed_taken,
		   pg_catalog.sum(s.asked)::pg_catalog.int8 AS asked,
		   pg_catalog.sum(s.yielded)::pg_catalog.int8 AS yielded,
		   pg_catalog.sum(s.yield_time) AS yield_time,
		   pg_catalog.max(s.yield_max) AS yield_max,
		   pg_catalog.sum(s.preempted)::pg_catalog.int8 AS preempted,
		   pg_catalog.sum(s.forced)::pg_catalog.int8 AS forced,
		   pg_catalog.sum(s.fence_rejected)::pg_catalog.int8 AS fence_rejected,
		   pg_catalog.sum(s.tickets_refused)::pg_catalog.int8 AS tickets_refused,
		   pg_catalog.sum(s.waiting)::pg_catalog.int8 AS waiting,
		   pg_catalog.min(s.stats_reset) AS stats_reset
	  FROM @extschema@.dlock_stats_by_cluster s;
COMMENT ON VIEW dlock_stats IS
	'one row: the sum of dlock_stats_by_cluster, since the first of them was started or reset';
GRANT SELECT ON dlock_stats TO PUBLIC;

CREATE FUNCTION dlock_router.wait_times_of(integer, OUT upper interval, OUT count bigint)
RETURNS SETOF record
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON $1;
	SELECT t.upper, t.count FROM @extschema@.dlock_wait_times t;
$$;
COMMENT ON FUNCTION dlock_router.wait_times_of IS 'dlock_wait_times, on the cluster of a partition';

CREATE FUNCTION dlock_router.wait_times_shown(
	OUT upper interval,
	OUT count bigint,
	OUT cluster text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM dlock_router.partitions() LOOP
		BEGIN
			RETURN QUERY SELECT t.*, c.cluster FROM dlock_router.wait_times_of(c.partition) t;
		EXCEPTION WHEN OTHERS THEN
			PERFORM dlock_router.missing(c.cluster, SQLERRM);
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION dlock_router.wait_times_shown IS 'dlock_wait_times of each cluster';

CREATE VIEW dlock_wait_times AS
	SELECT t.upper, pg_catalog.sum(t.count)::pg_catalog.int8 AS count
	  FROM dlock_router.wait_times_shown() t
	 GROUP BY t.upper ORDER BY t.upper;
COMMENT ON VIEW dlock_wait_times IS
	'a histogram of the waits on all clusters: how many took at most "upper", and longer than the row before; null means no upper bound';
GRANT SELECT ON dlock_wait_times TO PUBLIC;

CREATE FUNCTION dlock_router.contended_of(integer,
	OUT key text, OUT busy bigint, OUT waits bigint, OUT wait_time interval, OUT lost bigint)
RETURNS SETOF record
LANGUAGE plproxy VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE AS $$
	CLUSTER 'dlock_router';
	RUN ON $1;
	SELECT k.key, k.busy, k.waits, k.wait_time, k.lost FROM @extschema@.dlock_contended k;
$$;
COMMENT ON FUNCTION dlock_router.contended_of IS 'dlock_contended, on the cluster of a partition';

CREATE FUNCTION dlock_router.contended_shown(
	OUT key text,
	OUT busy bigint,
	OUT waits bigint,
	OUT wait_time interval,
	OUT lost bigint,
	OUT cluster text
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM dlock_router.partitions() LOOP
		BEGIN
			RETURN QUERY SELECT k.*, c.cluster FROM dlock_router.contended_of(c.partition) k;
		EXCEPTION WHEN OTHERS THEN
			PERFORM dlock_router.missing(c.cluster, SQLERRM);
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION dlock_router.contended_shown IS 'dlock_contended of each cluster';

CREATE VIEW dlock_contended AS
	SELECT k.* FROM dlock_router.contended_shown() k
	 ORDER BY k.busy OPERATOR(pg_catalog.+) k.waits OPERATOR(pg_catalog.+) k.lost DESC, k.key LIMIT 100;
COMMENT ON VIEW dlock_contended IS
	'approximately the 100 keys that were busy, waited for or lost most often, of all clusters';
GRANT SELECT ON dlock_contended TO PUBLIC;
