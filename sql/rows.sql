-- What is written to a row is what SQL reads, whatever the lengths and whichever columns are null.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- A text of this many bytes; compressible or not.  NULL: none.
CREATE FUNCTION pg_temp.bytes(n int, seed text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN n IS NULL THEN NULL WHEN seed = 'same' THEN repeat('x', n)
		ELSE left((SELECT coalesce(string_agg(md5(seed || i), '' ORDER BY i), '') FROM generate_series(1, n / 32 + 1) i), n) END
$$;

-- One grant, read back in three ways, then renewed by a refresh with another value, then cleared.
CREATE FUNCTION pg_temp.round_trip(k text, o text, v text, w text, slots int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	granted bigint;
	l dlock.locks;
	s dlock_locks;
BEGIN
	granted := dlock_acquire(k, '1 h', o, v, priority => 7, cleanup => '2 s', slots => coalesce(slots, 1), shared => slots IS NULL, at_least => '3 ms', delay => '4 ms');
	SELECT * INTO STRICT l FROM dlock.locks WHERE key = k AND version = granted;
	IF l.key IS DISTINCT FROM k OR l.owner IS DISTINCT FROM o OR l.value IS DISTINCT FROM v OR l.priority <> 7 OR l.ttl <> 3600000000
		OR l.cleanup <> 2000000 OR l.slots <> coalesce(slots, 0) OR l.at_least <> 3000 OR l.delay <> 4 OR l.lazy OR NOT l.held OR l.pid <> 0
		OR l.role <> current_user::regrole OR (l.slot = 0) <> (slots IS NOT DISTINCT FROM 1) THEN
		RETURN format('granted: %s', l);
	END IF;
	SELECT * INTO STRICT s FROM dlock_locks WHERE key = k AND version = granted;
	IF s.key IS DISTINCT FROM k OR s.owner IS DISTINCT FROM o OR s.value IS DISTINCT FROM v OR s.slots IS DISTINCT FROM slots THEN
		RETURN format('shown: %s', s);
	END IF;

	IF dlock_refresh(k, granted, value => w) IS NULL THEN
		RETURN 'not refreshed';
	END IF;
	SELECT * INTO STRICT l FROM dlock.locks WHERE key = k AND version = granted;
	IF l.owner IS DISTINCT FROM o OR l.value IS DISTINCT FROM coalesce(w, v) OR l.ttl <> 3600000000 OR l.at_least <> 3000 OR l.delay <> 4
		OR l.acquired_at > l.refreshed_at OR l.expires_at <> l.refreshed_at + '1 h'::interval THEN
		RETURN format('refreshed: %s', l);
	END IF;
	-- without a value it stays
	PERFORM dlock_refresh(k, granted, '2 h');
	SELECT * INTO STRICT l FROM dlock.locks WHERE key = k AND version = granted;
	IF l.value IS DISTINCT FROM coalesce(w, v) OR l.ttl <> 7200000000 THEN
		RETURN format('refreshed again: %s', l);
	END IF;
	IF o IS NOT NULL AND dlock_acquire(k, '1 h', o, v, slots => coalesce(slots, 1), shared => slots IS NULL, lazy => true) <> granted THEN
		RETURN 'another version';
	END IF;
	SELECT * INTO STRICT l FROM dlock.locks WHERE key = k AND version = granted;
	IF o IS NOT NULL AND (l.value IS DISTINCT FROM v OR l.owner <> o OR NOT l.lazy OR l.priority <> 0) THEN
		RETURN format('renewed: %s', l);
	END IF;
	IF dlock_force_release(k, 'next') IS DISTINCT FROM granted THEN
		RETURN 'not released';
	END IF;
	PERFORM dlock_force_release(k, 'end of the delay');
	RETURN 'as written';
END $$;

-- All combinations of a table, each in its own transaction, so that dead rows can be pruned.
CREATE TEMP TABLE combinations (k text, o text, v text, w text, s int);
CREATE PROCEDURE pg_temp.try_all(INOUT tried int DEFAULT 0, INOUT wrong text DEFAULT 'nothing') LANGUAGE plpgsql AS $$
DECLARE
	c record;
	result text;
BEGIN
	FOR c IN SELECT * FROM combinations LOOP
		result := pg_temp.round_trip(c.k, c.o, c.v, c.w, c.s);
		tried := tried + 1;
		IF result <> 'as written' THEN
			wrong := format('key of %s, owner of %s, value of %s, then %s bytes, slots %s: %s',
				octet_length(c.k), octet_length(c.o), octet_length(c.v), octet_length(c.w), c.s, left(result, 500));
			EXIT;
		END IF;
		COMMIT;
	END LOOP;
	TRUNCATE combinations;
END $$;
SET synchronous_commit = off;
SET dlock.durable_grants = off;

INSERT INTO combinations
SELECT pg_temp.bytes(k, 'key'), pg_temp.bytes(o, 'owner'), pg_temp.bytes(v, 'value'), pg_temp.bytes(w, 'other'), s
  FROM unnest(ARRAY[1, 2, 3, 4, 5, 1024]) AS k, unnest(ARRAY[NULL, 1, 2, 3, 4, 126, 127, 128, 1024]) AS o,
       unnest(ARRAY[NULL, 0, 1, 126, 127]) AS v, unnest(ARRAY[NULL, 0, 127]) AS w, unnest(ARRAY[1, 2, NULL]) AS s;
CALL pg_temp.try_all();
-- up to the longest, compressed and toasted
INSERT INTO combinations
SELECT pg_temp.bytes(k, 'key'), pg_temp.bytes(o, 'owner'), pg_temp.bytes(v, seed), pg_temp.bytes(w, seed), s
  FROM unnest(ARRAY[1, 1024]) AS k, unnest(ARRAY[NULL, 1024]) AS o, unnest(ARRAY['same', 'other']) AS seed,
       unnest(ARRAY[NULL, 900, 1900, 1990, 2030, 8000, 65535]) AS v, unnest(ARRAY[NULL, 1980, 2040, 65536]) AS w, unnest(ARRAY[1, 2, NULL]) AS s;
CALL pg_temp.try_all();
-- characters of several bytes
INSERT INTO combinations
SELECT repeat('ключ', 3), repeat('é', n), repeat('日', n), repeat('語', n), s
  FROM unnest(ARRAY[42, 43, 63, 64]) AS n, unnest(ARRAY[1, 2, NULL]) AS s;
CALL pg_temp.try_all();

-- the index finds them, and the lookup by key and slot agrees with the table
SELECT dlock_acquire('w:' || i, '1 h', CASE WHEN i % 2 = 0 THEN 'o' || i END, CASE WHEN i % 3 = 0 THEN 'v' || i END,
	slots => (ARRAY[1, 2, 1])[1 + i % 3], shared => i % 3 = 2) > 0 AS granted, count(*) FROM generate_series(1, 300) i GROUP BY 1;
SET enable_seqscan = off;
SELECT count(*) FROM generate_series(1, 300) i JOIN dlock.locks l ON l.key = 'w:' || i
 WHERE l.owner IS NOT DISTINCT FROM CASE WHEN i % 2 = 0 THEN 'o' || i END AND l.value IS NOT DISTINCT FROM CASE WHEN i % 3 = 0 THEN 'v' || i END;
RESET enable_seqscan;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'w:%' AND dlock_check(key, version) = 'held';
SELECT count(*) FROM dlock_locks WHERE key LIKE 'w:%' AND dlock_release(key, version) = 'released';

-- an owner that is in the toast table
ALTER TABLE dlock.locks ALTER COLUMN owner SET STORAGE EXTERNAL;
SELECT dlock_acquire(repeat('k', 1000), '1 h', repeat('o', 1000), repeat('v', 300)) > 0 AS granted;
SELECT dlock_acquire(repeat('k', 1000), '1 h', 'other') IS NULL AS busy;
SELECT dlock_acquire(repeat('k', 1000), '1 h', repeat('o', 1000)) > 0 AS renewed;
SELECT dlock_release(repeat('k', 1000), owner => repeat('o', 1000));
ALTER TABLE dlock.locks ALTER COLUMN owner SET STORAGE MAIN;

-- rows that INSERT has formed, by the types of its query: their keys have a short header
SELECT dlock_acquire('x:' || i, '1 h', 'o' || i, slots => (ARRAY[1, 2])[1 + i % 2]) > 0 AS granted FROM generate_series(1, 4) i;
CREATE TEMP TABLE written AS
	SELECT l.key, format('INSERT INTO dlock.locks VALUES (%s)', string_agg(quote_nullable(c.value), ', ')) AS command
	FROM dlock.locks AS l, json_each_text(to_json(l)) AS c(name, value) WHERE l.key LIKE 'x:%' GROUP BY l.key;
DELETE FROM dlock.locks WHERE key LIKE 'x:%';
DO $$ DECLARE c text; BEGIN FOR c IN SELECT command FROM written WHERE key < 'x:3' LOOP EXECUTE c; END LOOP; END $$;
ALTER TABLE dlock.locks DISABLE TRIGGER ALL;
DO $$ DECLARE c text; BEGIN FOR c IN SELECT command FROM written WHERE key >= 'x:3' LOOP EXECUTE c; END LOOP; END $$;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_row;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER refuse_replicated_truncate;
ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER count_restored_row;
SELECT key, owner, slots FROM dlock_locks WHERE key LIKE 'x:%' ORDER BY key;
SELECT i, dlock_acquire('x:' || i, '1 h', 'other') IS NULL AS busy FROM generate_series(1, 4) i;
SELECT i, dlock_acquire('x:' || i, '1 h', 'o' || i, slots => (ARRAY[1, 2])[1 + i % 2]) > 0 AS renewed FROM generate_series(1, 4) i;
SELECT i, dlock_release('x:' || i, owner => 'o' || i) FROM generate_series(1, 4) i;
SELECT i, dlock_acquire('x:' || i, '1 h', 'other') IS NOT NULL AS granted FROM generate_series(1, 4) i;
SELECT count(*) FROM dlock_locks WHERE key LIKE 'x:%' AND dlock_release(key, version) = 'released';

-- Without an owner, a grant says who acquired it, to those who may see an owner.
SELECT dlock_acquire('o:1', '1 h') AS v, dlock_acquire('o:2', '1 h', 'me') AS o, dlock_acquire('o:3', '1 h', shared => true) AS s \gset
SELECT key, owner, origin ~ format('^pid %s, %s from \S+$', pg_backend_pid(), current_setting('application_name')) AS origin FROM dlock_list('o:*');
SET application_name = '';
SELECT dlock_acquire('o:4', '1 h') \gset
SELECT origin ~ format('^pid %s from \S+$', pg_backend_pid()) AS origin FROM dlock_get('o:4');
SELECT dlock_refresh('o:1', :v, value => 'new') IS NOT NULL AS refreshed, origin ~ 'pg_regress' AS origin FROM dlock_get('o:1');
SELECT dlock_refresh('o:1', :v, value => 'new') IS NOT NULL AS refreshed, origin ~ 'pg_regress' AS origin FROM dlock_get('o:1');
CREATE ROLE regress_dlock_rows;
SET ROLE regress_dlock_rows;
SELECT key, origin FROM dlock_list('o:*');
RESET ROLE;
DROP ROLE regress_dlock_rows;
SELECT dlock_handover('o:1', :v, 'next') > :v AS handed_over;
SELECT owner, origin FROM dlock_get('o:1');
SELECT dlock_release('o:1', owner => 'next'), dlock_release('o:3', :s), dlock_release('o:4', version) FROM dlock_get('o:4');
SELECT key, origin FROM dlock.locks WHERE key LIKE 'o:%' AND NOT held ORDER BY key;
SELECT dlock_release('o:2', owner => 'me');
RESET application_name;
