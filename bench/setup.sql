-- What the benchmark needs besides dlock: a lock as a user would write it in
-- plpgsql. It is meant to be a good one: one upsert for the acquire, a row that
-- stays so that updates are HOT, and the storage settings of dlock's own table.
CREATE EXTENSION dlock;

CREATE TABLE plain_locks (
	key text COLLATE "C" PRIMARY KEY,
	version bigint NOT NULL,
	owner text,
	expires timestamptz NOT NULL
) WITH (
	fillfactor = 50,
	autovacuum_vacuum_scale_factor = 0,
	autovacuum_vacuum_threshold = 2000,
	autovacuum_vacuum_insert_threshold = -1,
	autovacuum_vacuum_cost_delay = 0,
	autovacuum_analyze_scale_factor = 100,
	autovacuum_analyze_threshold = 1000000000
);

-- The version of the grant, or NULL.
CREATE FUNCTION plain_acquire(k text, ttl interval, o text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	granted bigint;
BEGIN
	INSERT INTO plain_locks AS l (key, version, owner, expires)
	VALUES (k, 1, o, clock_timestamp() + ttl)
	ON CONFLICT (key) DO UPDATE
		SET version = l.version + 1, owner = excluded.owner, expires = excluded.expires
		WHERE l.expires <= clock_timestamp()
	RETURNING l.version INTO granted;
	RETURN granted;
END
$$;

CREATE FUNCTION plain_release(k text, v bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	UPDATE plain_locks SET owner = NULL, expires = '-infinity'
	WHERE key = k AND version = v AND expires > clock_timestamp();
	RETURN FOUND;
END
$$;

-- The new expiry, or NULL.
CREATE FUNCTION plain_refresh(k text, v bigint, ttl interval)
RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz;
BEGIN
	UPDATE plain_locks SET expires = clock_timestamp() + ttl
	WHERE key = k AND version = v AND expires > clock_timestamp()
	RETURNING expires INTO until;
	RETURN until;
END
$$;
