-- The key of a row depends on its values and not on the session's settings.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
CREATE SCHEMA regress_dlock_keytext;
SET search_path = regress_dlock_keytext, public;

-- Without a held lock, the error shows the key.
CREATE FUNCTION key_of(type text, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TEMP TABLE one (c %s)', type);
	CREATE TRIGGER fence BEFORE INSERT ON one
		FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('k:{c}');
	PERFORM set_config('dlock.token', '0', true);
	EXECUTE format('INSERT INTO one VALUES (%L)', value);
	RETURN 'not fenced';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || coalesce(' ' || substring(SQLERRM FROM '"k:(.*)" is not held'), ': ' || SQLERRM);
END $$;

CREATE TYPE mood AS ENUM ('sad', 'so so');
CREATE DOMAIN price AS numeric CHECK (value >= 0);
CREATE TABLE "T" (a int);
CREATE TABLE samples (n serial, type text, value text);
INSERT INTO samples (type, value) VALUES
	('boolean', 'yes'), ('smallint', '-1'), ('int', '042'), ('bigint', '9223372036854775807'),
	('text', 'a  '), ('varchar(5)', 'a  '), ('char(5)', 'a'), ('"char"', 'x'), ('name', 'n'),
	('uuid', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'), ('mood', 'so so'),
	('numeric', '1.0'), ('numeric', '1.00'), ('numeric(10,3)', '100'), ('numeric', '-0.50'), ('numeric', 'NaN'), ('price', '7.10'),
	('float4', '-0'), ('float8', '0'), ('float8', '0.1'), ('float8', '1e300'),
	('date', '2026-02-01'), ('timestamp', '2026-02-01 10:20:30.5'),
	('timestamptz', '2026-02-01 10:20:30+00'), ('timestamptz', '2026-02-01 12:20:30+02'), ('timestamptz', 'infinity'),
	('time', '10:20'), ('timetz', '10:20+02'),
	('interval', '1 day'), ('interval', '24 hours'), ('interval', '1 mon'), ('interval', '30 days'), ('interval', '-1 hour'),
	('bytea', '\x00ff'), ('money', '12.34'), ('regclass', '"T"'), ('regclass', 'pg_class'), ('regtype', 'int4'),
	('inet', '10.0.0.1'), ('bit(3)', '101'), ('point', '(1,2)'),
	('int[]', '{1}'), ('json', '1'), ('jsonb', '1.0'), ('numrange', '[1.0,2)'), ('int4multirange', '{[1,2)}'), ('"T"', '(1)');
SELECT type, value, key_of(type, value) AS key FROM samples ORDER BY n;

-- The keys are the same with any settings.
CREATE TABLE before AS SELECT n, type, value, key_of(type, value) AS key FROM samples;
CREATE TABLE settings (setting text, value text);
INSERT INTO settings VALUES
	('DateStyle', 'ISO, DMY'), ('DateStyle', 'SQL, DMY'), ('DateStyle', 'SQL, MDY'), ('DateStyle', 'German'), ('DateStyle', 'Postgres, MDY'),
	('TimeZone', 'Asia/Tokyo'), ('TimeZone', 'America/New_York'),
	('IntervalStyle', 'iso_8601'), ('IntervalStyle', 'sql_standard'), ('IntervalStyle', 'postgres_verbose'),
	('extra_float_digits', '-15'), ('extra_float_digits', '0'), ('extra_float_digits', '3'),
	('bytea_output', 'escape'), ('quote_all_identifiers', 'on'), ('lc_monetary', 'C'), ('search_path', 'regress_dlock_keytext, public, pg_catalog');
-- insert before changing the setting, as if another session had written the row
CREATE FUNCTION differs(setting text, to_value text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	s record;
	key text;
BEGIN
	FOR s IN SELECT * FROM regress_dlock_keytext.before LOOP
		BEGIN
			EXECUTE format('CREATE TEMP TABLE one (c %s)', s.type);
			EXECUTE format('INSERT INTO one VALUES (%L)', s.value);
			CREATE TRIGGER fence BEFORE UPDATE ON one
				FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('k:{c}');
			PERFORM set_config('dlock.token', '0', true);
			PERFORM set_config(setting, to_value, true);
			UPDATE one SET c = c;
			RETURN NEXT 'not fenced';
		EXCEPTION WHEN OTHERS THEN
			key := SQLSTATE || coalesce(' ' || substring(SQLERRM FROM '"k:(.*)" is not held'), ': ' || SQLERRM);
			IF key IS DISTINCT FROM s.key AND key !~ '^0A000' THEN
				RETURN NEXT format('%s = %s: %s %L has key %s instead of %s', setting, to_value, s.type, s.value, key, s.key);
			END IF;
		END;
	END LOOP;
END $$;
SELECT d FROM settings, differs(setting, value) AS d;
-- and the settings of the session are unchanged
SET DateStyle = 'SQL, DMY';
SET TimeZone = 'Asia/Tokyo';
SELECT key_of('timestamptz', '01/02/2026 10:20:30') AS key, current_setting('DateStyle') AS datestyle, current_setting('TimeZone') AS timezone, timestamptz '2026-02-01 10:20:30+00' AS shown;
RESET DateStyle;
RESET TimeZone;

-- Equal values have one key, so an UPDATE from one to the other does not move the row.
CREATE TABLE item (n numeric, c char(5));
INSERT INTO item VALUES (1.0, 'a');
CREATE TRIGGER fence BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('item:{n}:{c}');
SELECT dlock_acquire('item:1:a', '1 h') AS v \gset
SET dlock.token = :v;
UPDATE item SET n = 1.000 RETURNING *;
\set VERBOSITY sqlstate
UPDATE item SET n = 1.001;
\set VERBOSITY default
RESET dlock.token;
SELECT dlock_release('item:1:a', :v);

-- A generated column
CREATE TABLE generated (a int, g int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON generated
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('g:{g}');
SELECT dlock_acquire('g:2', '1 h') AS v \gset
SET dlock.token = :v;
INSERT INTO generated VALUES (1);
ALTER TABLE generated DISABLE TRIGGER fence;
INSERT INTO generated VALUES (1);
ALTER TABLE generated ENABLE TRIGGER fence;
\set VERBOSITY sqlstate
UPDATE generated SET a = 2;
\set VERBOSITY default
DELETE FROM generated RETURNING *;
DROP TRIGGER fence ON generated;
CREATE TRIGGER fence AFTER INSERT OR UPDATE OR DELETE ON generated
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('g:{g}');
INSERT INTO generated VALUES (1) RETURNING *;
\set VERBOSITY sqlstate
UPDATE generated SET a = 2;
INSERT INTO generated VALUES (2);
\set VERBOSITY default
RESET dlock.token;
SELECT dlock_release('g:2', :v);

-- A view's INSTEAD OF trigger would have to write the row itself.
CREATE VIEW seen AS SELECT * FROM item;
CREATE TRIGGER fence INSTEAD OF UPDATE ON seen
	FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('nightly');
UPDATE seen SET n = 2;

-- A token that cannot be a version fits no lock.
\set VERBOSITY terse
SET dlock.token = '9999999999999999999';
UPDATE item SET n = 2;
SET dlock.token = '9223372036854775807';
UPDATE item SET n = 2;
RESET dlock.token;
\set VERBOSITY default

SET client_min_messages = warning;
DROP SCHEMA regress_dlock_keytext CASCADE;
