-- A grant belongs to the role that acquired it.  What other roles can do and see.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE ROLE regress_dlock_a;
CREATE ROLE regress_dlock_b;
CREATE ROLE regress_dlock_member IN ROLE regress_dlock_a;
CREATE ROLE regress_dlock_monitor;
GRANT pg_read_all_stats TO regress_dlock_monitor;

SET ROLE regress_dlock_a;
SELECT dlock_acquire('r:1', '1 h', 'owner a', 'value a') AS v \gset
SELECT dlock_acquire('r:2', '1 h') AS w \gset

--
-- Another role cannot use it, even with the right version and owner
--
SET ROLE regress_dlock_b;
SELECT dlock_check('r:1', :v), dlock_check('r:1', NULL, 'owner a'), dlock_check('r:1', :v, 'owner a');
SELECT dlock_release('r:1', :v), dlock_release('r:1', NULL, 'owner a'), dlock_release('r:1', :v, 'owner a');
SELECT dlock_refresh('r:1', :v) IS NULL AS lost, dlock_refresh('r:1', owner => 'owner a') IS NULL AS lost;
SELECT dlock_acquire('r:1', '1 h', 'owner a') IS NULL AS busy;
\set VERBOSITY sqlstate
SELECT dlock_fence('r:1', :v);
SELECT dlock_force_release('r:1', 'test');
\set VERBOSITY default
SELECT key, version = :v AS version, owner, value, role, state, ttl, expires_at > now() AS expires
  FROM dlock_locks WHERE key = 'r:1';
-- a superuser cannot either, except by force
RESET ROLE;
SELECT dlock_check('r:1', :v), dlock_release('r:1', :v), dlock_refresh('r:1', :v) IS NULL AS lost;

-- a member of the role sees owner and value, but cannot use the lock
SET ROLE regress_dlock_member;
SELECT key, owner, value, role FROM dlock_locks WHERE key = 'r:1';
SELECT dlock_check('r:1', :v), dlock_release('r:1', :v);
SET ROLE regress_dlock_a;
SELECT dlock_check('r:1', :v);
SET ROLE regress_dlock_monitor;
SELECT key, owner, value, role FROM dlock_locks WHERE key = 'r:1';
SELECT dlock_check('r:1', :v);
RESET ROLE;

-- the current role counts
CREATE FUNCTION release_for_a(key text, version bigint) RETURNS text
	LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS 'SELECT dlock_release(key, version)';
ALTER FUNCTION release_for_a OWNER TO regress_dlock_a;
SET ROLE regress_dlock_b;
SELECT release_for_a('r:2', :w);
RESET ROLE;
DROP FUNCTION release_for_a;

--
-- Force needs an explicit GRANT
--
GRANT EXECUTE ON FUNCTION dlock_force_release TO regress_dlock_b;
SET ROLE regress_dlock_b;
SELECT dlock_force_release('r:1', 'because') = :v AS forced;
SELECT dlock_force_release('r:1', 'because') IS NULL AS free, dlock_force_release('r:none', 'because') IS NULL AS free;
SELECT dlock_acquire('r:1', '1 h') > :v AS granted;
SET ROLE regress_dlock_a;
SELECT dlock_check('r:1', :v);
SELECT owner, value, role FROM dlock_locks WHERE key = 'r:1';
-- a fence names the role that has the version
DO $$
DECLARE
	d text;
BEGIN
	PERFORM dlock_fence('r:1', l.version) FROM dlock_get('r:1') AS l;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL;
	RAISE NOTICE '%', d;
END $$;
\set VERBOSITY sqlstate
SELECT dlock_fence('r:1', :v);

--
-- The tables are not accessible
--
SELECT * FROM dlock.locks;
INSERT INTO dlock.locks DEFAULT VALUES;
UPDATE dlock.locks SET held = false;
DELETE FROM dlock.locks;
TRUNCATE dlock.locks;
SELECT nextval('dlock.versions');
SELECT setval('dlock.versions', 1);
SELECT * FROM dlock.versions;
SELECT setval('dlock.incarnation', 1);
SELECT * FROM dlock.incarnation;
SET dlock.max_ttl = '2 d';
SET dlock.durable_grants = off;
SET dlock.require_sync = off;
SET dlock.default_ttl = '10 s';
SELECT dlock_acquire('r:2', '2 d');
\set VERBOSITY default
RESET dlock.default_ttl;
RESET ROLE;
SELECT has_schema_privilege('regress_dlock_a', 'dlock', 'USAGE') AS usage,
       has_schema_privilege('regress_dlock_a', 'dlock', 'CREATE') AS "create";
SELECT c.oid::regclass, p AS privilege, has_table_privilege('regress_dlock_a', c.oid, p) AS has
  FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p
 WHERE c.oid = 'dlock.locks'::regclass;
SELECT c.oid::regclass, p AS privilege, has_sequence_privilege('regress_dlock_a', c.oid, p) AS has
  FROM pg_class c, unnest(ARRAY['SELECT', 'USAGE', 'UPDATE']) AS p
 WHERE c.relnamespace = 'dlock'::regnamespace AND relkind = 'S' ORDER BY 1, 2;

--
-- A hostile search_path changes nothing.  The extension is new and has recorded
-- another incarnation, so that the first grant runs all of the code.
--
SET client_min_messages = warning;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
RESET client_min_messages;
GRANT EXECUTE ON FUNCTION dlock_force_release TO regress_dlock_b;
SELECT setval('dlock.versions', 1000), setval('dlock.incarnation', 1);
CREATE SCHEMA regress_dlock_evil AUTHORIZATION regress_dlock_b;
CREATE TABLE regress_dlock_evil.log (what text, who name);
ALTER TABLE regress_dlock_evil.log OWNER TO regress_dlock_b;
SET ROLE regress_dlock_b;
CREATE FUNCTION regress_dlock_evil.note(what text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO regress_dlock_evil.log VALUES (what, current_user);
	RETURN true;
END $$;
CREATE FUNCTION regress_dlock_evil.setval(regclass, bigint) RETURNS bigint LANGUAGE sql
	AS $$ SELECT CASE WHEN regress_dlock_evil.note('setval') THEN 1 END::bigint $$;
CREATE FUNCTION regress_dlock_evil.nextval(regclass) RETURNS bigint LANGUAGE sql
	AS $$ SELECT CASE WHEN regress_dlock_evil.note('nextval') THEN 1 END::bigint $$;
CREATE FUNCTION regress_dlock_evil.plus(bigint, bigint) RETURNS bigint LANGUAGE sql
	AS $$ SELECT CASE WHEN regress_dlock_evil.note('plus') THEN 1 END::bigint $$;
CREATE FUNCTION regress_dlock_evil.ne(bigint, bigint) RETURNS boolean LANGUAGE sql
	AS $$ SELECT regress_dlock_evil.note('ne') $$;
CREATE FUNCTION regress_dlock_evil.eq(text, text) RETURNS boolean LANGUAGE sql
	AS $$ SELECT regress_dlock_evil.note('eq') $$;
CREATE OPERATOR regress_dlock_evil.+ (FUNCTION = regress_dlock_evil.plus, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR regress_dlock_evil.<> (FUNCTION = regress_dlock_evil.ne, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR regress_dlock_evil.= (FUNCTION = regress_dlock_evil.eq, LEFTARG = text, RIGHTARG = text);
CREATE DOMAIN regress_dlock_evil.regclass AS text;
CREATE TEMP TABLE locks (key text, version bigint);
CREATE TEMP TABLE versions (last_value bigint, is_called boolean);
CREATE TEMP TABLE incarnation (last_value bigint, is_called boolean);
SET search_path = regress_dlock_evil, pg_temp, public, pg_catalog;
SELECT dlock_acquire('r:3', '1 h', 'me', 'v') AS v \gset
SELECT pg_catalog.int8gt(:v, 4294967296) AS leapt;
SELECT dlock_acquire('r:3', '1 h') IS NULL AS busy, dlock_acquire('r:4', '1 h', 'me') IS NULL AS busy;
SELECT dlock_refresh('r:3', :v) IS NULL AS lost, dlock_check('r:3', :v), dlock_fence('r:3', :v);
SELECT pg_catalog.count(*) FROM dlock_locks;
SELECT dlock_release('r:3', :v), dlock_release('r:4', NULL, 'me');
SELECT dlock_acquire('r:3', '1 h') IS NULL AS busy;
SELECT dlock_force_release('r:3', 'test') IS NULL AS free, dlock_force_release('r:3', 'test') IS NULL AS free;
RESET search_path;
SELECT * FROM regress_dlock_evil.log;
SELECT pg_temp.locks.*, pg_temp.versions.*, pg_temp.incarnation.* FROM pg_temp.locks, pg_temp.versions, pg_temp.incarnation;
RESET ROLE;

SET client_min_messages = warning;
DROP SCHEMA regress_dlock_evil CASCADE;
DROP TABLE pg_temp.locks, pg_temp.versions, pg_temp.incarnation;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
RESET client_min_messages;
DROP ROLE regress_dlock_a, regress_dlock_b, regress_dlock_member, regress_dlock_monitor;
