-- Several holders of a key: semaphores, readers, and how the kinds meet.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- Acquires of a kind, by one letter each: x exclusive, r reader, 2 to 9 one of that many.
CREATE FUNCTION pg_temp.take(key text, kind text, owner text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT dlock_acquire(key, '1 h', owner, slots => CASE WHEN kind IN ('x', 'r') THEN 1 ELSE kind::int END, shared => kind = 'r')
$$;
-- Which of these acquires are granted, one after the other, on a key that is free.
CREATE FUNCTION pg_temp.granted(kinds text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text := '';
	k text;
BEGIN
	FOREACH k IN ARRAY string_to_array(kinds, NULL) LOOP
		result := result || CASE WHEN pg_temp.take('s:series', k) IS NULL THEN '-' ELSE k END;
	END LOOP;
	PERFORM dlock_force_release('s:series', 'next');
	RETURN result;
END $$;

-- What the fence says.
CREATE FUNCTION pg_temp.fence(key text, version bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_fence(key, version);
	RETURN 'holds';
EXCEPTION WHEN SQLSTATE 'LK001' THEN
	RETURN replace(SQLERRM, version::text, 'N');
END $$;

--
-- Kinds
--
SELECT kinds, pg_temp.granted(kinds) FROM unnest(ARRAY[
	'xx', 'xr', 'x2', 'rx', '2x', 'rrrrrr', '222', '3333', 'r2', 'rr2', 'rrr', 'rrr3', 'rrr4r4',
	'22r2', '3322', '2233', '22335599', '9999999999', '995r9']) AS kinds;

-- every grant has its own version, and the view shows all of them
SELECT pg_temp.take('s:1', '3') AS a \gset
SELECT pg_temp.take('s:1', '3', 'b') AS b \gset
SELECT pg_temp.take('s:1', 'r') AS c \gset
SELECT pg_temp.take('s:1', '3') AS d, pg_temp.take('s:1', 'x') AS x;
SELECT :a < :b AND :b < :c AS rising;
SELECT key, row_number() OVER (ORDER BY version), owner, state, slots, ttl, pid FROM dlock_locks WHERE key = 's:1' ORDER BY version;
-- a key that is free only for more: nothing is registered
SELECT pg_temp.take('s:1', '4') IS NULL AS refused_at_3_of_3, pg_temp.take('s:1', '4') IS NULL AS refused_at_4;
-- one that is refreshed or lost touches no other
SELECT dlock_refresh('s:1', :a, '2 h') IS NOT NULL AS refreshed, dlock_release('s:1', :b), dlock_release('s:1', :b);
SELECT dlock_check('s:1', :a), dlock_check('s:1', :b), dlock_check('s:1', :c), dlock_check('s:1', 1);
SELECT row_number() OVER (ORDER BY version), ttl FROM dlock_locks WHERE key = 's:1' ORDER BY version;
SELECT dlock_force_release('s:1', 'all of them') > :c AS highest, dlock_force_release('s:1', 'none') IS NULL AS free;
SELECT count(*) FROM dlock.locks WHERE key = 's:1';

-- limits
SELECT dlock_acquire('s:limit', slots => 0);
SELECT dlock_acquire('s:limit', slots => -1);
SELECT dlock_acquire('s:limit', slots => 10001);
SELECT dlock_acquire('s:limit', slots => 10000) IS NOT NULL AS granted;
CALL dlock_lock('s:limit', slots => 0);
CALL dlock_lock('s:limit', slots => 2) \gset
SELECT :version > 0 AS granted;
SELECT count(*) FROM dlock_locks WHERE key = 's:limit';
SELECT dlock_force_release('s:limit', 'done') IS NOT NULL AS done;

-- many readers; the view and the table have as many
SELECT count(pg_temp.take('s:many', 'r')) FROM generate_series(1, 1000);
SELECT count(pg_temp.take('s:many', 'r', 'o' || i)) FROM generate_series(1, 1000) i;
SELECT count(*), count(DISTINCT version), count(owner) FROM dlock_locks WHERE key = 's:many';
SELECT dlock_acquire('s:many', slots => 2000) IS NULL AS full, dlock_acquire('s:many', slots => 2001) IS NULL AS fits,
	dlock_acquire('s:many', slots => 2001) IS NULL AS full_again;
SELECT pg_temp.take('s:many', 'x') IS NULL AS busy;
SELECT count(*) FROM dlock_locks WHERE key = 's:many' AND dlock_release(key, version) = 'released';
SELECT pg_temp.take('s:many', 'x') IS NOT NULL AS free;

--
-- One owner has one place
--
SELECT pg_temp.take('s:own', 'r', 'o') AS v \gset
SELECT pg_temp.take('s:own', 'r', 'o') = :v AS same, pg_temp.take('s:own', '2', 'o') = :v AS same_place;
SELECT slots, count(*) FROM dlock_locks WHERE key = 's:own' GROUP BY slots;
SELECT dlock_release('s:own', owner => 'p'), dlock_check('s:own', owner => 'o'), dlock_refresh('s:own', owner => 'o') IS NOT NULL AS refreshed;
SELECT dlock_release('s:own', :v, 'p'), dlock_release('s:own', :v, 'o'), dlock_release('s:own', :v, 'o');
-- a retry of a full semaphore is no newcomer
SELECT pg_temp.take('s:own', '2', 'o') AS v, pg_temp.take('s:own', '2', 'p') AS w \gset
SELECT pg_temp.take('s:own', '2', 'q') IS NULL AS full, pg_temp.take('s:own', '2', 'o') = :v AS o, pg_temp.take('s:own', '2', 'p') = :w AS p;
SELECT dlock_force_release('s:own', 'done') = :w AS highest;
-- the renewal takes all columns but version and acquired_at
SELECT dlock_acquire('s:own', '1 h', 'o', 'old', slots => 5, priority => 1) AS v \gset
SELECT dlock_acquire('s:own', '2 h', 'o', 'new', shared => true, priority => 2) = :v AS same;
SELECT value, ttl, priority, slots, acquired_at < refreshed_at AS later FROM dlock_locks WHERE key = 's:own';

-- exclusive to shared: at once, the same version
SELECT dlock_release('s:own', owner => 'o');
SELECT dlock_acquire('s:own', '1 h', 'o', 'x') AS v \gset
SELECT dlock_acquire('s:own', '2 h', 'o', 'r', shared => true) = :v AS same;
SELECT value, ttl, slots, acquired_at < refreshed_at AS later FROM dlock_locks WHERE key = 's:own';
SELECT dlock_check('s:own', :v), dlock_fence('s:own', :v);
SELECT pg_temp.take('s:own', 'r') IS NOT NULL AS another, pg_temp.take('s:own', 'x') IS NULL AS no_longer_alone;
-- shared to exclusive: not beside another, then with a new version
SELECT pg_temp.take('s:own', 'x', 'o') IS NULL AS not_alone;
SELECT dlock_check('s:own', :v) AS still;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 's:own' AND version <> :v;
SELECT pg_temp.take('s:own', 'x', 'o') > :v AS upgraded;
SELECT dlock_check('s:own', :v) AS old, count(*), min(slots) FROM dlock_locks WHERE key = 's:own';
SELECT count(*) FROM dlock.locks WHERE key = 's:own';
-- and down and up and down, in one transaction
BEGIN;
SELECT pg_temp.take('s:own', '2', 'o') AS v \gset
SELECT pg_temp.take('s:own', 'x', 'o') > :v AS up;
SELECT pg_temp.take('s:own', 'r', 'o') > :v AS down;
COMMIT;
SELECT count(*), min(slots) FROM dlock_locks WHERE key = 's:own';
SELECT dlock_release('s:own', owner => 'o');

-- without an owner, everybody is another one
SELECT pg_temp.take('s:anon', 'r') AS v \gset
SELECT pg_temp.take('s:anon', 'x') IS NULL AS busy, pg_temp.take('s:anon', 'r') <> :v AS another;
SELECT dlock_force_release('s:anon', 'done') > 0 AS done;

--
-- Force
--
SELECT pg_temp.take('s:force', 'r') AS a, pg_temp.take('s:force', 'r') AS b, pg_temp.take('s:force', 'r') AS c \gset
SELECT dlock_force_release('s:force', 'one of them', :b) = :b AS that, dlock_force_release('s:force', 'again', :b) IS NULL AS gone;
SELECT dlock_check('s:force', :a), dlock_check('s:force', :b), dlock_check('s:force', :c);
SELECT dlock_force_release('s:force', 'the rest') = :c AS highest;
SELECT dlock_check('s:force', :a), dlock_check('s:force', :c);
SELECT pg_temp.take('s:force', 'x') > :c AS free;
SELECT dlock_force_release('s:force', 'wrong', :c) IS NULL AS not_that, dlock_force_release('s:force', 'right') > :c AS that;

--
-- Fences
--
SELECT pg_temp.take('s:fence', '2') AS a, pg_temp.take('s:fence', '2') AS b \gset
SELECT pg_temp.fence('s:fence', :a), pg_temp.fence('s:fence', :b);
SELECT dlock_release('s:fence', :a);
SELECT pg_temp.fence('s:fence', :a), pg_temp.fence('s:fence', :b), pg_temp.fence('s:fence', 1);
-- as a trigger, only an exclusive grant counts
CREATE TABLE fenced (key text, token bigint);
CREATE TRIGGER fence BEFORE INSERT ON fenced FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('{key}', '{token}');
CREATE FUNCTION pg_temp.trigger_fence(key text, version bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO fenced VALUES (key, version);
	RETURN 'holds';
EXCEPTION WHEN SQLSTATE 'LK001' THEN
	RETURN replace(SQLERRM, version::text, 'N');
END $$;
SELECT pg_temp.trigger_fence('s:fence', :b);
SELECT dlock_release('s:fence', :b);
SELECT pg_temp.take('s:fence', 'x', 'o') AS x \gset
SELECT pg_temp.trigger_fence('s:fence', :x);
SELECT pg_temp.take('s:fence', 'r', 'o') = :x AS downgraded;
SELECT pg_temp.trigger_fence('s:fence', :x), pg_temp.fence('s:fence', :x);
DROP TABLE fenced;
SELECT dlock_release('s:fence', owner => 'o');

--
-- Versions: above those of all grants that ended before, below all that came after
--
CREATE FUNCTION pg_temp.series() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	versions bigint[] := '{}';
	v bigint;
BEGIN
	FOR i IN 1 .. 20 LOOP
		FOREACH v IN ARRAY ARRAY[pg_temp.take('s:v', 'r'), pg_temp.take('s:v', '3'), pg_temp.take('s:v', 'r', 'o')] LOOP
			versions := versions || v;
		END LOOP;
		PERFORM dlock_force_release('s:v', 'next');
		versions := versions || pg_temp.take('s:v', 'x');
		PERFORM dlock_force_release('s:v', 'next');
	END LOOP;
	RETURN cardinality(versions) = 80 AND versions = (SELECT array_agg(x ORDER BY x) FROM unnest(versions) x);
END $$;
SELECT pg_temp.series();

--
-- Preemption without waiting: holders that need no cleanup
--
SELECT pg_temp.take('s:p', 'r') AS a, dlock_acquire('s:p', '1 h', shared => true, priority => 2) AS b, pg_temp.take('s:p', 'r') AS c \gset
SELECT dlock_acquire('s:p', '1 h', priority => 2) IS NULL AS one_is_as_high;
SELECT dlock_check('s:p', :a), dlock_check('s:p', :b), dlock_check('s:p', :c);
SELECT dlock_acquire('s:p', '1 h', priority => 3) > :c AS takes_all;
SELECT dlock_check('s:p', :a), dlock_check('s:p', :b), dlock_check('s:p', :c), count(*) FROM dlock_locks WHERE key = 's:p';
-- a reader takes the key from a lower writer
SELECT dlock_acquire('s:p', '1 h', shared => true, priority => 3) IS NULL AS busy, dlock_acquire('s:p', '1 h', shared => true, priority => 4) > 0 AS granted;
SELECT slots, priority FROM dlock_locks WHERE key = 's:p';
-- a full semaphore: the lowest, and of these the youngest
SELECT dlock_force_release('s:p', 'next') > 0 AS next;
SELECT dlock_acquire('s:p', '1 h', value => 'a', slots => 4, priority => 1) AS a, dlock_acquire('s:p', '1 h', value => 'b', slots => 4, priority => 0) AS b,
	dlock_acquire('s:p', '1 h', value => 'c', slots => 4, priority => 0) AS c, dlock_acquire('s:p', '1 h', value => 'd', slots => 4, priority => 2) AS d \gset
SELECT dlock_acquire('s:p', '1 h', value => 'e', slots => 4, priority => 0) IS NULL AS busy;
SELECT dlock_acquire('s:p', '1 h', value => 'e', slots => 4, priority => 1) > :d AS granted;
SELECT string_agg(value, ' ' ORDER BY version) FROM dlock_locks WHERE key = 's:p';
SELECT dlock_acquire('s:p', '1 h', value => 'f', slots => 4, priority => 1) > :d AS granted;
SELECT string_agg(value, ' ' ORDER BY version) FROM dlock_locks WHERE key = 's:p';
SELECT dlock_acquire('s:p', '1 h', value => 'g', slots => 4, priority => 1) IS NULL AS busy;
-- a lower number needs more to go
SELECT dlock_acquire('s:p', '1 h', value => 'h', slots => 2, priority => 2) > :d AS granted;
SELECT string_agg(value, ' ' ORDER BY version) FROM dlock_locks WHERE key = 's:p';
SELECT dlock_force_release('s:p', 'done') > 0 AS done;

--
-- Roles
--
CREATE ROLE regress_dlock_reader_1;
CREATE ROLE regress_dlock_reader_2;
SET ROLE regress_dlock_reader_1;
SELECT dlock_acquire('s:role', '1 h', 'o', 'secret', shared => true) AS a \gset
SET ROLE regress_dlock_reader_2;
-- the same name of another role is another owner
SELECT dlock_acquire('s:role', '1 h', 'o', 'mine', shared => true) AS b \gset
SELECT :b > :a AS another, dlock_check('s:role', :a), dlock_release('s:role', :a), dlock_refresh('s:role', :a) IS NULL AS lost;
SELECT role, owner, value FROM dlock_locks WHERE key = 's:role' ORDER BY version;
SELECT pg_temp.fence('s:role', :a), pg_temp.fence('s:role', :b);
SELECT dlock_release('s:role', owner => 'o');
SELECT dlock_check('s:role', owner => 'o');
SET ROLE regress_dlock_reader_1;
SELECT dlock_check('s:role', owner => 'o'), dlock_release('s:role', owner => 'o');
RESET ROLE;
DROP ROLE regress_dlock_reader_1;
DROP ROLE regress_dlock_reader_2;

--
-- Session locks
--
SELECT dlock_acquire('s:session', '1 h', slots => 3, session => true) AS a, dlock_acquire('s:session', '1 h', slots => 3, session => true) AS b,
	dlock_acquire('s:session', '1 h', slots => 3) AS c \gset
SELECT count(*), count(pid) FROM dlock_locks WHERE key = 's:session' AND coalesce(pid, pg_backend_pid()) = pg_backend_pid();
SELECT dlock_release('s:session', :a);
SELECT dlock_release_session();
SELECT dlock_check('s:session', :a), dlock_check('s:session', :b), dlock_check('s:session', :c);
SELECT dlock_release('s:session', :c);

--
-- Transactions
--
BEGIN;
SELECT pg_temp.take('s:t', 'r') AS a \gset
SAVEPOINT s;
SELECT pg_temp.take('s:t', 'r') AS b \gset
SELECT dlock_release('s:t', :a);
SELECT dlock_check('s:t', :a), dlock_check('s:t', :b);
ROLLBACK TO s;
SELECT dlock_check('s:t', :a), dlock_check('s:t', :b);
SELECT pg_temp.take('s:t', 'x') IS NULL AS busy;
COMMIT;
SELECT count(*) FROM dlock_locks WHERE key = 's:t';
SELECT dlock_release('s:t', :a);
-- an upgrade that is rolled back leaves the place
SELECT pg_temp.take('s:t', '2', 'o') AS v \gset
BEGIN;
SELECT pg_temp.take('s:t', 'x', 'o') > :v AS up;
SELECT dlock_check('s:t', :v);
ROLLBACK;
SELECT dlock_check('s:t', :v), slots FROM dlock_locks WHERE key = 's:t';
SELECT dlock_release('s:t', :v);
-- so does a downgrade the exclusive grant
SELECT pg_temp.take('s:t', 'x', 'o') AS v \gset
BEGIN;
SELECT pg_temp.take('s:t', 'r', 'o') = :v AS down;
ROLLBACK;
SELECT dlock_check('s:t', :v), slots FROM dlock_locks WHERE key = 's:t';
SELECT pg_temp.take('s:t', 'r') IS NULL AS busy;
SELECT dlock_release('s:t', :v);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM dlock_locks WHERE key = 's:t';
SELECT pg_temp.take('s:t', '2') > 0 AS a, pg_temp.take('s:t', '2') > 0 AS b, pg_temp.take('s:t', '2') IS NULL AS c;
COMMIT;
SELECT dlock_force_release('s:t', 'done') > 0 AS done;

-- a failed try has no transaction id
BEGIN;
SELECT pg_temp.take('s:own', 'r') > 0 AS granted;
COMMIT;
BEGIN;
SELECT pg_temp.take('s:own', 'x') IS NULL AS busy, pg_current_xact_id_if_assigned() IS NULL AS nothing;
SELECT dlock_acquire('s:own', slots => 2) IS NULL AS busy, dlock_acquire('s:own', slots => 2) IS NULL AS busy;
COMMIT;
SELECT dlock_force_release('s:own', 'done') > 0 AS done;
BEGIN;
SELECT pg_temp.take('s:many', 'r') IS NULL AS busy, pg_temp.take('s:many', '5') IS NULL AS busy, pg_current_xact_id_if_assigned() IS NULL AS nothing;
COMMIT;
SELECT dlock_force_release('s:many', 'done') > 0 AS done;

-- toasted values, in a place and when it moves
SELECT dlock_acquire('s:toast', '1 h', 'o', repeat(md5('v'), 2000)) AS v \gset
SELECT dlock_acquire('s:toast', '1 h', 'o', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1900) i), shared => true) = :v AS moved;
SELECT dlock_acquire('s:toast', '1 h', 'p', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1950) i), shared => true) > :v AS granted;
SELECT owner, length(value), md5(value) FROM dlock_locks WHERE key = 's:toast' ORDER BY version;
SELECT dlock_refresh('s:toast', owner => 'p') IS NOT NULL AS refreshed;
SELECT owner, length(value), md5(value) FROM dlock_locks WHERE key = 's:toast' ORDER BY version;
SELECT dlock_force_release('s:toast', 'done') > :v AS done;

SELECT count(*) FROM dlock_locks WHERE key LIKE 's:%';
