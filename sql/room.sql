-- The number of places that a key has at most, which is kept in shared memory: it saves reading
-- the places, and it is never too low.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

\getenv root PG_ABS_SRCDIR
\set helpers :root '/sql/helpers/reads.sql'
\i :helpers

-- Does a call find entries in the index?  A request whose owner is new finds none when it looks for
-- the place of its owner.
CREATE FUNCTION pg_temp.reads_places(call text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	before bigint := pg_stat_get_xact_tuples_returned('dlock.locks_pkey'::regclass);
BEGIN
	EXECUTE call;
	RETURN pg_stat_get_xact_tuples_returned('dlock.locks_pkey'::regclass) > before;
END $$;

SELECT dlock_release('c:known', dlock_acquire('c:known', '1 h'));
CALL pg_temp.until_known('c:known');
ALTER TABLE dlock.locks SET (autovacuum_enabled = off);

--
-- When the places are read
--

-- a semaphore reads all places when it may be full, and not before
SELECT pg_temp.take('c:count', 10) IS NOT NULL AS granted;
BEGIN;
SELECT i, pg_temp.reads_places($$SELECT pg_temp.take('c:count', 10, 'o$$ || i || $$')$$) FROM generate_series(2, 11) AS i;
SELECT count(*) FROM dlock_locks WHERE key = 'c:count';
COMMIT;
-- what is given back leaves room, whether it has an owner or not; a smaller number may be full
SELECT pg_temp.give_back('c:count');
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 10, 'p1')$$) AS knows;
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 2, 'p2')$$) AS knows;
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 2, 'p3')$$) AS is_full;
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 3, 'p3')$$) AS knows;
-- the last place comes and goes
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4, 'l1')$$) AS knows;
SELECT dlock_release('c:count', owner => 'l1');
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4, 'l2')$$) AS knows;
SELECT dlock_release('c:count', owner => 'l2');
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4)$$) AS knows, pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4)$$) AS is_full;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'c:count' AND owner IS NULL;
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4)$$) AS knows;
-- a transaction that gives back and takes counts what may come back; so does the next one
BEGIN;
SELECT dlock_release('c:count', owner => 'p1');
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4, 'm1')$$) AS may_be_full;
COMMIT;
SELECT dlock_release('c:count', owner => 'm1');
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4, 'm2')$$) AS may_be_full;
SELECT dlock_release('c:count', owner => 'm2');
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:count', 4, 'm3')$$) AS knows;
-- what else such a transaction has written does not matter
CREATE TEMP TABLE other (i int);
SELECT pg_temp.take('c:other', 2) IS NOT NULL AS granted, pg_temp.give_back('c:other');
BEGIN;
INSERT INTO other VALUES (1);
SELECT pg_temp.take('c:other', 5, 'a') IS NOT NULL AS granted;
COMMIT;
SELECT pg_temp.reads_places($$SELECT pg_temp.take('c:other', 5, 'b')$$) AS knows;
SELECT pg_temp.give_back('c:other'), pg_temp.give_back('c:count');

--
-- A place is granted if and only if fewer than N are taken.  Each case ends with one place more
-- than there are.
--

-- readers count, and the number changes from request to request
SELECT count(pg_temp.take('c:kinds', CASE WHEN i <= 3 THEN 5 END)) FROM generate_series(1, 4) AS i;
SELECT pg_temp.take('c:kinds', 4) IS NULL AS busy, pg_temp.take('c:kinds', 5) IS NOT NULL AS granted, pg_temp.take('c:kinds', 5) IS NULL AS busy;
SELECT pg_temp.take('c:kinds', NULL) IS NOT NULL AS granted, pg_temp.take('c:kinds', 6) IS NULL AS busy, pg_temp.take('c:kinds', 7) IS NOT NULL AS granted;
SELECT count(dlock_release(key, version)) FROM (SELECT key, version FROM dlock_locks WHERE key = 'c:kinds' ORDER BY version LIMIT 3) AS l;
SELECT pg_temp.take('c:kinds', 4) IS NULL AS busy, pg_temp.take('c:kinds', 5) IS NOT NULL AS granted, pg_temp.take('c:kinds', 5) IS NULL AS busy;
SELECT pg_temp.give_back('c:kinds');

-- a place that is added and removed, also without a commit in between, and one that cools
SELECT count(pg_temp.take('c:ends', 3, 'o' || i)) FROM generate_series(1, 2) AS i;
BEGIN;
SELECT dlock_release('c:ends', pg_temp.take('c:ends', 3, 'x')) FROM generate_series(1, 5);
COMMIT;
SELECT dlock_acquire('c:ends', '1 h', 'cools', slots => 3, at_least => '1 h') AS v \gset
SELECT dlock_release('c:ends', :v);
SELECT pg_temp.take('c:ends', 3) IS NULL AS busy, dlock_release('c:ends', owner => 'o1');
SELECT pg_temp.take('c:ends', 3) IS NOT NULL AS granted, pg_temp.take('c:ends', 3) IS NULL AS busy;
SELECT dlock_force_release('c:ends', 'test') IS NOT NULL AS done;
DELETE FROM dlock.locks WHERE key = 'c:ends';

-- from exclusive to shared and back, by the same owner
SELECT count(pg_temp.take('c:move', 3, 'o')) FROM generate_series(1, 2);
SELECT pg_temp.take('c:move', 1, 'o') IS NOT NULL AS up, pg_temp.take('c:move', 3, 'o') IS NOT NULL AS down;
SELECT pg_temp.take('c:move', 1, 'o') IS NOT NULL AS up, pg_temp.take('c:move', 3, 'o') IS NOT NULL AS down;
SELECT count(pg_temp.take('c:move', 3)) FROM generate_series(1, 3);
SELECT count(*) FROM dlock_locks WHERE key = 'c:move';
SELECT pg_temp.give_back('c:move');

-- those that have expired end for others, and those of an owner are taken over
SELECT count(dlock_acquire('c:late', '50 ms', 'o' || i, slots => 3)) FROM generate_series(1, 3) AS i;
SELECT pg_sleep(0.1);
SELECT count(pg_temp.take('c:late', 3, 'o' || i)) FROM generate_series(3, 6) AS i;
SELECT count(*) FROM dlock_locks WHERE key = 'c:late';
SELECT dlock_release('c:late', owner => 'o4'), pg_temp.take('c:late', 3) IS NOT NULL AS granted;
SELECT pg_temp.take('c:late', 3) IS NULL AS busy, pg_temp.give_back('c:late');

--
-- What a rollback brings back
--
SELECT count(pg_temp.take('c:back', 4, 'o' || i)) FROM generate_series(1, 3) AS i;
BEGIN;
SELECT dlock_release('c:back', owner => 'o1');
ROLLBACK;
SELECT pg_temp.take('c:back', 3) IS NULL AS busy;
BEGIN;
SELECT dlock_release('c:back', owner => 'o1'), dlock_release('c:back', owner => 'o2');
SELECT pg_temp.take('c:back', 3, 'p') IS NOT NULL AS granted;
ROLLBACK;
SELECT pg_temp.take('c:back', 3) IS NULL AS busy;
SELECT pg_temp.take('c:back', 4, 'o4') IS NOT NULL AS granted;
BEGIN;
SAVEPOINT s;
SELECT dlock_release('c:back', owner => 'o1');
ROLLBACK TO s;
COMMIT;
SELECT pg_temp.take('c:back', 4) IS NULL AS busy;
BEGIN;
SAVEPOINT s;
SELECT dlock_release('c:back', owner => 'o1');
SAVEPOINT t;
SELECT dlock_release('c:back', owner => 'o2');
RELEASE t;
SELECT pg_temp.take('c:back', 4, 'p') IS NOT NULL AS granted;
ROLLBACK TO s;
SELECT pg_temp.take('c:back', 4, 'p') IS NULL AS busy;
SELECT dlock_release('c:back', owner => 'o3');
SAVEPOINT s;
SELECT dlock_release('c:back', owner => 'o4');
ROLLBACK TO s;
COMMIT;
SELECT pg_temp.take('c:back', 4) IS NOT NULL AS granted, pg_temp.take('c:back', 4) IS NULL AS busy;
SELECT pg_temp.give_back('c:back');
-- what SQL has deleted
SELECT count(pg_temp.take('c:sql', 3, 'o' || i)) FROM generate_series(1, 3) AS i;
BEGIN;
DELETE FROM dlock.locks WHERE key = 'c:sql' AND owner <> 'o3';
SELECT pg_temp.take('c:sql', 3, 'p') IS NOT NULL AS granted;
ROLLBACK;
SELECT pg_temp.take('c:sql', 3) IS NULL AS busy;
BEGIN;
SAVEPOINT s;
UPDATE dlock.locks SET key = 'c:sql2' WHERE key = 'c:sql';
SELECT pg_temp.take('c:sql', 3, 'p') IS NOT NULL AS granted;
ROLLBACK TO s;
COMMIT;
SELECT pg_temp.take('c:sql', 3) IS NULL AS busy;
BEGIN;
TRUNCATE dlock.locks;
SELECT pg_temp.take('c:sql', 3, 'p') IS NOT NULL AS granted;
ROLLBACK;
SELECT pg_temp.take('c:sql', 3) IS NULL AS busy;
-- ... even if no trigger has seen it
ALTER TABLE dlock.locks DISABLE TRIGGER refuse_replicated_truncate;
CALL pg_temp.until_known('c:known');
BEGIN;
TRUNCATE dlock.locks;
SELECT pg_temp.take('c:sql', 3, 'p') IS NOT NULL AS granted;
ROLLBACK;
SELECT pg_temp.take('c:sql', 3) IS NULL AS busy;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_truncate;
CALL pg_temp.until_known('c:known');
BEGIN;
ALTER TABLE dlock.locks DISABLE TRIGGER ALL;
DELETE FROM dlock.locks WHERE key = 'c:sql';
SELECT pg_temp.take('c:sql', 3, 'p') IS NOT NULL AS granted;
ROLLBACK;
CALL pg_temp.until_known('c:known');
SELECT pg_temp.take('c:sql', 3) IS NULL AS busy;
SELECT pg_temp.give_back('c:sql');

--
-- What SQL adds, as when a dump is restored
--
CREATE TEMP TABLE dump AS TABLE dlock.locks WITH NO DATA;
SELECT count(pg_temp.take('c:dump', 3, 'o' || i)) FROM generate_series(1, 2) AS i;
INSERT INTO dump SELECT * FROM dlock.locks WHERE key = 'c:dump';
SELECT pg_temp.give_back('c:dump');
SELECT pg_temp.take('c:dump', 3) IS NOT NULL AS granted;
INSERT INTO dlock.locks SELECT * FROM dump;
SELECT pg_temp.take('c:dump', 3) IS NULL AS busy;
SELECT pg_temp.give_back('c:dump');
-- nor does it matter that no trigger counts, if ALTER TABLE says so
SELECT pg_temp.take('c:dump', 3) IS NOT NULL AS granted;
BEGIN;
ALTER TABLE dlock.locks DISABLE TRIGGER ALL;
INSERT INTO dlock.locks SELECT * FROM dump;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_row;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_truncate;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER count_restored_row;
COMMIT;
SELECT pg_temp.take('c:dump', 3) IS NULL AS busy;
CALL pg_temp.until_known('c:known');
SELECT pg_temp.take('c:dump', 3) IS NULL AS busy;
SELECT pg_temp.give_back('c:dump');

-- or that there are none: dropped, and created again
CALL pg_temp.until_known('c:known');
SELECT pg_temp.take('c:drop', 3) IS NOT NULL AS granted;
BEGIN;
DROP TRIGGER refuse_replicated_row ON dlock.locks;
DROP TRIGGER count_restored_row ON dlock.locks;
INSERT INTO dlock.locks SELECT * FROM dump;
UPDATE dlock.locks SET key = 'c:drop' WHERE key = 'c:dump';
COMMIT;
SELECT pg_temp.take('c:drop', 3) IS NULL AS busy;
CREATE TRIGGER refuse_replicated_row BEFORE INSERT OR UPDATE OR DELETE ON dlock.locks
	FOR EACH ROW EXECUTE FUNCTION dlock.refuse_replication();
CREATE TRIGGER count_restored_row AFTER INSERT OR UPDATE ON dlock.locks
	FOR EACH ROW EXECUTE FUNCTION dlock.refuse_replication();
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_row;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER count_restored_row;
CALL pg_temp.until_known('c:known');
SELECT pg_temp.take('c:drop', 3) IS NULL AS busy;
-- also if that is rolled back, and the rows come back
BEGIN;
DROP TRIGGER refuse_replicated_row ON dlock.locks;
DELETE FROM dlock.locks WHERE key = 'c:drop';
SELECT pg_temp.take('c:drop', 3) IS NOT NULL AS granted;
ROLLBACK;
SELECT pg_temp.take('c:drop', 3) IS NULL AS busy;
CALL pg_temp.until_known('c:known');
SELECT pg_temp.take('c:drop', 3) IS NULL AS busy;
SELECT pg_temp.give_back('c:drop');

--
-- More keys than there is room for: those of one partition.  A place that was part of a count
-- that is no longer there is not subtracted from another key's.
--
CREATE FUNCTION pg_temp.hash(text, oid) RETURNS bigint
	AS '$libdir/dlock_test', 'dlock_test_hash' LANGUAGE C STRICT;
CREATE TEMP TABLE crowd AS
	SELECT row_number() OVER () AS i, key
	FROM generate_series(1, 4000) AS g, format('c:crowd%s', g) AS key, pg_database
	WHERE datname = current_database() AND (pg_temp.hash(key, oid) >> 20) & 63 = 7
	LIMIT 24;
SELECT count(pg_temp.take(key, 2, 'a')) FROM crowd;
SELECT count(pg_temp.take(key, 2, 'b')) FROM crowd;
SELECT count(pg_temp.take(key, 2, 'c')) FROM crowd;
SELECT i, pg_temp.give_back(key) FROM crowd WHERE i = 1;
SELECT i, pg_temp.take(key, 2, 'a') IS NOT NULL AS granted, pg_temp.take(key, 2, 'b') IS NOT NULL AS granted FROM crowd WHERE i = 1;
SELECT count(pg_temp.give_back(key)) FROM crowd WHERE i > 1;
BEGIN;
SELECT dlock_release(key, owner => 'a') FROM crowd WHERE i = 1;
SELECT count(pg_temp.take(key, 2, 'a')) FROM crowd WHERE i > 1;
COMMIT;
SELECT count(pg_temp.take(key, 2, 'b')), count(pg_temp.take(key, 2, 'c')), count(pg_temp.take(key, 2, 'd')) FROM crowd WHERE i > 1;
SELECT sum(pg_temp.give_back(key)) FROM crowd;

ALTER TABLE dlock.locks RESET (autovacuum_enabled);
