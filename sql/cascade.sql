-- In a referential action, the role that issued the statement counts, not the
-- owner of the table that the action changes.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
DROP ROLE IF EXISTS regress_dlock_owner, regress_dlock_app;
CREATE ROLE regress_dlock_owner;
CREATE ROLE regress_dlock_app;
CREATE SCHEMA regress_dlock_cascade;
GRANT ALL ON SCHEMA regress_dlock_cascade TO regress_dlock_owner, regress_dlock_app;
SET search_path = regress_dlock_cascade, public;
RESET client_min_messages;

CREATE TABLE t1 (id int PRIMARY KEY);
ALTER TABLE t1 OWNER TO regress_dlock_app;
CREATE TABLE t2 (id int PRIMARY KEY, t1 int REFERENCES t1 ON DELETE CASCADE ON UPDATE CASCADE);
ALTER TABLE t2 OWNER TO regress_dlock_owner;
CREATE TABLE t3 (t2 int REFERENCES t2 ON DELETE CASCADE);
ALTER TABLE t3 OWNER TO regress_dlock_owner;
INSERT INTO t1 VALUES (1), (2), (3), (4), (5), (6), (7), (8);
INSERT INTO t2 SELECT id, id FROM t1;
INSERT INTO t3 SELECT id FROM t2;
-- GRANT SELECT: PostgreSQL checks the reference as the owner of the other table
GRANT SELECT, REFERENCES ON t1 TO regress_dlock_owner;
GRANT ALL ON t2, t3 TO regress_dlock_app;
CREATE TRIGGER fence BEFORE UPDATE OR DELETE ON t2
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('one');

CREATE FUNCTION try(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;

-- Another role cannot use the owner's lock, although it can see the version.
SET ROLE regress_dlock_owner;
SELECT dlock_acquire('one', '1 h') AS v \gset
SET ROLE regress_dlock_app;
SET dlock.token = :v;
SELECT try('DELETE FROM t2 WHERE id = 1');
SELECT try('DELETE FROM t1 WHERE id = 1') AS cascaded;
SELECT try('UPDATE t1 SET id = 100 WHERE id = 1') AS cascaded;
SELECT try('WITH d AS (DELETE FROM t1 WHERE id = 1 RETURNING 1) SELECT * FROM d') AS cascaded;
SET ROLE regress_dlock_owner;
SELECT dlock_release('one', :v);

-- It can use its own lock.
SET ROLE regress_dlock_app;
SELECT dlock_acquire('one', '1 h') AS v \gset
SET dlock.token = :v;
SELECT try('DELETE FROM t1 WHERE id = 1') AS cascaded;
SELECT try('UPDATE t1 SET id = 20 WHERE id = 2') AS cascaded;
RESET ROLE;
SELECT t2.id, t2.t1 FROM t2 WHERE id <= 2;

-- Two cascades deep, and AFTER triggers
DROP TRIGGER fence ON t2;
CREATE TRIGGER fence BEFORE DELETE ON t3
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('one');
SET ROLE regress_dlock_app;
SELECT try('DELETE FROM t1 WHERE id = 3') AS cascaded;
RESET ROLE;
DROP TRIGGER fence ON t3;
CREATE TRIGGER fence AFTER DELETE ON t3
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('one');
CREATE TRIGGER fence_statement AFTER DELETE ON t3
	FOR EACH STATEMENT EXECUTE FUNCTION dlock_fence_trigger('one');
SET ROLE regress_dlock_app;
SELECT try('DELETE FROM t1 WHERE id = 4') AS cascaded;
SELECT dlock_release('one', :v);
SET ROLE regress_dlock_owner;
SELECT dlock_acquire('one', '1 h') AS v \gset
SET ROLE regress_dlock_app;
SET dlock.token = :v;
SELECT try('DELETE FROM t1 WHERE id = 5') AS cascaded;
RESET ROLE;
DROP TRIGGER fence ON t3;
DROP TRIGGER fence_statement ON t3;

-- deferred to the commit
CREATE CONSTRAINT TRIGGER fence AFTER DELETE ON t3
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('one');
SET ROLE regress_dlock_app;
\set VERBOSITY sqlstate
DELETE FROM t1 WHERE id = 5;
BEGIN;
DELETE FROM t1 WHERE id = 5;
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
\set VERBOSITY default
RESET ROLE;
DROP TRIGGER fence ON t3;

-- The same with a user-defined trigger that fences
CREATE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_fence('one', current_setting('dlock.token')::bigint);
	RETURN OLD;
END $$;
CREATE TRIGGER fence BEFORE DELETE ON t2 FOR EACH ROW EXECUTE FUNCTION fence();
SET ROLE regress_dlock_app;
SELECT try('DELETE FROM t1 WHERE id = 5') AS cascaded;
RESET ROLE;

-- In a SECURITY DEFINER function the owner of the function issues the statement.
-- An error in between does not change which role counts afterwards.
DROP TRIGGER fence ON t2;
CREATE TRIGGER fence BEFORE DELETE ON t2
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('one');
GRANT ALL ON t1 TO regress_dlock_owner;
CREATE FUNCTION cleanup(i int) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = regress_dlock_cascade, public AS $$
BEGIN
	RETURN try(format('DELETE FROM t1 WHERE id = %s', i));
END $$;
ALTER FUNCTION cleanup OWNER TO regress_dlock_owner;
SET ROLE regress_dlock_app;
SELECT try('DELETE FROM t1 WHERE id = 6') AS own, cleanup(6) AS definer;
SELECT cleanup(7) AS definer, try('DELETE FROM t1 WHERE id = 8') AS own;
RESET ROLE;
SELECT id FROM t1 ORDER BY id;

-- For what a trigger of the deleting statement calls, the current role counts.
CREATE TABLE t4 (id int);
ALTER TABLE t4 OWNER TO regress_dlock_app;
INSERT INTO t4 VALUES (8);
CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'definer: %', regress_dlock_cascade.cleanup(OLD.id);
	RAISE NOTICE 'own: %', regress_dlock_cascade.try('DELETE FROM regress_dlock_cascade.t1 WHERE id = 5');
	RETURN NULL;
END $$;
CREATE TRIGGER also AFTER DELETE ON t4 FOR EACH ROW EXECUTE FUNCTION also();
SET ROLE regress_dlock_app;
DELETE FROM t4;
RESET ROLE;

RESET dlock.token;
SET ROLE regress_dlock_owner;
SELECT dlock_release('one', :v);
RESET ROLE;
SET client_min_messages = warning;
DROP SCHEMA regress_dlock_cascade CASCADE;
DROP ROLE regress_dlock_owner, regress_dlock_app;
