/*-------------------------------------------------------------------------
 *
 * key_text.c
 *	  The text of a column's value in a lock key.
 *
 * Two sessions that write the same row must arrive at the same key.  Otherwise
 * each would hold a different lock, and neither would be fenced.  So the text
 * must depend on the value alone:
 *
 * - The output of a type may depend on settings of the session.  These are
 *	 pinned for the output, to the values that pg_dump and postgres_fdw use, and
 *	 the time zone to GMT.
 * - Equal values may have different output.  For the scalar types that are known
 *	 to do this, one text is chosen for all equal values.  An array, a row, a
 *	 range or a document may contain such values, so these types are refused.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"

#include "compat.h"
#include "fence/fence_trigger.h"

/* Types whose output depends on no setting and is the same for equal values. */
static bool
is_plain(Oid type)
{
	switch (type)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case OIDOID:
		case TEXTOID:
		case VARCHAROID:
		case NAMEOID:
		case CHAROID:
		case UUIDOID:
			return true;
		default:
			return type_is_enum(type);
	}
}

static void
refuse_container(Oid type, Form_pg_attribute att)
{
	char		typtype = get_typtype(type);

	if (typtype == TYPTYPE_COMPOSITE || typtype == TYPTYPE_RANGE ||
		typtype == TYPTYPE_MULTIRANGE || OidIsValid(get_element_type(type)) ||
		type == RECORDOID || type == JSONOID || type == JSONBOID || type == XMLOID)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" of type %s cannot be part of a lock key",
						NameStr(att->attname), format_type_be(att->atttypid)),
				 errdetail("Equal values of this type can have different texts."),
				 errhint("Use a column of a scalar type.")));
}

static void
pin(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

static char *
print_pinned(Datum value, Oid type)
{
	int			nestlevel = NewGUCNestLevel();
	char	   *text;
	Oid			output;
	bool		isvarlena;

	pin("datestyle", "ISO");
	pin("timezone", "GMT");
	pin("intervalstyle", "postgres");
	pin("extra_float_digits", "1");
	pin("bytea_output", "hex");
	pin("lc_monetary", "C");
	/* regclass and the like print the names of objects */
	pin("search_path", "pg_catalog, pg_temp");
	pin("quote_all_identifiers", "off");

	getTypeOutputInfo(type, &output, &isvarlena);
	text = OidOutputFunctionCall(output, value);

	AtEOXact_GUC(true, nestlevel);
	return text;
}

/* After an error, the end of the (sub)transaction restores the settings. */
char *
dlock_key_text(Datum value, Form_pg_attribute att)
{
	Oid			type = getBaseType(att->atttypid);

	refuse_container(type, att);

	switch (type)
	{
		case BPCHAROID:
			return TextDatumGetCString(DirectFunctionCall1(rtrim1, value));
		case NUMERICOID:
			return numeric_normalize(DatumGetNumeric(value));
		case INTERVALOID:
			/* comparison takes a month as 30 days and a day as 24 hours */
			value = DirectFunctionCall1(interval_justify_interval, value);
			break;
		case FLOAT4OID:
			/* minus zero equals zero */
			if (DatumGetFloat4(value) == 0)
				value = Float4GetDatum(0);
			break;
		case FLOAT8OID:
			if (DatumGetFloat8(value) == 0)
				value = Float8GetDatum(0);
			break;
		default:
			break;
	}

	if (is_plain(type))
	{
		Oid			output;
		bool		isvarlena;

		getTypeOutputInfo(type, &output, &isvarlena);
		return OidOutputFunctionCall(output, value);
	}
	return print_pinned(value, type);
}
