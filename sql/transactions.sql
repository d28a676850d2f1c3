-- A grant, release or refresh commits or rolls back with its transaction.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

--
-- ROLLBACK undoes it
--
BEGIN;
SELECT dlock_acquire('t:1', '1 h', 'me') AS v1 \gset
SELECT dlock_check('t:1', :v1), count(*) FROM dlock_locks WHERE key = 't:1';
ROLLBACK;
SELECT dlock_check('t:1', :v1), count(*) FROM dlock_locks WHERE key = 't:1';
-- a version is never drawn twice
SELECT dlock_acquire('t:1', '1 h', 'me') AS v2 \gset
SELECT :v2 > :v1 AS newer;

BEGIN;
SELECT dlock_release('t:1', :v2), dlock_check('t:1', :v2);
ROLLBACK;
SELECT dlock_check('t:1', :v2);
BEGIN;
SELECT dlock_refresh('t:1', :v2, '2 h') > clock_timestamp() + '90 min' AS refreshed;
ROLLBACK;
SELECT ttl, remaining < '61 min' AS shorter FROM dlock_locks WHERE key = 't:1';
BEGIN;
SELECT dlock_force_release('t:1', 'test') = :v2 AS forced;
ROLLBACK;
SELECT dlock_check('t:1', :v2);
-- an error rolls back, too
BEGIN;
SELECT dlock_release('t:1', :v2);
SELECT 1 / 0;
COMMIT;
SELECT dlock_check('t:1', :v2);
SELECT dlock_release('t:1', :v2), 1 / (count(*) - 1) FROM (SELECT 1) AS x;
SELECT dlock_check('t:1', :v2);

--
-- ROLLBACK TO SAVEPOINT
--
BEGIN;
SAVEPOINT a;
SELECT dlock_acquire('t:2', '1 h') AS v3 \gset
ROLLBACK TO a;
SELECT dlock_check('t:2', :v3);
SELECT dlock_acquire('t:2', '1 h') AS v4 \gset
SELECT :v4 > :v3 AS newer;
-- release, and roll back
SAVEPOINT b;
SELECT dlock_release('t:2', :v4), dlock_check('t:2', :v4);
ROLLBACK TO b;
SELECT dlock_check('t:2', :v4);
-- release and acquire again, and roll back
SAVEPOINT c;
SELECT dlock_release('t:2', :v4);
SELECT dlock_acquire('t:2', '1 h') AS v5 \gset
SELECT dlock_check('t:2', :v4), dlock_check('t:2', :v5);
ROLLBACK TO c;
SELECT dlock_check('t:2', :v4), dlock_check('t:2', :v5);
-- refresh and fence in a subtransaction that commits or rolls back
SAVEPOINT d;
SELECT dlock_refresh('t:2', :v4, '2 h') IS NOT NULL AS refreshed;
SELECT dlock_fence('t:2', :v4);
ROLLBACK TO d;
SELECT ttl FROM dlock_locks WHERE key = 't:2';
SAVEPOINT e;
SELECT dlock_fence('t:2', :v4);
SELECT dlock_refresh('t:2', :v4, '3 h') IS NOT NULL AS refreshed;
RELEASE e;
SELECT ttl FROM dlock_locks WHERE key = 't:2';
-- fenced outside, released inside
SELECT dlock_fence('t:2', :v4);
SAVEPOINT f;
SELECT dlock_release('t:2', :v4);
ROLLBACK TO f;
SELECT dlock_check('t:2', :v4);
COMMIT;
SELECT dlock_check('t:2', :v4), dlock_check('t:1', :v2);
SELECT dlock_release('t:2', :v4), dlock_release('t:1', :v2);

-- nested, with every level rolled back
DO $$
DECLARE
	v bigint;
	w bigint;
BEGIN
	FOR i IN 1 .. 50 LOOP
		BEGIN
			v := dlock_acquire('t:3', '1 h');
			ASSERT v IS NOT NULL, 'free at the start of each round';
			BEGIN
				ASSERT dlock_release('t:3', v) = 'released';
				w := dlock_acquire('t:3', '1 h');
				ASSERT w > v;
				RAISE EXCEPTION USING errcode = 'UNDO1';
			EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
				ASSERT dlock_check('t:3', v) = 'held', 'the inner release is undone';
				ASSERT dlock_check('t:3', w) = 'held_by_other';
			END;
			ASSERT dlock_refresh('t:3', v) IS NOT NULL;
			RAISE EXCEPTION USING errcode = 'UNDO2';
		EXCEPTION WHEN SQLSTATE 'UNDO2' THEN
			ASSERT dlock_check('t:3', v) = 'not_held', 'the outer grant is undone';
		END;
	END LOOP;
END $$;
SELECT count(*) FROM dlock_locks WHERE key = 't:3';

--
-- Acquire and release in one transaction, many times
--
BEGIN;
SELECT dlock_acquire('t:4', '1 h') AS v1 \gset
SELECT dlock_release('t:4', :v1);
SELECT dlock_acquire('t:4', '1 h') AS v2 \gset
SELECT dlock_release('t:4', :v2);
SELECT dlock_acquire('t:4', '1 h') AS v3 \gset
COMMIT;
SELECT :v1 < :v2 AND :v2 < :v3 AS rising, dlock_check('t:4', :v2), dlock_check('t:4', :v3);
SELECT dlock_release('t:4', :v3);

--
-- Isolation levels
--
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT dlock_acquire('t:5', '1 h') AS v \gset
SELECT dlock_acquire('t:5', '1 h') IS NULL AS busy, dlock_refresh('t:5', :v) IS NOT NULL AS refreshed, dlock_release('t:5', :v);
SELECT dlock_acquire('t:5', '1 h') AS v \gset
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT dlock_check('t:5', :v), dlock_refresh('t:5', :v) IS NOT NULL AS refreshed;
SELECT dlock_fence('t:5', :v);
SELECT key FROM dlock_locks WHERE key = 't:5';
SELECT dlock_release('t:5', :v);
SELECT dlock_acquire('t:5', '1 h') AS v \gset
COMMIT;
SELECT dlock_check('t:5', :v);

--
-- A read-only transaction can only ask
--
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT dlock_check('t:5', :v), dlock_check('t:5', :v + 1), dlock_check('t:6', 1);
SELECT key FROM dlock_locks WHERE key = 't:5';
SAVEPOINT a;
SELECT dlock_acquire('t:6', '1 h');
ROLLBACK TO a;
SELECT dlock_acquire('t:5', '1 h');
ROLLBACK TO a;
SELECT dlock_refresh('t:5', :v);
ROLLBACK TO a;
SELECT dlock_release('t:5', :v);
ROLLBACK TO a;
SELECT dlock_fence('t:5', :v);
ROLLBACK TO a;
SELECT dlock_force_release('t:5', 'test');
ROLLBACK;
\set VERBOSITY default
SELECT dlock_check('t:5', :v), dlock_check('t:6', 1);

--
-- A failed acquire writes nothing
--
-- (any reader may prune a page that is half full; a new page has nothing to prune)
TRUNCATE dlock.locks;
SELECT dlock_acquire('t:5', '1 h') AS v \gset
CREATE FUNCTION pg_temp.wal(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE, WAL, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) ' || statement LOOP
		IF line LIKE '%WAL%' THEN
			RETURN 'writes';
		END IF;
	END LOOP;
	RETURN 'writes nothing';
END $$;
BEGIN;
SELECT dlock_acquire('t:5', '1 h') IS NULL AS busy;
SELECT pg_temp.wal($$SELECT dlock_acquire('t:5', '1 h')$$);
SELECT pg_temp.wal($$SELECT dlock_acquire('t:5', '1 h', 'me', 'value')$$);
SELECT pg_temp.wal($$SELECT dlock_check('t:5', 1)$$);
-- negative answers do not write either
SELECT pg_temp.wal($$SELECT dlock_release('t:5', 1)$$), pg_temp.wal($$SELECT dlock_refresh('t:5', 1)$$);
SELECT pg_temp.wal($$SELECT dlock_release('t:none', 1)$$), pg_temp.wal($$SELECT dlock_refresh('t:none', 1)$$);
SELECT pg_temp.wal($$SELECT dlock_force_release('t:none', 'test')$$);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
-- for comparison, calls that do write
SELECT pg_temp.wal($$SELECT dlock_acquire('t:6', '1 h', 'me')$$);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
SELECT dlock_release('t:5', :v), dlock_release('t:6', NULL, 'me');

--
-- PREPARE TRANSACTION: our error precedes the check of max_prepared_transactions
--
SELECT dlock_acquire('t:7', '1 h') AS v \gset
BEGIN;
SELECT dlock_release('t:7', :v);
PREPARE TRANSACTION 'regress_dlock';
SELECT dlock_check('t:7', :v);
\set VERBOSITY sqlstate
BEGIN;
SELECT dlock_acquire('t:8', '1 h') IS NOT NULL AS granted;
PREPARE TRANSACTION 'regress_dlock';
BEGIN;
SELECT dlock_refresh('t:7', :v) IS NOT NULL AS refreshed;
PREPARE TRANSACTION 'regress_dlock';
BEGIN;
SELECT dlock_fence('t:7', :v);
PREPARE TRANSACTION 'regress_dlock';
\set VERBOSITY default
SELECT dlock_check('t:7', :v), dlock_check('t:8', 1);
SELECT dlock_release('t:7', :v);
