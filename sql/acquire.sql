-- The answers of acquire, refresh, release and check, in one session.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

--
-- A grant returns a version; a busy key returns NULL
--
SELECT dlock_acquire('a:1', '1 h') AS v1 \gset
SELECT :v1 > 0 AS granted;
SELECT dlock_acquire('a:1', '1 h') IS NULL AS busy;
SELECT dlock_check('a:1', :v1), dlock_check('a:1', :v1 + 1), dlock_check('a:none', :v1);
SELECT dlock_release('a:1', :v1), dlock_release('a:1', :v1), dlock_check('a:1', :v1);

-- versions rise across all keys, and the old one no longer names a grant
SELECT dlock_acquire('a:2', '1 h') AS v2 \gset
SELECT dlock_acquire('a:1', '1 h') AS v3 \gset
SELECT :v1 < :v2 AND :v2 < :v3 AS rising;
SELECT dlock_check('a:1', :v1), dlock_refresh('a:1', :v1) IS NULL AS lost, dlock_release('a:1', :v1);
SELECT dlock_check('a:1', :v3);

-- keys are compared byte by byte
SELECT dlock_acquire(k, '1 h') IS NOT NULL AS granted
  FROM unnest(ARRAY['A:1', 'a:1 ', ' a:1', 'a:', E'a:1\n', repeat('k', 1024), repeat('k', 1023)]) AS k;
SELECT dlock_acquire(repeat('k', 1024)) IS NULL AS busy;
SELECT dlock_release(key, version) FROM dlock_locks
 WHERE key IN ('A:1', 'a:1 ', ' a:1', 'a:', E'a:1\n') OR key LIKE 'kkk%';
SELECT dlock_release('a:1', :v3), dlock_release('a:2', :v2);

--
-- Arguments by name; the default of the TTL is dlock.default_ttl, limited by
-- dlock.max_ttl
--
SELECT dlock_acquire(key => 'a:n', ttl => '90 min', owner => 'me', value => 'v') AS v \gset
SELECT key, version = :v AS version, owner, value, state, ttl, role = current_user::regrole AS role,
       acquired_at = refreshed_at AS same, expires_at - acquired_at AS lasts,
       remaining > '80 min' AND remaining <= '90 min' AS remaining
  FROM dlock_locks WHERE key = 'a:n';
SELECT dlock_refresh(key => 'a:n', version => :v, ttl => '2 h', owner => 'me')
       BETWEEN clock_timestamp() + '110 min' AND clock_timestamp() + '130 min' AS refreshed;
SELECT ttl, acquired_at < refreshed_at AS later FROM dlock_locks WHERE key = 'a:n';
-- a refresh without a TTL keeps the TTL of the grant
SELECT dlock_refresh(key => 'a:n', owner => 'me') > clock_timestamp() + '110 min' AS refreshed;
SELECT dlock_check(key => 'a:n', version => :v, owner => 'me'),
       dlock_release(key => 'a:n', version => :v, owner => 'me');

SELECT dlock_acquire('a:d') IS NOT NULL AS granted;
SET dlock.default_ttl = '70 s';
SELECT dlock_acquire('a:e') IS NOT NULL AS granted;
SET dlock.max_ttl = '50 s';
SELECT dlock_acquire('a:f', NULL, NULL, NULL) IS NOT NULL AS granted;
RESET dlock.default_ttl;
RESET dlock.max_ttl;
SELECT key, ttl FROM dlock_locks WHERE key IN ('a:d', 'a:e', 'a:f') ORDER BY key;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key IN ('a:d', 'a:e', 'a:f');

-- a TTL is exact to the millisecond, and a day has 24 hours
SELECT dlock_acquire('a:t' || i, t) IS NOT NULL AS granted
  FROM unnest(ARRAY['1 day', '23:59:59.999', '1 day -23 hours']::interval[]) WITH ORDINALITY AS x(t, i);
SELECT key, ttl, expires_at - acquired_at AS lasts FROM dlock_locks WHERE key LIKE 'a:t%' ORDER BY key;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key LIKE 'a:t%';

--
-- Naming a grant by version, by owner, or by both
--
SELECT dlock_acquire('a:o', '1 h', 'me') AS v \gset
SELECT version, owner, dlock_check('a:o', :v + version, owner) AS "check",
       dlock_refresh('a:o', :v + version, '1 h', owner) IS NOT NULL AS refreshed
  FROM (VALUES (0, NULL), (NULL, 'me'), (0, 'me'),
			   (1, NULL), (NULL, 'you'), (NULL, 'ME'), (0, 'you'), (1, 'me')) AS x(version, owner);
SELECT dlock_release('a:o', :v + 1), dlock_release('a:o', NULL, 'you'),
       dlock_release('a:o', :v, 'you'), dlock_release('a:o', :v + 1, 'me');
SELECT dlock_check('a:o', :v);
SELECT dlock_release('a:o', NULL, 'me'), dlock_release('a:o', NULL, 'me');
-- a grant without an owner cannot be named by one
SELECT dlock_acquire('a:o', '1 h') AS v \gset
SELECT dlock_check('a:o', NULL, 'me'), dlock_release('a:o', NULL, 'you'), dlock_release('a:o', :v, 'me');
SELECT dlock_release('a:o', :v);

--
-- The same owner again: the version stays, the TTL starts again
--
SELECT dlock_acquire('a:r', '1 h', 'me', 'first') AS v \gset
SELECT dlock_acquire('a:r', '2 h', 'me', 'second') = :v AS same;
SELECT ttl, remaining > '90 min' AS renewed, value FROM dlock_locks WHERE key = 'a:r';
SELECT dlock_acquire('a:r', '2 h', 'you') IS NULL AS other_owner, dlock_acquire('a:r', '2 h') IS NULL AS no_owner;
SELECT dlock_check('a:r', :v, 'me'), dlock_release('a:r', :v);
-- a new grant after a release has a new version, even for the same owner
SELECT dlock_acquire('a:r', '1 h', 'me') > :v AS newer;
SELECT dlock_release('a:r', NULL, 'me');

--
-- Several calls in one statement see each other
--
SELECT dlock_acquire('a:s', '1 h', 'me') IS NOT NULL AS granted,
       dlock_acquire('a:s', '1 h') IS NULL AS busy,
       dlock_check('a:s', NULL, 'me'),
       dlock_release('a:s', NULL, 'me'),
       dlock_check('a:s', NULL, 'me') AS checked_again,
       dlock_acquire('a:s', '1 h', 'you') IS NOT NULL AS granted_again,
       dlock_release('a:s', NULL, 'you') AS released_again;
SELECT count(DISTINCT v), count(*) FROM (SELECT dlock_acquire('a:s', '1 h', 'me') AS v FROM generate_series(1, 5)) AS x;
SELECT count(v), count(*) FROM (SELECT dlock_acquire('a:u', '1 h') AS v FROM generate_series(1, 5)) AS x;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key IN ('a:s', 'a:u');
-- in order: each cycle takes a new version
SELECT bool_and(v > before) AS rising, count(*)
  FROM (SELECT v, lag(v, 1, 0::bigint) OVER (ORDER BY i) AS before
          FROM (SELECT i, dlock_acquire('a:c', '1 h', 'me') AS v, dlock_release('a:c', NULL, 'me') AS r
                  FROM generate_series(1, 1000) AS i OFFSET 0) AS x) AS y;

--
-- A long value is stored out of line, and a refresh keeps it
--
CREATE TEMP TABLE long AS
  SELECT string_agg(chr(32 + (i * 7919 + i / 91) % 91), '' ORDER BY i) AS v FROM generate_series(1, 65536) AS i;
SELECT dlock_acquire('a:v', '1 h', 'me', v) AS v, dlock_acquire('a:w', '1 h', repeat('o', 1024), repeat('w', 65536)) AS w FROM long \gset
SELECT dlock_refresh('a:v', :v) IS NOT NULL AS refreshed, dlock_refresh('a:w', :w) IS NOT NULL AS refreshed FROM generate_series(1, 3);
VACUUM dlock.locks;
SELECT key, value = coalesce(v, repeat('w', 65536)) AS same, length(owner)
  FROM dlock_locks LEFT JOIN long ON key = 'a:v' WHERE key IN ('a:v', 'a:w') ORDER BY key;
-- the next grant has its own value
SELECT dlock_acquire('a:v', '1 h', 'me') = :v AS same;
SELECT key, value FROM dlock_locks WHERE key = 'a:v';
SELECT dlock_acquire('a:v', '1 h', 'me', v || '') = :v AS same FROM long;
SELECT dlock_release('a:v', :v), dlock_release('a:w', :w);
SELECT dlock_acquire('a:v', '1 h') AS v \gset
SELECT owner, value FROM dlock_locks WHERE key = 'a:v';
SELECT dlock_release('a:v', :v);

-- values are returned as they were stored
SELECT dlock_acquire(E'a:\'"\\{}', '1 h', E'o\'"\\', E'\t\n') AS v \gset
SELECT key, owner, value FROM dlock_locks WHERE version = :v;
SELECT dlock_release(E'a:\'"\\{}', :v, E'o\'"\\');

-- nothing is left
SELECT count(*) FROM dlock_locks WHERE key LIKE 'a:%';

-- a retry keeps the time of the first grant, and takes its own arguments
SELECT dlock_acquire('a:r', '1 h', 'me', 'first') AS v \gset
SELECT acquired_at AS first FROM dlock_locks WHERE key = 'a:r' \gset
SELECT dlock_acquire('a:r', '2 h', 'me', 'second', priority => 3) = :v AS same;
SELECT acquired_at = :'first' AS first, refreshed_at > :'first' AS later, value, priority, ttl
  FROM dlock_locks WHERE key = 'a:r';
SELECT dlock_release('a:r', :v);

--
-- again => false: a grant of the same owner is busy like anybody's
--
SELECT dlock_acquire('a:n', '1 h', 'me', 'first', again => false) AS v \gset
SELECT dlock_acquire('a:n', '2 h', 'me', 'second', again => false) IS NULL AS busy, dlock_acquire('a:n', '2 h', 'me', 'second', again => false, wait => '1 ms') IS NULL AS waited,
       dlock_acquire('a:n', '2 h', 'me', 'second', again => false, shared => true) IS NULL AS no_downgrade;
SELECT ttl, value, slots FROM dlock_locks WHERE key = 'a:n';
SELECT dlock_acquire('a:n', '2 h', 'me', again => true) = :v AS again;
CALL dlock_lock('a:n', '2 h', 'me', wait => '0', again => false);
-- a priority does not preempt its own owner
SELECT dlock_acquire('a:n', '1 h', 'me', again => false, priority => 7) IS NULL AS busy, dlock_check('a:n', :v);
-- nor does it upgrade; an owner has one place
SELECT dlock_acquire('a:n', '1 h', 'me', shared => true) = :v AS downgraded;
SELECT dlock_acquire('a:n', '1 h', 'me', again => false) IS NULL AS busy, dlock_acquire('a:n', '1 h', 'me', shared => true, again => false) IS NULL AS busy,
       dlock_acquire('a:n', '1 h', 'me', slots => 9, again => false) IS NULL AS busy, dlock_acquire('a:n', '1 h', 'me', slots => 9, again => false, wait => '1 ms') IS NULL AS waited;
SELECT dlock_acquire('a:n', '1 h', 'you', shared => true, again => false) > :v AS another_owner;
-- it waits until its own grant is over, in the same transaction, too
BEGIN;
SELECT dlock_acquire('a:o', '100 ms', 'me', again => false) AS v \gset
SELECT dlock_acquire('a:o', '1 h', 'me', again => false, wait => '1 min') > :v AS after_it;
ROLLBACK;
SELECT dlock_force_release('a:n', 'done') > 0 AS done;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'a:%';
\set VERBOSITY sqlstate
SELECT dlock_acquire('a:n', again => NULL);
\set VERBOSITY default

--
-- dlock_holds
--
SELECT dlock_acquire('a:h', '1 h', 'me') AS v \gset
SELECT dlock_holds('a:h', :v), dlock_holds('a:h', owner => 'me'), dlock_holds('a:h', :v, 'me'), dlock_holds('a:h', :v + 1), dlock_holds('a:h', :v, 'you'), dlock_holds('a:free', 1);
SELECT dlock_release('a:h', :v);
SELECT dlock_holds('a:h', :v);
SELECT dlock_holds('a:h');
