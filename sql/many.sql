-- A transaction can take 100,000 locks with default settings, because a lock
-- needs no entry in the shared lock table.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

BEGIN;
CREATE TEMP TABLE many AS
  SELECT i, dlock_acquire('m:' || i, '1 h') AS v FROM generate_series(1, 100000) AS i;
SELECT count(v), count(DISTINCT v), max(v) - min(v) < 110000 AS dense FROM many;
SELECT count(*) < 50 AS few FROM pg_locks WHERE pid = pg_backend_pid();
COMMIT;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%';

-- using them does not either
BEGIN;
SELECT count(dlock_acquire('m:' || i, '1 h')) FROM many WHERE i % 10 = 0;
SELECT count(*) FROM many, dlock_fence('m:' || i, v) WHERE i % 10 = 0;
SELECT count(dlock_refresh('m:' || i, v)) FROM many WHERE i % 10 = 0;
SELECT r, count(*) FROM (SELECT dlock_release('m:' || i, v) AS r FROM many OFFSET 0) AS x GROUP BY r;
SELECT count(*) < 50 AS few FROM pg_locks WHERE pid = pg_backend_pid();
COMMIT;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'm:%';
