# A database that its owner has made hostile: in schema public, which is in
# front of pg_catalog on everybody's search_path, is an object of the owner's
# beside each one of pg_catalog.
#
# Each of them writes a line to the server's log when it is reached, and who
# reached it.  The log, because a rollback does not undo it.
#
# They are made from the catalog, so that none is forgotten: functions,
# operators (and more of them, on pairs of types for which pg_catalog has none:
# an exact match wins wherever it is on the search_path), types, relations and
# collations; casts to a type of the owner's; and beside the functions of the
# extension those that a call with fewer arguments or other types would fit.

package DlockHostile;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Test::More;

use PostgreSQL::Test::Utils;

our @EXPORT = qw(plain_sql plain_poll hostile_database hostile_overloads hostile_copies reached);

our $owner = 'mallory';

# Under a search_path that finds none of them.
sub plain_sql
{
	my ($node, $database, $sql, @connection) = @_;
	local $ENV{PGOPTIONS} = '-c search_path=pg_catalog -c check_function_bodies=off';

	return $node->safe_psql($database, $sql, @connection ? (connstr => $node->connstr($database) . " @connection") : ());
}

sub plain_poll
{
	my ($node, $database, $sql) = @_;
	local $ENV{PGOPTIONS} = '-c search_path=pg_catalog';

	$node->poll_query_until($database, $sql) or die "it does not come about: $sql";
	return;
}

my $made_from_catalog = <<'END';
-- what each of them does; current_user is who would run the owner's code
CREATE FUNCTION public.reached(what text) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN RAISE LOG 'REACHED % as %', what, current_user; RETURN true; END $$;

-- One that does nothing else; false if there cannot be such a one, because of
-- a pseudo-type, or is one already.
CREATE FUNCTION public.plant(kind text, name text, arguments text, result text, set boolean, says text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE %s public.%I(%s) %s LANGUAGE plpgsql AS %L',
		kind, name, arguments,
		CASE WHEN result IS NOT NULL THEN 'RETURNS ' || CASE WHEN set THEN 'SETOF ' ELSE '' END || result END,
		format('BEGIN PERFORM public.reached(%L); RETURN%s; END', says,
			CASE WHEN set OR result IS NULL OR result = 'void' THEN '' ELSE ' NULL' END));
	RETURN true;
EXCEPTION
	WHEN feature_not_supported OR invalid_function_definition OR duplicate_function
	OR ambiguous_function OR datatype_mismatch THEN
		RETURN false;
END $$;

SELECT count(public.plant('FUNCTION', p.proname, a.types, format_type(p.prorettype, NULL), p.proretset,
	format('function %s(%s)', p.proname, a.types)))
FROM pg_proc p CROSS JOIN LATERAL (
	SELECT coalesce(string_agg(CASE WHEN p.provariadic <> 0 AND u.n = p.pronargs THEN 'VARIADIC ' ELSE '' END
		|| CASE WHEN u.t <> '"any"'::regtype THEN format_type(u.t, NULL)
			WHEN p.provariadic <> 0 THEN 'anyarray' ELSE 'anyelement' END, ', ' ORDER BY u.n), '') AS types
	FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY u(t, n)) a
WHERE p.pronamespace = 'pg_catalog'::regnamespace;

CREATE FUNCTION public.plant_operator(name text, l oid, r oid, result oid)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	function text := format('operator_%s_%s_%s', l, r, result);
BEGIN
	PERFORM public.plant('FUNCTION', function, concat_ws(', ', format_type(nullif(l, 0), NULL), format_type(r, NULL)),
		format_type(result, NULL), false,
		format('operator (%s, %s), perhaps %s', format_type(nullif(l, 0), NULL), format_type(r, NULL), name));
	EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.%I%s, RIGHTARG = %s)', name, function,
		', LEFTARG = ' || format_type(nullif(l, 0), NULL), format_type(r, NULL));
	RETURN true;
EXCEPTION
	WHEN undefined_function OR duplicate_function THEN
		RETURN false;
END $$;

SELECT count(public.plant_operator(oprname, oprleft, oprright, oprresult))
FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace;

SELECT count(public.plant_operator(name, l, r, CASE WHEN name ~ '^[-+*/|]' THEN l ELSE 'bool'::regtype END))
FROM unnest('{text,name,int4,int8,numeric,float8,interval,timestamptz,bool,oid,regrole,text[],int8[]}'::regtype[]) l,
	unnest('{text,name,int4,int8,numeric,float8,interval,timestamptz,bool,oid,regrole,text[],int8[]}'::regtype[]) r,
	unnest('{+,-,*,/,||,=,<>,<,<=,>,>=,~~,!~~,~}'::text[]) name
WHERE NOT EXISTS (SELECT FROM pg_operator WHERE oprname = name AND oprleft = l AND oprright = r);

-- as a domain, whose check is what runs
DO $$
DECLARE
	t text;
BEGIN
	FOR t IN SELECT typname FROM pg_type
		WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm') AND typname NOT LIKE '\_%'
	LOOP
		EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.%1$I CHECK (public.reached(%L))', t, 'type ' || t);
	END LOOP;
END $$;

DO $$
DECLARE
	t text;
BEGIN
	FOR t IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
	LOOP
		BEGIN
			EXECUTE format('CREATE VIEW public.%I AS SELECT * FROM pg_catalog.%1$I WHERE public.reached(%L)', t, 'relation ' || t);
		EXCEPTION
			WHEN invalid_table_definition THEN NULL;	-- a column of a pseudo-type
		END;
	END LOOP;
END $$;

-- no code, but it shows: "a" comes before "B"
CREATE COLLATION public."C" (provider = icu, locale = 'en');

CREATE TYPE public.trap AS ENUM ('trap');
DO $$
DECLARE
	t regtype;
BEGIN
	FOREACH t IN ARRAY '{text,name,int4,int8,numeric,float8,interval,timestamptz,bool,regrole}'::regtype[] LOOP
		PERFORM public.plant('FUNCTION', 'to_trap', t::text, 'public.trap', false, format('cast (%s AS trap)', t));
		PERFORM public.plant('FUNCTION', 'from_trap_' || t::oid, 'public.trap', t::text, false, format('cast (trap AS %s)', t));
		EXECUTE format('CREATE CAST (%s AS public.trap) WITH FUNCTION public.to_trap(%1$s) AS IMPLICIT', t);
		EXECUTE format('CREATE CAST (public.trap AS %s) WITH FUNCTION public.%I(public.trap) AS IMPLICIT',
			t, 'from_trap_' || t::oid);
	END LOOP;
END $$;
END

# The arguments of a function of the extension, the INOUT one of a procedure too.
my $arguments = <<'END';
SELECT p.proname, CASE p.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END AS kind,
	-- rows of a view are in a schema that the owner of the database may not use
	CASE WHEN p.prokind <> 'p' THEN CASE WHEN (SELECT typtype FROM pg_type t WHERE t.oid = p.prorettype) = 'c'
		THEN 'record' ELSE format_type(p.prorettype, NULL) END END AS result,
	p.proretset AS set, p.pronargs::int AS nargs,
	(p.proargnames::text[])[1:p.pronargs] AS names,
	ARRAY(SELECT format_type(u, NULL) FROM unnest(p.proargtypes::oid[]) u) AS types
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
WHERE e.extname = 'dlock' AND p.prorettype <> 'trigger'::regtype
END

# Beside the functions of the extension, with the names of their arguments: all
# but one of the arguments, the first of them, and as many of other types.
my $overloads = <<"END";
WITH f AS ($arguments),
omitted AS (
	SELECT f.*, ARRAY(SELECT n FROM generate_series(1, nargs) n WHERE n <> o) AS kept
	FROM f, generate_series(1, nargs) o
	UNION
	SELECT f.*, ARRAY(SELECT n FROM generate_series(1, nargs) n WHERE n <= o)
	FROM f, generate_series(1, nargs - 1) o),
calls AS (
	SELECT proname, kind, result, set, (
		SELECT string_agg(quote_ident(names[n]) || ' ' || types[n], ', ' ORDER BY n)
		FROM unnest(kept) n) AS list FROM omitted
	UNION
	SELECT proname, kind, result, set, (
		SELECT string_agg(quote_ident(names[n]) || ' ' || CASE WHEN type = 'other' THEN
			CASE types[n] WHEN 'text' THEN 'varchar' WHEN 'interval' THEN 'text' WHEN 'bigint' THEN 'integer' ELSE 'text' END
			ELSE type END, ', ' ORDER BY n)
		FROM generate_series(1, nargs) n)
	FROM f, unnest('{public.trap,text,other}'::text[]) type WHERE nargs > 0)
SELECT count(*) FILTER (WHERE public.plant(kind, proname, list, result, set,
	format('%s %s(%s)', lower(kind), proname, list))) FROM calls
END

# The same functions once more, where they are not the extension's.
my $copies = <<"END";
WITH f AS ($arguments)
SELECT count(*) FILTER (WHERE public.plant(kind, proname, list, result, set,
	format('%s %s(%s)', lower(kind), proname, list)))
FROM f, LATERAL (SELECT coalesce(string_agg(quote_ident(names[n]) || ' ' || types[n], ', ' ORDER BY n), '') AS list
	FROM generate_series(1, nargs) n) l;
CREATE VIEW public.dlock_locks AS SELECT 1 AS key WHERE public.reached('view dlock_locks');
CREATE VIEW public.dlock_waiters AS SELECT 1 AS key WHERE public.reached('view dlock_waiters');
END

# A database of the role mallory, without the extension; others are made of it.
sub hostile_database
{
	my ($node, $database) = @_;

	$node->safe_psql('postgres', "CREATE ROLE $owner LOGIN; CREATE DATABASE $database OWNER $owner");
	plain_sql($node, $database, $made_from_catalog, "user=$owner");
	return;
}

sub hostile_overloads
{
	my ($node, $database) = @_;

	return plain_sql($node, $database, $overloads, "user=$owner");
}

sub hostile_copies
{
	my ($node, $database) = @_;

	return plain_sql($node, $database, $copies, "user=$owner");
}

# What was reached since the log had that size.
sub reached
{
	my ($node, $offset) = @_;
	my %what = map { $_ => 1 } slurp_file($node->logfile, $offset) =~ /LOG:  REACHED (.*)/g;

	return join "\n", sort keys %what;
}

1;
