-- max_hold of a policy: however often it is renewed, a grant ends that long after it was acquired.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- what was acquired before there is a policy
SELECT dlock_acquire('m:old', '1 h', 'a') AS old, dlock_acquire('m:lazy', '1 ms', 'a', lazy => true) AS lazy,
       dlock_acquire('m:place', '1 h', 'a', slots => 2) AS place \gset

SELECT dlock_policy('m:', NULL, max_hold => '1 h');
SELECT * FROM dlock_policies;
SELECT key, ends_at = acquired_at + '1 h' AS "an hour" FROM dlock_list('m:*') ORDER BY key;

-- no TTL is longer, so the first one is never cut short
\set VERBOSITY terse
SELECT dlock_acquire('m:1', '61 min');
\set VERBOSITY default
SELECT dlock_acquire('m:1', '1 h', 'a') AS v \gset
SELECT expires_at = ends_at AS "the whole", remaining > '59 min' AS long FROM dlock_get('m:1');
-- a refresh is cut short, and says so
SELECT dlock_refresh('m:1', :v) = ends_at AS answer, expires_at = ends_at AS kept, expires_at < refreshed_at + ttl AS cut_short, ttl
  FROM dlock_get('m:1');
SELECT expires_at = ends_at AS kept, expires_at < refreshed_at + ttl AS cut_short FROM dlock_get('m:1');
SELECT dlock_refresh('m:1', :v, '30 min') < ends_at AS "shorter is shorter" FROM dlock_get('m:1');
\set VERBOSITY terse
SELECT dlock_refresh('m:1', :v, '61 min');
\set VERBOSITY default
-- so are the other ways to keep it: to acquire again, to hand over, to become a reader
SELECT dlock_acquire('m:1', '1 h', 'a') = :v AS same FROM dlock_get('m:1');
SELECT expires_at = ends_at AS kept, expires_at < refreshed_at + ttl AS cut_short FROM dlock_get('m:1');
SELECT ends_at AS before FROM dlock_get('m:1') \gset
SELECT dlock_handover('m:1', :v, 'b', '1 h') AS v \gset
SELECT expires_at = ends_at AS kept, ends_at = :'before' AS since_the_first, expires_at < refreshed_at + ttl AS cut_short FROM dlock_get('m:1');
SELECT dlock_acquire('m:1', '1 h', 'b', slots => 2) = :v AS same;
SELECT expires_at = ends_at AS kept, ends_at = :'before' AS since_the_first, expires_at < refreshed_at + ttl AS cut_short FROM dlock_get('m:1');

-- and to become the only one again; its at_least counts from then
SELECT dlock_acquire('m:1', '1 h', 'b', at_least => '1 h') > :v AS upgraded;
SELECT expires_at = ends_at AS kept, ends_at = :'before' AS since_the_first, expires_at < refreshed_at + ttl AS cut_short FROM dlock_get('m:1');
SELECT dlock_release('m:1', owner => 'b');
SELECT state, expires_at > :'before' AS longer FROM dlock_get('m:1');
-- the same where the key has never had a head, and with several keys
SELECT dlock_acquire('m:6', '1 h', 'b', slots => 2) AS v \gset
SELECT acquired_at AS before FROM dlock_get('m:6') \gset
SELECT dlock_acquire('m:6', '1 h', 'b', at_least => '1 h') > :v AS upgraded;
SELECT acquired_at = :'before' AS since_the_first, expires_at = ends_at AS kept FROM dlock_get('m:6');
SELECT dlock_release('m:6', owner => 'b');
SELECT state, expires_at > :'before'::timestamptz + '1 h' AS longer FROM dlock_get('m:6');
SELECT dlock_acquire('m:7', '1 h', 'b', slots => 2) AS v \gset
SELECT acquired_at AS before FROM dlock_get('m:7') \gset
SELECT dlock_acquire_all(ARRAY['m:7', 'm:8'], '1 h', 'b') IS NOT NULL AS upgraded;
SELECT acquired_at = :'before' AS since_the_first, expires_at = ends_at AS kept FROM dlock_get('m:7');

-- a grant ends
SELECT dlock_policy('m:', NULL, max_hold => '50 ms');
SELECT dlock_acquire('m:2', '40 ms', 'a') AS v \gset
CREATE TEMP TABLE lease (expires timestamptz, ends timestamptz);
DO $$
DECLARE
	e timestamptz;
BEGIN
	LOOP
		e := dlock_refresh('m:2', owner => 'a');
		EXIT WHEN e IS NULL;
		INSERT INTO lease SELECT e, ends_at FROM dlock_get('m:2');
		PERFORM pg_sleep(0.001);
	END LOOP;
END $$;
SELECT count(*) AS longer FROM lease WHERE expires > ends;
SELECT dlock_check('m:2', :v), dlock_acquire('m:2', '40 ms', 'a') > :v AS "another grant";

-- what is older than the policy stays, and is not renewed
SELECT dlock_refresh('m:old', :old) IS NULL AS refresh, dlock_handover('m:old', :old, 'b') IS NULL AS handover, dlock_check('m:old', :old),
       dlock_acquire('m:old', '40 ms', 'a') IS NULL AS again, dlock_acquire('m:old', '40 ms', 'a', slots => 2) IS NULL AS as_a_place;
SELECT dlock_refresh('m:place', :place) IS NULL AS refresh, dlock_acquire('m:place', '40 ms', 'a', slots => 2) IS NULL AS again,
       dlock_acquire('m:place', '40 ms', 'a') IS NULL AS upgrade;
-- what has lapsed is anybody's who wants it, also its owner's
SELECT dlock_refresh('m:lazy', :lazy) IS NULL AS refresh, dlock_check('m:lazy', :lazy), dlock_acquire('m:lazy', '40 ms', 'a') > :lazy AS "another grant";
-- and released, as ever
SELECT dlock_release('m:old', :old), dlock_release('m:place', :place);

-- several keys count from when all were won; a permit is not held
SELECT dlock_acquire_all(ARRAY['m:3', 'm:4'], '40 ms') IS NOT NULL AS granted;
SELECT dlock_limit('m:5', 1, '1 h');

-- the longest prefix, the role before its roles before everybody; of several roles the most
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_dlock_m, regress_dlock_g1, regress_dlock_g2;
RESET client_min_messages;
CREATE ROLE regress_dlock_g1;
CREATE ROLE regress_dlock_g2;
CREATE ROLE regress_dlock_m IN ROLE regress_dlock_g1, regress_dlock_g2;
SELECT dlock_policy('m:r', NULL, max_hold => '1 h');
SELECT dlock_policy('m:r', 'regress_dlock_g1', max_hold => '2 h');
SELECT dlock_policy('m:r', 'regress_dlock_g2', max_hold => '3 h');
SELECT dlock_policy('m:rr', NULL, max_ttl => '10 min');
SELECT dlock_acquire('m:r1', '1 h') IS NOT NULL AS granted;
SET ROLE regress_dlock_m;
SELECT dlock_acquire('m:r2', '3 h') IS NOT NULL AS granted, dlock_acquire('m:rr', '10 min') IS NOT NULL AS unlimited;
RESET ROLE;
SELECT key, ends_at - acquired_at AS hold FROM dlock_list('m:r*') ORDER BY key;
SELECT dlock_policy('m:r', 'regress_dlock_g2', max_hold => NULL);
SELECT key, ends_at - acquired_at AS hold FROM dlock_list('m:r*') ORDER BY key;

-- input
\set VERBOSITY terse
SELECT dlock_policy('m:', NULL, max_hold => '0');
SELECT dlock_policy('m:', NULL, max_hold => '-1 s');
SELECT dlock_policy('m:', NULL, max_hold => '1 month');
\set VERBOSITY default
SET ROLE regress_dlock_m;
SELECT dlock_release(key, version) FROM dlock_list('m:r*') WHERE role = 'regress_dlock_m'::regrole ORDER BY key;
RESET ROLE;
SELECT dlock_policy_drop(prefix, role) FROM dlock_policies ORDER BY prefix, role;
SELECT count(ends_at) FROM dlock_locks;
DROP ROLE regress_dlock_m, regress_dlock_g1, regress_dlock_g2;
