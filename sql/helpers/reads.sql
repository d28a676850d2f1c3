-- For the tests of what saves reading the index: take, give back, and count the reads.
CREATE FUNCTION pg_temp.take(key text, slots int, owner text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT dlock_acquire(key, '1 h', owner, slots => coalesce(slots, 1), shared => slots IS NULL)
$$;
CREATE FUNCTION pg_temp.give_back(key text) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM dlock_locks AS l WHERE l.key = give_back.key AND dlock_release(l.key, l.version) = 'released'
$$;
-- How often a call reads the index.
CREATE FUNCTION pg_temp.scans(call text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	before bigint := pg_stat_get_xact_numscans('dlock.locks_pkey'::regclass);
BEGIN
	EXECUTE call;
	RETURN pg_stat_get_xact_numscans('dlock.locks_pkey'::regclass) - before;
END $$;
-- Until the reaper has read the table, every key may have places, and nothing is known of any.
CREATE PROCEDURE pg_temp.until_known(key text) LANGUAGE plpgsql AS $$
BEGIN
	WHILE pg_temp.scans(format('SELECT dlock_release(%1$L, dlock_acquire(%1$L, ''1 h''))', key)) > 0 LOOP
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
