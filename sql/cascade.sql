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

-- A function that a trigger calls is judged by the role that it runs as: in a
-- referential action, that is the owner of the table.
CREATE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_fence('one', current_setting('dlock.token')::bigint);
	RETURN OLD;
END $$;
CREATE TRIGGER fence BEFORE DELETE ON t2 FOR EACH ROW EXECUTE FUNCTION fence();
BEGIN;
SET LOCAL ROLE regress_dlock_app;
SELECT try('DELETE FROM t1 WHERE id = 5') AS cascaded;
ROLLBACK;

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

-- Code of another role that runs within a referential action acts for itself.
RESET dlock.token;
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_dlock_mallory;
CREATE ROLE regress_dlock_mallory;
RESET client_min_messages;
GRANT ALL ON SCHEMA regress_dlock_cascade TO regress_dlock_mallory;
GRANT REFERENCES, SELECT ON t1 TO regress_dlock_mallory;
INSERT INTO t1 VALUES (50), (51), (52), (53), (54), (55);
CREATE TABLE fenced (id int, n int DEFAULT 0);
INSERT INTO fenced VALUES (1), (2);
CREATE TABLE fenced_child (t1 int REFERENCES t1 ON DELETE CASCADE);
CREATE TRIGGER fence BEFORE UPDATE OR DELETE ON fenced
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('victim');
CREATE TRIGGER fence_truncate BEFORE TRUNCATE ON fenced
	FOR EACH STATEMENT EXECUTE FUNCTION dlock_fence_trigger('victim');
CREATE TRIGGER fence_truncate_after AFTER TRUNCATE ON fenced
	FOR EACH STATEMENT EXECUTE FUNCTION dlock_fence_trigger('victim');
GRANT ALL ON fenced, fenced_child TO regress_dlock_mallory;
SET ROLE regress_dlock_app;
SELECT dlock_acquire('victim', '1 h') AS w \gset
SET ROLE regress_dlock_mallory;
CREATE TABLE child (id int REFERENCES t1 ON DELETE CASCADE, statement text);
INSERT INTO child VALUES
	(50, format('SELECT dlock_release(''victim'', %s)', :w)),
	(51, format('SELECT dlock_refresh(''victim'', %s) IS NOT NULL', :w)),
	(52, 'SELECT dlock_acquire(''planted'', ''1 h'') > 0'),
	(53, 'UPDATE regress_dlock_cascade.fenced SET n = 1 WHERE id = 1 RETURNING n'),
	(54, 'WITH t AS (SELECT 1) UPDATE regress_dlock_cascade.fenced SET n = 2 RETURNING n'),
	(55, 'TRUNCATE regress_dlock_cascade.fenced');
CREATE FUNCTION run_it() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	PERFORM set_config('dlock.token', current_setting('regress.token'), true);
	BEGIN
		IF OLD.statement LIKE 'TRUNCATE%' THEN
			EXECUTE OLD.statement;
			answer := 'done';
		ELSE
			EXECUTE OLD.statement INTO answer;
		END IF;
	EXCEPTION WHEN OTHERS THEN
		answer := SQLSTATE;
	END;
	RAISE NOTICE '% as %: %', OLD.id, current_user, answer;
	RETURN OLD;
END $$;
CREATE TRIGGER run_it BEFORE DELETE ON child FOR EACH ROW EXECUTE FUNCTION run_it();
SET ROLE regress_dlock_app;
SELECT set_config('regress.token', :'w', false) <> '' AS set;
DELETE FROM t1 WHERE id BETWEEN 50 AND 55;
SELECT dlock_check('victim', :w);
RESET ROLE;
SELECT key, role FROM dlock_locks WHERE key = 'planted';
SELECT * FROM fenced ORDER BY id;

-- A cascade that such code causes must not accept the lock of the table's owner.
CREATE TABLE parent2 (id int PRIMARY KEY);
ALTER TABLE parent2 OWNER TO regress_dlock_mallory;
CREATE TABLE deep (id int REFERENCES parent2 ON DELETE CASCADE);
ALTER TABLE deep OWNER TO regress_dlock_owner;
INSERT INTO parent2 VALUES (1);
INSERT INTO deep VALUES (1);
CREATE TRIGGER fence BEFORE DELETE ON deep
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('deep');
INSERT INTO t1 VALUES (56);
INSERT INTO child VALUES (56, 'DELETE FROM regress_dlock_cascade.parent2 RETURNING id');
SET ROLE regress_dlock_owner;
SELECT dlock_acquire('deep', '1 h') AS d \gset
SET ROLE regress_dlock_app;
SELECT set_config('regress.token', :'d', false) <> '' AS set;
DELETE FROM t1 WHERE id = 56;
RESET ROLE;
SELECT * FROM deep;
SET ROLE regress_dlock_owner;
SELECT dlock_release('deep', :d);
RESET ROLE;

-- A SECURITY DEFINER function acts for its owner, too, also when it truncates
-- while the AFTER triggers of another statement fire.
CREATE FUNCTION flush() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = regress_dlock_cascade, public AS $$
BEGIN
	TRUNCATE fenced;
	RETURN NULL;
END $$;
ALTER FUNCTION flush OWNER TO regress_dlock_mallory;
CREATE TABLE source (id int);
GRANT INSERT ON source TO regress_dlock_app;
CREATE TRIGGER flush AFTER INSERT ON source FOR EACH STATEMENT EXECUTE FUNCTION flush();
SET ROLE regress_dlock_app;
SET dlock.token = :w;
SELECT try('INSERT INTO source VALUES (1)') AS as_definer;
RESET ROLE;
DROP TRIGGER fence_truncate ON fenced;
SET ROLE regress_dlock_app;
SELECT try('INSERT INTO source VALUES (1)') AS as_definer;
SELECT dlock_release('victim', :w);
RESET ROLE;

-- A trigger that can be deferred accepts only the role of the session.
DROP TRIGGER fence ON fenced;
CREATE CONSTRAINT TRIGGER fence AFTER UPDATE ON fenced
	DEFERRABLE FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('victim');
GRANT ALL ON fenced TO regress_dlock_app;
CREATE FUNCTION touch() RETURNS int LANGUAGE sql SECURITY DEFINER
	SET search_path = regress_dlock_cascade, public
	AS $$ UPDATE fenced SET n = 5 WHERE id = 1 RETURNING n $$;
ALTER FUNCTION touch OWNER TO regress_dlock_mallory;
SET ROLE regress_dlock_app;
SELECT dlock_acquire('victim', '1 h') AS w \gset
SET dlock.token = :w;
SELECT try('UPDATE fenced SET n = 4') AS own, try('SELECT touch()') AS definer;
SELECT dlock_release('victim', :w);
SET ROLE regress_dlock_mallory;
SELECT dlock_acquire('victim', '1 h') AS w \gset
SET ROLE regress_dlock_app;
SET dlock.token = :w;
SELECT try('SELECT touch()') AS definer;
SET ROLE regress_dlock_mallory;
SELECT dlock_release('victim', :w);
RESET ROLE;
DROP FUNCTION touch;

RESET dlock.token;
SET ROLE regress_dlock_owner;
SELECT dlock_release('one', :v);
RESET ROLE;
SET client_min_messages = warning;
DROP SCHEMA regress_dlock_cascade CASCADE;
SET ROLE regress_dlock_mallory;
SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'planted';
RESET ROLE;
DROP ROLE regress_dlock_owner, regress_dlock_app, regress_dlock_mallory;
