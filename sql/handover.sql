-- dlock_handover: a grant goes to another owner with a new version, and nobody comes between.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- an exclusive grant: the terms and the value stay, the old version is fenced off
SELECT dlock_acquire('h:x', '1 h', 'blue', 'value', priority => 3, at_least => '10 min') AS v \gset
SELECT dlock_handover('h:x', :v, 'green') AS w \gset
SELECT :w > :v AS newer, dlock_check('h:x', :v) AS old, dlock_check('h:x', owner => 'blue') AS old_owner,
       dlock_check('h:x', :w, 'green') AS new;
\set VERBOSITY sqlstate
SELECT dlock_fence('h:x', :v);
\set VERBOSITY default
SELECT owner, value, priority, ttl, slots, expires_at > now() + '59 min' AS renewed FROM dlock_get('h:x');
-- the key is held since the first owner acquired it
SELECT dlock_handover('h:x', :w, 'blue', '2 h') AS u \gset
SELECT owner, ttl, acquired_at < refreshed_at AS since_before FROM dlock_get('h:x');
-- only one of several calls wins, and an answer that was lost can be asked for
SELECT dlock_handover('h:x', :v, 'red') IS NULL AS too_late, dlock_handover('h:x', :w, 'red') IS NULL AS again,
       dlock_check('h:x', owner => 'blue') AS got_it;
-- the next owner releases it; at_least counts from the first acquire
SELECT dlock_release('h:x', owner => 'blue');
SELECT dlock_handover('h:x', :u, 'red') IS NULL AS released, dlock_handover('h:none', 1, 'red') IS NULL AS never;
SELECT state, version = :u AS same FROM dlock_get('h:x');

-- to itself: a new version, so that what it has sent before is fenced off
SELECT dlock_acquire('h:self', '1 h', 'me') AS v \gset
SELECT dlock_handover('h:self', :v, 'me') AS w \gset
SELECT :w > :v AS newer, dlock_check('h:self', :v) AS old, dlock_acquire('h:self', '1 h', 'me') = :w AS same;

-- what has expired is lost, what has lapsed is its holder's
SELECT dlock_acquire('h:late', '1 ms', 'me') AS v, dlock_acquire('h:lazy', '1 ms', 'me', lazy => true) AS l \gset
SELECT pg_sleep(0.01);
SELECT dlock_handover('h:late', :v, 'you') IS NULL AS expired, dlock_handover('h:lazy', :l, 'you', '1 h') > :l AS lapsed;
SELECT owner, state FROM dlock_get('h:lazy');

-- a place of an owner is another row then
SELECT dlock_acquire('h:s', '1 h', 'a', 'of a', slots => 3) AS a, dlock_acquire('h:s', '1 h', 'b', slots => 3) AS b,
       dlock_acquire('h:s', '1 h', slots => 3) AS c \gset
SELECT dlock_handover('h:s', :a, 'd') AS d \gset
SELECT :d > :c AS newer, dlock_check('h:s', :a) AS old, dlock_check('h:s', :d) AS new, dlock_check('h:s', owner => 'd') AS by_owner,
       dlock_acquire('h:s', '1 h', 'a', slots => 3) IS NULL AS still_full, dlock_acquire('h:s', '1 h', 'd', slots => 3) = :d AS same;
SELECT owner, slots, version = :d AS handed_over FROM dlock_get('h:s') ORDER BY owner;
-- a place without an owner, and a place to its own owner
SELECT dlock_handover('h:s', :c, 'e') AS e \gset
SELECT dlock_handover('h:s', :e, 'e') AS e \gset
SELECT owner, version = :e AS e FROM dlock_get('h:s') ORDER BY owner;
SELECT count(*), count(DISTINCT slot) FROM dlock.locks WHERE key = 'h:s';
-- a key whose only place is handed over is still shared
SELECT dlock_handover('h:one', dlock_acquire('h:one', '1 h', 'a', slots => 2), 'b') IS NOT NULL AS handed_over;
SELECT dlock_acquire('h:one', '1 h') IS NULL AS busy, dlock_release('h:one', owner => 'b'), dlock_acquire('h:one', '1 h') IS NOT NULL AS free;
-- an owner has one place
SELECT dlock_handover('h:s', :b, 'e');
SELECT dlock_check('h:s', :b) AS b, dlock_check('h:s', :e) AS e;
-- also while it cools, but not when it is over
SELECT dlock_acquire('h:c', '1 h', 'a', slots => 3) AS a, dlock_acquire('h:c', '1 h', 'b', slots => 3, at_least => '1 h') AS b,
       dlock_acquire('h:c', '1 ms', 'c', slots => 3) AS c \gset
SELECT dlock_release('h:c', :b), pg_sleep(0.01);
\set VERBOSITY terse
SELECT dlock_handover('h:c', :a, 'b');
\set VERBOSITY default
SELECT dlock_handover('h:c', :a, 'c') > :c AS taken;
SELECT owner, state FROM dlock_get('h:c') ORDER BY version;

-- the end of an owner that was too long for the page of its key
SELECT dlock_acquire('h:long', '1 h', repeat('o', 1024), repeat('v', 60000), slots => 2) AS v \gset
SELECT dlock_handover('h:long', :v, repeat('p', 1024)) > :v AS newer, length(value), left(owner, 1) FROM dlock_get('h:long');
SELECT length(value), left(owner, 1) FROM dlock_get('h:long');

-- it does not end with the session of the one before
SELECT dlock_acquire('h:session', '1 h', 'a', session => true) AS v \gset
SELECT dlock_handover('h:session', :v, 'b') AS w \gset
SELECT dlock_release_session(), dlock_check('h:session', :w), pid FROM dlock_get('h:session');

-- undone with its transaction
SELECT dlock_acquire('h:t', '1 h', 'a', slots => 2) AS v \gset
BEGIN;
SAVEPOINT s;
SELECT dlock_handover('h:t', :v, 'b') > :v AS handed_over;
ROLLBACK TO s;
SELECT dlock_check('h:t', :v), dlock_check('h:t', owner => 'b') AS b;
SELECT dlock_handover('h:t', :v, 'b') AS w \gset
SELECT dlock_handover('h:t', :w, 'c') > :w AS on_and_on;
ROLLBACK;
SELECT dlock_check('h:t', :v), count(*) FROM dlock_get('h:t');
-- what is acquired and handed over in one transaction
BEGIN;
SELECT dlock_handover('h:t2', dlock_acquire('h:t2', '1 h', 'a', slots => 2), 'b') IS NOT NULL AS handed_over;
COMMIT;
SELECT owner FROM dlock_get('h:t2');

-- input
\set VERBOSITY terse
SELECT dlock_handover(NULL, 1, 'x');
SELECT dlock_handover('', 1, 'x');
SELECT dlock_handover('h:x', NULL, 'x');
SELECT dlock_handover('h:x', 1, NULL);
SELECT dlock_handover('h:x', 1, '');
SELECT dlock_handover('h:x', 1, repeat('o', 1025));
SELECT dlock_handover('h:x', 1, 'x', '0');
SELECT dlock_handover('h:x', 1, 'x', '2 days');
SELECT dlock_handover('h:x', 1, 'x', '1 month');
BEGIN READ ONLY;
SELECT dlock_handover('h:x', 1, 'x');
ROLLBACK;

-- another role's is not handed over, and policies judge a TTL that is named
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_dlock_h1, regress_dlock_h2;
RESET client_min_messages;
CREATE ROLE regress_dlock_h1;
CREATE ROLE regress_dlock_h2;
SELECT dlock_policy('h:role', 'regress_dlock_h1', max_ttl => '2 h');
SET ROLE regress_dlock_h1;
SELECT dlock_acquire('h:role', '1 h', 'a') AS v \gset
SET ROLE regress_dlock_h2;
SELECT dlock_handover('h:role', :v, 'b') IS NULL AS refused;
SET ROLE regress_dlock_h1;
SELECT dlock_handover('h:role', :v, 'b', '3 h');
SELECT dlock_handover('h:role', :v, 'b', '2 h') > :v AS handed_over;
SELECT dlock_release('h:role', owner => 'b');
RESET ROLE;
SELECT dlock_policy_drop('h:role', 'regress_dlock_h1');
DROP ROLE regress_dlock_h1, regress_dlock_h2;
-- a key that is not served any more is not handed over, because that draws a version
SELECT dlock_acquire('h:shard', '1 h', 'a') AS v \gset
SELECT dlock_serve(('{[' || dlock_shard('h:x') || ',' || dlock_shard('h:x') + 1 || ')}')::int4multirange);
SELECT dlock_handover('h:shard', :v, 'b');
SELECT dlock_serve(NULL);
SELECT dlock_check('h:shard', :v);
\set VERBOSITY default

SELECT count(*) AS versions, count(DISTINCT version) AS different FROM dlock_locks WHERE key LIKE 'h:%';
