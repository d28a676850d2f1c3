-- dlock_health() on a server without a standby.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS dlock;
CREATE EXTENSION dlock;
RESET client_min_messages;
SELECT setting AS max_wal_senders FROM pg_settings WHERE name = 'max_wal_senders' \gset

-- one row for each check, with the verdict first
SELECT name FROM dlock_health() LIMIT 1;
SELECT name, status, hint IS NOT NULL AS hint
  FROM dlock_health() WHERE name !~ '^(failover|fsync|full_page_writes|reaper|wal_level|standby .*)$';
SELECT name, detail, hint FROM dlock_health()
 WHERE name IN ('synchronous_standby_names', 'dlock.durable_grants', 'synchronous_commit', 'dlock.require_sync');
SELECT count(*) AS "said twice" FROM (SELECT name FROM dlock_health() WHERE name <> 'standby' GROUP BY name HAVING count(*) > 1) AS n;
SELECT DISTINCT status FROM dlock_health() WHERE status NOT IN ('ok', 'warning', 'problem');
SELECT name FROM dlock_health() WHERE detail IS NULL OR (status <> 'ok' AND hint IS NULL);
SELECT detail ~ '^primary, timeline \d+, accepting writes since 20' AS detail FROM dlock_health() WHERE name = 'server';
SELECT (SELECT detail FROM dlock_health() WHERE name = 'wal_level') = current_setting('wal_level') || ', with max_wal_senders = ' || :max_wal_senders AS told;

-- the versions
SELECT detail FROM dlock_health() WHERE name = 'versions';
SELECT dlock_acquire('h:1', '1 h') AS v \gset
SELECT detail FROM dlock_health() WHERE name = 'versions';
SELECT setval('dlock.incarnation', 1);
SELECT detail FROM dlock_health() WHERE name = 'versions';

-- the settings are those of the session
SET synchronous_commit = local;
SELECT name, status, detail FROM dlock_health() WHERE name ~ 'commit|durable';
SET dlock.durable_grants = off;
SELECT name, status, detail, hint FROM dlock_health() WHERE name ~ 'commit|durable';
SELECT detail ~ 'see:.* dlock.durable_grants, synchronous_commit' AS told FROM dlock_health() WHERE name = 'failover';
SET synchronous_commit = remote_apply;
SELECT name, status, detail, hint FROM dlock_health() WHERE name ~ 'commit|durable';
RESET dlock.durable_grants;
RESET synchronous_commit;
SET dlock.require_sync = on;
SELECT name, status, detail, hint FROM dlock_health() WHERE name ~ 'require';
SELECT name FROM dlock_health() WHERE name = 'failover' AND detail ~ 'None is confirmed now; see: dlock.require_sync$';
RESET dlock.require_sync;

-- may a priority take the locks of others?
SELECT status, detail, hint FROM dlock_health() WHERE name = 'priorities';
SELECT dlock_policy('h:', NULL, max_priority => 0), dlock_policy('', 'pg_monitor', max_priority => 0);
SELECT detail ~ '^every role' AS "all the same" FROM dlock_health() WHERE name = 'priorities';
SELECT dlock_policy('', NULL, max_priority => 0);
SELECT status, detail, hint FROM dlock_health() WHERE name = 'priorities';
SELECT count(dlock_policy_drop(prefix, role)) AS dropped FROM dlock_policies;

-- it writes nothing, and any role can call it
CREATE ROLE regress_dlock_health;
SET ROLE regress_dlock_health;
SET search_path = pg_temp, public;
BEGIN READ ONLY;
SELECT count(*) >= 12 AS rows, count(*) FILTER (WHERE name = 'failover') AS verdicts FROM dlock_health();
SELECT name FROM dlock_health() LIMIT 1;
SELECT pg_current_xact_id_if_assigned() IS NULL AS "no transaction id";
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT name FROM dlock_health() LIMIT 1;
SELECT count(*) AS "predicate locks" FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND relation >= 16384;
COMMIT;
RESET search_path;
RESET ROLE;
DROP ROLE regress_dlock_health;
SELECT dlock_release('h:1', :v);
