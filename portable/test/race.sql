-- Sessions that take turns on a few keys, and a log that a checker reads.  A
-- holder is in from after the commit of its grant to before its release, or to
-- the expiry that it was told.
CREATE TABLE log (key text, kind text, version bigint, came timestamptz, went timestamptz, pid int DEFAULT pg_backend_pid());
CREATE TABLE register (key text PRIMARY KEY, last bigint NOT NULL);
CREATE TABLE fault (what text, key text, version bigint);
INSERT INTO register SELECT 'k' || i, 0 FROM generate_series(1, 5) i;

CREATE PROCEDURE hammer(rounds int, kinds text[], ttl interval) LANGUAGE plpgsql AS $$
DECLARE
	k text; kind text; v bigint; w bigint; till timestamptz; came timestamptz; answer text;
BEGIN
	FOR i IN 1 .. rounds LOOP
		k := 'k' || 1 + floor(random() * 2)::int;
		kind := kinds[1 + floor(random() * cardinality(kinds))::int];
		BEGIN
			v := dlock_acquire(k, ttl, CASE WHEN random() < 0.5 THEN 'o' || pg_backend_pid() END,
				wait => CASE WHEN random() < 0.3 THEN '20 ms' ELSE '0' END::interval,
				slots => CASE kind WHEN 'x' THEN 1 WHEN 'r' THEN 1 ELSE kind::int END, shared => kind = 'r');
		EXCEPTION WHEN deadlock_detected THEN
			v := NULL;	-- two want to upgrade
		END;
		CONTINUE WHEN v IS NULL;
		IF random() < 0.1 THEN
			ROLLBACK;
			CONTINUE;
		END IF;
		-- it may have expired by now
		till := coalesce((SELECT g.expires_at FROM dlock_get(k) g WHERE g.version = v), '-infinity');
		COMMIT;
		came := clock_timestamp();
		IF random() < 0.3 THEN
			PERFORM pg_sleep(random() * 0.01);
		END IF;
		-- the fence: nobody with a higher version has written
		IF kind = 'x' THEN
			BEGIN
				PERFORM dlock_fence(k, v);
				UPDATE register SET last = v WHERE key = k RETURNING last INTO w;
				INSERT INTO fault SELECT 'overtaken', l.key, v FROM log l WHERE l.key = k AND l.version > v AND l.kind = 'x';
			EXCEPTION WHEN SQLSTATE 'LK001' THEN
				NULL;
			END;
			COMMIT;
		END IF;
		IF random() < 0.3 THEN
			till := coalesce(dlock_refresh(k, v), least(till, clock_timestamp()));
			COMMIT;
		END IF;
		INSERT INTO log VALUES (k, kind, v, came, least(till, clock_timestamp()));
		COMMIT;
		IF random() < 0.8 THEN
			answer := dlock_release(k, v);
			COMMIT;
		END IF;
	END LOOP;
END $$;

CREATE FUNCTION faults() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT 'fence: ' || what || ' ' || key || ' ' || version FROM fault
	UNION ALL
	SELECT format('two holders of %s: %s %s, %s %s', a.key, a.kind, a.version, b.kind, b.version)
	  FROM log a JOIN log b ON a.key = b.key AND a.version < b.version AND (a.kind = 'x' OR b.kind = 'x')
	   AND greatest(a.came, b.came) < least(a.went, b.went)
	UNION ALL
	-- a request for fewer places may have come before one for more, or may be a
	-- renewal of one for more
	SELECT format('too many holders of %s beside %s %s', a.key, a.kind, a.version)
	  FROM log a JOIN log b ON a.key = b.key AND b.came <= a.came AND b.went > a.came AND a.kind ~ '^\d'
	 GROUP BY a.key, a.kind, a.version, a.came
	HAVING count(DISTINCT b.version) >
		(SELECT max(CASE c.kind WHEN 'r' THEN 10000 WHEN 'x' THEN 1 ELSE c.kind::int END) FROM log c WHERE c.version = ANY (array_agg(b.version)))
	UNION ALL
	SELECT format('version %s of %s came before %s', b.version, b.key, a.version)
	  FROM log a JOIN log b ON a.key = b.key AND (a.kind = 'x' OR b.kind = 'x') AND a.version > b.version AND a.went < b.came
	   AND a.came < a.went AND b.came < b.went	-- who was paused past the expiry was never in
	UNION ALL
	-- the order of versions is that of grants: those with a lower one that are still held count
	SELECT format('version %s of %s is one of %s beside %s', b.version, b.key, b.places, count(DISTINCT a.version))
	  FROM (SELECT key, version, min(came) AS came, max(CASE kind WHEN 'r' THEN 10000 WHEN 'x' THEN 1 ELSE kind::int END) AS places
			  FROM log GROUP BY key, version) b
	  JOIN log a ON a.key = b.key AND a.version < b.version AND a.went > b.came
	 GROUP BY b.key, b.version, b.places HAVING count(DISTINCT a.version) >= b.places
	UNION ALL
	SELECT format('version %s twice', version) FROM log GROUP BY version HAVING count(DISTINCT pid) > 1
$$;
