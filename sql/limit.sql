-- dlock_limit: at most n permits in any window of time.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- three in an hour
SELECT dlock_limit('l:three', 3, '1 h') FROM generate_series(1, 3);
SELECT dlock_limit('l:three', 3, '1 h') BETWEEN '59 min' AND '1 h' AS ask_again,
       dlock_limit('l:three', 3, '1 h', wait => '10 ms') > '59 min' AS also_after_a_wait;
-- what a permit leaves: a place that cools, and nobody's
SELECT count(*), count(DISTINCT version), min(state), max(state), max(slots), max(ttl), max(owner), bool_and(acquired_at = refreshed_at) AS at_once
  FROM dlock_get('l:three');
-- another number, and another window, count what is there
SELECT dlock_limit('l:three', 4, '10 min'), dlock_limit('l:three', 4, '1 h') <= '10 min' AS the_short_one_ends_first,
       dlock_limit('l:three', 2, '1 h') > '59 min' AS for_two_three_must_end;

-- one in an hour, and then more
SELECT dlock_limit('l:one', 1, '1 h'), dlock_limit('l:one', 1, '1 h') > '59 min' AS full;
SELECT dlock_limit('l:ten', 10, '1 h'), dlock_limit('l:ten', 1, '1 h') > '59 min' AS full;

-- the window is over, or a waiter sees it end, also in the same transaction
SELECT dlock_limit('l:short', 1, '50 ms'), dlock_limit('l:short', 1, '50 ms', wait => '1 min');
SET deadlock_timeout = '1 ms';
BEGIN;
SELECT dlock_limit('l:self', 2, '50 ms'), dlock_limit('l:self', 2, '50 ms'), dlock_limit('l:self', 2, '50 ms', wait => '1 min');
COMMIT;
RESET deadlock_timeout;

-- a rollback gives it back, and a savepoint
BEGIN;
SELECT dlock_limit('l:back', 1, '1 h');
ROLLBACK;
BEGIN;
SELECT dlock_limit('l:back', 2, '1 h');
SAVEPOINT s;
SELECT dlock_limit('l:back', 2, '1 h'), dlock_limit('l:back', 2, '1 h') > '0' AS full;
ROLLBACK TO s;
SELECT dlock_limit('l:back', 2, '1 h'), dlock_limit('l:back', 2, '1 h') > '0' AS full;
COMMIT;
SELECT count(*) FROM dlock_get('l:back');
-- a call that is refused writes nothing
BEGIN;
SELECT dlock_limit('l:back', 2, '1 h') > '0' AS full, pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
COMMIT;

-- a key that is also acquired: grants and permits share the places
SELECT dlock_acquire('l:both', '1 h', 'a', slots => 2) AS v, dlock_limit('l:both', 2, '1 min') AS permit \gset
SELECT :'permit' AS permit, dlock_limit('l:both', 2, '1 min') <= '1 min' AS full, dlock_acquire('l:both', '1 h', slots => 2) IS NULL AS for_all;
SELECT dlock_release('l:both', :v), dlock_limit('l:both', 2, '1 min');
SELECT dlock_acquire('l:held', '1 h') AS v \gset
SELECT dlock_limit('l:held', 5, '1 min') AS "never longer than the window", dlock_release('l:held', :v), dlock_limit('l:held', 5, '1 min');
-- an administrator can empty it
SELECT dlock_force_release('l:three', 'test') IS NOT NULL AS emptied, dlock_limit('l:three', 1, '1 h');

-- input
\set VERBOSITY terse
SELECT dlock_limit(NULL, 1, '1 s');
SELECT dlock_limit('', 1, '1 s');
SELECT dlock_limit(repeat('k', 1025), 1, '1 s');
SELECT dlock_limit('l:bad', NULL, '1 s');
SELECT dlock_limit('l:bad', 0, '1 s');
SELECT dlock_limit('l:bad', 10001, '1 s');
SELECT dlock_limit('l:bad', 1, NULL);
SELECT dlock_limit('l:bad', 1, '0');
SELECT dlock_limit('l:bad', 1, '-1 s');
SELECT dlock_limit('l:bad', 1, '1 month');
SELECT dlock_limit('l:bad', 1, '2 days');
SELECT dlock_limit('l:bad', 1, '1 s', wait => '-1 s');
BEGIN READ ONLY;
SELECT dlock_limit('l:bad', 1, '1 s');
ROLLBACK;
\set VERBOSITY default
SELECT dlock_limit('l:bad', 1, '25 h');
SELECT count(*) FROM dlock.locks WHERE key = 'l:bad';

-- priority, and policies: a permit keeps a key busy, so it is judged as a lock
\set VERBOSITY terse
SELECT dlock_limit('l:bad', 1, '1 s', priority => -1);
SELECT dlock_limit('l:priority', 1, '1 h', priority => 5), dlock_limit('l:priority', 1, '1 h', priority => 6) > '59 min' AS no_preemption;
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_dlock_l;
RESET client_min_messages;
CREATE ROLE regress_dlock_l;
SELECT dlock_policy('l:role', 'regress_dlock_l', max_ttl => '1 min', max_priority => 3, max_locks => 3);
SET ROLE regress_dlock_l;
SELECT dlock_limit('l:role', 5, '1 min') FROM generate_series(1, 3);
SELECT dlock_limit('l:role', 5, '1 min') IS NULL AS refused;
SELECT dlock_limit('l:role', 5, '2 min') IS NULL AS refused;
SELECT dlock_limit('l:role', 5, '1 min', priority => 4) IS NULL AS refused;
RESET ROLE;
SELECT dlock_policy('l:role', 'regress_dlock_l', allow => false);
SET ROLE regress_dlock_l;
SELECT dlock_limit('l:role', 5, '1 min') IS NULL AS refused;
RESET ROLE;
SELECT dlock_policy_drop('l:role', 'regress_dlock_l');
DROP ROLE regress_dlock_l;
\set VERBOSITY default
