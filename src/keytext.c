/*-------------------------------------------------------------------------
 *
 * keytext.c
 *	  The text of a column's value in a lock key.
 *
 * Two sessions that write the same row must come to the same key, or each
 * holds a lock of its own and neither is fenced off.  So the text has to be a
 * function of the value alone:
 *
 * - What a type prints may depend on settings of the session.  They are
 *	 pinned while it prints, to what pg_dump and postgres_fdw use, and the time
 *	 zone to GMT.
 * - Values that are equal may print differently.  For the scalar types of
 *	 which that is known, one text is chosen for all of them.  An array, a row,
 *	 a range or a document may contain such values, and is refused.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "keytext.h"

/* Types whose output depends on no setting, and is the same for equal values. */
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
	/* names of objects, as regclass prints them */
	pin("search_path", "pg_catalog, pg_temp");
	pin("quote_all_identifiers", "off");

	getTypeOutputInfo(type, &output, &isvarlena);
	text = OidOutputFunctionCall(output, value);

	AtEOXact_GUC(true, nestlevel);
	return text;
}

/* An error leaves the settings to the end of the (sub)transaction. */
char *
dlock_keytext(Datum value, Form_pg_attribute att)
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
			/* a month of 30 days, a day of 24 hours: so they are compared */
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
