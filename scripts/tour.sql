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
\echo '-- Take the lock for 30 seconds. The answer is the version of the grant,'
\echo '-- which is the fencing token: later grants have higher ones.'
\set ECHO queries
SELECT dlock_acquire('invoice:42', '30s');
\set ECHO none
SELECT version FROM dlock_locks WHERE key = 'invoice:42' \gset

\echo '-- Whoever comes now gets NULL at once: somebody else has it.'
\set ECHO queries
SELECT dlock_acquire('invoice:42', '30s');
\set ECHO none

\echo '-- Anybody can see who has it.'
\set ECHO queries
SELECT key, version, role, remaining > '0s' AS live, ttl FROM dlock_locks;
\set ECHO none

\echo '-- The work takes longer? Another 30 seconds; NULL would say that it is lost.'
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
\echo '-- Done.'
\set ECHO queries
SELECT dlock_release('invoice:42', :version);
\set ECHO none

\echo '-- Somebody else takes it, with a higher version.'
\set ECHO queries
SELECT dlock_acquire('invoice:42', '30s', owner => 'another worker');
\set ECHO none

\echo '-- A worker that was asleep all the while still believes in its old version.'
\echo '-- The database does not: the UPDATE is never reached.'
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
