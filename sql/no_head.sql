-- That a key has no head, which all backends know if one of them has found it out, saves reading
-- the index and never gives a wrong answer.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

\getenv root PG_ABS_SRCDIR
\set helpers :root '/sql/helpers/reads.sql'
\i :helpers

CREATE FUNCTION lose_hints() RETURNS void
	AS '$libdir/dlock_test', 'dlock_test_lose_hints' LANGUAGE C;

SELECT dlock_release('k:known', dlock_acquire('k:known', '1 h'));
CALL pg_temp.until_known('k:known');

--
-- How often the index is read, unless VACUUM makes everybody forget
--
ALTER TABLE dlock.locks SET (autovacuum_enabled = off);
SELECT pg_temp.take('k:read', NULL, 'first') IS NOT NULL AS granted;
-- a reader looks for the place of its owner, once, and not for a head; its release knows the row
BEGIN;
SELECT pg_temp.scans($$SELECT pg_temp.take('k:read', NULL, 'new')$$) AS new,
	pg_temp.scans($$SELECT pg_temp.take('k:read', NULL)$$) AS nobody,
	pg_temp.scans($$SELECT dlock_release('k:read', version) FROM dlock_locks WHERE key = 'k:read' AND owner = 'new'$$) AS release,
	pg_temp.scans($$SELECT pg_temp.take('k:read', NULL, 'new')$$) AS again;
COMMIT;
SELECT pg_temp.give_back('k:read');

-- a new session knows it, too
\c -
SET client_min_messages = warning;
\i :helpers
RESET client_min_messages;
BEGIN;
SELECT pg_temp.scans($$SELECT pg_temp.take('k:read', NULL)$$) AS nobody;
COMMIT;
SELECT pg_temp.give_back('k:read');

-- an owner that has a place gets that, or else nothing is written, even if all hints are lost
SELECT dlock_acquire('k:read', '1 h', 'cools', shared => true, at_least => '1 h') AS v \gset
SELECT dlock_release('k:read', :v), lose_hints();
BEGIN;
SELECT pg_temp.take('k:read', NULL, 'cools') IS NULL AS cools, pg_current_xact_id_if_assigned() IS NULL AS wrote_nothing;
COMMIT;
SELECT pg_temp.take('k:read', NULL, 'lost') AS v, lose_hints() \gset
SELECT pg_temp.take('k:read', NULL, 'lost') = :v AS same;
BEGIN;
SELECT dlock_release('k:read', :v), lose_hints();
ROLLBACK;
SELECT lose_hints();
SELECT pg_temp.take('k:read', NULL, 'lost') = :v AS same;
SELECT count(*), count(DISTINCT owner) FROM dlock.locks WHERE key = 'k:read' AND owner = 'lost';
SELECT dlock_force_release('k:read', 'done') IS NOT NULL AS done;
ALTER TABLE dlock.locks RESET (autovacuum_enabled);

--
-- A head that is added counts
--
SELECT pg_temp.take('k:head', NULL) IS NOT NULL AS granted, pg_temp.give_back('k:head');
SELECT pg_temp.take('k:head', 1) IS NOT NULL AS granted;
SELECT pg_temp.take('k:head', NULL) IS NULL AS busy, pg_temp.take('k:head', 5) IS NULL AS busy, pg_temp.take('k:head', NULL, 'o') IS NULL AS busy;
SELECT pg_temp.give_back('k:head');

--
-- What a rollback brings back
--
SELECT pg_temp.take('k:back', 1) IS NOT NULL AS granted;
BEGIN;
DELETE FROM dlock.locks WHERE key = 'k:back';
SELECT pg_temp.take('k:back', NULL) IS NOT NULL AS granted;
ROLLBACK;
SELECT pg_temp.take('k:back', NULL) IS NULL AS busy;
BEGIN;
SAVEPOINT s;
DELETE FROM dlock.locks WHERE key = 'k:back';
SELECT pg_temp.take('k:back', NULL) IS NOT NULL AS granted;
ROLLBACK TO s;
SELECT pg_temp.take('k:back', NULL) IS NULL AS busy;
COMMIT;
BEGIN;
TRUNCATE dlock.locks;
SELECT pg_temp.take('k:back', NULL) IS NOT NULL AS granted;
ROLLBACK;
SELECT pg_temp.take('k:back', NULL) IS NULL AS busy;
SELECT pg_temp.give_back('k:back');

--
-- What SQL adds, as when a dump is restored
--
CREATE TEMP TABLE dump AS TABLE dlock.locks WITH NO DATA;
SELECT pg_temp.take('k:dump', 1) IS NOT NULL AS granted;
INSERT INTO dump SELECT * FROM dlock.locks WHERE key = 'k:dump';
DELETE FROM dlock.locks WHERE key = 'k:dump';
SELECT pg_temp.take('k:dump', NULL) IS NOT NULL AS granted, pg_temp.give_back('k:dump');
INSERT INTO dlock.locks SELECT * FROM dump;
SELECT pg_temp.take('k:dump', NULL) IS NULL AS busy;
DELETE FROM dlock.locks WHERE key = 'k:dump';
SELECT pg_temp.take('k:dump', NULL) IS NOT NULL AS granted, pg_temp.give_back('k:dump');
INSERT INTO dlock.locks SELECT * FROM dump;
UPDATE dlock.locks SET key = 'k:dump2' WHERE key = 'k:dump';
SELECT pg_temp.take('k:dump', NULL) IS NOT NULL AS granted, pg_temp.give_back('k:dump');
UPDATE dlock.locks SET key = 'k:dump' WHERE key = 'k:dump2';
SELECT pg_temp.take('k:dump', NULL) IS NULL AS busy;
DELETE FROM dlock.locks WHERE key = 'k:dump';

-- nor does it matter that no trigger counts, if ALTER TABLE says so
SELECT pg_temp.take('k:silent', 1) IS NOT NULL AS granted;
TRUNCATE dump;
INSERT INTO dump SELECT * FROM dlock.locks WHERE key = 'k:silent';
DELETE FROM dlock.locks WHERE key = 'k:silent';
SELECT pg_temp.take('k:silent', NULL) IS NOT NULL AS granted, pg_temp.give_back('k:silent');
BEGIN;
ALTER TABLE dlock.locks DISABLE TRIGGER ALL;
INSERT INTO dlock.locks SELECT * FROM dump;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_row;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_truncate;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER count_restored_row;
COMMIT;
SELECT pg_temp.take('k:silent', NULL) IS NULL AS busy;
CALL pg_temp.until_known('k:known');
SELECT pg_temp.take('k:silent', NULL) IS NULL AS busy;
SELECT pg_temp.give_back('k:silent');

--
-- Without hints, each owner still has one place
--
SELECT count(pg_temp.take('k:wrong', NULL, 'o' || i)) FROM generate_series(1, 3) AS i;
SELECT lose_hints();
CREATE TEMP TABLE before AS SELECT owner, version FROM dlock_locks WHERE key = 'k:wrong';
SELECT owner, pg_temp.take('k:wrong', NULL, owner) = version AS same FROM before ORDER BY owner;
SELECT lose_hints();
SELECT owner, pg_temp.take('k:wrong', 5, owner) = version AS same FROM before ORDER BY owner;
SELECT count(*) FROM dlock.locks WHERE key = 'k:wrong';
SELECT pg_temp.give_back('k:wrong');
SELECT count(*) FROM dlock.locks WHERE key = 'k:wrong' AND slot > 0;

DROP FUNCTION lose_hints;
