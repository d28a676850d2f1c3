-- dlock_fence, and the fence as a trigger.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT dlock_acquire('f:1', '1 h', 'me') AS v \gset
BEGIN;
SELECT dlock_fence('f:1', :v);
SELECT dlock_fence(key => 'f:1', version => :v);
-- the same transaction can continue to use it
SELECT dlock_refresh('f:1', :v) IS NOT NULL AS refreshed, dlock_check('f:1', :v);
SELECT dlock_fence('f:1', :v);
SELECT dlock_release('f:1', :v);
\set VERBOSITY sqlstate
SELECT dlock_fence('f:1', :v);
ROLLBACK;
SELECT dlock_check('f:1', :v);
-- wrong version, free key, unknown key
SELECT dlock_fence('f:1', :v + 1);
SELECT dlock_fence('f:1', 0);
SELECT dlock_fence('f:none', 1);
SELECT dlock_release('f:1', :v);
SELECT dlock_fence('f:1', :v);
-- the next grant has another version
SELECT dlock_acquire('f:1', '1 h', 'me') AS w \gset
SELECT dlock_fence('f:1', :v);
SELECT dlock_fence('f:1', :w);
\set VERBOSITY default

-- outside of a transaction block it protects nothing, and warns
SELECT dlock_fence('f:1', :w);
SELECT count(*) FROM dlock_fence('f:1', :w);
-- not if it protects something: a statement that writes, or what a block or a function does next
CREATE TEMP TABLE fenced AS SELECT dlock_fence('f:1', :w) IS NOT NULL AS x;
INSERT INTO fenced SELECT false FROM dlock_fence('f:1', :w);
WITH written AS (INSERT INTO fenced VALUES (false) RETURNING x) SELECT x FROM written, dlock_fence('f:1', :w);
SELECT dlock_fence('f:1', :w)\; INSERT INTO fenced VALUES (false);
DO $$ BEGIN PERFORM dlock_fence('f:1', version) FROM dlock_get('f:1'); END $$;
DROP TABLE fenced;

-- the whole error
CREATE FUNCTION pg_temp.fence(key text, version bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	d text;
	h text;
BEGIN
	PERFORM dlock_fence(key, version);
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE, SQLERRM, d, h);
END $$;
SELECT pg_temp.fence('f:1', 0);
SELECT pg_temp.fence('f:none', 0);
SELECT dlock_release('f:1', :w);

--
-- The trigger: one lock for each row, token from dlock.token
--
CREATE TABLE invoice (id int PRIMARY KEY, paid boolean NOT NULL DEFAULT false, token bigint);
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON invoice
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('invoice:{id}');
SELECT dlock_acquire('invoice:1', '1 h') AS v1 \gset
SELECT dlock_acquire('invoice:2', '1 h') AS v2 \gset

\set VERBOSITY sqlstate
-- no token
INSERT INTO invoice VALUES (1);
-- a wrong token: of another lock, of no lock, not a possible version
SET dlock.token = :v2;
INSERT INTO invoice VALUES (1);
SET dlock.token = 1;
INSERT INTO invoice VALUES (1);
SET dlock.token = '9999999999999999999';
INSERT INTO invoice VALUES (1);
RESET dlock.token;
\set VERBOSITY terse
INSERT INTO invoice VALUES (1);
\set VERBOSITY sqlstate

-- the right token, for this transaction only
BEGIN;
SET LOCAL dlock.token = :v1;
INSERT INTO invoice VALUES (1);
UPDATE invoice SET paid = true WHERE id = 1 RETURNING *;
COMMIT;
UPDATE invoice SET paid = false WHERE id = 1;
DELETE FROM invoice WHERE id = 1;
SELECT * FROM invoice;

-- moving a row from one key to another is refused, with either token
BEGIN;
SET LOCAL dlock.token = :v1;
UPDATE invoice SET id = 2 WHERE id = 1;
ROLLBACK;
BEGIN;
SET LOCAL dlock.token = :v2;
UPDATE invoice SET id = 2 WHERE id = 1;
ROLLBACK;
BEGIN;
SET LOCAL dlock.token = :v2;
INSERT INTO invoice VALUES (2);
-- one statement, two keys, one token: the statement fails
UPDATE invoice SET paid = true;
ROLLBACK;

-- a holder that has lost the lock
SELECT dlock_release('invoice:1', :v1);
BEGIN;
SET LOCAL dlock.token = :v1;
UPDATE invoice SET paid = false WHERE id = 1;
ROLLBACK;
SELECT dlock_acquire('invoice:1', '1 h') AS v3 \gset
BEGIN;
SET LOCAL dlock.token = :v1;
DELETE FROM invoice WHERE id = 1;
ROLLBACK;
BEGIN;
SET LOCAL dlock.token = :v3;
DELETE FROM invoice WHERE id = 1 RETURNING *;
COMMIT;
SELECT * FROM invoice;

--
-- Token from a column
--
DROP TRIGGER fence ON invoice;
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON invoice
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('invoice:{id}', '{token}');
INSERT INTO invoice VALUES (1, false, NULL);
INSERT INTO invoice VALUES (1, false, :v2);
INSERT INTO invoice VALUES (1, false, :v3), (2, false, :v2);
UPDATE invoice SET token = :v1 WHERE id = 1;
UPDATE invoice SET paid = true, token = :v3 WHERE id = 1;
UPDATE invoice SET token = NULL WHERE id = 1;
SELECT dlock_release('invoice:2', :v2);
-- the stored token is stale
UPDATE invoice SET paid = true WHERE id = 2;
DELETE FROM invoice WHERE id = 2;
DELETE FROM invoice WHERE id = 1;
SELECT id, paid FROM invoice ORDER BY id;
SELECT dlock_release('invoice:1', :v3);

--
-- One lock for the table: FOR EACH STATEMENT, TRUNCATE
--
DROP TRIGGER fence ON invoice;
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON invoice
	FOR EACH STATEMENT EXECUTE FUNCTION dlock_fence_trigger('nightly-import');
SELECT dlock_acquire('nightly-import', '1 h') AS v \gset
INSERT INTO invoice VALUES (3);
UPDATE invoice SET paid = true WHERE false;
TRUNCATE invoice;
BEGIN;
SET LOCAL dlock.token = :v;
TRUNCATE invoice;
INSERT INTO invoice SELECT generate_series(10, 19);
UPDATE invoice SET id = id + 100;
DELETE FROM invoice WHERE id > 111;
COMMIT;
SELECT id FROM invoice ORDER BY id;
SELECT dlock_release('nightly-import', :v);
-- AFTER, deferred to the commit: detects that the lock was released before
DROP TRIGGER fence ON invoice;
CREATE CONSTRAINT TRIGGER fence AFTER INSERT OR UPDATE OR DELETE ON invoice
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('nightly-import');
SELECT dlock_acquire('nightly-import', '1 h') AS v \gset
BEGIN;
SET LOCAL dlock.token = :v;
DELETE FROM invoice WHERE id = 110;
COMMIT;
BEGIN;
SET LOCAL dlock.token = :v;
DELETE FROM invoice WHERE id = 111;
SELECT dlock_release('nightly-import', :v);
COMMIT;
SELECT id, dlock_check('nightly-import', :v) FROM invoice;
SELECT dlock_release('nightly-import', :v);
DROP TABLE invoice;

--
-- Templates
--
\set VERBOSITY default
CREATE TABLE t (a text, "odd Name" int, "a}b" int);
CREATE FUNCTION pg_temp.key(template text, "values" text DEFAULT $$'x', 5, 6$$) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	d text;
BEGIN
	EXECUTE format('CREATE TRIGGER fence BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger(%L)', template);
	SET LOCAL dlock.token = 1;
	EXECUTE format('INSERT INTO t VALUES (%s)', "values");
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, d);
END $$;
SELECT template, pg_temp.key(template) FROM unnest(ARRAY['literal', '{a}', '{a}-{odd Name}', '{{{a}}}', '{{a}}', '%s', E'\\{a}']) AS template;
SELECT template, pg_temp.key(template) FROM unnest(ARRAY['', '{a', '{', '}', 'x{a}}', '{}', '{b}', '{A}', '{ctid}', '{a}b}']) AS template;
SELECT "values", pg_temp.key('{a}', "values") FROM unnest(ARRAY[$$NULL$$, $$''$$, $$repeat('k', 1025)$$]) AS "values";
CREATE TRIGGER fence BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION dlock_fence_trigger('{a}');
INSERT INTO t VALUES ('x');
DROP TRIGGER fence ON t;
CREATE TRIGGER fence BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger();
INSERT INTO t VALUES ('x');
DROP TRIGGER fence ON t;
CREATE TRIGGER fence BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('a', 'b', 'c');
INSERT INTO t VALUES ('x');
DROP TRIGGER fence ON t;
\set VERBOSITY sqlstate
CREATE TRIGGER fence BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('{a}', '{a}');
INSERT INTO t VALUES ('x');
\set VERBOSITY default
SELECT * FROM t;
DROP TABLE t;
