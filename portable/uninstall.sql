-- Drop the portable edition where it was installed by psql -f, as the same role
-- or a superuser, with the same search_path.  For an extension, use DROP EXTENSION.
SET client_min_messages = warning;
DO $$
DECLARE
	f pg_catalog.regprocedure;
	owner pg_catalog.oid := (SELECT n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) 'dlock'::pg_catalog.name);
BEGIN
	DROP VIEW dlock_locks CASCADE;
	FOR f IN SELECT p.oid::pg_catalog.regprocedure FROM pg_catalog.pg_proc p, pg_catalog.pg_namespace n
			  WHERE n.oid OPERATOR(pg_catalog.=) p.pronamespace AND n.nspname OPERATOR(pg_catalog.=) pg_catalog.current_schema()
				AND p.proname OPERATOR(pg_catalog.~) '^dlock_' AND p.proowner OPERATOR(pg_catalog.=) owner LOOP
		EXECUTE pg_catalog.format('DROP ROUTINE %s', f);
	END LOOP;
	DROP SCHEMA dlock CASCADE;
END
$$;
