-- What scripts/try --cluster shows: two clusters and a router.
\set QUIET on
\set ON_ERROR_STOP off
\set ECHO queries
\pset footer off
\pset linestyle unicode
\pset null '(null)'

-- The router has the functions of dlock, and a map: which cluster has which shards.
SELECT name, shards FROM dlock_router.clusters;

-- A key belongs to a shard, and a call goes to the cluster that serves it.
SELECT dlock_shard('invoice:42'), dlock_shard('k1206');
SELECT dlock_acquire('invoice:42', '1min', 'me'), dlock_acquire('k1206', '1min', 'me');
SELECT key, version, owner, cluster FROM dlock_locks ORDER BY key;

-- Each cluster commits by itself. What a rollback could not undo is refused.
BEGIN;
SELECT dlock_release('invoice:42', owner => 'me');
ROLLBACK;
SELECT dlock_release('invoice:42', owner => 'me'), dlock_release('k1206', owner => 'me');

-- Shards can be moved while everything runs.
