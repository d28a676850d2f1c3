-- The shards of keys, and a database that serves some of them only.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset format unaligned
\pset tuples_only on

\getenv root PG_ABS_SRCDIR
\set helpers :root '/sql/helpers/errors.sql'
\i :helpers

--
-- dlock_shard: these values must never change. They are the last ten bits of
-- the CRC-32 of the key in UTF-8.
--
SELECT v.key, v.shard, CASE WHEN dlock_shard(v.key) = v.shard THEN 'as ever' ELSE 'CHANGED: ' || dlock_shard(v.key) END
  FROM (VALUES ('a', 579), ('b', 1017), ('invoice:42', 1006), (' ', 837), ('0', 801),
			   ('jobs/nightly', 891), (U&'Gr\00FC\00DFe', 113), (U&'\9375', 824), (U&'\+01F511', 698)) v(key, shard);
SELECT dlock_shard(repeat('x', 1024));
SELECT dlock_shard(NULL) IS NULL;
SELECT pg_temp.try($$SELECT dlock_shard('')$$);
SELECT pg_temp.try($$SELECT dlock_shard(repeat('x', 1025))$$);
-- keys that differ in a number spread evenly
SELECT count(*) AS shards, min(n) > 50 AS no_empty_shard, max(n) < 150 AS no_full_shard
  FROM (SELECT count(*) AS n FROM generate_series(1, 102400) i GROUP BY dlock_shard('invoice:' || i)) s;

--
-- what may be served
--
SELECT pg_temp.try($$SELECT dlock_serve('{[-1,5)}')$$);
SELECT pg_temp.try($$SELECT dlock_serve('{[1000,1025)}')$$);
SELECT pg_temp.try($$SELECT dlock_serve('{(,5)}')$$);
SELECT pg_temp.try($$SELECT dlock_serve('{[5,)}')$$);
SELECT count(*) AS rows FROM dlock.served;

--
-- everything, the default
--
SELECT dlock_acquire('a', '1h') AS a \gset
SELECT dlock_acquire('invoice:42', '1h', 'me') AS invoice \gset

--
-- shard 1017, which is that of b
--
SELECT shards FROM dlock_served;
SELECT dlock_serve('{[1017,1018)}');
SELECT shards FROM dlock.served;
SELECT shards FROM dlock_served;
SELECT pg_temp.try($$SELECT dlock_acquire('c')$$);
SELECT pg_temp.try($$CALL dlock_lock('c')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('c', slots => 2)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('c', shared => true, wait => '1min')$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['b', 'c'])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['b', 'c'], wait => '1min')$$);
SELECT count(*) AS left_by_acquire_all FROM dlock.locks WHERE key IN ('b', 'c') AND held;
SELECT dlock_acquire('b', '1h') AS b \gset
SELECT dlock_release('b', :b);
-- the owner's retry is an acquire, too
SELECT pg_temp.try($$SELECT dlock_acquire('invoice:42', '1h', 'me')$$);
-- what is held can be used until it ends
SELECT dlock_check('a', :a);
SELECT dlock_refresh('a', :a, '2h') IS NOT NULL AS refreshed;
SELECT dlock_fence('a', :a);
SELECT dlock_release('a', :a);
SELECT dlock_release('invoice:42', owner => 'me');
SELECT pg_temp.try($$SELECT dlock_acquire('a')$$);
-- what is not held may be held elsewhere
SELECT dlock_check('a', :a), dlock_release('a', :a), dlock_refresh('a', :a), dlock_force_release('a', 'x'), dlock_watch('a', :a);
SET dlock.only_served = on;
SELECT pg_temp.try($$SELECT dlock_check('a', 1)$$);
SELECT pg_temp.code($$SELECT dlock_release('a', 1)$$), pg_temp.code($$SELECT dlock_refresh('a', 1)$$),
	   pg_temp.code($$SELECT dlock_force_release('a', 'x')$$), pg_temp.code($$SELECT dlock_watch('a', 1)$$),
	   pg_temp.code($$SELECT dlock_fence('a', 1)$$);
SELECT dlock_check('b', 1), dlock_release('b', 1), dlock_refresh('b', 1), dlock_force_release('b', 'x'), dlock_watch('b', 1);
RESET dlock.only_served;

--
-- none, the first and the last, ranges, all
--
SELECT dlock_serve('{}');
SELECT pg_temp.try($$SELECT dlock_acquire('b')$$);
-- keys of shards 0 and 1023, and of their neighbours 1 and 1022
SELECT (SELECT min(i) FROM generate_series(1, 100000) i WHERE dlock_shard('k' || i) = 0) AS k0,
	   (SELECT min(i) FROM generate_series(1, 100000) i WHERE dlock_shard('k' || i) = 1) AS k1,
	   (SELECT min(i) FROM generate_series(1, 100000) i WHERE dlock_shard('k' || i) = 1022) AS k1022,
	   (SELECT min(i) FROM generate_series(1, 100000) i WHERE dlock_shard('k' || i) = 1023) AS k1023 \gset
SELECT dlock_serve('{[0,0],[1023,1023]}');
SELECT dlock_acquire('k' || :k0) IS NOT NULL, dlock_acquire('k' || :k1023) IS NOT NULL;
SELECT pg_temp.code(format($$SELECT dlock_acquire('k%s')$$, k))
  FROM unnest(ARRAY[:k1, :k1022]) k;
-- many ranges, more than fit on a page
SELECT dlock_serve((SELECT range_agg(int4range(i, i + 1)) FROM generate_series(0, 1022, 2) i));
SELECT dlock_shard('m' || i) % 2 AS odd, pg_temp.code(format('SELECT dlock_acquire(%L)', 'm' || i)) AS code
  FROM generate_series(1, 400) i GROUP BY 1, 2 ORDER BY 1, 2;
SELECT dlock_serve(NULL);
SELECT count(*) AS rows FROM dlock.served;
SELECT dlock_acquire('a') IS NOT NULL;

--
-- transactions
--
BEGIN;
SELECT dlock_serve('{[1017,1018)}');
-- it sees its own change
SELECT pg_temp.try($$SELECT dlock_acquire('c')$$);
SAVEPOINT s;
SELECT dlock_serve('{}');
SELECT pg_temp.code($$SELECT dlock_acquire('b', owner => 'x')$$);
ROLLBACK TO s;
SELECT dlock_acquire('b', owner => 'x') IS NOT NULL AS after_savepoint;
ROLLBACK;
SELECT dlock_acquire('c') IS NOT NULL AS after_rollback;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM dlock.served;
SELECT dlock_serve('{[1017,1018)}');
SELECT pg_temp.code($$SELECT dlock_acquire('d')$$);
SELECT count(*) AS predicate_locks FROM pg_locks WHERE mode = 'SIReadLock' AND relation = 'dlock.locks'::regclass;
COMMIT;
SELECT pg_temp.code($$SELECT dlock_acquire('d')$$);
-- prepared: it would take effect without anybody noticing
BEGIN;
SELECT dlock_serve(NULL);
PREPARE TRANSACTION 'x';
SELECT shards FROM dlock.served;

--
-- those that write to the table otherwise are noticed, too
--
UPDATE dlock.served SET shards = '{[0,1024)}';
SELECT dlock_acquire('d') IS NOT NULL;
DELETE FROM dlock.served;
INSERT INTO dlock.served VALUES ('{}');
SELECT pg_temp.code($$SELECT dlock_acquire('e')$$);
-- of several rows, what all of them say
INSERT INTO dlock.served VALUES ('{[0,1024)}');
SELECT shards FROM dlock_served;
SELECT pg_temp.code($$SELECT dlock_acquire('e')$$);
TRUNCATE dlock.served;
SELECT dlock_acquire('e') IS NOT NULL;

--
-- roles: only the owner of the extension
--
SET client_min_messages = warning;
DROP ROLE IF EXISTS dlock_test_app;
RESET client_min_messages;
CREATE ROLE dlock_test_app;
SET ROLE dlock_test_app;
SELECT dlock_shard('a');
SELECT pg_temp.try($$SELECT dlock_serve('{}')$$);
SELECT pg_temp.try($$SELECT dlock_advance(1)$$);
SELECT pg_temp.try($$SELECT dlock_settle()$$);
SELECT shards FROM dlock_served;
SELECT pg_temp.try($$DELETE FROM dlock.served$$);
RESET ROLE;
SELECT dlock_serve('{[1017,1018)}');
SET ROLE dlock_test_app;
SELECT pg_temp.code($$SELECT dlock_acquire('f')$$);
RESET ROLE;
SELECT dlock_serve(NULL);
DROP ROLE dlock_test_app;

--
-- dlock_advance
--
SELECT pg_temp.try($$SELECT dlock_advance(NULL)$$);
SELECT pg_temp.try($$SELECT dlock_advance(-1)$$);
SELECT pg_temp.try($$SELECT dlock_advance(9223372036854775807)$$);
SELECT dlock_acquire('g', '1h') AS before \gset
SELECT dlock_advance(0) = :before AS nothing_to_do;
SELECT dlock_advance(:before - 1) = :before AS nothing_to_do;
SELECT dlock_advance(:before + 1000) > :before + 1000 AS lifted;
SELECT dlock_acquire('h', '1h') AS after \gset
SELECT :after > :before + 1000 AS above;
-- never down, and a rollback does not undo it
SELECT dlock_advance(:before) = :after AS stays;
BEGIN;
SELECT dlock_advance(:after) = :after AS stays;
SELECT dlock_advance(:after + 1) > :after AS lifted;
ROLLBACK;
SELECT dlock_acquire('i', '1h') > :after + 1 AS above;

--
-- dlock_settle
--
SELECT dlock_settle();
BEGIN;
SELECT dlock_serve('{}');
SELECT dlock_settle();
ROLLBACK;
BEGIN READ ONLY;
SELECT dlock_serve('{}');
ROLLBACK;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key IN ('g', 'h', 'i');
-- nothing is left for the next test
SELECT count(dlock_force_release(key, 'end of the test')) > 0 FROM dlock_locks WHERE version IS NOT NULL;
