-- What a statement ends with: the whole message, or the SQLSTATE alone.
CREATE FUNCTION pg_temp.try(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	d text;
	h text;
BEGIN
	EXECUTE statement;
	RETURN NEXT 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT;
	RETURN NEXT SQLSTATE || ': ' || SQLERRM;
	IF d <> '' THEN RETURN NEXT '  detail: ' || d; END IF;
	IF h <> '' THEN RETURN NEXT '  hint: ' || h; END IF;
END $$;
CREATE FUNCTION pg_temp.code(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
