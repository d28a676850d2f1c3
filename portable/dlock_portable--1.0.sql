/*
 * dlock_portable: the portable edition of dlock, in SQL and PL/pgSQL
 *
 * CREATE EXTENSION runs this script, and so does psql -1 -f.  The functions for
 * users go into the first schema of search_path, the rest into schema dlock.
 *
 * A key has a head, slot 0, which is the row of its exclusive grant, and a place,
 * any other slot, for each of several holders.  Row locks say who does what:
 *
 *	FOR KEY SHARE		the fence; also a place that is taken beside a free head
 *	FOR NO KEY UPDATE	renewal: goes with a fence, not with anything else
 *	FOR UPDATE			everything that ends a grant or makes a new one
 *
 * A row that does not exist cannot be locked, so a key without a head has a
 * guard, an advisory lock: exclusive for a new head, shared for a place.
 *
 * A try reads first.  If the key looks free it locks, never waiting, reads again
 * with a new snapshot, and only then draws the version.  All this is in a
 * subtransaction: a try that fails leaves no lock.
 */
DO $$
DECLARE
	owner pg_catalog.name := (SELECT pg_catalog.pg_get_userbyid(n.nspowner) FROM pg_catalog.pg_namespace n
							   WHERE n.nspname OPERATOR(pg_catalog.=) 'dlock'::pg_catalog.name);
BEGIN
	IF pg_catalog.to_regclass('dlock.locks') IS NOT NULL THEN
		RAISE EXCEPTION USING ERRCODE = 'duplicate_object', MESSAGE = 'an edition of dlock is already installed in this database',
			HINT = 'See docs/portable.md for the way from one edition to the other.';
	ELSIF owner IS NULL THEN
		CREATE SCHEMA dlock;
	ELSIF owner OPERATOR(pg_catalog.<>) current_user THEN
		RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = 'schema "dlock" belongs to another role',
			DETAIL = 'Its owner could drop the tables of dlock, or put others in their place.',
			HINT = 'Drop that schema, and create it again as the role that installs dlock.';
	END IF;
END $$;

CREATE TABLE dlock.locks (
	slot bigint NOT NULL, version bigint NOT NULL, acquired_at timestamptz NOT NULL, refreshed_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL,	-- of a row that is not held: until when others stay out
	role regrole NOT NULL,
	slots integer NOT NULL,				-- how many may hold the key at once: 1, a number, or 0 for any number
	held boolean NOT NULL, ttl interval NOT NULL, at_least interval NOT NULL, delay interval NOT NULL,
	key text COLLATE "C" NOT NULL, owner text COLLATE "C", value text,
	CONSTRAINT locks_pkey PRIMARY KEY (key, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
	vacuum_truncate = off);				-- truncation takes an exclusive lock, and a try must not wait for one
CREATE SEQUENCE dlock.versions AS bigint CACHE 1;
CREATE SEQUENCE dlock.incarnation AS bigint CACHE 1;	-- the incarnation of the database that last drew a version

-- Outside of CREATE EXTENSION, pg_dump dumps them as any other table.
DO $$
BEGIN
	PERFORM pg_catalog.pg_extension_config_dump('dlock.locks', '');
	PERFORM pg_catalog.pg_extension_config_dump('dlock.versions', '');
	PERFORM pg_catalog.pg_extension_config_dump('dlock.incarnation', '');
EXCEPTION WHEN feature_not_supported THEN NULL;
END $$;

-- ** Arguments.  These functions, and all others of schema dlock, are called by
-- the functions for users, which fix the search_path.

-- True, or an error
CREATE FUNCTION dlock.require(ok boolean, code text, message text, detail text DEFAULT NULL, hint text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF ok IS NOT FALSE THEN RETURN true;
	ELSIF detail IS NULL AND hint IS NULL THEN RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message;
	ELSIF hint IS NULL THEN RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message, DETAIL = detail;
	ELSIF detail IS NULL THEN RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message, HINT = hint;
	END IF;
	RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message, DETAIL = detail, HINT = hint;
END $$;
CREATE FUNCTION dlock.given(what text, ok boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.require(ok, '22004', what || ' must not be null'); END $$;
CREATE FUNCTION dlock.missing(what text, wanted boolean DEFAULT true) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.require(NOT wanted, '0A000', 'the portable edition of dlock does not support ' || what,
		hint => 'Extension dlock, which is written in C, does. dlock_features() tells the editions apart.'); END $$;

-- Can the function be called here and now?
CREATE FUNCTION dlock.enter(what text, writes boolean, any_isolation boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.require(NOT pg_is_in_recovery(), '25006', 'cannot execute ' || what || ' on a standby',
			hint => 'Connect to the primary, for instance with target_session_attrs=read-write.')
	   AND dlock.require(NOT writes OR current_setting('transaction_read_only') = 'off', '25006',
			'cannot execute ' || what || ' in a read-only transaction')
	   AND dlock.require(any_isolation OR current_setting('transaction_isolation') LIKE 'read %', '0A000',
			format('cannot execute %s in a %s transaction', what, current_setting('transaction_isolation')),
			'The portable edition of dlock decides on the newest state, which such a transaction does not see.',
			'Call it in a READ COMMITTED transaction of its own. dlock_fence() works here.'); END $$;

-- A SECURITY DEFINER function cannot see the current role of its caller, but
-- that of the session, as SET ROLE left it.
CREATE FUNCTION dlock.caller() RETURNS regrole LANGUAGE plpgsql AS $$
BEGIN RETURN quote_ident(CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END)::regrole; END $$;
CREATE FUNCTION dlock.fits(what text, t text, bytes integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.require(octet_length(t) <= bytes, '22023', what || ' is too long',
		format('It has %s bytes; the limit is %s.', octet_length(t), bytes)); END $$;
CREATE FUNCTION dlock.check_key(k text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.given('key', k IS NOT NULL) AND dlock.require(k <> '', '22023', 'key must not be empty')
	   AND dlock.fits('key', k, 1024); END $$;
CREATE FUNCTION dlock.check_owner(o text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.fits('owner', o, 1024) AND dlock.require(o <> '', '22023', 'owner must not be empty',
		hint => 'Pass NULL for no owner, or a name that is unique to this request.'); END $$;
-- Which grant is meant
CREATE FUNCTION dlock.check_claim(k text, v bigint, o text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.check_key(k) AND dlock.check_owner(o)
	   AND dlock.require(v IS NOT NULL OR o IS NOT NULL, '22023', 'neither version nor owner is given',
		hint => 'Pass the version that dlock_acquire returned, or the owner that was passed to it.'); END $$;

-- A span of time in which a day has 24 hours, whatever the time zone
CREATE FUNCTION dlock.exact(what text, span interval) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE seconds double precision;
BEGIN
	seconds := CASE WHEN dlock.require(isfinite(span), '22023', what || ' must be finite') AND
		dlock.require(extract(year FROM span) = 0 AND extract(month FROM span) = 0, '22023',
			what || ' must not contain months or years', 'Their length varies. Use days or smaller units.') THEN extract(epoch FROM span) END;
	RETURN CASE WHEN dlock.require(abs(seconds) < 9e12, '22023', what || ' is out of range') THEN make_interval(secs => seconds) END;
END $$;
CREATE FUNCTION dlock.span(what text, given interval) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE span interval := CASE WHEN dlock.given(what, given IS NOT NULL) THEN dlock.exact(what, given) END;
BEGIN RETURN CASE WHEN dlock.require(span >= '0', '22023', what || ' must not be negative')
		AND dlock.require(span <= '36500 days', '22023', what || ' is out of range', 'The limit is 36500 days.') THEN span END; END $$;

-- Until when a request waits
CREATE FUNCTION dlock.deadline(wait interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN RETURN CASE WHEN wait IS NULL THEN 'infinity' ELSE clock_timestamp() + dlock.span('wait', wait) END; END $$;

-- Everybody can set these, so dlock.max_ttl can lower the limit, but not raise
-- it.  A number without a unit is milliseconds.
CREATE FUNCTION dlock.setting(what text, builtin text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE t text := coalesce(nullif(current_setting(what, true), ''), builtin);
BEGIN RETURN t || CASE WHEN t ~ '^ *[0-9]+ *$' THEN 'ms' ELSE '' END; END $$;
CREATE FUNCTION dlock.max_ttl() RETURNS interval LANGUAGE plpgsql AS $$
BEGIN RETURN least(dlock.exact('dlock.max_ttl', dlock.setting('dlock.max_ttl', '1d')::interval), '24:00:00'); END $$;
CREATE FUNCTION dlock.below_max(what text, span interval, hint text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.require(span <= dlock.max_ttl(), '22023', what || ' exceeds "dlock.max_ttl"',
		format('"dlock.max_ttl" is %s.', replace(dlock.setting('dlock.max_ttl', '1d'), ' ', '')), hint); END $$;

-- A TTL that was given, or NULL
CREATE FUNCTION dlock.ttl(given interval) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE ttl interval := dlock.exact('ttl', given);
BEGIN RETURN CASE WHEN dlock.require(ttl > '0', '22023', 'ttl must be greater than zero')
		AND dlock.below_max('ttl', ttl, 'Use a shorter TTL and renew it with dlock_refresh.') THEN ttl END; END $$;
CREATE FUNCTION dlock.check_at_least(at_least interval, ttl interval) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.require(at_least <= ttl, '22023', 'at_least must not be longer than ttl', hint => 'Use a longer TTL.'); END $$;

-- Arguments that only the C edition has must have their default values.  Nobody asks
-- a holder to yield, so it has whatever time to do so it wants.
CREATE FUNCTION dlock.check_missing(priority integer, cleanup interval DEFAULT '0', force boolean DEFAULT false,
	session boolean DEFAULT false, lazy boolean DEFAULT false) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN dlock.given('priority', priority IS NOT NULL)
	   AND dlock.require(priority >= 0, '22023', 'priority must not be negative')
	   AND dlock.given('force', force IS NOT NULL) AND dlock.given('session', session IS NOT NULL)
	   AND dlock.given('lazy', lazy IS NOT NULL)
	   AND dlock.missing('priority', priority > 0) AND dlock.span('cleanup', cleanup) >= '0' AND dlock.missing('force', force)
	   AND dlock.missing('session locks', session) AND dlock.missing('lazy locks', lazy); END $$;

-- ** Versions

-- Timeline and system identifier, if this server tells
CREATE FUNCTION dlock.server() RETURNS text LANGUAGE plpgsql AS $$
BEGIN RETURN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || ' ' || (SELECT c.system_identifier FROM pg_control_system() c);
EXCEPTION WHEN OTHERS THEN RETURN '';
END $$;
CREATE FUNCTION dlock.current_incarnation() RETURNS bigint LANGUAGE sql AS $$
	SELECT greatest(1, 9223372036854775807 & hashtextextended(format('%s %s %s', dlock.server(), d.oid, 'dlock.locks'::regclass::oid), 0))
	  FROM pg_database d WHERE d.datname = current_database() $$;

-- Lift the versions above the given one, and in a new incarnation in any case.
-- A sequence is not transactional: what the subtransaction does to it stays,
-- its lock does not, so nobody waits for the end of a transaction.  The margin
-- is more than others can draw between our look and our change.
CREATE FUNCTION dlock.lift(above bigint, id bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE known bigint; last bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(hashtextextended('dlock.incarnation', 6));
	SELECT v.last_value, i.last_value INTO last, known FROM dlock.versions v LEFT JOIN dlock.incarnation i ON i.is_called;
	IF known <> id THEN last := setval('dlock.versions', last + 4294967296 + (random() * 4294967295)::bigint); END IF;
	PERFORM setval('dlock.incarnation', id);
	IF above >= last THEN PERFORM setval('dlock.versions', above + 4294967296); END IF;
	RAISE EXCEPTION USING ERRCODE = 'LKEND';
EXCEPTION WHEN SQLSTATE 'LKEND' THEN NULL;
END $$;

-- Call this when the row is exclusively ours, so that versions rise in the
-- order of grants.
CREATE FUNCTION dlock.next_version() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE id bigint := dlock.current_incarnation();
BEGIN
	IF NOT EXISTS (SELECT FROM dlock.incarnation i WHERE i.is_called AND i.last_value = id) THEN PERFORM dlock.lift(NULL, id); END IF;
	RETURN nextval('dlock.versions');
END $$;

-- ** Acquire

CREATE TYPE dlock.request AS (
	key text, role regrole, owner text, value text, ttl interval,
	alone boolean,		-- exclusive
	places integer,		-- otherwise, how many may hold the key; NULL: any number
	at_least interval, delay interval, again boolean,
	spent boolean		-- the grant ends at once: dlock_limit
);

CREATE FUNCTION dlock.request(k text, ttl interval, o text, val text, slots integer, shared boolean,
	at_least interval DEFAULT '0', delay interval DEFAULT '0', again boolean DEFAULT true) RETURNS dlock.request LANGUAGE plpgsql AS $$
DECLARE q dlock.request := (k, NULL, o, val, NULL, NULL, nullif(slots, 1), NULL, NULL, again, false); ok boolean;
BEGIN
	ok := dlock.check_key(k);
	q.ttl := dlock.ttl(ttl);
	IF q.ttl IS NULL THEN
		q.ttl := least(dlock.exact('dlock.default_ttl', dlock.setting('dlock.default_ttl', '20s')::interval), dlock.max_ttl());
	END IF;
	ok := dlock.check_owner(o) AND dlock.fits('value', val, 65536)
		AND dlock.given('shared', shared IS NOT NULL) AND dlock.given('again', again IS NOT NULL)
		AND dlock.require(slots IS NOT NULL, '22004', 'slots must not be null', hint => 'Pass shared => true for a shared lock.')
		AND dlock.require(slots BETWEEN 1 AND 10000, '22023', 'slots must be between 1 and 10000',
			hint => 'Pass 1 for an exclusive lock, or shared => true for a shared lock.')
		AND dlock.require(slots = 1 OR NOT shared, '22023', 'shared and slots cannot be combined');
	q.role := dlock.caller();
	q.alone := slots = 1 AND NOT shared;
	q.at_least := dlock.span('at_least', at_least);
	q.delay := dlock.span('delay', delay);
	ok := dlock.check_at_least(q.at_least, q.ttl) AND dlock.below_max('delay', q.delay);
	RETURN q;
END $$;

-- Until when a row keeps others out
CREATE FUNCTION dlock.busy_until(l dlock.locks) RETURNS timestamptz LANGUAGE sql AS $$
	SELECT CASE WHEN l.held THEN greatest(l.acquired_at + l.at_least, l.expires_at + l.delay) ELSE l.expires_at END $$;
CREATE FUNCTION dlock.is_live(l dlock.locks) RETURNS boolean LANGUAGE sql AS $$ SELECT l.held AND l.expires_at > clock_timestamp() $$;

-- What the newest committed state means for a request
CREATE TYPE dlock.state AS (
	head boolean,		-- there is a head
	held boolean,		-- with a grant, which may have expired
	own bigint,			-- the slot that the same owner holds
	places integer,		-- rows of other places, in whatever state
	over integer,		-- those of them that nobody holds any more
	busy boolean,
	until timestamptz	-- when a row that is in the way gives way
);

CREATE FUNCTION dlock.look(q dlock.request) RETURNS dlock.state LANGUAGE plpgsql AS $$
DECLARE s dlock.state; nbusy integer;
BEGIN
	SELECT coalesce(bool_or(x.slot = 0), false), coalesce(bool_or(x.slot = 0 AND x.held), false),
		   min(x.slot) FILTER (WHERE x.own),
		   count(*) FILTER (WHERE x.slot <> 0 AND NOT x.own),
		   count(*) FILTER (WHERE x.slot <> 0 AND NOT x.own AND NOT x.busy),
		   count(*) FILTER (WHERE x.slot <> 0 AND NOT x.own AND x.busy),
		   coalesce(bool_or(x.busy AND NOT x.own AND (q.alone OR x.slot = 0 OR x.same)), false),
		   CASE WHEN q.alone THEN max(x.until) FILTER (WHERE x.busy) ELSE min(x.until) FILTER (WHERE x.busy) END
	  INTO s.head, s.held, s.own, s.places, s.over, nbusy, s.busy, s.until
	  FROM (SELECT l.slot, l.held, dlock.busy_until(l) AS until, dlock.busy_until(l) > clock_timestamp() AS busy,
				   coalesce(l.role = q.role AND l.owner = q.owner, false) AS same,
				   coalesce(dlock.is_live(l) AND l.role = q.role AND l.owner = q.owner, false) AS own
			  FROM dlock.locks l WHERE l.key = q.key) x;
	s.busy := coalesce(s.busy OR NOT q.alone AND nbusy >= q.places, false);
	RETURN s;
END $$;
CREATE FUNCTION dlock.write(q dlock.request, slot bigint, version bigint, acquired_at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE at timestamptz := clock_timestamp();
BEGIN
	INSERT INTO dlock.locks AS l (key, slot, version, acquired_at, refreshed_at, expires_at, role, slots, held,
								  ttl, at_least, delay, owner, value)
	VALUES (q.key, slot, version, coalesce(acquired_at, at), at, at + q.ttl, q.role,
			CASE WHEN q.alone THEN 1 ELSE coalesce(q.places, 0) END, NOT q.spent,
			q.ttl, q.at_least, q.delay, q.owner, q.value)
	ON CONFLICT ON CONSTRAINT locks_pkey DO UPDATE
	   SET version = excluded.version, acquired_at = excluded.acquired_at, refreshed_at = excluded.refreshed_at,
		   expires_at = excluded.expires_at, role = excluded.role, slots = excluded.slots, held = excluded.held,
		   ttl = excluded.ttl, at_least = excluded.at_least, delay = excluded.delay,
		   owner = excluded.owner, value = excluded.value;
	PERFORM dlock.make_durable();
END $$;

-- A grant or a renewal that was answered must not be lost in a crash.
CREATE FUNCTION dlock.make_durable() RETURNS void LANGUAGE plpgsql AS $$
BEGIN IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN PERFORM set_config('synchronous_commit', 'on', true); END IF; END $$;

-- The end of a grant.  The head stays, so that the next grant updates it.
CREATE FUNCTION dlock.finish(r dlock.locks, until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE at timestamptz := clock_timestamp();
BEGIN
	IF r.slot <> 0 AND until <= at THEN
		DELETE FROM dlock.locks l WHERE l.key = r.key AND l.slot = r.slot;
	ELSE
		UPDATE dlock.locks l SET held = false, refreshed_at = at, expires_at = greatest(until, at), value = NULL
		 WHERE l.key = r.key AND l.slot = r.slot;
	END IF;
END $$;

-- Advisory locks of a key: its guard, its line, and one for each place that a
-- transaction is about to add, by which others count them.
CREATE FUNCTION dlock.guard(k text) RETURNS bigint LANGUAGE sql AS $$ SELECT hashtextextended(k, 5) $$;
CREATE FUNCTION dlock.line(k text) RETURNS bigint LANGUAGE sql AS $$ SELECT hashtextextended(k, 4) $$;
CREATE FUNCTION dlock.announce(k text, n integer) RETURNS boolean LANGUAGE sql AS $$ SELECT pg_try_advisory_xact_lock(hashtext(k), n) $$;

-- An owner has one place.  Another transaction may be just taking it, renewing it past its TTL, or fencing it.
CREATE FUNCTION dlock.claim(k text, r regrole, o text) RETURNS boolean LANGUAGE sql AS $$
	SELECT dlock.announce(k, -2147483648 | hashtext(r::oid || ' ' || o))
	   AND (SELECT count(*) FROM dlock.locks l WHERE l.key = k AND l.slot <> 0 AND l.role = r AND l.owner = o) =
		   (SELECT count(*) FROM (SELECT FROM dlock.locks l WHERE l.key = k AND l.slot <> 0 AND l.role = r AND l.owner = o
				FOR UPDATE SKIP LOCKED) x) $$;

-- How many places other transactions are adding.  Those that have ended are
-- visible to a snapshot that is taken after this.
CREATE FUNCTION dlock.pending(k text) RETURNS integer LANGUAGE sql AS $$
	SELECT count(*)::integer FROM pg_locks p
	 WHERE p.locktype = 'advisory' AND p.objsubid = 2 AND p.granted
	   AND p.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
	   AND p.classid::bigint = hashtext(k)::bigint & 4294967295 AND p.objid::bigint < 2147483648
	   AND p.pid IS DISTINCT FROM pg_backend_pid() $$;

-- Lock a row, or the guard if there is no head.  LKBSY: another has it.  LKNEW:
-- it is not there any more, look again.
CREATE FUNCTION dlock.lock_head(k text, s dlock.state, for_update boolean, patient boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF NOT s.head THEN IF patient AND for_update THEN PERFORM pg_advisory_xact_lock(dlock.guard(k));
		ELSIF patient THEN PERFORM pg_advisory_xact_lock_shared(dlock.guard(k));
		ELSIF NOT (CASE WHEN for_update THEN pg_try_advisory_xact_lock(dlock.guard(k)) ELSE pg_try_advisory_xact_lock_shared(dlock.guard(k)) END) THEN
			RAISE EXCEPTION USING ERRCODE = 'LKBSY';
		END IF;
		RETURN;
	ELSIF for_update AND patient THEN PERFORM FROM dlock.locks l WHERE l.key = k AND l.slot = 0 FOR UPDATE;
	ELSIF for_update THEN PERFORM FROM dlock.locks l WHERE l.key = k AND l.slot = 0 FOR UPDATE SKIP LOCKED;
	ELSIF patient THEN PERFORM FROM dlock.locks l WHERE l.key = k AND l.slot = 0 FOR KEY SHARE;
	ELSE PERFORM FROM dlock.locks l WHERE l.key = k AND l.slot = 0 FOR KEY SHARE SKIP LOCKED;
	END IF;
	IF NOT FOUND THEN PERFORM FROM dlock.locks l WHERE l.key = k AND l.slot = 0;
		RAISE EXCEPTION USING ERRCODE = CASE WHEN FOUND THEN 'LKBSY' ELSE 'LKNEW' END;
	END IF;
END $$;

-- The same owner again.  An exclusive grant can become a place.
CREATE FUNCTION dlock.take_again(q dlock.request, s dlock.state) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE r dlock.locks; moves boolean := s.own = 0 AND NOT q.alone;
BEGIN
	IF moves THEN SELECT l.* INTO r FROM dlock.locks l WHERE l.key = q.key AND l.slot = s.own FOR UPDATE SKIP LOCKED;
	ELSE SELECT l.* INTO r FROM dlock.locks l WHERE l.key = q.key AND l.slot = s.own FOR NO KEY UPDATE SKIP LOCKED;
	END IF;
	IF NOT FOUND THEN RAISE EXCEPTION USING ERRCODE = 'LKBSY';
	ELSIF NOT (dlock.is_live(r) AND r.role = q.role AND r.owner = q.owner) THEN RAISE EXCEPTION USING ERRCODE = 'LKNEW';
	END IF;
	IF moves THEN PERFORM dlock.finish(r, clock_timestamp()); END IF;
	PERFORM dlock.write(q, CASE WHEN moves THEN r.version ELSE r.slot END, r.version, r.acquired_at);
	RETURN r.version;
END $$;
CREATE FUNCTION dlock.take_head(q dlock.request, s dlock.state, patient boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n dlock.state; ended record; v bigint;
BEGIN
	PERFORM dlock.lock_head(q.key, s, true, patient);
	n := dlock.look(q);
	IF n.busy OR n.head <> s.head OR n.own = 0 THEN RAISE EXCEPTION USING ERRCODE = 'LKNEW'; END IF;
	-- places that have expired, and the one of the same owner; a fence keeps them
	IF n.places > 0 OR n.own IS NOT NULL THEN
		SELECT count(*) AS count, bool_or(x.busy) AS busy INTO ended
		  FROM (SELECT dlock.busy_until(l) > clock_timestamp() AND l.slot IS DISTINCT FROM n.own AS busy FROM dlock.locks l
			WHERE l.key = q.key AND l.slot <> 0 FOR UPDATE SKIP LOCKED) x;
		IF ended.busy OR ended.count < n.places + (n.own IS NOT NULL)::integer THEN RAISE EXCEPTION USING ERRCODE = 'LKBSY'; END IF;
		DELETE FROM dlock.locks l WHERE l.key = q.key AND l.slot <> 0;
	END IF;
	v := dlock.next_version();
	PERFORM dlock.write(q, 0, v, NULL);
	RETURN v;
END $$;

-- Lock places that nobody holds any more, so that they can be overwritten.
CREATE FUNCTION dlock.lock_over(k text, n integer) RETURNS bigint[] LANGUAGE sql AS $$
	SELECT coalesce(array_agg(x.slot), '{}') FROM (SELECT l.slot FROM dlock.locks l
		WHERE l.key = k AND l.slot <> 0 AND dlock.busy_until(l) <= clock_timestamp() LIMIT n FOR UPDATE SKIP LOCKED) x $$;
CREATE FUNCTION dlock.take_place(q dlock.request, s dlock.state, patient boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n dlock.state; pending integer := 0; excess integer := 0; taken bigint[] := '{}'; v bigint;
BEGIN
	-- a grant of the head that has expired may have a fence, so it has to end
	PERFORM dlock.lock_head(q.key, s, s.held, patient);
	IF q.owner IS NOT NULL AND NOT dlock.claim(q.key, q.role, q.owner) THEN RAISE EXCEPTION USING ERRCODE = 'LKBSY'; END IF;
	FOR look IN 1 .. CASE WHEN q.places IS NULL THEN 1 ELSE 2 END LOOP
		IF q.places IS NOT NULL THEN pending := dlock.pending(q.key); END IF;
		n := dlock.look(q);
		IF n.busy OR n.head <> s.head OR n.held <> s.held OR n.own IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'LKNEW'; END IF;
		IF look = 1 THEN
			-- overwrite one that is over: then there are no more than before; or tell others that there will be one more
			IF n.over > 0 AND (q.places IS NULL OR n.places + pending <= q.places) THEN taken := dlock.lock_over(q.key, 1); END IF;
			IF cardinality(taken) = 0 AND NOT dlock.announce(q.key, (random() * 2147483647)::integer) THEN
				RAISE EXCEPTION USING ERRCODE = 'LKBSY';
			END IF;
			-- then count again: all grants with a lower version are there, or have told
			v := dlock.next_version();
		ELSE
			excess := n.places + pending - q.places + (cardinality(taken) = 0)::integer;
		END IF;
	END LOOP;
	IF excess > 0 THEN
		taken := CASE WHEN cardinality(taken) = 0 THEN dlock.lock_over(q.key, excess) ELSE '{}' END;
		IF cardinality(taken) < excess THEN RAISE EXCEPTION USING ERRCODE = 'LKBSY'; END IF;
		DELETE FROM dlock.locks l WHERE l.key = q.key AND l.slot = ANY (taken[2:]);
	END IF;
	IF s.held THEN UPDATE dlock.locks l SET held = false WHERE l.key = q.key AND l.slot = 0; END IF;
	PERFORM dlock.write(q, coalesce(taken[1], v), v, NULL);
	RETURN v;
END $$;

-- One try.  "first": the request is first in line.  "patient": it may wait for
-- a transaction that is using the head.
CREATE FUNCTION dlock.try(q dlock.request, first boolean, patient boolean,
	OUT version bigint,		-- NULL: busy
	OUT until timestamptz,	-- when a grant in the way ends
	OUT locked boolean,		-- it is an open transaction that is in the way
	OUT upgrades boolean)	-- the same owner has a place, and wants the whole key
LANGUAGE plpgsql AS $$
DECLARE s dlock.state; line bigint := dlock.line(q.key);
BEGIN
	FOR i IN 1 .. 5 LOOP
		s := dlock.look(q);
		locked := false;
		until := s.until;
		upgrades := coalesce(q.alone AND s.own <> 0, false);
		-- nobody in line is overtaken; that lock is not kept
		IF s.own IS NOT NULL AND NOT q.again OR s.busy AND (s.own IS NULL OR upgrades) OR s.own IS NULL AND NOT first AND
			NOT (CASE WHEN pg_try_advisory_lock_shared(line) THEN pg_advisory_unlock_shared(line) ELSE false END) THEN
			RETURN;
		END IF;
		BEGIN
			version := CASE WHEN s.own IS NOT NULL AND NOT upgrades THEN dlock.take_again(q, s)
				WHEN q.alone THEN dlock.take_head(q, s, patient) ELSE dlock.take_place(q, s, patient) END;
			RETURN;
		EXCEPTION WHEN SQLSTATE 'LKBSY' OR SQLSTATE 'LKNEW' THEN
			locked := true;
			EXIT WHEN SQLSTATE = 'LKBSY';
		END;
	END LOOP;
END $$;

-- How long the caller lets a statement wait for locks
CREATE FUNCTION dlock.lock_deadline() RETURNS timestamptz LANGUAGE sql AS $$
	SELECT CASE s.setting WHEN '0' THEN 'infinity' ELSE clock_timestamp() + make_interval(secs => s.setting::integer / 1000.0) END
	  FROM pg_settings s WHERE s.name = 'lock_timeout' $$;
CREATE FUNCTION dlock.set_lock_timeout(until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('lock_timeout', CASE WHEN until = 'infinity' THEN '0' ELSE
		greatest(1, least(2147483647, ceil(1000 * extract(epoch FROM until - clock_timestamp()))))::bigint::text END, true); END $$;

-- Sleep until something can have changed.  LKBSY: the time is up.
CREATE FUNCTION dlock.pause(INOUT span interval, until timestamptz, deadline timestamptz) LANGUAGE plpgsql AS $$
DECLARE at timestamptz := clock_timestamp();
BEGIN
	IF at >= deadline THEN RAISE EXCEPTION USING ERRCODE = 'LKBSY'; END IF;
	PERFORM pg_sleep(extract(epoch FROM least(span, greatest(until - at, '1 ms'), CASE WHEN deadline < 'infinity' THEN deadline - at END)));
	span := least(span * 2, '50 ms');
END $$;

-- Waiters of a key stand in line for an advisory lock, and only the first of
-- them looks at the key.  A subtransaction gives it back if there is no grant.
CREATE FUNCTION dlock.wait(q dlock.request, upgrades boolean, deadline timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	t record; lock_timeout text := current_setting('lock_timeout'); lock_deadline timestamptz := dlock.lock_deadline(); patient boolean := false;
	first boolean := false; span interval := '5 ms';
BEGIN
	PERFORM dlock.require(NOT upgrades OR dlock.announce(q.key, -1), '40P01', 'deadlock detected',
			format('Another holder of lock "%s" also waits to be the only one.', q.key));
	LOOP
		-- an upgrade does not stand in line, as long as the owner has its place
		IF NOT (upgrades OR first) THEN
			PERFORM dlock.set_lock_timeout(least(deadline, lock_deadline));
			PERFORM pg_advisory_xact_lock(dlock.line(q.key)); first := true;
		END IF;
		t := dlock.try(q, first, patient);
		EXIT WHEN t.version IS NOT NULL;
		upgrades := upgrades AND t.upgrades;
		IF t.locked AND NOT patient THEN
			patient := true;
			PERFORM dlock.set_lock_timeout(least(deadline, lock_deadline));
		ELSE
			patient := false;
			span := dlock.pause(span, t.until, least(deadline, lock_deadline));
		END IF;
	END LOOP;
	PERFORM set_config('lock_timeout', lock_timeout, true);
	RETURN t.version;
EXCEPTION
	WHEN SQLSTATE 'LKBSY' OR lock_not_available THEN
		PERFORM dlock.require(deadline <= lock_deadline, '55P03', 'canceling statement due to lock timeout');
		RETURN NULL;
END $$;
CREATE FUNCTION dlock.acquire(q dlock.request, wait interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE deadline timestamptz := dlock.deadline(wait); t record := dlock.try(q, false, false);
BEGIN
	IF t.version IS NOT NULL OR wait = '0' THEN RETURN t.version; END IF;
	RETURN dlock.wait(q, t.upgrades, deadline);
END $$;

-- All or none, in the order of the keys.  It does not stand in line, because it
-- would stand in several.  It looks at all keys before it takes the first.
CREATE FUNCTION dlock.acquire_all(qs dlock.request[], wait interval) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := dlock.deadline(wait); lock_deadline timestamptz := dlock.lock_deadline();
	sorted integer[] := ARRAY(SELECT q.n FROM generate_subscripts(qs, 1) q(n) ORDER BY (qs[q.n]).key COLLATE "C"); span interval := '5 ms';
	versions bigint[]; s dlock.state; busy boolean; n integer;
BEGIN
	LOOP
		FOREACH n IN ARRAY sorted LOOP
			s := dlock.look(qs[n]);
			busy := s.busy AND s.own IS NULL;
			EXIT WHEN busy;
		END LOOP;
		IF NOT busy THEN
			BEGIN
				FOREACH n IN ARRAY sorted LOOP
					versions[n] := (dlock.try(qs[n], false, false)).version;
					IF versions[n] IS NULL THEN RAISE EXCEPTION USING ERRCODE = 'LKBSY'; END IF;
				END LOOP;
				-- all TTLs count from when the last key was won
				UPDATE dlock.locks l SET refreshed_at = t.now, expires_at = t.now + l.ttl
				  FROM unnest(qs) q, (SELECT clock_timestamp() AS now OFFSET 0) t WHERE l.key = q.key AND l.held AND l.version = ANY (versions);
				RETURN versions;
			EXCEPTION WHEN SQLSTATE 'LKBSY' THEN NULL;
			END;
		END IF;
		IF clock_timestamp() >= least(deadline, lock_deadline) THEN
			PERFORM dlock.require(deadline <= lock_deadline, '55P03', 'canceling statement due to lock timeout');
			RETURN NULL;
		END IF;
		span := dlock.pause(span, NULL, least(deadline, lock_deadline));
	END LOOP;
END $$;

-- ** What a holder does

CREATE FUNCTION dlock.is_mine(l dlock.locks, me regrole, v bigint, o text) RETURNS boolean LANGUAGE sql AS $$ -- and live
	SELECT coalesce(dlock.is_live(l) AND l.role = me AND (v IS NULL OR l.version = v) AND (o IS NULL OR l.owner = o), false) $$;
CREATE FUNCTION dlock.find(k text, v bigint, o text, me regrole, OUT slot bigint, OUT answer text) LANGUAGE plpgsql AS $$
BEGIN
	SELECT min(l.slot) FILTER (WHERE dlock.is_mine(l, me, v, o)),
		   CASE WHEN count(*) FILTER (WHERE dlock.is_live(l)) = 0 THEN 'not_held' ELSE 'held_by_other' END
	  INTO slot, answer FROM dlock.locks l WHERE l.key = k;
	IF slot IS NOT NULL THEN answer := 'held'; END IF;
END $$;

-- Lock the grant that is meant, waiting as any UPDATE would, and judge it again.
CREATE FUNCTION dlock.find_locked(k text, v bigint, o text, strength text, OUT r dlock.locks, OUT answer text) LANGUAGE plpgsql AS $$
DECLARE me regrole := dlock.caller(); f record;
BEGIN
	LOOP
		f := dlock.find(k, v, o, me);
		answer := f.answer;
		EXIT WHEN f.slot IS NULL;
		IF strength = 'fence' THEN SELECT l.* INTO r FROM dlock.locks l WHERE l.key = k AND l.slot = f.slot FOR KEY SHARE;
		ELSIF strength = 'renew' THEN SELECT l.* INTO r FROM dlock.locks l WHERE l.key = k AND l.slot = f.slot FOR NO KEY UPDATE;
		ELSE SELECT l.* INTO r FROM dlock.locks l WHERE l.key = k AND l.slot = f.slot FOR UPDATE;
		END IF;
		EXIT WHEN dlock.is_mine(r, me, v, o);
		r := NULL;
	END LOOP;
END $$;
CREATE FUNCTION dlock.fence(k text, v bigint, exclusive_only boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE f record := dlock.find_locked(k, v, NULL, 'fence');
BEGIN
	-- the lock passes over changes since the snapshot of such a transaction; this one is 40001 then, and is not kept
	IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
		BEGIN PERFORM FROM dlock.locks l WHERE l.key = k AND l.slot = coalesce((f.r).slot, l.slot) FOR SHARE SKIP LOCKED; RAISE EXCEPTION USING ERRCODE = 'LKEND';
		EXCEPTION WHEN SQLSTATE 'LKEND' THEN NULL; END;
	END IF;
	PERFORM dlock.require(f.answer = 'held' AND NOT (exclusive_only AND (f.r).slot <> 0), 'LK001',
		format('lock "%s" is not held with version %s', k, v),
		CASE f.answer WHEN 'not_held' THEN 'It has expired, was released, or was never acquired.'
			 ELSE coalesce((SELECT format('It is held with this version by role %s; you are %s.', '"' || l.role || '"', '"' || dlock.caller() || '"')
				FROM dlock.locks l WHERE l.key = k AND l.version = v AND dlock.is_live(l) AND l.role <> dlock.caller()), 'It is held by another grant.') END,
		'Roll back, acquire the lock again, and repeat the work with the new version.');
END $$;

-- ** The functions for users: the DO block at the end makes them SECURITY DEFINER
-- with a fixed search_path.

CREATE FUNCTION dlock_acquire(key text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, value text DEFAULT NULL,
	wait interval DEFAULT '0', priority integer DEFAULT 0, cleanup interval DEFAULT '0', force boolean DEFAULT false,
	session boolean DEFAULT false, slots integer DEFAULT 1, at_least interval DEFAULT '0', delay interval DEFAULT '0',
	lazy boolean DEFAULT false, shared boolean DEFAULT false, again boolean DEFAULT true) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	ok boolean := dlock.enter('dlock_acquire()', true);
	q dlock.request := dlock.request(key, ttl, owner, value, slots, shared, at_least, delay, again);
BEGIN RETURN CASE WHEN dlock.check_missing(priority, cleanup, force, session, lazy) THEN dlock.acquire(q, wait) END; END $$;

CREATE PROCEDURE dlock_lock(key text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, value text DEFAULT NULL,
	wait interval DEFAULT NULL, priority integer DEFAULT 0, cleanup interval DEFAULT '0', force boolean DEFAULT false,
	session boolean DEFAULT false, slots integer DEFAULT 1, at_least interval DEFAULT '0', delay interval DEFAULT '0',
	lazy boolean DEFAULT false, shared boolean DEFAULT false, again boolean DEFAULT true, INOUT version bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
	ok boolean := dlock.enter('dlock_lock()', true);
	q dlock.request := dlock.request(key, ttl, owner, value, slots, shared, at_least, delay, again);
BEGIN version := CASE WHEN dlock.check_missing(priority, cleanup, force, session, lazy) THEN dlock.acquire(q, wait) END; END $$;
CREATE FUNCTION dlock_acquire_all(keys text[], ttl interval DEFAULT NULL, owner text DEFAULT NULL, value text DEFAULT NULL,
	wait interval DEFAULT '0', priority integer DEFAULT 0, session boolean DEFAULT false, slots integer[] DEFAULT NULL,
	shared boolean[] DEFAULT NULL) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	n integer := cardinality(keys);
	ok boolean := dlock.enter('dlock_acquire_all()', true) AND dlock.given('keys', n IS NOT NULL)
		AND dlock.require(n BETWEEN 1 AND 1000, '22023', 'keys must have between 1 and 1000 elements', format('It has %s.', n))
		AND dlock.require(cardinality(slots) = n, '22023', 'slots must have as many elements as keys',
			format('It has %s, and keys has %s.', cardinality(slots), n))
		AND dlock.require(cardinality(shared) = n, '22023', 'shared must have as many elements as keys',
			format('It has %s, and keys has %s.', cardinality(shared), n))
		AND dlock.check_missing(priority, session => session);
	qs dlock.request[]; twice text;
BEGIN
	keys := ARRAY(SELECT unnest(keys));
	slots := CASE WHEN slots IS NULL THEN array_fill(1, ARRAY[n]) ELSE ARRAY(SELECT unnest(slots)) END;
	shared := CASE WHEN shared IS NULL THEN array_fill(false, ARRAY[n]) ELSE ARRAY(SELECT unnest(shared)) END;
	FOR i IN 1 .. n LOOP qs[i] := dlock.request(keys[i], ttl, owner, value, slots[i], shared[i]); END LOOP;
	SELECT k INTO twice FROM unnest(keys) k GROUP BY k HAVING count(*) > 1 LIMIT 1;
	ok := dlock.require(twice IS NULL, '22023', format('key "%s" is given more than once', twice));
	RETURN dlock.acquire_all(qs, wait);
END $$;
CREATE FUNCTION dlock_refresh(key text, version bigint DEFAULT NULL, ttl interval DEFAULT NULL, owner text DEFAULT NULL,
	value text DEFAULT NULL, at_least interval DEFAULT NULL) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
	ok boolean := dlock.enter('dlock_refresh()', true) AND dlock.check_claim(key, version, owner) AND dlock.fits('value', value, 65536);
	given interval := dlock.ttl(ttl); least_time interval := CASE WHEN at_least IS NOT NULL THEN dlock.span('at_least', at_least) END;
	r dlock.locks := (dlock.find_locked(key, version, owner, 'renew')).r; at timestamptz := clock_timestamp();
BEGIN
	IF r.key IS NULL THEN RETURN NULL; END IF;
	r.ttl := coalesce(given, r.ttl);
	ok := dlock.check_at_least(least_time, r.ttl);
	UPDATE dlock.locks l SET refreshed_at = at, expires_at = at + r.ttl, ttl = r.ttl, value = coalesce(dlock_refresh.value, l.value),
		   at_least = coalesce(at - l.acquired_at + least_time, l.at_least)
	 WHERE l.key = r.key AND l.slot = r.slot;
	PERFORM dlock.make_durable();
	RETURN at + r.ttl;
END $$;
CREATE FUNCTION dlock_release(key text, version bigint DEFAULT NULL, owner text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	ok boolean := dlock.enter('dlock_release()', true) AND dlock.check_claim(key, version, owner);
	f record := dlock.find_locked(key, version, owner, 'end');
BEGIN
	IF f.answer <> 'held' THEN RETURN f.answer; END IF;
	PERFORM dlock.finish(f.r, (f.r).acquired_at + (f.r).at_least);
	RETURN 'released';
END $$;
CREATE FUNCTION dlock_check(key text, version bigint DEFAULT NULL, owner text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RETURN CASE WHEN dlock.enter('dlock_check()', false) AND dlock.check_claim(key, version, owner)
	THEN (dlock.find(key, version, owner, dlock.caller())).answer END; END $$;
CREATE FUNCTION dlock_holds(key text, version bigint DEFAULT NULL, owner text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RETURN CASE WHEN dlock.enter('dlock_holds()', false) AND dlock.check_claim(key, version, owner)
	THEN (dlock.find(key, version, owner, dlock.caller())).answer = 'held' END; END $$;
CREATE FUNCTION dlock_fence(key text, version bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE ok boolean := dlock.enter('dlock_fence()', true, true) AND dlock.check_key(key) AND dlock.given('version', version IS NOT NULL);
BEGIN PERFORM dlock.fence(key, version, false); END $$;
CREATE FUNCTION dlock_handover(key text, version bigint, owner text, ttl interval DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	ok boolean := dlock.enter('dlock_handover()', true) AND dlock.check_key(key) AND dlock.given('version', version IS NOT NULL)
		AND dlock.given('owner', owner IS NOT NULL) AND dlock.check_owner(owner);
	given interval := dlock.ttl(ttl); r dlock.locks := (dlock.find_locked(key, version, NULL, 'end')).r; q dlock.request;
BEGIN
	IF r.key IS NULL THEN RETURN NULL; END IF;
	ok := r.slot = 0 OR dlock.claim(r.key, r.role, owner);
	ok := dlock.require(ok AND NOT EXISTS (SELECT FROM dlock.locks l WHERE l.key = r.key AND l.slot <> r.slot AND l.role = r.role
			AND l.owner = dlock_handover.owner AND dlock.busy_until(l) > clock_timestamp()), '55006',
		format('lock "%s" cannot be handed over to owner "%s"', r.key, owner),
		'That owner has a place of it already, or an open transaction is taking or giving back one.',
		'Let that owner release its place first, or name another owner.');
	q := (r.key, r.role, owner, r.value, coalesce(given, r.ttl), r.slot = 0, nullif(r.slots, 0), r.at_least, r.delay, true, false);
	r.version := dlock.next_version();
	PERFORM dlock.write(q, r.slot, r.version, r.acquired_at);
	RETURN r.version;
END $$;
CREATE FUNCTION dlock_limit(key text, n integer, per interval, wait interval DEFAULT '0', priority integer DEFAULT 0)
RETURNS interval LANGUAGE plpgsql AS $$
DECLARE
	ok boolean := dlock.enter('dlock_limit()', true) AND dlock.check_key(key) AND dlock.given('n', n IS NOT NULL)
		AND dlock.require(n BETWEEN 1 AND 10000, '22023', 'n must be between 1 and 10000') AND dlock.check_missing(priority);
	span interval := dlock.span('per', per);
	q dlock.request := (key, dlock.caller(), NULL, NULL, span, false, n, '0', '0', true, true);
BEGIN
	ok := dlock.require(span > '0', '22023', 'per must be greater than zero') AND dlock.below_max('per', span);
	IF dlock.acquire(q, wait) IS NOT NULL THEN RETURN '0'; END IF;
	-- when as many have ended that there is room for one; what others are just adding is over after the window
	RETURN greatest(least((SELECT dlock.busy_until(l) FROM dlock.locks l WHERE l.key = dlock_limit.key AND dlock.busy_until(l) > clock_timestamp()
		ORDER BY 1 DESC OFFSET n - 1 LIMIT 1) - clock_timestamp(), span), '1 ms');
END $$;
CREATE FUNCTION dlock_force_release(key text, reason text, version bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	ok boolean := dlock.enter('dlock_force_release()', true) AND dlock.check_key(key)
		AND dlock.given('reason', reason IS NOT NULL) AND dlock.fits('reason', reason, 1024);
	me regrole := dlock.caller(); highest bigint; r dlock.locks; event jsonb;
	-- no grant that comes while this waits for a transaction
	versions bigint[] := ARRAY(SELECT l.version FROM dlock.locks l WHERE l.key = dlock_force_release.key
		AND (dlock_force_release.version IS NULL OR l.version = dlock_force_release.version));
BEGIN
	FOR r IN SELECT l.* FROM dlock.locks l WHERE l.key = dlock_force_release.key AND dlock.busy_until(l) > clock_timestamp()
				AND l.version = ANY (versions) ORDER BY l.slot FOR UPDATE LOOP
		CONTINUE WHEN dlock.busy_until(r) <= clock_timestamp();
		PERFORM dlock.finish(r, CASE WHEN dlock.is_live(r) THEN
			greatest(r.acquired_at + r.at_least, CASE WHEN r.delay > '0' THEN clock_timestamp() + r.delay END) END);
		highest := greatest(highest, r.version);
		RAISE LOG USING MESSAGE = format('lock "%s" with version %s was forcibly released by role "%s"', key, r.version, me),
			DETAIL = 'Reason: ' || reason;
		event := jsonb_build_object('event', 'forced', 'key', key, 'version', r.version, 'by', me::text);
		PERFORM pg_notify('dlock', CASE WHEN octet_length(event::text) + 6 * octet_length(reason) < 7900
			THEN event || jsonb_build_object('reason', reason) ELSE event END::text);
	END LOOP;
	RETURN highest;
END $$;
CREATE FUNCTION dlock_reap(max_rows integer DEFAULT 1000) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE ok boolean := dlock.enter('dlock_reap()', true); r dlock.locks; n integer := 0;
BEGIN
	FOR r IN SELECT l.* FROM dlock.locks l WHERE dlock.busy_until(l) <= clock_timestamp() AND
				(l.held OR l.slot <> 0 OR l.refreshed_at < clock_timestamp() - '1 min'::interval) LIMIT max_rows FOR UPDATE SKIP LOCKED LOOP
		DELETE FROM dlock.locks l WHERE l.key = r.key AND l.slot = r.slot;
		n := n + 1;
		IF r.held THEN PERFORM pg_notify('dlock', jsonb_build_object('event', 'expired', 'key', r.key, 'version', r.version)::text); END IF;
	END LOOP;
	RETURN n;
END $$;
CREATE FUNCTION dlock_advance(version bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock.enter('dlock_advance()', true), dlock.given('version', version IS NOT NULL),
			dlock.lift(version, dlock.current_incarnation());
	RETURN (SELECT s.last_value - (NOT s.is_called)::integer FROM dlock.versions s);
END $$;

-- Everybody sees which keys are held, but owner and value only of roles that
-- the caller is a member of.
CREATE FUNCTION dlock.shown(only_key text, pattern text, after text, max_keys integer)
RETURNS TABLE (key text, version bigint, owner text, role regrole, value text, state text, priority integer,
	acquired_at timestamptz, refreshed_at timestamptz, expires_at timestamptz, remaining interval, ttl interval, pid integer,
	slots integer, using_pid integer, requestor_owner text, requestor_priority integer, requestor_since timestamptz,
	requestor_deadline timestamptz, ends_at timestamptz, origin text) LANGUAGE plpgsql AS $$
DECLARE me oid := dlock.caller();
BEGIN
	-- the constant pattern lets the planner use the index
	RETURN QUERY EXECUTE format('SELECT l.key::text, l.version, CASE WHEN x.live AND x.sees THEN l.owner::text END, l.role,
		CASE WHEN x.live AND x.sees THEN l.value END, CASE WHEN x.live THEN ''held'' ELSE ''cooling'' END, 0,
		l.acquired_at, l.refreshed_at, x.until, x.until - $1, l.ttl, NULL::integer, nullif(l.slots, 0),
		NULL::integer, NULL::text, NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::text
		FROM (SELECT l, dense_rank() OVER (ORDER BY l.key) AS n FROM dlock.locks l
			   WHERE %s AND ($3 IS NULL OR l.key > $3) AND dlock.busy_until(l) > $1) AS y,
		LATERAL (SELECT (y.l).*) AS l,
		LATERAL (SELECT dlock.is_live(y.l) AS live, CASE WHEN dlock.is_live(y.l) THEN l.expires_at ELSE dlock.busy_until(y.l) END AS until,
			pg_has_role($2, l.role, ''USAGE'') OR pg_has_role($2, ''pg_read_all_stats'', ''USAGE'') AS sees) AS x
		WHERE $4 IS NULL OR y.n <= $4 ORDER BY l.key, l.slot',
		CASE WHEN only_key IS NOT NULL THEN format('l.key = %L', only_key)
		ELSE format('l.key LIKE %L ESCAPE ''~''', translate(replace(replace(replace(pattern, '~', '~~'), '%', '~%'), '_', '~_'), '*?', '%_')) END)
	USING clock_timestamp(), me, after, max_keys;
END $$;

CREATE VIEW dlock_locks AS SELECT * FROM dlock.shown(NULL, '*', NULL, NULL);
GRANT SELECT ON dlock_locks TO PUBLIC;
COMMENT ON VIEW dlock_locks IS 'one row for each live grant and each key that is cooling; owner and value of another role''s grant are null';

CREATE FUNCTION dlock_get(key text) RETURNS SETOF dlock_locks LANGUAGE plpgsql ROWS 1 AS $$
BEGIN RETURN QUERY SELECT * FROM dlock.shown(CASE WHEN dlock.check_key(dlock_get.key) THEN dlock_get.key END, NULL, NULL, NULL); END $$;
CREATE FUNCTION dlock_list(pattern text DEFAULT '*', after text DEFAULT NULL, "limit" integer DEFAULT NULL)
RETURNS SETOF dlock_locks LANGUAGE plpgsql ROWS 100 AS $$
DECLARE
	ok boolean := dlock.given('pattern', pattern IS NOT NULL) AND dlock.fits('pattern', pattern, 1024) AND dlock.fits('after', after, 1024)
		AND dlock.require("limit" > 0, '22023', 'limit must be greater than zero');
BEGIN RETURN QUERY SELECT * FROM dlock.shown(NULL, pattern, after, "limit"); END $$;

-- The text of a column in a key depends on its value alone, as in the C edition.
CREATE FUNCTION dlock.column_text(row_ record, rel oid, col text, template text, trg text, no_generated boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE a record; type oid; t text;
BEGIN
	SELECT p.attname, p.atttypid, p.attgenerated, c.relname INTO a FROM pg_class c LEFT JOIN pg_attribute p
		ON p.attrelid = c.oid AND p.attname = col AND p.attnum > 0 AND NOT p.attisdropped WHERE c.oid = rel;
	PERFORM dlock.require(a.attname IS NOT NULL, '42703', format('column "%s" of table "%s" does not exist', col, a.relname),
			format('It is named by argument "%s" of dlock_fence_trigger.', template)),
		dlock.require(a.attgenerated <> 'v' AND NOT (a.attgenerated = 's' AND no_generated), '0A000',
			format('generated column "%s" of table "%s" has no value when trigger "%s" fires', col, a.relname, trg),
			hint => 'Name the columns that it is computed from, or create the trigger AFTER instead of BEFORE.');
	WITH RECURSIVE base(oid) AS (SELECT a.atttypid UNION SELECT y.typbasetype FROM base b JOIN pg_type y ON y.oid = b.oid AND y.typtype = 'd')
	SELECT y.oid INTO type FROM base b JOIN pg_type y ON y.oid = b.oid AND y.typtype <> 'd';
	PERFORM dlock.require(NOT (y.typtype IN ('c', 'r', 'm') OR y.typcategory = 'A' OR y.oid IN ('json'::regtype, 'jsonb'::regtype, 'xml'::regtype)),
		'0A000', format('column "%s" of type %s cannot be part of a lock key', col, format_type(a.atttypid, NULL)),
		'Equal values of this type can have different texts.', 'Use a column of a scalar type.') FROM pg_type y WHERE y.oid = type;
	-- format() calls the output function of the type, never a cast of a user
	EXECUTE format('SELECT CASE WHEN ($1).%1$I IS NOT NULL THEN format(''%%s'', ' || CASE type WHEN 'bpchar'::regtype THEN 'rtrim(($1).%1$I)'
		WHEN 'numeric'::regtype THEN 'trim_scale(($1).%1$I)' WHEN 'interval'::regtype THEN 'justify_interval(($1).%1$I)'
		WHEN 'float4'::regtype THEN '($1).%1$I + float4 ''0''' WHEN 'float8'::regtype THEN '($1).%1$I + float8 ''0'''
		ELSE '($1).%1$I' END || ') END', col) INTO t USING row_;
	RETURN t;
END $$;

-- A template with {column} replaced; NULL if a column is null
CREATE FUNCTION dlock.expand(template text, row_ record, rel oid, trg text, no_generated boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	part text; rest text := template; result text := ''; hint text := 'Write {column} for the value of a column, and {{ or }} for a brace.';
	message text := format('invalid argument "%s" of dlock_fence_trigger', template);
BEGIN
	WHILE rest <> '' LOOP
		part := substring(rest FROM '^([{][{]|[}][}]|[{}]|[^{}]+)');
		IF part = '{' THEN
			part := substring(rest FROM '^[{][^}]*[}]');
			PERFORM dlock.require(part IS NOT NULL, '22023', message, 'A brace is not closed.', hint),
				dlock.require(rel IS NOT NULL, '22023', message, 'A column can be named only in a trigger FOR EACH ROW.', hint);
			result := result || dlock.column_text(row_, rel, substr(part, 2, length(part) - 2), template, trg, no_generated);
		ELSE
			PERFORM dlock.require(part <> '}', '22023', message, 'There is a closing brace without an opening one.', hint);
			result := result || CASE WHEN part IN ('{{', '}}') THEN left(part, 1) ELSE part END;
		END IF;
		rest := substr(rest, length(part) + 1);
	END LOOP;
	RETURN result;
END $$;
CREATE FUNCTION dlock_fence_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	no_generated boolean := TG_WHEN = 'BEFORE' AND TG_OP <> 'DELETE';
	ok boolean := dlock.enter('dlock_fence_trigger()', true, true)
		AND dlock.require(TG_NARGS IN (1, 2), '22023', format('trigger "%s" must name a lock key, and may name a token column', TG_NAME),
			hint => 'For instance: EXECUTE FUNCTION dlock_fence_trigger(''invoice:{id}'').')
		AND dlock.require(TG_WHEN <> 'INSTEAD OF', '39P01', 'dlock_fence_trigger cannot be an INSTEAD OF trigger',
			hint => format('Create trigger "%s" on the table behind view "%s".', TG_NAME, TG_TABLE_NAME));
	row_ record; rel oid := CASE TG_LEVEL WHEN 'ROW' THEN TG_RELID END; keys text[]; token text := current_setting('dlock.token', true);
BEGIN
	IF TG_LEVEL = 'ROW' THEN row_ := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END; END IF;
	keys[1] := dlock.expand(TG_ARGV[0], row_, rel, TG_NAME, no_generated);
	IF TG_LEVEL = 'ROW' AND TG_OP = 'UPDATE' THEN keys[2] := dlock.expand(TG_ARGV[0], OLD, rel, TG_NAME, no_generated); END IF;
	IF TG_NARGS = 2 THEN token := dlock.expand(TG_ARGV[1], row_, rel, TG_NAME, no_generated); END IF;
	ok := dlock.require(array_position(keys, NULL) IS NULL, '22004', format('the lock key of this row of table "%s" is null', TG_TABLE_NAME),
			format('Trigger "%s" builds it from "%s".', TG_NAME, TG_ARGV[0])) AND dlock.check_key(keys[1])
		AND dlock.require(coalesce(token, '') <> '', 'LK001', format('table "%s" can be changed only with a fencing token', TG_TABLE_NAME),
			hint => CASE TG_NARGS WHEN 2 THEN format('Put the version of the lock into the column that trigger "%s" names.', TG_NAME)
				ELSE 'Acquire the lock, and in the transaction that writes run SET LOCAL dlock.token = ''<the version>''.' END)
		AND dlock.require(token ~ '^ *[-+]?[0-9]{1,19}$' AND token::numeric BETWEEN -9223372036854775808 AND 9223372036854775807, 'LK001',
			format('"%s" is not a fencing token', token), 'A fencing token is the number that dlock_acquire returned.');
	PERFORM dlock.fence(keys[1], token::bigint, true);
	ok := dlock.require(keys[1] = keys[2], 'LK001', format('cannot move a row from lock "%s" to lock "%s"', keys[2], keys[1]),
		hint => 'Delete the row while holding the first lock, and insert it while holding the second.');
	RETURN row_;
END $$;
CREATE FUNCTION dlock_features(OUT edition text, OUT version text, OUT features text[]) LANGUAGE sql AS $$
	SELECT 'portable', '1.0', '{acquire_all,again,at_least,delay,fence,fence_trigger,handover,limit,list,reap,shared,slots,wait}'::text[] $$;
CREATE FUNCTION dlock_health(OUT name text, OUT status text, OUT detail text, OUT hint text) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	standby boolean := pg_is_in_recovery(); server text := CASE WHEN NOT standby THEN dlock.server() END;
	names text := current_setting('synchronous_standby_names'); sync text := current_setting('synchronous_commit');
	dead bigint := (SELECT count(*) FROM dlock.locks l WHERE dlock.busy_until(l) <= clock_timestamp());
BEGIN
	-- the first row is the verdict
	RETURN QUERY SELECT h.name, CASE WHEN h.ok AND (h.name <> 'edition' OR bool_and(h.ok) OVER ()) THEN 'ok' ELSE 'warning' END, h.detail, h.hint FROM (VALUES
		('edition', true, 'portable: see the rows below for what is weaker than in extension dlock', 'If this row is a warning, so is one of those below.'),
		('server', standby OR server <> '', CASE WHEN standby THEN 'standby' ELSE 'primary, timeline ' || coalesce(nullif(left(server, 8), ''), 'unknown') END,
			CASE server WHEN '' THEN 'Nobody notices a failover: run SELECT dlock_advance(dlock_advance(0)) after each, before the first grant, or a version may come twice.' END),
		('clock', true, 'the wall clock counts: a step of it, or a standby whose clock differs, shortens or lengthens every lease',
			'Run NTP that slews, on all servers, or choose TTLs that are longer than a step can be.'),
		('isolation', true, 'REPEATABLE READ and SERIALIZABLE transactions can only fence, and get 40001 if the grant was renewed meanwhile',
			'Acquire, renew and release in READ COMMITTED transactions.'),
		('synchronous_standby_names', names <> '', CASE names WHEN '' THEN 'empty: commits wait for no standby, so a failover can lose the latest grants'
			ELSE names || ': a commit with a grant waits for these' END, CASE names WHEN '' THEN 'Set it if grants have to survive a failover.' END),
		('synchronous_commit', sync NOT IN ('off', 'local', 'remote_write'), sync || ' in this session: grants and renewals use at least "on", releases this',
			CASE WHEN sync IN ('off', 'local', 'remote_write') THEN 'A crash may undo a release; the grant then ends by its TTL.' END),
		('waiting', true, 'each waiter keeps a connection, and the first in line looks every 50 ms', NULL),
		('old snapshots', true, 'while a transaction is open, dead versions of rows stay, and every call on a busy key has to read them', NULL),
		('reaper', dead < 10000, dead || ' rows are no longer needed; nobody removes them unless asked',
			CASE WHEN dead >= 10000 THEN 'Run SELECT dlock_reap() every minute, for instance by pg_cron.' END)
		) AS h(name, ok, detail, hint);
END $$;

-- What only the C edition has
DO $$
DECLARE f record;
BEGIN
	FOR f IN SELECT * FROM (VALUES
		('dlock_watch(key text, version bigint DEFAULT NULL, wait interval DEFAULT NULL)', 'bigint', 'watching'),
		('dlock_release_session()', 'integer', 'session locks'),
		('dlock_enqueue(key text, ttl interval, owner text, value text DEFAULT NULL, wait interval DEFAULT NULL, priority integer DEFAULT 0,
			cleanup interval DEFAULT ''0'', force boolean DEFAULT false, slots integer DEFAULT 1, at_least interval DEFAULT ''0'',
			delay interval DEFAULT ''0'', lazy boolean DEFAULT false, shared boolean DEFAULT false, again boolean DEFAULT true)', 'bigint', 'tickets'),
		('dlock_ticket(ticket bigint)', 'TABLE (key text, state text, "position" integer, version bigint)', 'tickets'),
		('dlock_dequeue(ticket bigint)', 'boolean', 'tickets'), ('dlock_stats_reset()', 'void', 'statistics'),
		('dlock_policy(prefix text, role regrole, allow boolean DEFAULT true, max_ttl interval DEFAULT NULL, max_priority integer DEFAULT NULL,
			max_locks integer DEFAULT NULL, max_hold interval DEFAULT NULL)', 'void', 'policies'),
		('dlock_policy_drop(prefix text, role regrole)', 'boolean', 'policies'), ('dlock_shard(key text)', 'integer', 'shards'),
		('dlock_serve(shards text)', 'void', 'shards'), ('dlock_settle()', 'void', 'shards')) AS x(signature, result, what) LOOP
		EXECUTE pg_catalog.format('CREATE FUNCTION %s RETURNS %s LANGUAGE plpgsql AS %L', f.signature, f.result,
			pg_catalog.format('BEGIN PERFORM dlock.missing(%L); END', f.what));
	END LOOP;
END $$;

-- Only the functions for users are callable.  The last two are not for PUBLIC.
DO $$
DECLARE
	f pg_catalog.regprocedure;
	here pg_catalog.oid := (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) pg_catalog.current_schema());
BEGIN
	REVOKE ALL ON TABLE dlock.locks FROM PUBLIC;
	REVOKE ALL ON SEQUENCE dlock.versions, dlock.incarnation FROM PUBLIC;
	FOR f IN SELECT p.oid::pg_catalog.regprocedure FROM pg_catalog.pg_proc p WHERE p.pronamespace OPERATOR(pg_catalog.=) 'dlock'::pg_catalog.regnamespace LOOP
		EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
	END LOOP;
	FOR f IN SELECT p.oid::pg_catalog.regprocedure FROM pg_catalog.pg_proc p WHERE p.pronamespace OPERATOR(pg_catalog.=) here
				AND p.proname OPERATOR(pg_catalog.~) ('^dlock_(acquire|acquire_all|advance|check|dequeue|enqueue|features|fence|fence_trigger|force_release|get'
					'|handover|health|holds|limit|list|lock|policy|policy_drop|reap|refresh|release|release_session|serve|settle|shard|stats_reset|ticket|watch)$') LOOP
		EXECUTE pg_catalog.format('ALTER ROUTINE %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', f);
		EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO PUBLIC', f);
	END LOOP;
	ALTER FUNCTION dlock.shown(text, text, text, integer) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
	GRANT EXECUTE ON FUNCTION dlock.shown(text, text, text, integer) TO PUBLIC;
	REVOKE ALL ON FUNCTION dlock_force_release(text, text, bigint), dlock_advance(bigint) FROM PUBLIC;
END $$;
ALTER FUNCTION dlock_fence_trigger() SET datestyle = 'ISO' SET timezone = 'GMT' SET intervalstyle = 'postgres' SET extra_float_digits = 1
	SET bytea_output = 'hex' SET lc_monetary = 'C' SET quote_all_identifiers = off;
