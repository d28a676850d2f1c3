-- The staging of docs/oncall.md: see 951_docs.pl.
-- Session B is the one on call; A and C belong to workers.

-- stage who
CREATE ROLE invoicing;
SET ROLE invoicing;
SELECT dlock_acquire('invoice:42', '10min', owner => 'worker 7', value => 'batch 3');
-- returns 1
-- session B
SELECT dlock_acquire('invoice:42', '10min');
-- returns NULL
SELECT version, role, owner, origin, value, state, pid, using_pid FROM dlock_get('invoice:42');
-- returns 1|invoicing|worker 7|NULL|batch 3|held|NULL|NULL
-- the page

-- stage force
-- session B
-- the page
-- returns 1

-- stage open
-- session A
RESET ROLE;
BEGIN;
SELECT dlock_acquire('nightly-report', '1s');
-- returns 2
-- session B
SELECT dlock_acquire('nightly-report');
-- returns NULL
SELECT l.key, l.state, a.state, a.xact_start < now() AS began_before
  FROM dlock_get('nightly-report') l JOIN pg_stat_activity a ON a.pid = l.using_pid;
-- returns nightly-report|pending|idle in transaction|t
CREATE TEMP TABLE found AS
-- the page
SELECT state, usename = current_user, open_for > '0s' FROM found;
-- returns idle in transaction|t|t

-- stage terminate
-- session B
-- the page
-- returns t
SELECT count(*) FROM dlock_get('nightly-report');
-- becomes 0

-- stage waits
-- session B
SELECT dlock_acquire('ledger', '10min', owner => 'slow');
-- returns 3
-- session C
SELECT dlock_acquire('ledger', '10min', wait => '1h');
-- waits
-- session B
CREATE TEMP TABLE waiting AS
-- the page
SELECT key, position, role, waited > '0s', holder, owner, origin, state FROM waiting;
-- returns ledger|1|postgres|t|postgres|slow|NULL|held

-- stage numbers
-- session B
SELECT waits, timeouts, busy, waiting FROM dlock_stats;
-- returns 0|0|2|1
SELECT key, busy, lost FROM dlock_contended;
-- returns invoice:42|1|1
-- returns nightly-report|1|0
-- the page
SELECT dlock_release('ledger', owner => 'slow');
-- returns released
-- session C
-- returns 4
SELECT dlock_release('ledger', 4);
-- returns released

-- stage tickets
-- session B
SELECT dlock_acquire('ledger', '10min', owner => 'first');
-- returns 5
CREATE ROLE webshop;
SET ROLE webshop;
SELECT dlock_enqueue('ledger', '10min', 'web1:' || i) IS NOT NULL FROM generate_series(1, 2) i;
-- returns t
-- returns t
SELECT dlock_enqueue('ledger', '10min', 'web2:1') IS NOT NULL;
-- returns t
RESET ROLE;
CREATE TEMP TABLE tickets AS
-- the page
SELECT role, key, count, longest > '0s' FROM tickets;
-- returns webshop|ledger|3|t

-- stage dead
-- session B
-- the page
-- returns 2
SELECT owner FROM dlock_waiters;
-- returns web2:1
RESET ROLE;

-- stage lost
-- session B
SHOW dlock.log_ends;
-- returns lost
-- the page
-- returns invoice:42|1

-- stage roles
-- session B
SELECT dlock_release('ledger', 5);
-- returns released
SELECT count(*) FROM dlock_get('ledger') WHERE role = 'webshop'::regrole;
-- becomes 1
SET ROLE invoicing;
SELECT dlock_acquire('job:' || i, '1h') IS NOT NULL FROM generate_series(1, 3) i;
RESET ROLE;
-- the page
-- returns invoicing|3
-- returns webshop|1

-- stage limit
-- session B
-- the page
-- returns 3
SELECT role, max_locks FROM dlock_policies;
-- returns invoicing|100

-- stage health
-- session B
-- the page

-- stage table
-- session B
-- the page
