-- How a grant ends: at_least, delay, lazy.
--
-- Times are short, and a test waits only for the clock: until_over() returns when a key is no
-- longer what it was.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
CREATE PROCEDURE pg_temp.until_over(which text, was text) LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM dlock_locks WHERE key = which AND state = was) LOOP
		PERFORM pg_sleep(0.005);
	END LOOP;
END $$;
CREATE FUNCTION pg_temp.fence(key text, version bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_fence(key, version);
	RETURN 'holds';
EXCEPTION WHEN SQLSTATE 'LK001' THEN
	RETURN SQLSTATE;
END $$;

--
-- Arguments
--
SELECT dlock_acquire('e:bad', '1 s', at_least => '1001 ms');
SELECT dlock_acquire('e:bad', at_least => '21 s');
SELECT dlock_acquire('e:bad', '1 s', at_least => '-1 ms');
SELECT dlock_acquire('e:bad', '1 s', at_least => NULL);
SELECT dlock_acquire('e:bad', '1 s', delay => '1 day 1 ms');
SELECT dlock_acquire('e:bad', '1 s', delay => '-1 ms');
SELECT dlock_acquire('e:bad', '1 s', delay => NULL);
SELECT dlock_acquire('e:bad', '1 s', delay => '1 month');
SELECT dlock_acquire('e:bad', '1 s', lazy => NULL);
SELECT dlock_acquire('e:bad', '1 s', delay => '1 ms', lazy => true);
CALL dlock_lock('e:bad', '1 s', at_least => '2 s');
CALL dlock_lock('e:bad', '1 s', delay => '1 ms', lazy => true);
SELECT count(*) FROM dlock_locks WHERE key = 'e:bad';
SELECT dlock_acquire('e:most', '1 day', at_least => '1 day', delay => '1 day') > 0 AS granted;
SELECT dlock_force_release('e:most', 'x') > 0 AS forced, dlock_force_release('e:most', 'x') > 0 AS cooling_ended, dlock_force_release('e:most', 'x') IS NULL AS free;

--
-- at_least
--
-- a release ends the version at once, but the key stays busy
SELECT dlock_acquire('e:a', '1 h', 'o', 'v', at_least => '30 min') AS v \gset
SELECT dlock_release('e:a', :v), dlock_release('e:a', :v), dlock_check('e:a', :v), dlock_refresh('e:a', :v) IS NULL AS lost, pg_temp.fence('e:a', :v);
SELECT dlock_acquire('e:a') IS NULL AS busy, dlock_acquire('e:a', owner => 'o') IS NULL AS for_its_owner_too,
       dlock_acquire('e:a', priority => 2147483647, force => true) IS NULL AS for_everybody,
       dlock_acquire('e:a', shared => true) IS NULL AS readers, dlock_acquire('e:a', slots => 5) IS NULL AS semaphores;
SELECT version = :v AS version, owner, value, state, ttl BETWEEN '29 min' AND '30 min' AS ttl, remaining BETWEEN '29 min' AND '30 min' AS remaining,
       expires_at - acquired_at AS lasts
  FROM dlock_locks WHERE key = 'e:a';
SELECT dlock_watch('e:a', NULL, '0') IS NULL AS nobody_holds_it;
SELECT dlock_force_release('e:a', 'enough') = :v AS cooling_ended, dlock_acquire('e:a', '1 h') > :v AS free;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:a';
-- it counts from the grant, not from a renewal
SELECT dlock_acquire('e:a', '1 h', 'o', at_least => '30 ms') AS v \gset
SELECT pg_sleep(0.03);
SELECT dlock_refresh('e:a', :v) IS NOT NULL AS refreshed, dlock_release('e:a', :v), dlock_acquire('e:a', '1 h') > :v AS free;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:a';
-- and ends by itself
SELECT dlock_acquire('e:a', '1 h', at_least => '50 ms') AS v \gset
SELECT dlock_release('e:a', :v);
CALL pg_temp.until_over('e:a', 'cooling');
SELECT dlock_acquire('e:a', '1 h') > :v AS free;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:a';
-- a waiter gets it then
SELECT dlock_acquire('e:a', '1 h', at_least => '50 ms') AS v \gset
SELECT dlock_release('e:a', :v), dlock_acquire('e:a', '1 h', wait => '1 min') > :v AS granted;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:a';
-- a TTL that is shortened by a renewal does not shorten it
SELECT dlock_acquire('e:a', '1 h', at_least => '30 min') AS v \gset
SELECT dlock_refresh('e:a', :v, '1 ms') IS NOT NULL AS refreshed;
CALL pg_temp.until_over('e:a', 'held');
SELECT state FROM dlock_locks WHERE key = 'e:a';
SELECT dlock_acquire('e:a') IS NULL AS busy, dlock_check('e:a', :v);
SELECT dlock_force_release('e:a', 'enough') = :v AS cooling_ended;
-- a rollback undoes the release and the cooling
SELECT dlock_acquire('e:a', '1 h', at_least => '30 min') AS v \gset
BEGIN;
SELECT dlock_release('e:a', :v);
ROLLBACK;
SELECT dlock_check('e:a', :v);
-- preemption is no release
SELECT dlock_acquire('e:a', '1 h', priority => 1) > :v AS taken;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:a';

-- of a place: that place is busy, the others are not
SELECT dlock_acquire('e:p', '1 h', slots => 2, at_least => '30 min') AS v \gset
SELECT dlock_release('e:p', :v);
SELECT dlock_acquire('e:p', '1 h', slots => 2) > :v AS second, dlock_acquire('e:p', '1 h', slots => 2) IS NULL AS full, dlock_acquire('e:p', '1 h') IS NULL AS busy,
       dlock_acquire('e:p', '1 h', shared => true) > :v AS reader;
SELECT state, slots FROM dlock_locks WHERE key = 'e:p' ORDER BY version;
SELECT dlock_force_release('e:p', 'cooling', :v) = :v AS cooling_ended;
SELECT state, slots FROM dlock_locks WHERE key = 'e:p' ORDER BY version;
SELECT dlock_force_release('e:p', 'rest') > :v AS forced;
SELECT dlock_acquire('e:p', '1 h') > :v AS free;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:p';
-- one with an owner cools where that owner's next place would be
SELECT dlock_acquire('e:p', '1 h', 'o', shared => true, at_least => '50 ms') AS v \gset
SELECT dlock_release('e:p', owner => 'o'), dlock_acquire('e:p', '1 h', 'p', shared => true) > :v AS another;
SELECT dlock_acquire('e:p', '1 h', 'o', shared => true, wait => '1 min') > :v AS granted;
SELECT acquired_at >= (SELECT p.acquired_at FROM dlock_locks p WHERE p.key = 'e:p' AND p.owner = 'p') AS later FROM dlock_locks WHERE key = 'e:p' AND owner = 'o';
SELECT owner, state FROM dlock_locks WHERE key = 'e:p' ORDER BY owner;
SELECT dlock_force_release('e:p', 'done') > :v AS done;

--
-- delay
--
-- not after a release
SELECT dlock_acquire('e:d', '1 h', delay => '30 min') AS v \gset
SELECT dlock_release('e:d', :v), dlock_acquire('e:d', '1 h', delay => '30 min') > :v AS free;
-- nor after a preemption
SELECT dlock_acquire('e:d', '1 h', priority => 1) > :v AS taken;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:d';
-- after an expiry
SELECT dlock_acquire('e:d', '1 ms', 'o', 'v', delay => '30 min') AS v \gset
CALL pg_temp.until_over('e:d', 'held');
SELECT version = :v AS version, owner, value, state, remaining BETWEEN '29 min' AND '30 min' AS remaining FROM dlock_locks WHERE key = 'e:d';
SELECT dlock_acquire('e:d') IS NULL AS busy, dlock_acquire('e:d', owner => 'o') IS NULL AS for_its_owner_too, dlock_check('e:d', :v), dlock_refresh('e:d', :v) IS NULL AS lost, dlock_release('e:d', :v), pg_temp.fence('e:d', :v);
SELECT dlock_force_release('e:d', 'enough') = :v AS cooling_ended, dlock_acquire('e:d') > :v AS free;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:d';
-- after a forced release
SELECT dlock_acquire('e:d', '1 h', delay => '30 min') AS v \gset
SELECT dlock_force_release('e:d', 'x') = :v AS forced;
SELECT state, dlock_acquire('e:d') IS NULL AS busy FROM dlock_locks WHERE key = 'e:d';
SELECT dlock_force_release('e:d', 'x') = :v AS cooling_ended, dlock_acquire('e:d') > :v AS free;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:d';
-- it ends by itself, and a waiter gets it then
SELECT dlock_acquire('e:d', '10 ms', delay => '40 ms') AS v \gset
CALL pg_temp.until_over('e:d', 'held');
SELECT dlock_acquire('e:d', '1 h', wait => '1 min') > :v AS granted;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:d';
-- both: the later end counts
SELECT dlock_acquire('e:d', '1 ms', at_least => '1 ms', delay => '30 min') AS v \gset
CALL pg_temp.until_over('e:d', 'held');
SELECT state, remaining > '29 min' AS remaining FROM dlock_locks WHERE key = 'e:d';
SELECT dlock_force_release('e:d', 'x') = :v AS cooling_ended;
-- of a place
SELECT dlock_acquire('e:dp', '1 ms', shared => true, delay => '30 min') AS v \gset
CALL pg_temp.until_over('e:dp', 'held');
SELECT dlock_acquire('e:dp', '1 h') IS NULL AS busy, dlock_acquire('e:dp', '1 h', shared => true) > :v AS reader, dlock_acquire('e:dp', '1 h', slots => 2) IS NULL AS full;
SELECT state FROM dlock_locks WHERE key = 'e:dp' ORDER BY version;
SELECT dlock_force_release('e:dp', 'x') > :v AS both, dlock_acquire('e:dp', '1 h') > :v AS free;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:dp';

--
-- lazy
--
-- past its TTL it is still its holder's
SELECT dlock_acquire('e:l', '1 ms', 'o', lazy => true) AS v \gset
CALL pg_temp.until_over('e:l', 'held');
SELECT state, remaining, expires_at < clock_timestamp() AS past FROM dlock_locks WHERE key = 'e:l';
SELECT dlock_check('e:l', :v), pg_temp.fence('e:l', :v), dlock_acquire('e:l', '1 ms', 'o', lazy => true) = :v AS same;
CALL pg_temp.until_over('e:l', 'held');
SELECT dlock_refresh('e:l', :v, '1 h') > clock_timestamp() AS refreshed;
SELECT state, dlock_acquire('e:l') IS NULL AS busy FROM dlock_locks WHERE key = 'e:l';
SELECT dlock_refresh('e:l', :v, '1 ms') IS NOT NULL AS shorter;
CALL pg_temp.until_over('e:l', 'held');
SELECT dlock_release('e:l', :v), dlock_check('e:l', :v);
-- until somebody else wants it
SELECT dlock_acquire('e:l', '1 ms', lazy => true) AS v \gset
CALL pg_temp.until_over('e:l', 'held');
SELECT dlock_acquire('e:l', '1 ms', lazy => true) AS w \gset
SELECT :w > :v AS taken, dlock_check('e:l', :v), dlock_check('e:l', :w), dlock_refresh('e:l', :v) IS NULL AS lost, pg_temp.fence('e:l', :v);
CALL pg_temp.until_over('e:l', 'held');
-- a rollback gives it back
BEGIN;
SELECT dlock_acquire('e:l', '1 h') > :w AS taken, dlock_check('e:l', :w);
ROLLBACK;
SELECT dlock_check('e:l', :w);
-- readers and semaphores end it, too
BEGIN;
SELECT dlock_acquire('e:l', '1 h', slots => 2) > :w AS taken, dlock_check('e:l', :w);
ROLLBACK;
SELECT dlock_check('e:l', :w), dlock_acquire('e:l', '1 ms', 'o', shared => true, lazy => true) > :w AS taken, dlock_check('e:l', :w) AS lost;
CALL pg_temp.until_over('e:l', 'held');
-- beside a lapsed reader there is room; a writer ends it
SELECT state, slots FROM dlock_locks WHERE key = 'e:l';
SELECT dlock_acquire('e:l', '1 ms', 'p', shared => true, lazy => true) > :w AS beside, dlock_acquire('e:l', '1 ms', 'q', shared => true, lazy => true) > :w AS beside;
CALL pg_temp.until_over('e:l', 'held');
SELECT owner, state FROM dlock_locks WHERE key = 'e:l' ORDER BY owner;
-- a semaphore ends only as many as it must, and first those that have expired
SELECT dlock_acquire('e:l', '1 ms', 'r', shared => true) > :w AS beside;
CALL pg_temp.until_over('e:l', 'held');
SELECT dlock_acquire('e:l', '1 h', 's', slots => 4) > :w AS room_for_4;
SELECT state, count(*) FROM dlock_locks WHERE key = 'e:l' GROUP BY state ORDER BY state;
SELECT dlock_acquire('e:l', '1 h', 't', slots => 4) > :w AS room_for_4;
SELECT state, count(*) FROM dlock_locks WHERE key = 'e:l' GROUP BY state ORDER BY state;
SELECT dlock_release('e:l', owner => 't');
SELECT dlock_acquire('e:l', '1 h') IS NULL AS busy;
SELECT dlock_release('e:l', owner => 's'), dlock_acquire('e:l', '1 h') > :w AS free;
SELECT owner, state FROM dlock_locks WHERE key = 'e:l' ORDER BY owner;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'e:l';
-- more than can be asked to yield
SELECT count(dlock_acquire('e:l', '1 ms', shared => true, lazy => true)) FROM generate_series(1, 40);
CALL pg_temp.until_over('e:l', 'held');
SELECT dlock_acquire('e:l', '1 h', slots => 2) > :w AS granted;
SELECT state, count(*) FROM dlock_locks WHERE key = 'e:l' GROUP BY state ORDER BY state;
SELECT dlock_force_release('e:l', 'done') > :w AS done;
-- at_least keeps others out past the TTL, too
SELECT dlock_acquire('e:l', '1 h', at_least => '30 min', lazy => true) AS v \gset
SELECT dlock_refresh('e:l', :v, '1 ms') IS NOT NULL AS shorter;
CALL pg_temp.until_over('e:l', 'held');
SELECT state, dlock_acquire('e:l') IS NULL AS busy, dlock_check('e:l', :v) FROM dlock_locks WHERE key = 'e:l';
SELECT dlock_release('e:l', :v);
SELECT state FROM dlock_locks WHERE key = 'e:l';
SELECT dlock_force_release('e:l', 'x') = :v AS cooling_ended;
-- a lapsed lock can be forced, and is gone
SELECT dlock_acquire('e:l', '1 ms', lazy => true) AS v \gset
CALL pg_temp.until_over('e:l', 'held');
SELECT dlock_force_release('e:l', 'x') = :v AS forced, dlock_check('e:l', :v);
-- nobody who watches or waits is told of the lapse, because the key is not free
SELECT dlock_acquire('e:l', '1 ms', lazy => true) AS v \gset
SELECT dlock_watch('e:l', :v, '20 ms') = :v AS still;
SELECT dlock_release('e:l', :v);

-- a refresh can set it, from then on
SELECT dlock_acquire('e:r', '1 h') AS v \gset
SELECT dlock_refresh('e:r', :v, at_least => '20 min') IS NOT NULL AS refreshed;
SELECT dlock_refresh('e:r', :v, '30 min') IS NOT NULL AS refreshed_again;
SELECT dlock_release('e:r', :v), dlock_acquire('e:r') IS NULL AS busy;
SELECT state, remaining > '19 min' AND remaining <= '20 min' AS twenty_minutes FROM dlock_locks WHERE key = 'e:r';
SELECT dlock_force_release('e:r', 'x') = :v AS cooling_ended;
-- with a value, for a place, and away
SELECT dlock_acquire('e:r', '1 h', slots => 3, at_least => '1 h') AS v \gset
SELECT dlock_refresh('e:r', :v, value => 'new', at_least => '10 min') IS NOT NULL AS refreshed;
SELECT dlock_release('e:r', :v);
SELECT state, remaining > '9 min' AND remaining <= '10 min' AS ten_minutes FROM dlock_locks WHERE key = 'e:r';
SELECT dlock_force_release('e:r', 'x') = :v AS cooling_ended;
SELECT dlock_acquire('e:r', '1 h', at_least => '1 h') AS v \gset
SELECT dlock_refresh('e:r', :v, at_least => '0') IS NOT NULL AS refreshed, dlock_release('e:r', :v), dlock_acquire('e:r', '1 h') > :v AS free;
SELECT dlock_force_release('e:r', 'x') > :v AS done;

-- a failed try against what cools writes nothing
SELECT dlock_acquire('e:n', '1 h', at_least => '30 min') AS v \gset
SELECT dlock_release('e:n', :v);
BEGIN;
SELECT dlock_acquire('e:n') IS NULL AS busy, dlock_acquire('e:n', slots => 2) IS NULL AS busy, dlock_acquire_all(ARRAY['e:m', 'e:n']) IS NULL AS none, pg_current_xact_id_if_assigned() IS NULL AS nothing;
COMMIT;
SELECT dlock_force_release('e:n', 'done') = :v AS done;

SELECT count(*) FROM dlock_locks WHERE key LIKE 'e:%';
