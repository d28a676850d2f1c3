-- dlock.fence and dlock.require_fence: the fence of a whole connection.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
CREATE FUNCTION run_at_commit(sql text) RETURNS void
	AS '$libdir/dlock_test', 'dlock_test_run_at_commit' LANGUAGE C STRICT;
-- from now on, the module has a callback
SELECT run_at_commit('SELECT 1');
CREATE TABLE note (what text);
CREATE UNLOGGED TABLE unlogged_note (what text);
CREATE TEMP TABLE temp_note (what text);

-- the value
SHOW dlock.fence;
\set VERBOSITY terse
SET dlock.fence = 'leader';
SET dlock.fence = '17';
SET dlock.fence = '17:';
SET dlock.fence = ':leader';
SET dlock.fence = '0:leader';
SET dlock.fence = '-1:leader';
SET dlock.fence = ' 17:leader';
SET dlock.fence = '17 :leader';
SET dlock.fence = '9223372036854775808:leader';
\set VERBOSITY sqlstate
SELECT set_config('dlock.fence', '17:' || repeat('k', 1025), false);
SELECT set_config('dlock.require_fence', repeat('k', 1025), false);
SET dlock.fence = '9223372036854775807:a:b: ';
SHOW dlock.fence;
SET dlock.fence = '';

-- the whole errors
\set VERBOSITY default
SET dlock.fence = '17:leader';
INSERT INTO note VALUES ('never held');
BEGIN;
SET LOCAL dlock.require_fence = 'lead';
SET LOCAL dlock.fence = '';
INSERT INTO note VALUES ('not fenced');
COMMIT;
BEGIN;
SET LOCAL dlock.require_fence = 'leader:';
INSERT INTO note VALUES ('fenced on another lock');
COMMIT;
BEGIN;
SELECT pg_current_xact_id() IS NOT NULL AS has_id;
PREPARE TRANSACTION 'fenced';
BEGIN;
SET LOCAL dlock.fence = '';
SET LOCAL dlock.require_fence = 'lead';
PREPARE TRANSACTION 'fenced';
\set VERBOSITY sqlstate

-- a stale fence: what reads, and what writes nothing but locks, commits
SELECT count(*) FROM note;
UPDATE note SET what = 'no row';
SELECT pg_advisory_xact_lock(1);
NOTIFY something;
SELECT dlock_acquire('leader', '1 h') AS v \gset
SELECT dlock_acquire('leader', '1 h') IS NULL AS busy;
SELECT dlock_refresh('leader', :v) IS NOT NULL AS refreshed;
BEGIN;
SELECT dlock_fence('leader', :v);
SAVEPOINT a;
SELECT dlock_acquire('a', '1 h') IS NOT NULL AS acquired;
ROLLBACK TO a;
SELECT dlock_acquire('b', '1 h') IS NOT NULL AS acquired;
SAVEPOINT b;
SELECT dlock_acquire('c', '1 h', slots => 2) IS NOT NULL AS acquired;
RELEASE b;
DO $$
BEGIN
	PERFORM dlock_acquire('d', '1 h');
	BEGIN
		PERFORM dlock_acquire('', '1 h');
	EXCEPTION WHEN invalid_parameter_value THEN
		NULL;
	END;
	PERFORM dlock_acquire_all('{e,f}', '1 h');
END $$;
SELECT count(*) FROM dlock_locks;
COMMIT;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key <> 'leader' ORDER BY key;
SELECT string_agg(key, ' ') FROM dlock_locks;

-- what writes does not, however little WAL it makes
INSERT INTO note VALUES ('late');
INSERT INTO unlogged_note VALUES ('late');
INSERT INTO temp_note VALUES ('late');
CREATE TABLE late ();
COPY note FROM stdin;
late
\.
SELECT lo_from_bytea(0, 'late');
SELECT FROM pg_class WHERE relname = 'note' FOR UPDATE;
COMMENT ON TABLE note IS 'late';
BEGIN;
SAVEPOINT a;
INSERT INTO note VALUES ('late');
ROLLBACK TO a;
COMMIT;

-- nor with lock operations before it, after it, or in the same statement
BEGIN;
SELECT dlock_acquire('a', '1 h') IS NOT NULL AS acquired;
INSERT INTO unlogged_note VALUES ('late');
COMMIT;
BEGIN;
SELECT dlock_acquire('a', '1 h') IS NOT NULL AS acquired;
SAVEPOINT a;
INSERT INTO temp_note VALUES ('late');
RELEASE a;
SELECT dlock_acquire('b', '1 h') IS NOT NULL AS acquired;
COMMIT;
BEGIN;
INSERT INTO note VALUES ('late');
SELECT dlock_acquire('a', '1 h') IS NOT NULL AS acquired;
COMMIT;
INSERT INTO unlogged_note SELECT dlock_acquire('a', '1 h');
WITH grant_ AS (SELECT dlock_acquire('a', '1 h') AS v) INSERT INTO unlogged_note SELECT v FROM grant_;
SELECT dlock_acquire('a', '1 h') IS NOT NULL AS acquired, lo_from_bytea(0, 'late') <> 0 AS written;
SELECT lo_from_bytea(0, 'late') <> 0 AS written, dlock_acquire('a', '1 h') IS NOT NULL AS acquired;
SELECT string_agg(key, ' ') FROM dlock_locks;

-- deferred triggers, and other extensions at the commit
RESET dlock.fence;
CREATE FUNCTION write_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO note VALUES (TG_ARGV[0]);
	RETURN NULL;
END $$;
CREATE FUNCTION write_and_tell() RETURNS boolean LANGUAGE sql
	AS $$ INSERT INTO note VALUES ('read at the end') RETURNING true $$;
CREATE FUNCTION is_worker() RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN
	RETURN (SELECT backend_type = 'parallel worker' FROM pg_stat_activity WHERE pid = pg_backend_pid());
END $$;
CREATE TABLE trigger_note (what text);
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON trigger_note DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION write_note('by trigger');
SET dlock.fence = '17:leader';
INSERT INTO trigger_note VALUES ('late');
SELECT run_at_commit($$INSERT INTO note VALUES ('at commit')$$);
SELECT run_at_commit($$SELECT dlock_acquire('at commit', '1 h')$$);
BEGIN;
DECLARE read_later CURSOR WITH HOLD FOR SELECT write_and_tell();
COMMIT;
CLOSE read_later;
SELECT string_agg(key, ' ' ORDER BY key) FROM dlock_locks;
SELECT count(*) FROM note;

-- a parallel worker has the id of its leader, which is judged
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off;
BEGIN;
SELECT dlock_acquire('parallel', '1 h') IS NOT NULL AS acquired;
SELECT bool_or(is_worker()) AS parallel FROM pg_class;
COMMIT;
BEGIN;
INSERT INTO note VALUES ('late');
SELECT bool_or(is_worker()) AS parallel FROM pg_class;
COMMIT;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET parallel_leader_participation;

-- the fence that is in force at the end counts
SELECT set_config('dlock.fence', :'v' || ':leader', false) IS NOT NULL AS fenced;
INSERT INTO note VALUES ('held');
INSERT INTO unlogged_note VALUES ('held');
INSERT INTO trigger_note VALUES ('held');
SELECT run_at_commit($$INSERT INTO note VALUES ('held, at commit')$$);
BEGIN;
SET LOCAL dlock.fence = '17:leader';
INSERT INTO note VALUES ('changed');
COMMIT;
BEGIN;
SAVEPOINT a;
SET LOCAL dlock.fence = '17:leader';
INSERT INTO note VALUES ('rolled back');
ROLLBACK TO a;
INSERT INTO note VALUES ('held after ROLLBACK TO');
COMMIT;
CREATE FUNCTION with_fence() RETURNS void LANGUAGE sql SET dlock.fence = '17:leader'
	AS $$ INSERT INTO note VALUES ('held, in a function') $$;
SELECT with_fence();
SET dlock.fence = '17:leader';
BEGIN;
SELECT set_config('dlock.fence', :'v' || ':leader', true) IS NOT NULL AS fenced;
INSERT INTO note VALUES ('SET LOCAL');
COMMIT;
INSERT INTO note VALUES ('after SET LOCAL');
DISCARD ALL;
INSERT INTO note VALUES ('after DISCARD ALL');
CREATE TEMP TABLE temp_note (what text);
SELECT what FROM note;
TRUNCATE note;

-- a place of several is a grant, too; a grant of the same transaction is one
SELECT dlock_acquire('places', '1 h', slots => 3) AS p \gset
SELECT set_config('dlock.fence', :'p' || ':places', false) IS NOT NULL AS fenced;
INSERT INTO note VALUES ('with a place');
BEGIN;
INSERT INTO note VALUES ('with a grant of its own');
SELECT set_config('dlock.fence', dlock_acquire('own', '1 h') || ':own', true) IS NOT NULL AS fenced;
COMMIT;
-- one that the transaction gives back is not
BEGIN;
INSERT INTO note VALUES ('given back');
SELECT dlock_release('places', :p);
COMMIT;
SELECT dlock_check('places', :p);

-- the end of a fence in a statement, a procedure, a command of several transactions
CREATE PROCEDURE write_twice() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO note VALUES ('first');
	COMMIT;
	PERFORM dlock_release(key, version) FROM dlock_locks WHERE key = 'places';
	COMMIT;
	INSERT INTO note VALUES ('second');
	COMMIT;
END $$;
CALL write_twice();
CREATE INDEX CONCURRENTLY note_what ON note (what);
VACUUM note;
RESET dlock.fence;
SELECT what FROM note;
-- what functions in an index write in VACUUM, which itself is not judged
CREATE FUNCTION write_if_told() RETURNS void LANGUAGE sql
	AS $$ INSERT INTO public.note SELECT 'by VACUUM' WHERE current_setting('note.told', true) = 'yes' $$;
CREATE FUNCTION indexed(int) RETURNS int LANGUAGE plpgsql IMMUTABLE
	AS $$ BEGIN PERFORM public.write_if_told(); RETURN $1; END $$;
CREATE TABLE summarized (i int);
CREATE INDEX ON summarized USING brin (indexed(i)) WITH (pages_per_range = 1);
INSERT INTO summarized SELECT generate_series(1, 1000);
SET dlock.fence = '17:leader';
SET note.told = 'yes';
VACUUM summarized;
RESET note.told;
VACUUM summarized;
RESET dlock.fence;
SELECT count(*) FROM note WHERE what = 'by VACUUM';
DROP TABLE summarized;
DROP FUNCTION indexed, write_if_told;

-- REPEATABLE READ, SERIALIZABLE, READ ONLY with a temporary table
SELECT dlock_acquire('leader', '1 h') IS NULL AS busy;
SELECT set_config('dlock.fence', :'v' || ':leader', false) IS NOT NULL AS fenced;
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO note VALUES ('repeatable read');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO note VALUES ('serializable');
COMMIT;
BEGIN READ ONLY;
INSERT INTO temp_note VALUES ('read only');
COMMIT;
SELECT what FROM note WHERE what LIKE '%able%';
SELECT what FROM temp_note;

-- the role
CREATE ROLE regress_fence_a;
CREATE ROLE regress_fence_b;
GRANT ALL ON note TO regress_fence_a, regress_fence_b;
CREATE FUNCTION note_as_owner(what text) RETURNS void LANGUAGE sql SECURITY DEFINER
	AS $$ INSERT INTO note VALUES ($1) $$;
SET dlock.fence = '';
SET ROLE regress_fence_a;
SELECT dlock_acquire('of a', '1 h') AS a \gset
SELECT set_config('dlock.fence', :'a' || ':of a', false) IS NOT NULL AS fenced;
INSERT INTO note VALUES ('by a');
SELECT note_as_owner('by a through a function');
SET ROLE regress_fence_b;
INSERT INTO note VALUES ('by b');
RESET ROLE;
INSERT INTO note VALUES ('by the session');
BEGIN;
INSERT INTO note VALUES ('by the session, committed by a');
SET LOCAL ROLE regress_fence_a;
COMMIT;
SELECT what FROM note WHERE what LIKE 'by%';

-- dlock.require_fence
SET ROLE regress_fence_b;
SET dlock.require_fence = 'of ';
RESET ROLE;
SET dlock.require_fence = 'of ';
SET ROLE regress_fence_b;
SET dlock.require_fence = '';
RESET dlock.fence;
INSERT INTO note VALUES ('without a fence');
SELECT dlock_acquire('of b', '1 h') AS b \gset
SELECT count(*) > 0 AS read FROM note;
SELECT set_config('dlock.fence', :'a' || ':of a', false) IS NOT NULL AS fenced;
INSERT INTO note VALUES ('with the fence of another role');
SELECT set_config('dlock.fence', dlock_acquire('o', '1 h') || ':o', false) IS NOT NULL AS fenced;
INSERT INTO note VALUES ('with a shorter key');
SELECT set_config('dlock.fence', :'b' || ':of b', false) IS NOT NULL AS fenced;
INSERT INTO note VALUES ('with that fence');
RESET ROLE;
SELECT what FROM note WHERE what LIKE 'with%';
RESET dlock.require_fence;
RESET dlock.fence;

-- numbers
SELECT dlock_stats_reset();
SET dlock.fence = '17:leader';
INSERT INTO note VALUES ('counted');
BEGIN;
SET LOCAL dlock.require_fence = 'x';
INSERT INTO note VALUES ('counted');
COMMIT;
SELECT fence_rejected FROM dlock_stats;
RESET dlock.fence;

SELECT count(dlock_force_release(key, 'end of the test')) FROM dlock_locks;
DROP FUNCTION note_as_owner, with_fence, run_at_commit, write_and_tell, is_worker;
DROP PROCEDURE write_twice;
DROP TABLE note, unlogged_note, trigger_note;
DROP FUNCTION write_note;
DROP ROLE regress_fence_a, regress_fence_b;
