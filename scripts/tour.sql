-- The tour that scripts/try shows.  Every statement is really run; the version
-- is read from the view, so that the next statements can name it.
\set ON_ERROR_STOP on
\set QUIET on
\pset footer off
\pset null '(null)'
SET client_min_messages = warning;

\echo '-- An invoice, and dlock.'
\set ECHO queries
CREATE EXTENSION dlock;
CREATE TABLE invoice (id int PRIMARY KEY, paid boolean NOT NULL DEFAULT false);
INSERT INTO invoice VALUES (42);
\set ECHO none

\echo
\echo '-- Acquire the lock for 30 seconds. The result is the version of the grant,'
\echo '-- which is the fencing token: later grants have higher versions.'
\set ECHO queries
SELECT dlock_acquire('invoice:42', '30s');
\set ECHO none
SELECT version FROM dlock_locks WHERE key = 'invoice:42' \gset

\echo '-- The next client gets NULL at once, because the lock is held.'
\set ECHO queries
SELECT dlock_acquire('invoice:42', '30s');
\set ECHO none

\echo '-- Any role can see the holder.'
\set ECHO queries
SELECT key, version, role, remaining > '0s' AS live, ttl FROM dlock_locks;
\set ECHO none

\echo '-- Keep it for another 30 seconds; NULL would mean that it is lost.'
\set ECHO queries
SELECT dlock_refresh('invoice:42', :version);
\set ECHO none

\echo '-- Write under the protection of the lock: the fence raises an error unless'
\echo '-- we still hold it, and nobody can take it from us before the COMMIT.'
\set ECHO queries
BEGIN;
SELECT dlock_fence('invoice:42', :version);
UPDATE invoice SET paid = true WHERE id = 42;
COMMIT;
\set ECHO none

\echo
\echo '-- Release it.'
\set ECHO queries
SELECT dlock_release('invoice:42', :version);
\set ECHO none

\echo '-- Another client acquires it, with a higher version.'
\set ECHO queries
SELECT dlock_acquire('invoice:42', '30s', owner => 'another worker');
\set ECHO none

\echo '-- A worker that slept all this time still uses its old version.'
\echo '-- The fence rejects it: the UPDATE is not executed.'
\set ON_ERROR_STOP off
\set ECHO queries
BEGIN;
SELECT dlock_fence('invoice:42', :version);
\set ECHO none
\set code :SQLSTATE
\echo 'SQLSTATE:' :code
\echo
\set ON_ERROR_STOP on
\set ECHO queries
ROLLBACK;
\set ECHO none

-- raises an error if it was not as described
SELECT 1 / (:'code' = 'LK001')::int AS fenced \gset
