-- Invalid input raises an error that names the argument and the limit, and
-- changes nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset format unaligned
\pset tuples_only on

\getenv root PG_ABS_SRCDIR
\set helpers :root '/sql/helpers/errors.sql'
\i :helpers

SELECT dlock_acquire('e:1', '1 h', 'me', 'v') AS v \gset
CREATE TEMP TABLE before AS SELECT version, refreshed_at FROM dlock.locks WHERE key = 'e:1';

-- the key
SELECT pg_temp.try($$SELECT dlock_acquire(NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('')$$);
SELECT pg_temp.try($$SELECT dlock_acquire(repeat('k', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_refresh(NULL, 1)$$);
SELECT pg_temp.try($$SELECT dlock_refresh('', 1)$$);
SELECT pg_temp.try($$SELECT dlock_refresh(repeat('k', 1025), 1)$$);
SELECT pg_temp.try($$SELECT dlock_release(NULL, 1)$$);
SELECT pg_temp.try($$SELECT dlock_release('', 1)$$);
SELECT pg_temp.try($$SELECT dlock_release(repeat('k', 1025), 1)$$);
SELECT pg_temp.try($$SELECT dlock_check(NULL, 1)$$);
SELECT pg_temp.try($$SELECT dlock_check('', 1)$$);
SELECT pg_temp.try($$SELECT dlock_check(repeat('k', 1025), 1)$$);
SELECT pg_temp.try($$SELECT dlock_fence(NULL, 1)$$);
SELECT pg_temp.try($$SELECT dlock_fence('', 1)$$);
SELECT pg_temp.try($$SELECT dlock_fence(repeat('k', 1025), 1)$$);
SELECT pg_temp.try($$SELECT dlock_force_release(NULL, 'why')$$);
SELECT pg_temp.try($$SELECT dlock_force_release('', 'why')$$);
SELECT pg_temp.try($$SELECT dlock_force_release(repeat('k', 1025), 'why')$$);

-- the TTL
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '0')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '-1 s')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '1 hour -1 day')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '24:00:00.001')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '2 days')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '1 year')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '1 month -30 days')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '2000000000 days')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', 1, '0')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', 1, '-1 s')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', 1, '2 days')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', 1, '1 month')$$);
SET dlock.max_ttl = '10 s';
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', '11 s')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', 1, '11 s')$$);
RESET dlock.max_ttl;

-- infinite: an interval from PostgreSQL 17 on, and invalid input before
SELECT CASE WHEN current_setting('server_version_num')::int < 170000 THEN x LIKE '22007: %'
			ELSE x = '22023: ttl must be finite' END
  FROM pg_temp.try($$SELECT dlock_acquire('e:2', 'infinity'::interval)$$) WITH ORDINALITY AS t(x, n) WHERE n = 1;
SELECT CASE WHEN current_setting('server_version_num')::int < 170000 THEN x LIKE '22007: %'
			ELSE x = '22023: ttl must be finite' END
  FROM pg_temp.try($$SELECT dlock_refresh('e:1', 1, '-infinity'::interval)$$) WITH ORDINALITY AS t(x, n) WHERE n = 1;

-- owner, value, reason
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', owner => repeat('o', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', owner => '')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', owner => repeat('o', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_release('e:1', owner => repeat('o', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_check('e:1', owner => repeat('o', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', value => repeat('v', 65537))$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:1', owner => 'me', value => repeat('v', 65537))$$);
SELECT pg_temp.try($$SELECT dlock_force_release('e:1', NULL)$$);
SELECT pg_temp.try($$SELECT dlock_force_release('e:1', repeat('r', 1025))$$);

-- how to wait
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', wait => '-1 ms')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', wait => '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', wait => '36501 days')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', cleanup => '-1 ms')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', cleanup => NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', priority => -1)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', priority => NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', force => NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', session => NULL)$$);
SELECT pg_temp.try($$SELECT dlock_watch(NULL, 1, '0')$$);
SELECT pg_temp.try($$SELECT dlock_watch('e:1', 1, '-1 s')$$);
SELECT pg_temp.try($$CALL dlock_lock('', '1 s')$$);

-- how many
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', slots => NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', slots => NULL, shared => true)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', shared => NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('e:2', slots => 2, shared => true)$$);
SELECT pg_temp.try($$CALL dlock_lock('e:2', slots => NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['e:2'], slots => ARRAY[NULL::int])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['e:2'], shared => ARRAY[NULL::boolean])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['e:2'], shared => ARRAY[true, true])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['e:2', 'e:3'], slots => ARRAY[1, 2], shared => ARRAY[true, true])$$);

-- what a refresh keeps busy
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', owner => 'me', at_least => '2 h')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', owner => 'me', ttl => '1 s', at_least => '2 s')$$);
SELECT pg_temp.try($$SELECT dlock_refresh('e:1', owner => 'me', at_least => '-1 s')$$);

-- neither version nor owner
SELECT pg_temp.try($$SELECT dlock_refresh('e:1')$$);
SELECT pg_temp.try($$SELECT dlock_release('e:1')$$);
SELECT pg_temp.try($$SELECT dlock_check('e:1')$$);
SELECT pg_temp.try($$SELECT dlock_holds('e:1')$$);
SELECT pg_temp.try($$SELECT dlock_fence('e:1', NULL)$$);

-- settings, with PostgreSQL's own messages
SELECT left(x, 5) FROM pg_temp.try($$SET dlock.default_ttl = 0$$) AS x LIMIT 1;
SELECT left(x, 5) FROM pg_temp.try($$SET dlock.max_ttl = 0$$) AS x LIMIT 1;
SELECT left(x, 5) FROM pg_temp.try($$SET dlock.token = 'x'$$) AS x LIMIT 1;
SELECT left(x, 5) FROM pg_temp.try($$SET dlock.token = '-1'$$) AS x LIMIT 1;
SELECT left(x, 5) FROM pg_temp.try($$SET dlock.no_such_setting = 1$$) AS x LIMIT 1;

-- the trigger function cannot be called directly
SELECT pg_temp.try($$SELECT dlock_fence_trigger()$$);

-- the longest key and reason work even if JSON escapes every character
SELECT dlock_acquire(repeat(E'\x01', 1024), '1 h') AS w \gset
SELECT dlock_force_release(repeat(E'\x01', 1024), repeat(E'\x02', 1024)) = :w;

-- nothing changed
SELECT count(*) FROM dlock.locks WHERE key IN ('', 'e:2') OR length(key) > 1024;
SELECT dlock_check('e:1', :v, 'me');
SELECT l.version = b.version AND l.refreshed_at = b.refreshed_at AND l.value = 'v' FROM dlock.locks l, before b WHERE key = 'e:1';
SELECT dlock_release('e:1', :v);
