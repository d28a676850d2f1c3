-- Several keys, or none of them.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- the versions are in the caller's order, and were drawn in the order of the keys
SELECT dlock_acquire_all(ARRAY['m:c', 'm:a', 'm:b'], '1 h', 'o', 'v') AS all \gset
SELECT v[2] < v[3] AND v[3] < v[1] AS by_key FROM (SELECT :'all'::bigint[]) AS x(v);
SELECT key, version = (:'all'::bigint[])[n] AS version, owner, value, state, slots, ttl,
       expires_at - refreshed_at AS lasts
  FROM dlock_locks JOIN unnest(ARRAY['m:c', 'm:a', 'm:b']) WITH ORDINALITY AS x(key, n) USING (key) ORDER BY key;
SELECT dlock_check(key, version), dlock_fence(key, version)
  FROM unnest(ARRAY['m:c', 'm:a', 'm:b'], :'all'::bigint[]) AS x(key, version);

-- the same owner gets the same versions again, also of a part and in another order
SELECT dlock_acquire_all(ARRAY['m:c', 'm:a', 'm:b'], '1 h', 'o') = :'all' AS same,
       dlock_acquire_all(ARRAY['m:b', 'm:c'], '1 h', 'o') = ARRAY[(:'all'::bigint[])[3], (:'all'::bigint[])[1]] AS part;

-- all or nothing
SELECT dlock_acquire_all(ARRAY['m:0', 'm:b', 'm:z'], '1 h') IS NULL AS none;
SELECT dlock_acquire_all(ARRAY['m:0', 'm:z', 'm:c'], '1 h', wait => '10 ms') IS NULL AS none;
SELECT count(*) FROM dlock_locks WHERE key IN ('m:0', 'm:z');
SELECT dlock_check(key, version) FROM unnest(ARRAY['m:c', 'm:a', 'm:b'], :'all'::bigint[]) AS x(key, version);
SELECT dlock_release(key, version) FROM unnest(ARRAY['m:c', 'm:a', 'm:b'], :'all'::bigint[]) AS x(key, version);
SELECT cardinality(dlock_acquire_all(ARRAY['m:0', 'm:b', 'm:z'], '1 h'));
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%' AND dlock_release(key, version) = 'released';

-- a failed try writes nothing
SELECT dlock_acquire('m:z', '1 h') AS v \gset
BEGIN;
SELECT dlock_acquire_all(ARRAY['m:a', 'm:b', 'm:z'], '1 h') IS NULL AS none, pg_current_xact_id_if_assigned() IS NULL AS nothing;
COMMIT;

-- one that waits and gets none leaves nothing behind, not even in an open transaction
BEGIN;
SELECT dlock_acquire_all(ARRAY['m:a', 'm:b', 'm:z'], '1 h', wait => '10 ms') IS NULL AS none;
SELECT dlock_acquire('m:a', '1 h') IS NOT NULL AS free;
ROLLBACK;
SELECT count(*) FROM dlock_locks WHERE key IN ('m:a', 'm:b');
SELECT dlock_release('m:z', :v);

-- kinds
SELECT dlock_acquire('m:read', '1 h', shared => true) AS r, dlock_acquire('m:two', '1 h', slots => 2) AS t \gset
SELECT dlock_acquire_all(ARRAY['m:alone', 'm:read', 'm:two'], '1 h') IS NULL AS none,
       dlock_acquire_all(ARRAY['m:alone', 'm:read', 'm:two'], '1 h', slots => ARRAY[1, 1, 2]) IS NULL AS not_alone;
SELECT cardinality(dlock_acquire_all(ARRAY['m:two', 'm:alone', 'm:read'], '1 h', slots => ARRAY[2, 1, 1], shared => ARRAY[false, false, true]));
SELECT key, slots, count(*) FROM dlock_locks WHERE key LIKE 'm:%' GROUP BY key, slots ORDER BY key, slots;
SELECT dlock_acquire_all(ARRAY['m:alone2', 'm:read', 'm:two'], '1 h', slots => ARRAY[1, 1, 2], shared => ARRAY[false, true, false]) IS NULL AS full;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%' AND dlock_release(key, version) = 'released';

-- one place of the same owner each; a downgrade among others
SELECT dlock_acquire('m:down', '1 h', 'o') AS v \gset
SELECT (dlock_acquire_all(ARRAY['m:other', 'm:down'], '1 h', 'o', slots => ARRAY[2, 1], shared => ARRAY[false, true]))[2] = :v AS same;
-- which is undone if it fails
SELECT dlock_acquire('m:zbusy', '1 h') AS b \gset
SELECT (dlock_acquire_all(ARRAY['m:down', 'm:other', 'm:zbusy'], '1 h', 'o', wait => '10ms')) IS NULL AS none;
SELECT key, owner, slots FROM dlock_locks WHERE key LIKE 'm:%' ORDER BY key;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%' AND dlock_release(key, version) = 'released';

-- priority and session
SELECT dlock_acquire('m:low', '1 h') AS v \gset
SELECT dlock_acquire_all(ARRAY['m:high', 'm:low'], '1 h', priority => 1, session => true) IS NOT NULL AS granted;
SELECT dlock_check('m:low', :v);
SELECT key, priority, pid = pg_backend_pid() AS ours FROM dlock_locks WHERE key LIKE 'm:%' ORDER BY key;
SELECT dlock_release_session();
-- a holder that would have to be asked: without waiting there is no time, as for one key
SELECT dlock_acquire('m:low', '1 h', cleanup => '1 h') AS v \gset
\set VERBOSITY terse
SELECT dlock_acquire('m:low', '1 h', priority => 1);
SELECT dlock_acquire_all(ARRAY['m:high', 'm:low'], '1 h', priority => 1);
\set VERBOSITY default
SELECT count(*) FROM dlock_locks WHERE key = 'm:high';
SELECT dlock_check('m:low', :v), dlock_release('m:low', :v);

--
-- Bad input
--
SELECT dlock_acquire_all(NULL);
SELECT dlock_acquire_all('{}');
SELECT dlock_acquire_all(ARRAY['m:a', NULL]);
SELECT dlock_acquire_all(ARRAY['m:a', '']);
SELECT dlock_acquire_all(ARRAY['m:a', repeat('k', 1025)]);
SELECT dlock_acquire_all(ARRAY['m:a', 'm:b', 'm:a']);
SELECT dlock_acquire_all(array_agg('m:' || i)) FROM generate_series(1, 1001) i;
SELECT dlock_acquire_all(ARRAY['m:a', 'm:b'], slots => ARRAY[1]);
SELECT dlock_acquire_all(ARRAY['m:a', 'm:b'], slots => ARRAY[1, 0]);
SELECT dlock_acquire_all(ARRAY['m:a', 'm:b'], slots => ARRAY[1, 10001]);
SELECT dlock_acquire_all(ARRAY['m:a'], '0 s');
SELECT dlock_acquire_all(ARRAY['m:a'], '2 days');
SELECT dlock_acquire_all(ARRAY['m:a'], owner => '');
SELECT dlock_acquire_all(ARRAY['m:a'], priority => -1);
SELECT dlock_acquire_all(ARRAY['m:a'], wait => '-1 s');
SELECT dlock_acquire_all(ARRAY['m:a'], session => NULL);
BEGIN READ ONLY;
SELECT dlock_acquire_all(ARRAY['m:a']);
ROLLBACK;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%';

-- a matrix of keys is taken as a list; the answer is one, too
SELECT array_length(dlock_acquire_all(ARRAY[['m:a', 'm:b'], ['m:c', 'm:d']], '1 h', slots => ARRAY[[1, 2], [3, 1]], shared => ARRAY[[false, false], [false, true]]), 1);
SELECT key, slots FROM dlock_locks WHERE key LIKE 'm:%' ORDER BY key;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%' AND dlock_release(key, version) = 'released';

-- as many as there may be, in no order
SELECT cardinality(dlock_acquire_all(array_agg('m:' || i ORDER BY md5(i::text)), '1 h', 'o')) FROM generate_series(1, 1000) i;
SELECT dlock_acquire_all(array_agg('m:' || i), '1 h') IS NULL AS none FROM generate_series(1000, 1999) i;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%';
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%' AND dlock_release(key, version) = 'released';

--
-- Transactions
--
BEGIN;
SELECT dlock_acquire_all(ARRAY['m:a', 'm:b'], '1 h') IS NOT NULL AS granted;
SAVEPOINT s;
SELECT dlock_acquire_all(ARRAY['m:c', 'm:d'], '1 h') IS NOT NULL AS granted;
ROLLBACK TO s;
SELECT dlock_acquire_all(ARRAY['m:c', 'm:a'], '1 h') IS NULL AS none;
COMMIT;
SELECT key FROM dlock_locks WHERE key LIKE 'm:%' ORDER BY key;
BEGIN;
SELECT dlock_acquire_all(ARRAY['m:c', 'm:d'], '1 h') IS NOT NULL AS granted;
ROLLBACK;
SELECT key FROM dlock_locks WHERE key LIKE 'm:%' ORDER BY key;

BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%';
SELECT dlock_acquire_all(ARRAY['m:e', 'm:f'], '1 h', slots => ARRAY[2, 1], shared => ARRAY[false, true]) IS NOT NULL AS granted,
       dlock_acquire_all(ARRAY['m:a', 'm:g'], '1 h', wait => '1 ms') IS NULL AS none;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT dlock_acquire_all(ARRAY['m:g', 'm:h'], '1 h') IS NOT NULL AS granted,
       dlock_acquire_all(ARRAY['m:a', 'm:z'], '1 h', wait => '1 ms') IS NULL AS none;
COMMIT;
SELECT key FROM dlock_locks WHERE key LIKE 'm:%' ORDER BY key;

-- errors within, and an exception block around it
CREATE FUNCTION pg_temp.both(undo boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	v bigint[];
BEGIN
	BEGIN
		v := dlock_acquire_all(ARRAY['m:x', 'm:y'], '1 h');
		IF undo THEN
			RAISE EXCEPTION 'undone';
		END IF;
		RETURN cardinality(v);
	EXCEPTION WHEN raise_exception THEN
		RETURN SQLERRM || ', free: ' || (dlock_acquire_all(ARRAY['m:y', 'm:x'], '1 h') IS NOT NULL);
	END;
END $$;
SELECT pg_temp.both(true);
SELECT pg_temp.both(false) IS NULL AS busy;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%' AND dlock_release(key, version) = 'released';
CREATE FUNCTION pg_temp.cancelled() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_acquire('m:b', '1 h');
	PERFORM dlock_acquire_all(ARRAY['m:a', 'm:b'], '1 h', wait => NULL);
	RETURN 'granted';
EXCEPTION WHEN deadlock_detected OR lock_not_available OR query_canceled THEN
	RETURN SQLSTATE;
END $$;
-- waits for itself
SET deadlock_timeout = '1ms';
SELECT pg_temp.cancelled();
RESET deadlock_timeout;
SET lock_timeout = '1ms';
SELECT pg_temp.cancelled();
RESET lock_timeout;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%';

-- the result of a query, and a key that is free again by the time it comes to it
SELECT dlock_acquire('m:late', '50 ms') > 0 AS granted;
SELECT dlock_acquire_all(ARRAY['m:early', 'm:late'], '20 ms', wait => '1 min') IS NOT NULL AS granted_after_more_than_its_ttl;
SELECT dlock_acquire('m:late', '50 ms', wait => '1 min') > 0 AS granted;
SELECT dlock_acquire_all(ARRAY['m:early', 'm:late'], '1 h', 'o', wait => '1 min') IS NOT NULL AS granted;
-- the TTLs count from the last one
SELECT max(expires_at) - min(expires_at) <= '1 ms' AS together, bool_and(expires_at - refreshed_at = '1 h') AS one_ttl
  FROM dlock_locks WHERE key LIKE 'm:%';
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%' AND dlock_release(key, version) = 'released';

-- session locks that were rolled back leave nothing behind in the session
SELECT dlock_acquire('m:z', '1 h') AS v \gset
SELECT sum(used_bytes) AS before FROM pg_backend_memory_contexts WHERE name IN ('TopMemoryContext', 'dlock session grants') \gset
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		PERFORM dlock_acquire_all(ARRAY[repeat('m', 1000), 'm:z'], '1 h', session => true, wait => '1 us');
	END LOOP;
END $$;
SELECT sum(used_bytes) - :before < 100000 AS constant
  FROM pg_backend_memory_contexts WHERE name IN ('TopMemoryContext', 'dlock session grants');
SELECT dlock_release('m:z', :v);
BEGIN;
SELECT dlock_acquire('m:1', '1 h', session => true) > 0 AS granted;
SAVEPOINT a;
SELECT dlock_acquire('m:2', '1 h', session => true) > 0 AS granted;
SAVEPOINT b;
SELECT dlock_acquire('m:3', '1 h', session => true) > 0 AS granted;
RELEASE b;
ROLLBACK TO a;
SELECT dlock_acquire('m:4', '1 h', session => true) > 0 AS granted;
COMMIT;
SELECT dlock_release_session();
