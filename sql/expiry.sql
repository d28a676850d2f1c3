-- A lock is free at the instant it expires, whether or not the reaper has run.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

\getenv root PG_ABS_SRCDIR
\set helpers :root '/sql/helpers/errors.sql'
\i :helpers

SELECT dlock_acquire('x:1', '100 ms', 'me') AS v1, dlock_acquire('x:2', '100 ms', 'me') AS v2,
       dlock_acquire('x:3', '100 ms', 'me') AS v3, dlock_acquire('x:4', '1 h', 'me') AS v4 \gset
SELECT pg_sleep(0.2);
SELECT key FROM dlock_locks WHERE key LIKE 'x:%';

-- its holder sees that it is gone
SELECT dlock_check('x:1', :v1), dlock_check('x:1', NULL, 'me'), dlock_check('x:4', :v4);
SELECT dlock_refresh('x:1', :v1) IS NULL AS lost, dlock_refresh('x:1', :v1, '1 h', 'me') IS NULL AS lost,
       dlock_refresh('x:4', :v4) IS NULL AS lost;
SELECT pg_temp.code(format('SELECT dlock_fence(%L, %s)', 'x:1', :v1)), pg_temp.code(format('SELECT dlock_fence(%L, %s)', 'x:4', :v4));
SELECT dlock_release('x:1', :v1), dlock_release('x:1', NULL, 'me');
SELECT dlock_force_release('x:1', 'test') IS NULL AS free;
-- and none of these calls brought it back
SELECT dlock_check('x:1', :v1);

-- the next acquire gets it with a new version, even for the same owner
SELECT dlock_acquire('x:1', '1 h') > :v4 AS granted, dlock_acquire('x:2', '1 h', 'me') > :v4 AS granted;
SELECT dlock_check('x:1', :v1), dlock_check('x:1', NULL, 'me'), dlock_check('x:2', :v2), dlock_check('x:2', NULL, 'me');
SELECT dlock_refresh('x:1', :v1) IS NULL AS lost, dlock_release('x:1', :v1), dlock_release('x:2', :v2),
       pg_temp.code(format('SELECT dlock_fence(%L, %s)', 'x:1', :v1));

-- a refresh moves the expiry, in both directions
SELECT dlock_acquire('x:5', '1 h') AS v5, dlock_acquire('x:6', '1 h') AS v6 \gset
SELECT dlock_refresh('x:5', :v5, '2 h') IS NOT NULL AS refreshed, dlock_refresh('x:6', :v6, '100 ms') IS NOT NULL AS refreshed;
SELECT pg_sleep(0.2);
SELECT dlock_check('x:5', :v5), dlock_check('x:6', :v6);
SELECT remaining > '90 min' AS longer FROM dlock_locks WHERE key = 'x:5';
-- the next refresh keeps the TTL that a refresh has set
SELECT dlock_refresh('x:5', :v5) > clock_timestamp() + '90 min' AS kept;

-- the same within one transaction, although now() does not advance
BEGIN;
SELECT dlock_acquire('x:7', '100 ms') AS v7 \gset
SELECT pg_sleep(0.2);
SELECT dlock_check('x:7', :v7), dlock_refresh('x:7', :v7) IS NULL AS lost;
SELECT dlock_acquire('x:7', '1 h') > :v7 AS granted;
COMMIT;

SELECT count(*) FROM (SELECT dlock_release(key, version) AS r FROM dlock_locks WHERE key LIKE 'x:%' OFFSET 0) AS x WHERE r = 'released';
