-- Installing the extension in different schemas, and dropping it.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS dlock CASCADE;

-- in any schema; the table is always dlock.locks
CREATE SCHEMA regress_dlock_other;
CREATE EXTENSION dlock SCHEMA regress_dlock_other;
SELECT regress_dlock_other.dlock_acquire('i:1', '1 h') AS v \gset
SELECT regress_dlock_other.dlock_check('i:1', :v), count(*) FROM regress_dlock_other.dlock_locks;
SELECT regress_dlock_other.dlock_release('i:1', :v), count(*) FROM dlock.locks;
DROP EXTENSION dlock;
DROP SCHEMA regress_dlock_other;
SELECT count(*) FROM pg_namespace WHERE nspname = 'dlock';

-- in a schema that is called dlock
CREATE SCHEMA dlock;
CREATE EXTENSION dlock SCHEMA dlock;
SELECT dlock.dlock_acquire('i:1', '1 h') AS v \gset
SELECT dlock.dlock_check('i:1', :v), dlock.dlock_release('i:1', :v), count(*) FROM dlock.dlock_locks;
DROP EXTENSION dlock;
-- a schema "dlock" that already exists is not used
\set VERBOSITY sqlstate
CREATE EXTENSION dlock;
\set VERBOSITY default
DROP SCHEMA dlock;
CREATE EXTENSION dlock;

-- the objects of the extension; 17 and later also list the row types of tables
SELECT pg_describe_object(classid, objid, 0) AS object FROM pg_depend
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid <> 'pg_type'::regclass
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')
   AND pg_describe_object(classid, objid, 0) ~ 'dlock_(acquire|acquire_all|enqueue|ticket|dequeue|refresh|release|release_session|handover|check|holds|watch|features|fence|fence_trigger|force_release)\(|dlock\.|^schema|view dlock_locks'
 ORDER BY pg_describe_object(classid, objid, 0) COLLATE "C";
-- every object has a comment
SELECT pg_describe_object(classid, objid, 0) AS "no comment" FROM pg_depend
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')
   AND obj_description(objid, classid::regclass::name) IS NULL
   AND classid <> 'pg_type'::regclass;
-- and so has every column of a view
SELECT c.relname, a.attname AS "no comment" FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'v' JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE d.classid = 'pg_class'::regclass AND refclassid = 'pg_extension'::regclass AND deptype = 'e'
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')
   AND col_description(c.oid, a.attnum) IS NULL;
-- the functions that \df dlock* lists are those that people call
SELECT proname FROM pg_proc WHERE proname ~ '^dlock.*_shown' OR (proname ~ '_shown$' AND pronamespace <> 'dlock'::regnamespace);
-- what it says about itself
SELECT * FROM dlock_features();
-- a dump contains the rows
SELECT extconfig::regclass[] FROM pg_extension WHERE extname = 'dlock';
-- privileges
SELECT p.oid::regprocedure FROM pg_proc p
 WHERE proname ~ '^dlock_(acquire|acquire_all|enqueue|ticket|dequeue|refresh|release|release_session|handover|check|fence|fence_trigger|force_release)$' AND NOT has_function_privilege('pg_monitor', p.oid, 'EXECUTE') ORDER BY 1;
SELECT DISTINCT provolatile, proparallel, prosecdef FROM pg_proc
 WHERE proname ~ '^dlock_(acquire|acquire_all|enqueue|ticket|dequeue|refresh|release|release_session|handover|check|fence|fence_trigger|force_release)$';

-- settings
SELECT name, boot_val, unit, context FROM pg_settings
 WHERE name IN ('dlock.default_ttl', 'dlock.max_ttl', 'dlock.reap_interval', 'dlock.require_sync', 'dlock.durable_grants', 'dlock.token')
 ORDER BY name COLLATE "C";

--
-- DROP and CREATE in one session that uses it before and after
--
SELECT dlock_acquire('i:2', '1 h') AS v \gset
DROP EXTENSION dlock;
\set VERBOSITY sqlstate
SELECT dlock_acquire('i:2', '1 h');
\set VERBOSITY default
CREATE EXTENSION dlock;
SELECT dlock_check('i:2', :v);
SELECT dlock_acquire('i:2', '1 h') AS v \gset
SELECT dlock_acquire('i:2', '1 h') IS NULL AS busy;
-- in a transaction that rolls back
BEGIN;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT dlock_acquire('i:2', '1 h') AS w \gset
SELECT dlock_check('i:2', :w);
ROLLBACK;
SELECT dlock_check('i:2', :v), dlock_acquire('i:2', '1 h') IS NULL AS busy;
SELECT dlock_acquire('i:3', '1 h') > :v AS granted;
BEGIN;
SAVEPOINT a;
DROP EXTENSION dlock;
ROLLBACK TO a;
SELECT dlock_check('i:2', :v), dlock_refresh('i:2', :v) IS NOT NULL AS refreshed;
COMMIT;

-- without the extension, functions that were created by hand say what is missing
DROP EXTENSION dlock;
CREATE FUNCTION acquire(text, interval, text, text, interval, int, interval, boolean, boolean) RETURNS bigint
	AS '$libdir/dlock', 'dlock_acquire' LANGUAGE C;
\set VERBOSITY sqlstate
SELECT acquire('i:4', NULL, NULL, NULL, '0', 0, '0', false, false);
-- a table of that name that does not belong to the extension does not count
CREATE SCHEMA dlock;
CREATE TABLE dlock.locks (key text);
SELECT acquire('i:4', NULL, NULL, NULL, '0', 0, '0', false, false);
\set VERBOSITY default
DROP SCHEMA dlock CASCADE;
DROP FUNCTION acquire;

CREATE EXTENSION dlock;
SELECT dlock_acquire('i:2', '1 h') AS v \gset
SELECT dlock_release('i:2', :v);
