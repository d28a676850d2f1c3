-- A wrong hint costs a lookup, never a wrong answer.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
CREATE FUNCTION poison(key text, blocks int) RETURNS void
	AS '$libdir/dlock_test', 'dlock_test_poison_hints' LANGUAGE C STRICT;

-- Random operations on a few keys among many rows, with the hint of the key
-- poisoned before each.  The expected answers are kept in an array.
CREATE FUNCTION hammer(rounds int, keys int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	held bigint[] := array_fill(NULL::bigint, ARRAY[keys]);
	last bigint := 0;
	blocks int := pg_relation_size('dlock.locks') / current_setting('block_size')::int;
	k int;
	key text;
	v bigint;
	answer text;
BEGIN
	FOR i IN 1 .. rounds LOOP
		k := 1 + floor(random() * keys);
		key := 'h:' || k;
		-- the right block or any other, even beyond the end
		PERFORM poison(key, CASE WHEN i % 3 = 0 THEN 0 WHEN i % 3 = 1 THEN blocks ELSE blocks * 2 END);
		CASE floor(random() * 6)
			WHEN 0, 1 THEN
				v := dlock_acquire(key, '1 h');
				IF (v IS NULL) <> (held[k] IS NOT NULL) OR v <= last THEN
					RETURN format('round %s: acquire of %s gave %s, held is %s, last %s', i, key, v, held[k], last);
				END IF;
				IF v IS NOT NULL THEN
					held[k] := v;
					last := v;
				END IF;
			WHEN 2 THEN
				answer := dlock_release(key, coalesce(held[k], 1));
				IF answer <> (CASE WHEN held[k] IS NULL THEN 'not_held' ELSE 'released' END) THEN
					RETURN format('round %s: release of %s gave %s, held is %s', i, key, answer, held[k]);
				END IF;
				held[k] := NULL;
			WHEN 3 THEN
				IF (dlock_refresh(key, coalesce(held[k], 1)) IS NULL) <> (held[k] IS NULL) THEN
					RETURN format('round %s: refresh of %s was wrong, held is %s', i, key, held[k]);
				END IF;
			WHEN 4 THEN
				answer := dlock_check(key, coalesce(held[k], 1));
				IF answer <> (CASE WHEN held[k] IS NULL THEN 'not_held' ELSE 'held' END) THEN
					RETURN format('round %s: check of %s gave %s, held is %s', i, key, answer, held[k]);
				END IF;
			ELSE
				IF held[k] IS NOT NULL THEN
					PERFORM dlock_fence(key, held[k]);
				END IF;
		END CASE;
	END LOOP;
	FOR k IN 1 .. keys LOOP
		IF held[k] IS NOT NULL AND dlock_release('h:' || k, held[k]) <> 'released' THEN
			RETURN format('%s was not held at the end', k);
		END IF;
	END LOOP;
	RETURN 'every answer was right';
END $$;

-- a small table, then one of many blocks; each call is one transaction, so that
-- all dead versions of a key stay until it ends
SELECT hammer(3000, 3);
SELECT count(dlock_acquire('h:row' || i, '1 h', 'h', repeat('x', 100))) FROM generate_series(1, 3000) AS i;
SELECT hammer(3000, 1);
SELECT hammer(3000, 20);

-- The same with places of one key, whose owners come and go.  The hints of the head, of the
-- owner's place and of its version lead to another row of the key, or to none.  A place goes to
-- an owner that has one already, or if there are fewer than that; NULL is any number.
CREATE FUNCTION set_hint(key text, slot bigint, row_at tid) RETURNS void
	AS '$libdir/dlock_test', 'dlock_test_set_hint' LANGUAGE C STRICT;
CREATE FUNCTION hammer_places(rounds int, owners int, places int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	held bigint[] := array_fill(NULL::bigint, ARRAY[owners]);
	slots bigint[] := array_fill(NULL::bigint, ARRAY[owners]);
	last bigint := 0;
	n int := 0;
	o int;
	v bigint;
	is_held boolean;
	answer text;
	expected text;
BEGIN
	FOR i IN 1 .. rounds LOOP
		o := 1 + floor(random() * owners);
		is_held := held[o] IS NOT NULL;
		PERFORM set_hint('h:places', s, coalesce(
			(SELECT l.ctid FROM dlock.locks AS l WHERE l.key = 'h:places' AND random() < 0.5 AND s IS NOT NULL LIMIT 1),
			CASE WHEN random() < 0.5 THEN '(0,1)'::tid ELSE '(1000000,1)' END))
			FROM unnest(ARRAY[0, slots[o], held[o]]) AS s;
		CASE floor(random() * 8)
			WHEN 0, 1 THEN
				v := dlock_acquire('h:places', '1 h', 'o' || o, slots => coalesce(places, 1), shared => places IS NULL);
				IF is_held AND v IS DISTINCT FROM held[o] OR
				   NOT is_held AND (v IS NULL) = (places IS NULL OR n < places) OR
				   NOT is_held AND v <= last THEN
					RETURN format('round %s: acquire of %s gave %s, held is %s, last %s, %s are taken', i, o, v, held[o], last, n);
				END IF;
				IF NOT is_held AND v IS NOT NULL THEN
					held[o] := v;
					last := v;
					n := n + 1;
					slots[o] := (SELECT l.slot FROM dlock.locks AS l WHERE l.key = 'h:places' AND l.version = v);
				END IF;
				CONTINUE;
			WHEN 2 THEN
				answer := dlock_release('h:places', owner => 'o' || o);
				expected := CASE WHEN is_held THEN 'released' END;
				n := n - is_held::int;
				held[o] := NULL;
			WHEN 3 THEN
				answer := dlock_release('h:places', coalesce(held[o], 1));
				expected := CASE WHEN is_held THEN 'released' END;
				n := n - is_held::int;
				held[o] := NULL;
			WHEN 4 THEN
				answer := dlock_check('h:places', coalesce(held[o], 1));
				expected := CASE WHEN is_held THEN 'held' END;
			WHEN 5 THEN
				answer := (dlock_refresh('h:places', owner => 'o' || o) IS NOT NULL)::text;
				expected := is_held::text;
			WHEN 6 THEN
				v := dlock_acquire('h:places', '1 h');
				answer := (v IS NOT NULL)::text;
				expected := (n = 0)::text;
				PERFORM dlock_release('h:places', v) WHERE v IS NOT NULL;
				last := greatest(last, v);
			ELSE
				answer := 'fenced';
				expected := 'fenced';
				PERFORM dlock_fence('h:places', held[o]) WHERE is_held;
		END CASE;
		IF answer <> coalesce(expected, CASE WHEN n = 0 THEN 'not_held' ELSE 'held_by_other' END) THEN
			RETURN format('round %s: %s got %s, not %s', i, o, answer, expected);
		END IF;
	END LOOP;
	IF (SELECT count(*) FROM dlock.locks AS l WHERE l.key = 'h:places' AND l.slot > 0) <> n THEN
		RETURN format('%s places are left, not %s', (SELECT count(*) FROM dlock.locks AS l WHERE l.key = 'h:places' AND l.slot > 0), n);
	END IF;
	PERFORM dlock_release('h:places', version) FROM unnest(held) AS version WHERE version IS NOT NULL;
	RETURN 'every answer was right';
END $$;
SELECT hammer_places(2000, 5, NULL);
SELECT hammer_places(2000, 5, 3);
SELECT hammer_places(2000, 20, 15);

-- row versions of subtransactions that rolled back
BEGIN;
SAVEPOINT a;
SELECT hammer(1000, 5);
SELECT hammer_places(500, 5, 3);
ROLLBACK TO a;
SELECT hammer(1000, 5);
SELECT hammer_places(500, 5, 3);
COMMIT;

-- the rows of other keys are intact
SELECT count(*), count(DISTINCT version), count(DISTINCT key) FROM dlock_locks
 WHERE key LIKE 'h:row%' AND owner = 'h' AND value = repeat('x', 100);

-- hints into a table that has been rewritten, emptied or truncated since
SELECT dlock_acquire('h:a', '1 h') AS a, dlock_acquire('h:b', '1 h') AS b \gset
VACUUM FULL dlock.locks;
SELECT dlock_check('h:a', :a), dlock_acquire('h:b', '1 h') IS NULL AS busy, dlock_check('h:row1', owner => 'h');
SELECT count(*) FROM (SELECT poison('h:row' || i, 50), dlock_acquire('h:row' || i, '1 h') AS v FROM generate_series(1, 3000) AS i OFFSET 0) AS x WHERE v IS NULL;
REINDEX TABLE dlock.locks;
SELECT dlock_refresh('h:a', :a) IS NOT NULL AS refreshed, dlock_acquire('h:b', '1 h') IS NULL AS busy;
SELECT count(*) FROM (SELECT dlock_release('h:row' || i, owner => 'h') AS r FROM generate_series(1, 3000) AS i OFFSET 0) AS x WHERE r = 'released';
TRUNCATE dlock.locks;
SELECT dlock_check('h:a', :a), dlock_release('h:b', :b), dlock_refresh('h:a', :a) IS NULL AS lost;
SELECT dlock_acquire('h:a', '1 h') > :b AS granted, dlock_acquire('h:a', '1 h') IS NULL AS busy;
SELECT hammer(1000, 3);
BEGIN;
TRUNCATE dlock.locks;
SELECT dlock_acquire('h:a', '1 h') IS NOT NULL AS granted;
SELECT hammer(500, 3);
ROLLBACK;
SELECT dlock_acquire('h:a', '1 h') IS NULL AS busy;
SELECT hammer(500, 3);
-- a key that was seen before is found without the index, although keys share lines
SELECT count(dlock_acquire('h:seen' || i, '1 h', owner => 'h')) FROM generate_series(1, 10000) AS i;
BEGIN;
SELECT pg_stat_get_xact_numscans('dlock.locks_pkey'::regclass) AS before \gset
SELECT count(*) FROM generate_series(1, 10000) AS i WHERE dlock_release('h:seen' || i, owner => 'h') = 'released';
SELECT pg_stat_get_xact_numscans('dlock.locks_pkey'::regclass) - :before < 50 AS by_hints;
COMMIT;
TRUNCATE dlock.locks;
VACUUM dlock.locks;

DROP FUNCTION hammer;
DROP FUNCTION hammer_places;
DROP FUNCTION set_hint;
DROP FUNCTION poison;
