-- The expected definition of the table, and what a user may add to it.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- The table is a heap, whatever the default access method is.
CREATE ACCESS METHOD regress_dlock_heap TYPE TABLE HANDLER heap_tableam_handler;
SET client_min_messages = warning;
DROP EXTENSION dlock CASCADE;
RESET client_min_messages;
SET default_table_access_method = regress_dlock_heap;
CREATE EXTENSION dlock;
SELECT amname FROM pg_am a JOIN pg_class c ON c.relam = a.oid WHERE c.oid = 'dlock.locks'::regclass;
RESET default_table_access_method;
SELECT dlock_acquire('t:1', '1 h') AS v \gset

-- A table with a changed definition is refused before its rows are misread.
CREATE FUNCTION pg_temp.try(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	d text;
	h text;
BEGIN
	EXECUTE change;
	PERFORM dlock_check('t:1', 1);
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE, replace(SQLERRM, current_database(), 'this'), d, h);
END $$;
SELECT pg_temp.try('ALTER TABLE dlock.locks SET ACCESS METHOD regress_dlock_heap');
SELECT pg_temp.try('ALTER TABLE dlock.locks SET UNLOGGED');
SELECT pg_temp.try('ALTER TABLE dlock.locks ADD COLUMN more int');
SELECT pg_temp.try('ALTER TABLE dlock.locks DROP COLUMN value');
SELECT pg_temp.try('ALTER TABLE dlock.locks ALTER COLUMN pid TYPE bigint');
SELECT pg_temp.try('ALTER TABLE dlock.locks ALTER COLUMN key SET STORAGE EXTENDED');
SELECT pg_temp.try('ALTER TABLE dlock.locks ALTER COLUMN key TYPE text COLLATE "default"');
SELECT pg_temp.try('ALTER TABLE dlock.locks ALTER COLUMN cleanup DROP NOT NULL');
SELECT pg_temp.try('ALTER TABLE dlock.locks ALTER COLUMN value SET STATISTICS 10');
-- An index or a sequence that has taken the place of ours is refused, too.
SELECT pg_temp.try('ALTER TABLE dlock.locks DROP CONSTRAINT locks_pkey, ADD CONSTRAINT locks_pkey PRIMARY KEY (slot, key)');
SELECT pg_temp.try('ALTER INDEX dlock.locks_pkey RENAME TO p2; CREATE INDEX locks_pkey ON dlock.locks (version)');
SELECT pg_temp.try('ALTER INDEX dlock.locks_pkey RENAME TO p2');
SELECT pg_temp.try('ALTER SEQUENCE dlock.versions RENAME TO v2; CREATE SEQUENCE dlock.versions');
SELECT dlock_check('t:1', :v);
-- With a script of another version, the error names the command that helps.
BEGIN;
UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'dlock';
SELECT dlock_check('t:1', :v);
ALTER TABLE dlock.locks DROP COLUMN value;
\set VERBOSITY sqlstate
SELECT dlock_check('t:1', :v);
\set VERBOSITY default
ROLLBACK;
SELECT dlock_check('t:1', :v);
-- The objects of an older script continue to work: functions with fewer
-- arguments, views with fewer columns.  A newer script gets an error.
CREATE SCHEMA regress_dlock_old;
CREATE FUNCTION regress_dlock_old.dlock_acquire(key text, ttl interval, owner text) RETURNS bigint
	AS '$libdir/dlock', 'dlock_acquire' LANGUAGE C;
CREATE FUNCTION regress_dlock_old.dlock_refresh(key text, version bigint) RETURNS timestamptz
	AS '$libdir/dlock', 'dlock_refresh' LANGUAGE C;
CREATE FUNCTION regress_dlock_old.dlock_release(key text, version bigint) RETURNS text
	AS '$libdir/dlock', 'dlock_release' LANGUAGE C;
CREATE FUNCTION regress_dlock_old.dlock_locks(OUT key text, OUT version bigint, OUT owner text) RETURNS SETOF record
	AS '$libdir/dlock', 'dlock_locks_shown' LANGUAGE C STRICT;
DO $$
BEGIN
	EXECUTE (SELECT format('CREATE FUNCTION regress_dlock_old.dlock_waiters(%s) RETURNS SETOF record
		AS ''$libdir/dlock'', ''dlock_waiters_shown'' LANGUAGE C STRICT', string_agg(format('OUT column_%s text', i), ', '))
		FROM generate_series(1, 50) i);
END $$;
SELECT regress_dlock_old.dlock_acquire('t:old', '1 h', 'me') AS o \gset
SELECT regress_dlock_old.dlock_acquire('t:old', '1 h', 'you') IS NULL AS busy, regress_dlock_old.dlock_refresh('t:old', :o) IS NOT NULL AS refreshed;
SELECT key, version = :o AS version, owner FROM regress_dlock_old.dlock_locks() WHERE key = 't:old';
SELECT regress_dlock_old.dlock_release('t:old', :o);
\set VERBOSITY terse
SELECT * FROM regress_dlock_old.dlock_waiters();
\set VERBOSITY default
DROP FUNCTION regress_dlock_old.dlock_acquire, regress_dlock_old.dlock_refresh, regress_dlock_old.dlock_release,
	regress_dlock_old.dlock_locks, regress_dlock_old.dlock_waiters;
DROP SCHEMA regress_dlock_old;
DROP ACCESS METHOD regress_dlock_heap;

-- Additional btree indexes are maintained; other kinds are refused.
DO $$
BEGIN
	FOR i IN 1 .. 20 LOOP
		EXECUTE format('CREATE INDEX more_%s ON dlock.locks (version, key, value, owner)', i);
	END LOOP;
END $$;
SELECT dlock_acquire('t:2', '1 h', 'o', 'v') > :v AS granted;
SELECT dlock_acquire('t:3', '1 h', value => repeat('v', 2500)) > :v AS granted;
SELECT dlock_acquire('t:2', '1 h', 'o', 'w') > :v AS renewed;
SET enable_seqscan = off;
SELECT key FROM dlock.locks WHERE version > :v ORDER BY version;
RESET enable_seqscan;
CREATE INDEX odd ON dlock.locks (lower(key));
SELECT dlock_acquire('t:4', '1 h');
DROP INDEX dlock.odd;
SELECT dlock_acquire('t:4', '1 h') > :v AS granted;
-- dlock_health() names invalid indexes
SELECT name FROM dlock_health() WHERE name = 'indexes';
UPDATE pg_index SET indisvalid = false WHERE indexrelid IN ('dlock.more_1'::regclass, 'dlock.more_2'::regclass);
SELECT status, detail, hint FROM dlock_health() WHERE name = 'indexes';
DO $$
BEGIN
	FOR i IN 1 .. 20 LOOP
		EXECUTE format('DROP INDEX dlock.more_%s', i);
	END LOOP;
END $$;

-- The functions refuse to run in a parallel worker.
CREATE TABLE regress_dlock_wide AS SELECT g FROM generate_series(1, 1000) g;
ALTER TABLE regress_dlock_wide SET (parallel_workers = 2);
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off;
CREATE FUNCTION regress_dlock_in_parallel(query text, g int) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN
	EXECUTE query;
	RETURN 'done';
END $$;
\set VERBOSITY sqlstate
SELECT max(regress_dlock_in_parallel('SELECT count(*) FROM dlock_locks', g)) FROM regress_dlock_wide;
SELECT max(regress_dlock_in_parallel('SELECT count(*) FROM dlock_waiters', g)) FROM regress_dlock_wide;
SELECT max(regress_dlock_in_parallel('SELECT count(*) FROM dlock_health()', g)) FROM regress_dlock_wide;
SELECT max(regress_dlock_in_parallel('SELECT dlock_check(''t:1'', 1)', g)) FROM regress_dlock_wide;
SELECT max(regress_dlock_in_parallel('SELECT dlock_watch(''t:1'', 0, ''0'')', g)) FROM regress_dlock_wide;
SELECT max(regress_dlock_in_parallel('SELECT dlock_acquire(''t:1'')', g)) FROM regress_dlock_wide;
SELECT max(regress_dlock_in_parallel('SELECT dlock_release_session()', g)) FROM regress_dlock_wide;
\set VERBOSITY default
DROP FUNCTION regress_dlock_in_parallel;
DROP TABLE regress_dlock_wide;

-- The schema of the table must belong to the role that creates the extension.
SET client_min_messages = warning;
DROP EXTENSION dlock CASCADE;
DROP ROLE IF EXISTS regress_dlock_early;
CREATE ROLE regress_dlock_early;
RESET client_min_messages;
CREATE SCHEMA dlock AUTHORIZATION regress_dlock_early;
\set SHOW_CONTEXT never
CREATE EXTENSION dlock;
CREATE EXTENSION dlock SCHEMA dlock;
ALTER SCHEMA dlock OWNER TO CURRENT_USER;
CREATE EXTENSION dlock;
CREATE EXTENSION dlock SCHEMA dlock;
DROP EXTENSION dlock;
DROP SCHEMA dlock;
DROP ROLE regress_dlock_early;
CREATE EXTENSION dlock;
