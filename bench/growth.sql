-- What section "growth" of scripts/bench measures, as procedures that print processor time
-- in nanoseconds.  It is that of the process alone, as the kernel counts it.

CREATE FUNCTION cpu_ns(pid int) RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT split_part(pg_read_file(format('/proc/%s/schedstat', pid)), ' ', 1)::bigint
$$;

-- A try for a key that another session holds, and a cycle of one of 1,000 keys.
CREATE PROCEDURE growth_calls(n int, OUT try_ns bigint, OUT cycle_ns bigint) LANGUAGE plpgsql AS $$
DECLARE
	began bigint;
BEGIN
	PERFORM dlock_acquire('growth:busy');
	began := cpu_ns(pg_backend_pid());
	FOR i IN 1 .. n LOOP
		PERFORM dlock_acquire('growth:busy');
	END LOOP;
	try_ns := (cpu_ns(pg_backend_pid()) - began) / n;
	COMMIT;
	began := cpu_ns(pg_backend_pid());
	FOR i IN 1 .. n LOOP
		PERFORM dlock_acquire('growth:cycle' || i % 1000, owner => 'o');
		COMMIT;
		PERFORM dlock_release('growth:cycle' || i % 1000, owner => 'o');
		COMMIT;
	END LOOP;
	cycle_ns := (cpu_ns(pg_backend_pid()) - began) / n;
END $$;

-- How late a row of a lease of 2 s is removed, in ms.
CREATE PROCEDURE growth_expiry(OUT late_ms numeric) LANGUAGE plpgsql AS $$
DECLARE
	due timestamptz;
BEGIN
	PERFORM dlock_acquire('growth:due', '2s');
	due := clock_timestamp() + interval '2s';
	COMMIT;
	WHILE EXISTS (SELECT FROM dlock.locks WHERE key = 'growth:due') LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
	late_ms := round(extract(epoch FROM clock_timestamp() - due) * 1000);
END $$;

-- A key with this many tickets is handed over n times: the time of the session that releases
-- and then looks every millisecond for the next grant, and that of the granter.
CREATE PROCEDURE growth_handover(waiters int, n int, OUT release_ns bigint, OUT grant_ns bigint) LANGUAGE plpgsql AS $$
DECLARE
	granter int;
	version bigint := dlock_acquire('growth:line', '1h', 'w0');
	next bigint;
BEGIN
	PERFORM dlock_enqueue(key => 'growth:line', owner => 'w' || i, ttl => '1h') FROM generate_series(1, waiters + n) i;
	COMMIT;
	LOOP
		EXIT WHEN (SELECT waiting >= waiters + n FROM dlock_stats);
		PERFORM pg_sleep(0.1);
	END LOOP;
	PERFORM pg_sleep(1);	-- the granter has looked at all of them
	SELECT pid INTO granter FROM pg_stat_activity WHERE backend_type = 'dlock granter' AND datname = current_database();
	grant_ns := cpu_ns(granter);
	release_ns := cpu_ns(pg_backend_pid());
	FOR i IN 1 .. n LOOP
		PERFORM dlock_release('growth:line', version);
		COMMIT;
		LOOP
			SELECT g.version INTO next FROM dlock_get('growth:line') g WHERE g.state = 'held';
			EXIT WHEN next > version;
			PERFORM pg_sleep(0.001);
		END LOOP;
		version := next;
	END LOOP;
	release_ns := (cpu_ns(pg_backend_pid()) - release_ns) / n;
	grant_ns := (cpu_ns(granter) - grant_ns) / n;
	PERFORM dlock_dequeue(ticket) FROM dlock_waiters WHERE key = 'growth:line';
	PERFORM dlock_release('growth:line', version);
END $$;
